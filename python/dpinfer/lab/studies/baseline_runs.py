"""Runs of the sufficient-statistic baselines on a study's own simulated data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import settings_of
from dpinfer.lab.baselines import (
    RegressionPrior,
    gibbs_posterior,
    gibbs_ss_noisy,
    release_regression_statistics,
    release_statistics,
)
from dpinfer.lab.baselines.gibbs.families import conjugate_family
from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.random_streams import RELEASES, SAMPLERS, run_seed
from dpinfer.testing import InsecureRNG

__all__ = [
    "GibbsOptions",
    "GibbsSettings",
    "SimulatedConjugate",
    "SimulatedRegression",
    "bernstein_sheldon_chunk",
    "gibbs_ss_noisy_chunk",
]

_BLOCK = 25  # runs whose Gibbs chains advance together; a block is always whole, so a run does not depend on its chunk
_TAILS = (0.05, 0.95)  # ends of 90% intervals, as in all studies


@dataclass(frozen=True, eq=False)
class SimulatedConjugate:
    """Data of k runs of a conjugate study.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    truth : (k, n) float64
        On the unconstrained space.
    records : (k, N) array
        As :func:`dpinfer.lab.baselines.release_statistics` takes them, one row for each run.
    reference_width90 : (k, n) float64
        Width of the exact posterior's 90% interval without privacy, unconstrained; nan where unknown.
    """

    truth: FloatArray
    records: npt.NDArray[Any]
    reference_width90: FloatArray


@dataclass(frozen=True, eq=False)
class SimulatedRegression:
    """Data of k runs of a linear regression study.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    truth : (k, d + 2) float64
        Weights, bias, and the inverse softplus of the noise variance.
    features : (k, N, d) float64
    response : (k, N) float64
    reference_width90 : (k, d + 2) float64
        As for :class:`SimulatedConjugate`.
    """

    truth: FloatArray
    features: FloatArray
    response: FloatArray
    reference_width90: FloatArray


class GibbsOptions(TypedDict, total=False):
    """Fields of :class:`GibbsSettings` as keyword arguments."""

    prior: RegressionPrior
    feature_bound: float
    response_bound: float
    moment_share: float
    feature_moments: tuple[FloatArray, FloatArray] | None
    n_burn_in: int
    n_samples: int


@dataclass(frozen=True, kw_only=True, eq=False)
class GibbsSettings:
    """The settings of Gibbs-SS-Noisy, which checks them: released moments, prior, and length of chains.

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    prior : RegressionPrior
    feature_bound, response_bound : float
        *Public* bounds that the data are clipped to.
    moment_share : float in [0, 1)
        Share of epsilon for third and fourth moments.
    feature_moments : pair, optional
        *Public* moments of the features; needed when `moment_share` is 0.
    n_burn_in, n_samples : int
        Dropped and kept iterations.

    Raises
    ------
    TypeError
        If a prior or a bound is not given, or a field is unknown.

    Examples
    --------
    >>> GibbsSettings(prior=RegressionPrior(), feature_bound=4.0, response_bound=4.0).n_samples
    5000
    """

    prior: RegressionPrior
    feature_bound: float
    response_bound: float
    moment_share: float = 0.5
    feature_moments: tuple[FloatArray, FloatArray] | None = None
    n_burn_in: int = 2000
    n_samples: int = 5000


def bernstein_sheldon_chunk(
    first: int,
    count: int,
    *,
    simulate: Callable[[int, int], SimulatedConjugate],
    model: Any,
    unconstrain: Callable[[FloatArray], FloatArray],
    epsilon: float,
    seed: int,
    bounds: tuple[float, float] | None = None,
    n_burn_in: int = 500,
    n_samples: int = 1000,
    n_draws: int | None = None,
) -> ChunkResult:
    """Return the Bernstein-Sheldon posteriors of a chunk of runs.

    **Privacy.** Simulated records only, with noise from a seeded generator.

    Parameters
    ----------
    first, count : int
        The runs.
    simulate : callable
        ``simulate(first, count)`` returns the study's data of those runs; run i must not depend on the chunk.
    model : ConjugateFamily or conjugate model
        As for :func:`dpinfer.lab.baselines.release_statistics`.
    unconstrain : callable
        Maps the sampler's parameters (..., p) to the study's unconstrained ones (..., n).  The sampler of a categorical
        model returns all its probabilities.
    epsilon : float
    seed : int
        Of the study.
    bounds : pair of float, optional
        The *public* section of an unbounded model.
    n_burn_in, n_samples : int
        Dropped and kept iterations.
    n_draws : int, optional
        How many of the kept iterations to return as draws, evenly spaced; all by default.

    Returns
    -------
    ChunkResult
        With moments, distribution functions and widths from all kept iterations.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    Bernstein and Sheldon (2018), Algorithm 1.  Chains advance in blocks of 25 consecutive runs that start at a multiple
    of 25 and are simulated whole, so chunks that end at such multiples waste nothing.

    Draws come from one Markov chain: thin them (`n_draws`) for exact tests of ranks.
    """
    family = conjugate_family(model, bounds=bounds)

    def block(start: int) -> tuple[SimulatedConjugate, FloatArray]:
        data = simulate(start, _BLOCK)
        releases = [
            release_statistics(
                family,
                records,
                epsilon=epsilon,
                n_records=records.shape[0],
                random_source=InsecureRNG(run_seed(seed, RELEASES, start + row)),
            )
            for row, records in enumerate(data.records)
        ]
        draws = gibbs_posterior(
            family,
            np.stack([release.noisy_statistics for release in releases]),
            laplace_scale=releases[0].laplace_scale,
            n_records=data.records.shape[1],
            n_burn_in=n_burn_in,
            n_samples=n_samples,
            seed=run_seed(seed, SAMPLERS, start),
        )
        return data, unconstrain(draws)

    return _in_blocks(first, count, block, n_draws)


def gibbs_ss_noisy_chunk(
    first: int,
    count: int,
    settings: GibbsSettings | None = None,
    *,
    simulate: Callable[[int, int], SimulatedRegression],
    epsilon: float,
    seed: int,
    n_draws: int | None = None,
    n_threads: int | None = None,
    **options: Unpack[GibbsOptions],
) -> ChunkResult:
    """Return the Gibbs-SS-Noisy posteriors of a chunk of runs of linear regression.

    **Privacy.** Simulated records only, with noise from a seeded generator.

    Parameters
    ----------
    first, count, simulate, epsilon, seed, n_draws
        As for :func:`bernstein_sheldon_chunk`.
    settings : GibbsSettings, optional
        Of the sampler, in one object; the keyword arguments below change it.
    n_threads : int, optional
        No result depends on it.
    prior, feature_bound, response_bound, moment_share, feature_moments, n_burn_in, n_samples
        Fields of :class:`GibbsSettings`; the first three must be given without `settings`.

    Returns
    -------
    ChunkResult

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    Bernstein and Sheldon (2019), Algorithm 1 with the Gibbs-SS-Noisy update.  Seconds for each block of 25 runs of ten
    features and a thousand iterations.
    """
    settings = settings_of("gibbs_ss_noisy_chunk", GibbsSettings, settings, options)

    def block(start: int) -> tuple[SimulatedRegression, FloatArray]:
        data = simulate(start, _BLOCK)
        releases = [
            release_regression_statistics(
                features,
                response,
                epsilon=epsilon,
                n_records=features.shape[0],
                feature_bound=settings.feature_bound,
                response_bound=settings.response_bound,
                moment_share=settings.moment_share,
                random_source=InsecureRNG(run_seed(seed, RELEASES, start + row)),
            )
            for row, (features, response) in enumerate(zip(data.features, data.response, strict=True))
        ]
        draws = gibbs_ss_noisy(
            np.stack([release.noisy_statistics for release in releases]),
            laplace_scale=releases[0].laplace_scale,
            n_features=data.features.shape[2],
            n_records=data.features.shape[1],
            prior=settings.prior,
            feature_moments=settings.feature_moments,
            n_burn_in=settings.n_burn_in,
            n_samples=settings.n_samples,
            seed=run_seed(seed, SAMPLERS, start),
            n_threads=n_threads,
        )
        variance = draws[..., -1]
        # The inverse of softplus, which does not overflow.
        draws[..., -1] = variance + np.log(-np.expm1(-variance))
        return data, draws

    return _in_blocks(first, count, block, n_draws)


def _in_blocks(
    first: int,
    count: int,
    block: Callable[[int], tuple[SimulatedConjugate | SimulatedRegression, FloatArray]],
    n_draws: int | None,
) -> ChunkResult:
    """Compute the blocks that hold the runs, and keep the runs."""
    columns: list[list[FloatArray]] = [[] for _ in range(6)]
    kept: list[FloatArray] = []
    for start in range(first - first % _BLOCK, first + count, _BLOCK):
        data, draws = block(start)
        # Over the whole block, then cut: the order of a sum over draws changes with the number of runs beside it.
        low, high = np.quantile(draws, _TAILS, axis=0)
        n_kept = len(draws)
        # Half a draw away from 0 and 1: a distribution function estimated from draws is never certain.
        pit = (np.count_nonzero(draws < data.truth, axis=0) + 0.5) / (n_kept + 1.0)
        values = (data.truth, draws.mean(axis=0), draws.std(axis=0, ddof=1), pit, high - low, data.reference_width90)
        rows = slice(max(first - start, 0), min(first + count - start, _BLOCK))
        chosen = slice(None) if n_draws is None else np.linspace(0, n_kept - 1, min(n_draws, n_kept)).astype(np.intp)
        kept.append(draws[chosen][:, rows])
        for column, value in zip(columns, values, strict=True):
            column.append(value[rows])
    truth, centre, scale, pit, width, reference = (np.concatenate(column) for column in columns)
    with np.errstate(invalid="ignore"):
        failed = np.asarray(~(np.isfinite(scale) & (scale > 0.0)).all(axis=1))
    return ChunkResult(
        truth=truth,
        draws=np.ascontiguousarray(np.concatenate(kept, axis=1)),
        centre=centre,
        scale=scale,
        pit=pit,
        width90=width,
        reference_width90=reference,
        failed=failed,
    )
