"""A posterior object of each Gibbs sampler, for :func:`dpinfer.noise_aware_posterior`."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dpinfer.inference.gibbs.conjugate import conjugate_states, family_of
from dpinfer.inference.gibbs.families import BinomialFamily, CategoricalFamily, ConjugateFamily, ExponentialFamily
from dpinfer.inference.gibbs.regression import Chains, RegressionPrior, moments_from_release
from dpinfer.inference.gibbs.regression_indices import statistic_indices
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import PosteriorRequest
from dpinfer.models import BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential
from dpinfer.release import StatisticRelease

__all__ = ["conjugate_gibbs_posterior", "regression_gibbs_posterior"]

FloatArray = npt.NDArray[np.float64]

_CONJUGATE_LENGTHS, _REGRESSION_LENGTHS = (500, 1000), (2000, 5000)


def conjugate_gibbs_posterior(release: StatisticRelease, request: PosteriorRequest) -> Posterior:
    """Return the posterior that the sampler of Bernstein and Sheldon (2018) draws, for one release.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : StatisticRelease
        From :func:`dpinfer.baselines.release_statistics`.
    request : PosteriorRequest
        Checked; `n_samples`, `n_warmup` and `seed` are used.
    """
    family = family_of(release)
    model = _model_of(family)
    noisy, scale = np.array(release.noisy_statistics)[None], np.array(release.laplace_scale)
    states = conjugate_states(family, noisy, scale, release.n_records, np.random.default_rng(request.seed))
    again = np.random.default_rng([request.seed, 1])

    def pairs() -> Iterator[tuple[FloatArray, FloatArray]]:
        for statistic, theta in states:
            yield theta[0], family.draw_parameters(statistic, theta, release.n_records, again)[0]

    # The last of several probabilities is what the others leave.
    kept = (drawn[:, : model.n_params] for drawn in _kept(pairs(), family.n_params, request, _CONJUGATE_LENGTHS))
    draws, twins = (model.unconstrain(drawn) for drawn in kept)
    return _posterior(release, model.names, model, draws, twins)


def regression_gibbs_posterior(release: StatisticRelease, request: PosteriorRequest) -> Posterior:
    """Return the posterior that Gibbs-SS-Noisy (Bernstein and Sheldon 2019) draws, under its published prior.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : StatisticRelease
        From :func:`dpinfer.baselines.release_regression_statistics`, with third and fourth moments.
    request : PosteriorRequest
        Checked; `n_samples`, `n_warmup` and `seed` are used.
    """
    d = int(release.settings["n_features"])
    noisy, width = np.array(release.noisy_statistics)[None], len(statistic_indices(d))
    moments = moments_from_release(noisy, d, release.n_records)
    scale = np.array(release.laplace_scale)[:width]
    chains = Chains(noisy[:, :width], scale, *moments, d=d, n_records=release.n_records, prior=RegressionPrior())
    again = np.random.default_rng([request.seed, 1])

    def pairs() -> Iterator[tuple[FloatArray, FloatArray]]:
        for matrix, weights, variance in chains.states(np.random.default_rng([request.seed, 0])):
            more_weights, more_variance = chains.draw_parameters(matrix, again)
            yield np.append(weights[0], variance[0]), np.append(more_weights[0], more_variance[0])

    names = (*(f"coef[{index}]" for index in range(d)), "intercept", "noise_variance")
    return _posterior(release, names, None, *_kept(pairs(), len(names), request, _REGRESSION_LENGTHS))


def _model_of(family: ConjugateFamily) -> ConjugateModel:
    if isinstance(family, BinomialFamily):
        return BetaBinomial(family.n_trials, family.a, family.b)
    if isinstance(family, CategoricalFamily):
        return DirichletCategorical(family.concentration)
    if isinstance(family, ExponentialFamily):
        return GammaExponential(family.shape, family.rate)
    raise TypeError(f"release must be of a conjugate family of its own, got {type(family).__name__}")


def _kept(
    pairs: Iterator[tuple[FloatArray, FloatArray]], n: int, request: PosteriorRequest, lengths: tuple[int, int]
) -> tuple[FloatArray, FloatArray]:
    """Return the draws after the warm-up and their twins, drawn from the same statistics: (draws, n) each."""
    n_warmup = lengths[0] if request.n_warmup is None else request.n_warmup
    n_samples = lengths[1] if request.n_samples is None else request.n_samples
    draws, twins = np.empty((n_samples, n)), np.empty((n_samples, n))
    for iteration, pair in zip(range(n_warmup + n_samples), pairs, strict=False):
        if iteration >= n_warmup:
            draws[iteration - n_warmup], twins[iteration - n_warmup] = pair
    return draws, twins


def _posterior(
    release: StatisticRelease,
    names: tuple[str, ...],
    model: ConjugateModel | None,
    draws: FloatArray,
    twins: FloatArray,
) -> Posterior:
    total = draws.var(axis=0)
    # Twins differ by what the data, were their statistic known, would leave open.
    data = np.minimum(0.5 * np.mean((draws - twins) ** 2, axis=0), total)
    parts = VarianceParts(data, total - data, np.zeros_like(total))
    unknown = np.full(len(names), np.nan)
    return Posterior(
        names=names,
        method="gibbs",
        hessian="none",
        prior="model",
        burn_in=0,
        optimum_names=names,
        optimum_mean=draws.mean(axis=0),
        optimum_stddev=np.sqrt(total),
        hessian_mean=unknown,
        hessian_stddev=unknown.copy(),
        distribution=DrawnTheta(draws, np.zeros_like(draws), None, parts),
        model=model,
        guarantee=release.guarantee,
    )
