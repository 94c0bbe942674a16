"""The posterior as a mixture of normal laws over draws of the second moments, as many as its quantiles need."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._progress import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.checks import count_unresolved
from dpinfer.inference.newton.moments_law import ErrorChains, MomentsLaw
from dpinfer.inference.newton.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.newton.scores import GivenMoments, Scores
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import PosteriorRequest
from dpinfer.models.bijectors import sigmoid, softplus_inverse

__all__ = ["Mixture", "mixture_of", "theta_of_draws"]

FloatArray = npt.NDArray[np.float64]

_FIRST, _MOST_GROWTH = 8, 2.0  # times that laws are kept at first, and factor by which that grows
_FEWEST, _MOST = 60, 250  # times that chains are kept, at most
# Without chains: independent sets of draws, how many draws are in one (as many as entries of factors allow).
_SETS, _ENTRIES, _FEWEST_DRAWS, _MOST_DRAWS = 8, 100_000, 3, 32


@dataclass(frozen=True)
class Mixture:
    """A posterior distribution, its Monte Carlo error, and both in words.

    Parameters
    ----------
    distribution : DrawnTheta
    error : MonteCarloError
    words : str
    misfit : (S, k) array
        Chi-squared sums of the draws.
    """

    distribution: DrawnTheta
    error: MonteCarloError
    words: str
    misfit: FloatArray


def mixture_of(scores: Scores, request: PosteriorRequest) -> Mixture:
    """Draw second moments until the error of both quantiles is below 5% of the posterior standard deviation.

    Parameters
    ----------
    scores : Scores
    request : PosteriorRequest

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` allows a warning.
    """
    report = resolve_progress(request.progress, "posterior")
    report(0, 100)
    sampler = _Sampler(scores, request.seed)
    wanted = sampler.first
    while True:
        sampler.draw(wanted - sampler.n_kept, lambda share: report(min(int(100 * share), 99), 100))
        error = sampler.error()
        worst = float(np.max(error.quantile))
        if worst < tuning.TUNING.aim or wanted >= sampler.most:
            break
        growth = min(1.2 * (worst / tuning.TUNING.aim) ** 2, _MOST_GROWTH)
        wanted = min(math.ceil(max(growth, 1.3) * wanted), sampler.most)
    report(100, 100)
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(means as exact as of {np.min(error.equivalent_draws):.0f} independent draws or more)"
    )
    if worst >= tuning.TUNING.error:
        if request.check_convergence and not request.fallback:
            raise NumericalError(f"{said}: pass check_convergence=False")
        said = f"{said}: more than {tuning.TUNING.error:.0%}"
    distribution, misfit = sampler.mixture()
    return Mixture(distribution, error, f"{said}.", misfit)


class _Sampler:
    """Normal laws of the weights given draws of the second moments."""

    def __init__(self, scores: Scores, seed: int) -> None:
        self._scores, self._rng = scores, np.random.default_rng(seed)
        d = len(scores.noisy)
        self._law = MomentsLaw(scores.noisy, scores.stddev, scores.mean_scores())
        self._size = int(np.clip(_ENTRIES // d**2, _FEWEST_DRAWS, _MOST_DRAWS))
        self._chains: ErrorChains | None = None
        self.first, self.most = 1, _FIRST
        if d <= tuning.TUNING.few and count_unresolved(scores.noisy, tuning.TUNING.near_hidden * scores.stddev) > 0:
            self._chains = ErrorChains(self._law, tuning.TUNING.chains, self._rng)
            self.first, self.most = _FIRST, int(np.clip(tuning.TUNING.kept // d**2, _FEWEST, _MOST))
            self._chains.advance(tuning.TUNING.warm_up)
        self._kept: list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]] = []

    @property
    def n_kept(self) -> int:
        """How often laws were kept."""
        return len(self._kept)

    def draw(self, n_times: int, report: Callable[[float], None]) -> None:
        """Keep more."""
        for _ in range(n_times):
            if self._chains is None:
                self._draws = self._law.normal(self._size * _SETS, _SETS, self._rng)
            else:
                self._chains.advance(tuning.TUNING.thin)
                self._draws = self._chains.draws()
            found = self._scores.given(self._draws, self._rng)
            self._kept.append((*_normal_laws(found), found.misfit))
            report(self.n_kept / self.most)

    def error(self) -> MonteCarloError:
        """Return the Monte Carlo error so far: between chains, or between sets of draws."""
        mean, variance = (np.concatenate([kept[part] for kept in self._kept]) for part in (0, 1))
        between = tuning.TUNING.chains if self._chains is not None else _SETS
        return monte_carlo_error(*(part.reshape(-1, between, part.shape[-1]) for part in (mean, variance)))

    def mixture(self) -> tuple[DrawnTheta, FloatArray]:
        """Return the mixture of the draws, and their misfits."""
        location, variance, factor, misfit = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        n, d = location.shape[1], len(self._scores.noisy)
        data = np.zeros((n, n))
        data[:d, :d] = self._scores.without_noise(self._draws)
        data[d:, d:] = variance[:, d:].mean(axis=0)
        return theta_of_draws(location, variance, factor, data), misfit


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
