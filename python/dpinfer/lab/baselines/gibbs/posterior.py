"""A posterior object of each Gibbs sampler."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.lab.baselines.gibbs.conjugate import conjugate_states, family_of
from dpinfer.lab.baselines.gibbs.families import BinomialFamily, CategoricalFamily, ConjugateFamily, ExponentialFamily
from dpinfer.lab.baselines.gibbs.regression import Chains, RegressionPrior, moments_from_release
from dpinfer.lab.baselines.gibbs.regression_indices import statistic_indices
from dpinfer.models import BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential
from dpinfer.release import StatisticRelease

__all__ = ["gibbs_sampler_posterior"]


@dataclass(frozen=True)
class _Chain:
    """The settings of a chain: its iterations and its seed."""

    n_samples: int
    n_warmup: int
    seed: int


def gibbs_sampler_posterior(
    release: StatisticRelease, *, n_samples: int | None = None, n_warmup: int | None = None, seed: int = 0
) -> Posterior:
    """Return the posterior that the published Gibbs sampler of a baseline draws, for one release.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : StatisticRelease
        From :func:`dpinfer.lab.baselines.release_statistics`, or from
        :func:`dpinfer.lab.baselines.release_regression_statistics` with third and fourth moments.
    n_samples, n_warmup : int, optional
        Kept and dropped iterations: 1000 and 500 for a conjugate model (Bernstein and Sheldon 2018), 5000 and 2000 for
        a linear regression (Gibbs-SS-Noisy, 2019).
    seed : int

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the release is not of one of these mechanisms.

    Examples
    --------
    >>> from dpinfer.lab.baselines import BinomialFamily, release_statistics
    >>> release = release_statistics(BinomialFamily(), [0.0, 1.0, 1.0, 1.0] * 25, epsilon=1.0, n_records=100)
    >>> gibbs_sampler_posterior(release, n_samples=100).method
    'gibbs'
    """
    if not isinstance(release, StatisticRelease) or release.method not in ("bernstein_sheldon", "gibbs_ss_noisy"):
        raise ValueError("release must be that of release_statistics or release_regression_statistics")
    if release.settings.get("moment_share") == 0.0:
        raise ValueError(
            "release must hold third and fourth moments: without them call gibbs_ss_noisy_posterior with public "
            "feature_moments"
        )
    conjugate = release.method == "bernstein_sheldon"
    warmup, samples = (500, 1000) if conjugate else (2000, 5000)
    chain = _Chain(
        samples if n_samples is None else check_integer("n_samples", n_samples, 1),
        warmup if n_warmup is None else check_integer("n_warmup", n_warmup, 0),
        check_integer("seed", seed, 0),
    )
    return (_conjugate if conjugate else _regression)(release, chain)


def _conjugate(release: StatisticRelease, chain: _Chain) -> Posterior:
    family = family_of(release)
    model = _model_of(family)
    noisy, scale = np.array(release.noisy_statistics)[None], np.array(release.laplace_scale)
    states = conjugate_states(family, noisy, scale, release.n_records, np.random.default_rng(chain.seed))
    again = np.random.default_rng([chain.seed, 1])

    def pairs() -> Iterator[tuple[FloatArray, FloatArray]]:
        for statistic, theta in states:
            yield theta[0], family.draw_parameters(statistic, theta, release.n_records, again)[0]

    # The last of several probabilities is 1 less the others.
    parameters = (drawn[:, : model.n_params] for drawn in _kept(pairs(), family.n_params, chain))
    draws, twins = (model.unconstrain(drawn) for drawn in parameters)
    return _posterior(release, model.names, model, draws, twins)


def _regression(release: StatisticRelease, chain: _Chain) -> Posterior:
    d = int(release.settings["n_features"])
    noisy, width = np.array(release.noisy_statistics)[None], len(statistic_indices(d))
    moments = moments_from_release(noisy, d, release.n_records)
    scale = np.array(release.laplace_scale)[:width]
    chains = Chains(noisy[:, :width], scale, *moments, d=d, n_records=release.n_records, prior=RegressionPrior())
    again = np.random.default_rng([chain.seed, 1])

    def pairs() -> Iterator[tuple[FloatArray, FloatArray]]:
        for matrix, weights, variance in chains.states(np.random.default_rng([chain.seed, 0])):
            more_weights, more_variance = chains.draw_parameters(matrix, again)
            yield np.append(weights[0], variance[0]), np.append(more_weights[0], more_variance[0])

    names = (*(f"coef[{index}]" for index in range(d)), "intercept", "noise_variance")
    return _posterior(release, names, None, *_kept(pairs(), len(names), chain))


def _model_of(family: ConjugateFamily) -> ConjugateModel:
    if isinstance(family, BinomialFamily):
        return BetaBinomial(family.n_trials, family.a, family.b)
    if isinstance(family, CategoricalFamily):
        return DirichletCategorical(family.concentration)
    if isinstance(family, ExponentialFamily):
        return GammaExponential(family.shape, family.rate)
    raise TypeError(f"release must be of a conjugate family of its own, got {type(family).__name__}")


def _kept(pairs: Iterator[tuple[FloatArray, FloatArray]], n: int, chain: _Chain) -> tuple[FloatArray, FloatArray]:
    """Return the draws after the warm-up and their twins, drawn from the same statistics: (draws, n) each."""
    draws, twins = np.empty((chain.n_samples, n)), np.empty((chain.n_samples, n))
    for iteration, pair in zip(range(chain.n_warmup + chain.n_samples), pairs, strict=False):
        if iteration >= chain.n_warmup:
            draws[iteration - chain.n_warmup], twins[iteration - chain.n_warmup] = pair
    return draws, twins


def _posterior(
    release: StatisticRelease,
    names: tuple[str, ...],
    model: ConjugateModel | None,
    draws: FloatArray,
    twins: FloatArray,
) -> Posterior:
    total = draws.var(axis=0)
    # Twins differ by the sampling error given a known statistic.
    data = np.minimum(0.5 * np.mean((draws - twins) ** 2, axis=0), total)
    parts = VarianceParts(data, total - data, np.zeros_like(total))
    return Posterior(
        names=names,
        method="gibbs",
        prior="model",
        distribution=DrawnTheta(draws, np.zeros_like(draws), None, parts),
        model=model,
        guarantee=release.guarantee,
    )
