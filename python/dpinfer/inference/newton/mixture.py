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
    """Errors of n coordinates."""

    # (n,): the larger standard error of the 5% and 95% quantiles, in posterior standard deviations
    quantile: FloatArray
    # (n,): number of independent draws of the posterior with as exact a mean: more than were drawn, since each of these
    # is a normal distribution
    equivalent_draws: FloatArray


def monte_carlo_error(
    # location, variance: (S, n)
    location: FloatArray,
    variance: FloatArray,
    sets: int,  # how many independent sets the draws are, innermost
) -> MonteCarloError:
    """Return the Monte Carlo error of a mixture of N(location, variance) over draws and independent sets.

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
_CHAINS, _WARM_UP = 8, 100  # of a set, where a sampler draws; its steps before, unless the request has others
_ENTRIES, _DRAWN, _NORMAL = 50_000, (16, 64), (1, 16)  # draws of a set: as many as entries allow, where drawn or not
_KEPT, _MOST = (3_000_000, 20_000_000), (24_576, 98_304)  # entries of factors, draws: while they cost little; in all


@dataclass(frozen=True)
class Mixture:
    """A posterior distribution, its Monte Carlo error, and both in words."""

    distribution: DrawnTheta
    error: MonteCarloError
    words: str
    variance: FloatArray  # (S, n): given each draw of the rest
    misfit: FloatArray  # (S, k): chi-squared sums of the draws


def mixture_of(scores: LinearScores | BoundedScores, request: NewtonRequest) -> Mixture:
    """Draw second moments until the error of both quantiles is below 5% of the posterior standard deviation.

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` allows a warning.
    """
    report = resolve_progress(request.progress, "posterior")
    d, rng = len(scores.noisy), np.random.default_rng(request.seed)
    middle = scores.middle()
    law = MomentsLaw(scores.noisy, scores.stddev, middle.mean_scores(scores.whitening))
    hidden = count_unresolved(scores.noisy, scores.stddev) > 0
    errors: ErrorDraws | None = None
    ends = _NORMAL
    if request.sampler is not None:
        n_warmup = _WARM_UP if request.n_warmup is None else request.n_warmup
        errors, ends = SampledErrors(law, request.sampler, _SETS * _CHAINS, n_warmup, rng), (_CHAINS, _CHAINS)
    elif d <= tuning.TUNING.few and (hidden or law.bent > tuning.TUNING.near_hidden):
        errors, ends = ErrorDraws(law), _DRAWN
    size = _SETS * int(np.clip(_ENTRIES // d**2, *ends))
    if errors and errors.hidden:
        errors.draw(_SETS * _DRAWN[0], _SETS, np.random.default_rng(request.seed))
        errors.hidden *= errors.counted >= tuning.TUNING.definite
    few, most = (max(min(entries // d**2, draws) // size, 1) for entries, draws in zip(_KEPT, _MOST, strict=True))
    kept: list[tuple[FloatArray, ...]] = []
    wanted = 1
    report(0, most)
    while True:
        while len(kept) < wanted:
            draws = errors.draw(size, _SETS, rng) if errors else law.normal(size, _SETS, rng)
            given = scores.given(draws, rng)
            kept.append((*_normal_laws(given), given.misfit))
            report(min(len(kept), most - 1), most)
        location, variance, factor, misfit = (np.concatenate(part) for part in zip(*kept, strict=True))
        error = monte_carlo_error(location, variance, _SETS)
        worst = float(np.max(error.quantile))
        cheap = wanted < few and request.sampler is None
        aim, end = (tuning.TUNING.fine, few) if cheap else (tuning.TUNING.aim, most)
        if worst < aim or wanted >= most:
            break
        growth = float(np.clip(1.2 * (worst / aim) ** 2, *_GROWTH))
        wanted = min(math.ceil(growth * wanted), end)
    report(most, most)
    if errors is None and hidden:
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


def theta_of_draws(
    # location, variance: (..., n)
    location: FloatArray,
    variance: FloatArray,
    factor: FloatArray,  # (S, n, n): lower Cholesky factors of the precisions
    data: FloatArray,  # (n, n): covariance without privacy noise
) -> DrawnTheta:
    """Return the distribution of theta, N(location, variance) in every draw, and the causes of its variance.

    Variance beyond the sampling error is due to the privacy noise, which includes unknown second moments.
    """
    n = location.shape[-1]
    location, variance = location.reshape(-1, n), variance.reshape(-1, n)
    total = variance.mean(axis=0) + location.var(axis=0)
    from_data = np.minimum(np.diag(data), total)
    parts = VarianceParts(from_data, total - from_data, np.zeros_like(total))
    return DrawnTheta(location, None, factor, parts, data)
