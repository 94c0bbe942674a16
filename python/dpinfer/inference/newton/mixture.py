"""The posterior as a mixture of normal laws over draws of the second moments, as many as its quantiles need."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpinfer._progress import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference.newton.checks import count_unresolved
from dpinfer.inference.newton.moments_law import MomentsLaw, MomentsState, chosen_of
from dpinfer.inference.newton.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.newton.scores import GivenMoments, Scores
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import PosteriorRequest
from dpinfer.models.bijectors import sigmoid, softplus_inverse
from dpinfer.models.whitening import shrink_moments

__all__ = ["Mixture", "mixture_of", "theta_of_draws"]

FloatArray = npt.NDArray[np.float64]

_AIM, _LARGEST_ERROR = 0.045, 0.05
_CHAINS, _FEWEST_CHAINS, _BATCH = 128, 16, 100_000  # entries of the matrices that are drawn at once
_WARM_UP, _THIN, _MOST_STEPS = (5, 60), (1, 3), 160  # without and with hidden directions
_STEPS, _MOST_GROWTH = (2, 12), 3.0
_MOST_ENTRIES = 24_000_000  # of all factors that are kept at a time
_AVERAGED = 16  # matrices
_ALONE = 30
_FEW, _LEAST_TRACE = 24, 0.01
_KEPT_SHARES = np.array([0.0, 0.7, 0.95])  # of the numbers that make a matrix, in a step


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
        hidden = count_unresolved(scores.noisy, scores.stddev)
        if d > _FEW:
            # Many directions say together how near to the identity the matrix is, and that none of them is flat.
            shrunken = shrink_moments(scores.noisy, scores.stddev, max(float(np.trace(scores.noisy)), _LEAST_TRACE * d))
            hidden = int(np.count_nonzero(~shrunken.resolved))
        self._law = MomentsLaw(scores.noisy, scores.stddev, scores.hidden(), n_hidden=hidden, rng=self._rng)
        size = int(np.clip(_BATCH // d**2, _FEWEST_CHAINS, _CHAINS))
        self.most = int(np.clip(_MOST_ENTRIES // (size * (d + 1) ** 2), 2, _MOST_STEPS))
        self.hides = self._law.n_flattened > 0
        self._found: list[GivenMoments] = []
        self._state = self._law.start(size)
        # First to where the release alone says, so that no state begins where only the scores would hold it.
        for _ in range(_ALONE):
            self._state = self._law.moved(self._state, np.zeros(size))
        self._given = self._weighed(self._state)
        for _ in range(_WARM_UP[self.hides]):
            self._step()
        for _ in range(_MOST_STEPS):
            if np.all(np.isfinite(self._given.log_density)):
                break
            self._step()

    @property
    def n_steps(self) -> int:
        """Steps that were kept."""
        return len(self._found)

    def _weighed(self, state: MomentsState) -> GivenMoments:
        """Return the weights' laws given M, with the log density that the guide has not taken in."""
        given = self._scores.given(self._law.moments(state), self._law.basis, state.other[:, 0, 0], self._rng)
        return replace(given, log_density=given.log_density - self._law.guided(state))

    def _step(self) -> None:
        """Propose other second moments, from their law given the release alone; the scores accept them."""
        size = len(self._state.spread)
        kept = self._rng.choice(_KEPT_SHARES, size)
        state = self._law.moved(self._state, kept)
        given = self._weighed(state)
        # A state without a density, whose matrix is not positive definite, goes on until it has one.
        lost = ~np.isfinite(self._given.log_density)
        change = given.log_density - np.where(lost, 0.0, self._given.log_density)
        taken = lost | (np.log(self._rng.uniform(size=size)) < change)
        self._state, self._given = chosen_of(taken, state, self._state), chosen_of(taken, given, self._given)

    def draw(self, n_steps: int, report: Callable[[float], None]) -> None:
        """Keep more steps."""
        for _ in range(n_steps):
            for _ in range(_THIN[self.hides]):
                self._step()
            self._found.append(self._given)
            report(self.n_steps / self.most)

    def _stacked(self, name: str) -> FloatArray:
        return np.stack([getattr(found, name) for found in self._found])

    def _normals(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean, variance, (steps, chains, n) each, and factors (steps, chains, n, n) of precisions."""
        mean, factor = self._stacked("mean"), self._stacked("factor")
        inverse = np.linalg.inv(factor)
        variance = np.sum(np.square(inverse), axis=-2)
        if self._found[0].log_scale is None:
            return mean, variance, factor
        square = np.exp(2.0 * self._stacked("log_scale"))
        rho = softplus_inverse(square)
        spread = 2.0 * square * self._stacked("log_scale_stddev") / sigmoid(rho)
        wider = np.zeros((*factor.shape[:2], mean.shape[2] + 1, mean.shape[2] + 1))
        wider[..., :-1, :-1], wider[..., -1, -1] = factor, 1.0 / spread
        location = np.concatenate((mean, rho[..., None]), axis=2)
        return location, np.concatenate((variance, np.square(spread)[..., None]), axis=2), wider

    def error(self) -> MonteCarloError:
        """Return the Monte Carlo error so far."""
        location, variance, _ = self._normals()
        return monte_carlo_error(location, variance)

    def mixture(self) -> tuple[DrawnTheta, FloatArray]:
        """Return the mixture of the draws, and their misfits."""
        location, variance, factor = self._normals()
        n = location.shape[2]
        factor = factor.reshape(-1, n, n)
        d = len(self._scores.noisy)
        data = np.zeros((n, n))
        data[:d, :d] = self._scores.without_noise(self._law.moments(self._state)[:_AVERAGED], self._law.basis)
        data[d:, d:] = variance[..., d:].mean(axis=(0, 1))
        misfit = self._stacked("misfit").reshape(-1, self._found[0].misfit.shape[1])
        return theta_of_draws(location, variance, factor, data), misfit


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
