"""The posterior as a mixture of normal laws over draws of the second moments, as many as its quantiles need."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._progress import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference.newton.checks import count_unresolved
from dpinfer.inference.newton.moments_law import MomentsLaw
from dpinfer.inference.newton.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.newton.scores import GivenMoments, Scores
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import PosteriorRequest
from dpinfer.models.bijectors import sigmoid, softplus_inverse

__all__ = ["Mixture", "mixture_of", "theta_of_draws"]

FloatArray = npt.NDArray[np.float64]

_AIM, _LARGEST_ERROR = 0.045, 0.05
_CHAINS, _FEWEST_CHAINS, _BATCH = 128, 16, 100_000  # entries of the matrices that are kept at once
_ALONE, _WARM_UP, _THIN, _MOST_STEPS = 200, 200, 10, 160
# The first steps are kept after ten moves; later ones, where quantiles lie between two cases, after as many as take
# about 2 s in all.
_SOON, _LATER, _MOST_THIN = 40, 3000, 40
_TRIES = 8  # to find positive definite matrices
_STEPS, _MOST_GROWTH = (2, 12), 3.0
_MOST_ENTRIES = 24_000_000  # of all factors that are kept at a time
_AVERAGED = 16  # matrices
_FEW = 24  # weights: of more, one that no score has seen is not flattened


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
        If the error stays larger, unless `check_convergence` is False or `fallback` lets the words say it.
    """
    report = resolve_progress(request.progress, "posterior")
    sampler = _Chains(scores, request.seed)
    report(0, 100)
    wanted = _STEPS[sampler.hides]
    while True:
        sampler.draw(wanted - sampler.n_steps, lambda share: report(min(int(100 * share), 99), 100))
        error = sampler.error()
        worst = float(np.max(error.quantile))
        if worst < _AIM or wanted >= sampler.most:
            break
        growth = min(1.2 * (worst / _AIM) ** 2, _MOST_GROWTH)
        wanted = min(math.ceil(max(growth, 1.3) * wanted), sampler.most)
    report(100, 100)
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(means as exact as of {np.min(error.equivalent_draws):.0f} independent draws or more)"
    )
    if worst >= _LARGEST_ERROR:
        if request.check_convergence and not request.fallback:
            raise NumericalError(f"{said}: pass check_convergence=False")
        said = f"{said}: more than {_LARGEST_ERROR:.0%}"
    distribution, misfit = sampler.mixture()
    return Mixture(distribution, error, f"{said}.", misfit)


class _Chains:
    """Chains over second moments side by side, and what each of their steps says of the weights."""

    def __init__(self, scores: Scores, seed: int) -> None:
        self._scores, self._rng = scores, np.random.default_rng(seed)
        d = len(scores.noisy)
        hidden = count_unresolved(scores.noisy, scores.stddev) if d <= _FEW else 0
        law = MomentsLaw(scores.noisy, scores.stddev, n_hidden=hidden)
        self._basis, self.hides = law.basis, law.n_flattened > 0
        self._thin = int(np.clip(_LATER // d**2, _THIN, _MOST_THIN))
        self._size = int(np.clip(_BATCH // d**2, _FEWEST_CHAINS, _CHAINS))
        self.most = int(np.clip(_MOST_ENTRIES // (self._size * (d + 1) ** 2), 2, _MOST_STEPS))
        self._chains = law.chains(scores.mean_scores(), self._size, self._rng)
        # First to where the release alone says, so that no state begins where only the scores would hold it.
        self._chains.advance(_ALONE, _WARM_UP, 0)
        for _ in range(_TRIES):
            if np.all(np.isfinite(self._chains.log_density())):
                break
            self._chains.advance(0, _WARM_UP // 4, 0)
        self._found: list[GivenMoments] = []
        self._normals: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    @property
    def n_steps(self) -> int:
        """Steps that were kept."""
        return len(self._found)

    def draw(self, n_steps: int, report: Callable[[float], None]) -> None:
        """Keep more steps."""
        for _ in range(n_steps):
            self._chains.advance(0, _THIN if self.n_steps < _SOON else self._thin, 0)
            found = self._scores.given(self._chains.moments(), self._basis, self._rng)
            self._found.append(found)
            self._normals.append(_normal_laws(found))
            report(self.n_steps / self.most)

    def error(self) -> MonteCarloError:
        """Return the Monte Carlo error so far."""
        return monte_carlo_error(*(np.stack([normal[part] for normal in self._normals]) for part in (0, 1)))

    def mixture(self) -> tuple[DrawnTheta, FloatArray]:
        """Return the mixture of the draws, and their misfits."""
        location, variance, factor = (np.concatenate([normal[part] for normal in self._normals]) for part in range(3))
        n, d = location.shape[1], len(self._scores.noisy)
        data = np.zeros((n, n))
        data[:d, :d] = self._scores.without_noise(self._chains.moments()[:_AVERAGED], self._basis)
        data[d:, d:] = variance[:, d:].mean(axis=0)
        return theta_of_draws(location, variance, factor, data), np.concatenate([found.misfit for found in self._found])


def _normal_laws(found: GivenMoments) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean, variance, (S, n) each, and factors (S, n, n) of precisions of all parameters."""
    mean, factor = found.mean, found.factor
    variance = np.sum(np.square(np.linalg.inv(factor)), axis=-2)
    if found.log_scale is None or found.log_scale_stddev is None:
        return mean, variance, factor
    square = np.exp(2.0 * found.log_scale)
    rho = softplus_inverse(square)
    spread = 2.0 * square * found.log_scale_stddev / sigmoid(rho)
    wider = np.zeros((len(mean), mean.shape[1] + 1, mean.shape[1] + 1))
    wider[:, :-1, :-1], wider[:, -1, -1] = factor, 1.0 / spread
    return np.column_stack((mean, rho)), np.column_stack((variance, np.square(spread))), wider


def theta_of_draws(location: FloatArray, variance: FloatArray, factor: FloatArray, data: FloatArray) -> DrawnTheta:
    """Return the distribution of theta, N(location, variance) in every draw, and what its variance is made of.

    What the records do not leave open the privacy noise does, second moments that are not known among it.

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
