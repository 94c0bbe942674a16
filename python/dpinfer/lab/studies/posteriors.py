"""Posteriors of a chunk of simulated releases, and a study's record of them."""

from collections.abc import Callable, Sequence

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.theta import IndependentTheta, ThetaDistribution
from dpinfer.inference.trace.collapsed import CollapsedProblems, collapsed_nodes
from dpinfer.inference.trace.laplace import laplace_posterior
from dpinfer.inference.trace.priors import coordinate_priors
from dpinfer.inference.trace.scales.fisher import FisherRun
from dpinfer.inference.trace.scales.tied import fisher_tied_nodes
from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.random_streams import run_generator
from dpinfer.lab.studies.simulation import RunData, RunReleases

__all__ = ["by_coordinate", "chunk_result", "each", "plug_in", "tied"]

_DRAWS = 2  # number of a stream
_TAILS = np.array([0.05, 0.95])  # ends of 90% intervals, as in all studies


def tied(
    releases: RunReleases, run: FisherRun, *, burn_in: float, extra_noise: bool, correct: bool, n_threads: int
) -> list[IndependentTheta]:
    """Return the tied posterior of every run."""
    trace = releases.tied_trace(burn_in)
    n = run.model.n_params
    runs = trace.scale_square.shape[0] // n
    nodes = fisher_tied_nodes(
        trace, run, run.model.names * runs, extra_noise=extra_noise, correct=correct, n_threads=n_threads
    )
    mixtures = NormalMixtures(nodes.offsets, nodes.weight, nodes.mean, nodes.variance)
    posteriors = []
    for row in range(runs):
        part = slice(nodes.offsets[row * n], nodes.offsets[(row + 1) * n])
        posteriors.append(
            IndependentTheta(
                mixtures.take(row * n, (row + 1) * n), nodes.inflation[part], 1.0 / nodes.hessian[part], None
            )
        )
    return posteriors


def by_coordinate(
    releases: RunReleases, n_params: int, *, method: str, prior: str, burn_in: float, extra_noise: bool, n_threads: int
) -> list[IndependentTheta]:
    """Return the posterior with a diagonal Hessian of every run, by quadrature or by Laplace's approximation."""
    n, width = n_params, 2 * n_params
    rate = releases.settings.sample_rate
    statistics = releases.statistics(burn_in, width)
    problems = CollapsedProblems.build(
        statistics, coordinate_priors(prior, statistics, rate), rate, extra_noise=extra_noise
    )
    names = tuple(f"coordinate {index}" for index in range(problems.table.shape[0]))
    nodes = collapsed_nodes(problems, names, n_threads=n_threads)
    if method == "laplace":
        nodes = laplace_posterior(problems, nodes, names).nodes(coupled=False)
    mixtures = NormalMixtures(nodes.offsets, nodes.weight, nodes.mean, nodes.variance)
    posteriors = []
    for start in range(0, problems.table.shape[0], width):
        part = slice(nodes.offsets[start], nodes.offsets[start + n])
        inflation = nodes.inflation[part]
        posteriors.append(
            IndependentTheta(
                mixtures.take(start, start + n),
                inflation,
                np.zeros_like(inflation),
                mixtures.take(start + n, start + width),
            )
        )
    return posteriors


def each(
    releases: RunReleases, solve: Callable[[RunReleases], list[IndependentTheta]]
) -> list[IndependentTheta | None]:
    """Solve all runs at once, or, after a failure, one by one: None for runs without a posterior."""
    try:
        return list(solve(releases))
    except NumericalError:
        posteriors: list[IndependentTheta | None] = []
        for row in range(releases.finite.shape[0]):
            try:
                posteriors += solve(releases.take(row))
            except NumericalError:
                posteriors.append(None)
        return posteriors


def plug_in(params: FloatArray, spread: FloatArray | None = None) -> list[IndependentTheta]:
    """Return q at the given variational parameters (k, 2 n), with its variance increased by `spread` (k, n)."""
    n = params.shape[1] // 2
    zero = np.zeros(n)
    if spread is None:
        spread = np.zeros((params.shape[0], n))
    return [
        IndependentTheta(
            NormalMixtures.single(row[:n].copy(), own.copy()),
            np.ones(n),
            zero,
            NormalMixtures.single(row[n:].copy(), zero),
        )
        for row, own in zip(params, spread, strict=True)
    ]


def chunk_result(
    posteriors: Sequence[ThetaDistribution | None], data: RunData, *, first: int, seed: int, n_draws: int
) -> ChunkResult:
    """Draw from every run's posterior and judge the truth by it; runs without one have failed."""
    runs, n = data.truth.shape
    draws = np.full((n_draws, runs, n), np.nan)
    centre, scale, pit, width = (np.full((runs, n), np.nan) for _ in range(4))
    for row, posterior in enumerate(posteriors):
        if posterior is None:
            continue
        marginals = posterior.marginals
        centre[row], scale[row] = marginals.mean, np.sqrt(marginals.variance)
        quantiles = marginals.quantile(_TAILS)
        width[row] = quantiles[1] - quantiles[0]
        pit[row] = [float(marginals.cdf(j, data.truth[row, j])) for j in range(n)]
        draws[:, row] = posterior.draw(n_draws, run_generator(seed, _DRAWS, first + row))
    return ChunkResult(
        truth=data.truth,
        draws=draws,
        centre=centre,
        scale=scale,
        pit=pit,
        width90=width,
        reference_width90=data.reference_width90,
        failed=np.array([posterior is None for posterior in posteriors]),
    )
