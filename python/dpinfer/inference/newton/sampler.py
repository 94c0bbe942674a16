"""A sampler of one's own behind the posterior of a private Newton run: it knows a log density, and nothing else."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton.moments_law import ErrorLaw, MomentsDraws, MomentsLaw

# From positions (S, d) to values (S,) and gradients (S, d).
LogDensity: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

_BETWEEN = 5  # steps from one draw to the next: memory of chains alone, whose sets are independent


class Sampler(Protocol):
    """A sampler of many chains at once, for a posterior of a private Newton run: see docs/architecture.md."""

    def init(self, position: FloatArray, logdensity: LogDensity) -> tuple[Any, ...]:
        """Return the state of chains that begin at positions (S, d), which are its first item."""

    def step(self, state: tuple[Any, ...], logdensity: LogDensity, rng: np.random.Generator) -> tuple[Any, ...]:
        """Return the next state, under which the density of `logdensity` is invariant."""


class SampledErrors(ErrorLaw):
    """Draws of errors by a sampler that knows nothing but their log density.

    Its positions have a law not far from standard normal: errors less their mean over their standard deviation as if
    nothing were hidden.

    Parameters
    ----------
    law : MomentsLaw
    sampler : Sampler
    size : int
        Number of chains.
    n_warmup : int
        Steps before a draw.
    """

    def __init__(self, law: MomentsLaw, sampler: Sampler, size: int, n_warmup: int, rng: np.random.Generator) -> None:
        super().__init__(law.at(law.spreads[::2], 2.0 * law.width[::2]))
        node = int(np.argmax(self.weight))
        values, noise = self.sampled[node], self.noise[node]
        precision = np.diag(np.square(values) / noise) + law.prior_precision
        self._root = np.linalg.inv(np.linalg.cholesky(precision)).T
        said = values / noise * (law.score + values * law.position)
        self._mean = np.linalg.solve(precision, said) - law.position
        self._sampler = sampler
        self._state = sampler.init(rng.standard_normal((size, len(values))), self.logdensity)
        for _ in range(n_warmup):
            self._state = sampler.step(self._state, self.logdensity, rng)

    def logdensity(self, position: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log density at positions (S, d), up to a constant, and its gradient, (S,) and (S, d)."""
        value, gradient = self.log_density(self._mean + position @ self._root.T)
        return value, gradient @ self._root

    def draw(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Draw M from all chains, some steps after the draw before."""
        for _ in range(_BETWEEN):
            self._state = self._sampler.step(self._state, self.logdensity, rng)
        return self.moments(self._mean + np.asarray(self._state[0]) @ self._root.T, sets, rng)
