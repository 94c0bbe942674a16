"""The posterior as a mixture of normal laws over draws of the second moments, as many as quantiles need."""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.checks import count_unresolved
from dpinfer.inference.newton.glm_scores import BoundedScores
from dpinfer.inference.newton.moments_law import ErrorDraws, MomentsLaw
from dpinfer.inference.newton.sampler import SampledErrors
from dpinfer.inference.newton.scores import GivenMoments, LinearScores
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import NewtonRequest
from dpinfer.models.base import sigmoid, softplus_inverse

__all__ = ["Mixture", "MonteCarloError", "mixture_of", "monte_carlo_error", "theta_of_draws"]


_LEVELS = np.array([0.05, 0.95])  # ends of 90% intervals


@dataclass(frozen=True)
class MonteCarloError:
    """Errors of n coordinates.

    Parameters
    ----------
    quantile : (n,) array
        The larger standard error of the 5% and 95% quantiles, in posterior standard deviations.
    equivalent_draws : (n,) array
        Number of independent draws of the posterior with as exact a mean: more than were drawn, since each
        of these is a normal distribution.
    """

    quantile: FloatArray
    equivalent_draws: FloatArray


def monte_carlo_error(location: FloatArray, variance: FloatArray, sets: int) -> MonteCarloError:
    """Return the Monte Carlo error of a mixture of N(location, variance) over draws and independent sets.

    Parameters
    ----------
    location, variance : (S, n) arrays
    sets : int
        How many independent sets the draws are, innermost.

    Notes
    -----
    Sets are independent, so the error of a mean is that of the sets' own means.  A quantile's error is that of the
    distribution function there, divided by the density (Doss, Flegal, Jones and Neath 2014, with the distribution
    function of each normal in place of an indicator).
    """
    ends = NormalMixtures.from_draws(location, variance).quantile(_LEVELS)
    location, variance = (part.reshape(-1, sets, part.shape[1]) for part in (location, variance))
    mean = location.mean(axis=(0, 1))
    total = variance.mean(axis=(0, 1)) + np.square(location - mean).mean(axis=(0, 1))

    def error(values: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(values.mean(axis=0).var(axis=0, ddof=1) / values.shape[1]))

    scale, spread = np.sqrt(variance), np.sqrt(total)
    worst = np.zeros_like(mean)
    for end in ends:
        z = (end - location) / scale
        density = (np.exp(-0.5 * z**2) / scale).mean(axis=(0, 1)) / np.sqrt(2.0 * np.pi)
        worst = np.maximum(worst, error(special.ndtr(z)) / density)
    least = 1e-300 * np.maximum(total, 1.0)
    return MonteCarloError(worst / spread, total / np.maximum(np.square(error(location)), least))


_GROWTH = 1.3, 2.0  # ends of the factor by which draws grow
_SETS = 32  # independent sets of draws
_HIDDEN_DRAWS = 16  # of a set, where errors are drawn
_CHAINS, _WARM_UP = 8, 100  # of a set, where a sampler draws them; its steps before, unless the request has others
_ENTRIES, _MOST_DRAWS = 50_000, 16  # else draws of a set, as many as entries of factors allow
_KEPT = (2_000_000, 16), (20_000_000, 64)  # entries of factors and batches: while draws cost little; in all, 160 MB


@dataclass(frozen=True)
class Mixture:
    """A posterior distribution, its Monte Carlo error, and both in words.

    Parameters
    ----------
    distribution : DrawnTheta
    error : MonteCarloError
    words : str
    variance : (S, n) array
        Given each draw of the rest.
    misfit : (S, k) array
        Chi-squared sums of the draws.
    """

    distribution: DrawnTheta
    error: MonteCarloError
    words: str
    variance: FloatArray
    misfit: FloatArray


def mixture_of(scores: LinearScores | BoundedScores, request: NewtonRequest) -> Mixture:
    """Draw second moments until the error of both quantiles is below 5% of the posterior standard deviation.

    Parameters
    ----------
    scores : LinearScores or BoundedScores
    request : NewtonRequest

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` allows a warning.
    """
    report = resolve_progress(request.progress, "posterior")
    report(0, 100)
    d, rng = len(scores.noisy), np.random.default_rng(request.seed)
    middle = scores.middle()
    law = MomentsLaw(scores.noisy, scores.stddev, middle.mean_scores(scores.whitening))
    hidden = count_unresolved(scores.noisy, tuning.TUNING.near_hidden * scores.stddev) > 0
    errors: ErrorDraws | SampledErrors | None = None
    if request.sampler is not None:
        n_warmup = _WARM_UP if request.n_warmup is None else request.n_warmup
        errors = SampledErrors(law, request.sampler, _SETS * _CHAINS, n_warmup, rng)
    elif hidden and d <= tuning.TUNING.few:
        errors = ErrorDraws(law)
    of_set = _CHAINS if request.sampler is not None else _HIDDEN_DRAWS
    size = _SETS * (of_set if errors else int(np.clip(_ENTRIES // d**2, 1, _MOST_DRAWS)))
    if errors and errors.hidden:
        errors.draw(size, _SETS, np.random.default_rng(request.seed))
        errors.hidden *= errors.counted >= tuning.TUNING.definite
    few, most = (int(np.clip(entries // (size * d**2), 1, top)) for entries, top in _KEPT)
    kept: list[tuple[FloatArray, ...]] = []
    wanted = 2 if errors else 1
    while True:
        while len(kept) < wanted:
            draws = errors.draw(size, _SETS, rng) if errors else law.normal(size, _SETS, rng)
            given = scores.given(draws, rng)
            kept.append((*_normal_laws(given), given.misfit))
            report(min(100 * len(kept) // most, 99), 100)
        location, variance, factor, misfit = (np.concatenate(part) for part in zip(*kept, strict=True))
        error = monte_carlo_error(location, variance, _SETS)
        worst = float(np.max(error.quantile))
        aim, end = (tuning.TUNING.fine, few) if wanted < few else (tuning.TUNING.aim, most)
        if worst < aim or wanted >= most:
            break
        growth = float(np.clip(1.2 * (worst / aim) ** 2, *_GROWTH))
        wanted = min(math.ceil(growth * wanted), end)
    report(100, 100)
    if errors is None and count_unresolved(scores.noisy, scores.stddev):
        worst = max(worst, tuning.TUNING.rough)
        error = replace(error, quantile=np.maximum(error.quantile, worst))
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(means as exact as of {np.min(error.equivalent_draws):.0f} independent draws or more)"
    )
    if worst >= tuning.TUNING.error:
        if request.check_convergence and not request.fallback:
            raise NumericalError(f"{said}: pass check_convergence=False")
        said = f"{said}: more than {tuning.TUNING.error:.0%}"
    data = np.zeros((location.shape[1], location.shape[1]))
    data[:d, :d] = middle.without_noise(draws, scores.whitening)
    data[d:, d:] = variance[:, d:].mean(axis=0)
    return Mixture(theta_of_draws(location, variance, factor, data), error, f"{said}.", variance, misfit)


def _normal_laws(found: GivenMoments) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean, variance, (S, n) each, and factors (S, n, n) of precisions of all parameters."""
    mean, variance, factor = found.mean, found.variance, found.factor
    if found.log_scale is None or found.log_scale_stddev is None:
        return mean, variance, factor
    square = np.exp(2.0 * found.log_scale)
    rho = softplus_inverse(square)
    spread = 2.0 * square * found.log_scale_stddev / sigmoid(rho)
    wider = np.zeros((len(mean), mean.shape[1] + 1, mean.shape[1] + 1))
    wider[:, :-1, :-1], wider[:, -1, -1] = factor, 1.0 / spread
    return np.column_stack((mean, rho)), np.column_stack((variance, np.square(spread))), wider


def theta_of_draws(location: FloatArray, variance: FloatArray, factor: FloatArray, data: FloatArray) -> DrawnTheta:
    """Return the distribution of theta, N(location, variance) in every draw, and the causes of its variance.

    Variance beyond the sampling error is due to the privacy noise, which includes unknown second moments.

    Parameters
    ----------
    location, variance : (..., n) arrays
    factor : (S, n, n) array
        Lower Cholesky factors of the precisions.
    data : (n, n) array
        Covariance without privacy noise.
    """
    n = location.shape[-1]
    location, variance = location.reshape(-1, n), variance.reshape(-1, n)
    total = variance.mean(axis=0) + location.var(axis=0)
    from_data = np.minimum(np.diag(data), total)
    parts = VarianceParts(from_data, total - from_data, np.zeros_like(total))
    return DrawnTheta(location, None, factor, parts, data)
