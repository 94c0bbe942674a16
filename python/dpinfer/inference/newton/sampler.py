"""A sampler of one's own behind the posterior of a private Newton run: it knows a log density, and nothing else."""

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton.moments_law import ErrorDraws, MomentsDraws, MomentsLaw

# From positions (S, d) to values (S,) and gradients (S, d).
LogDensity: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

_BETWEEN = 5  # steps from one draw to the next: memory of chains alone, whose sets are independent


class Sampler(Protocol):
    """A sampler of many chains at once, for a posterior of a private Newton run: see docs/architecture.md."""

    def init(self, position: FloatArray, logdensity: LogDensity) -> tuple[Any, ...]:
        """Return the state of chains that begin at positions (S, d), which are its first item."""

    def step(self, state: tuple[Any, ...], logdensity: LogDensity, rng: np.random.Generator) -> tuple[Any, ...]:
        """Return the next state, under which the density of `logdensity` is invariant."""


class SampledErrors(ErrorDraws):
    """Draws of errors by a sampler that knows nothing but their log density.

    Its positions have a law not far from standard normal: errors less the mean of all proposals, over their spread.
    """

    def __init__(
        self,
        law: MomentsLaw,
        sampler: Sampler,
        size: int,  # number of chains
        n_warmup: int,  # steps before a draw
        rng: np.random.Generator,
    ) -> None:
        super().__init__(law)
        self._at = self._share @ self._mean
        away = np.sqrt(self._share)[:, None] * (self._mean - self._at)
        spread = np.tensordot(self._share[:, None, None] * self._root, self._root, axes=((0, 2), (0, 2)))
        self._scale = np.linalg.cholesky(spread + away.T @ away)
        self._sampler = sampler
        self._state = sampler.init(rng.standard_normal((size, len(self._at))), self.logdensity)
        for _ in range(n_warmup):
            self._state = sampler.step(self._state, self.logdensity, rng)

    def logdensity(self, position: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log density at positions (S, d), up to a constant, and its gradient, (S,) and (S, d)."""
        value, gradient = self.log_density(self._at + position @ self._scale.T)
        return value, gradient @ self._scale

    def draw(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Draw t, c and M given the errors of all chains, some steps after the draw before."""
        for _ in range(_BETWEEN):
            self._state = self._sampler.step(self._state, self.logdensity, rng)
        error = self._at + np.asarray(self._state[0]) @ self._scale.T
        size, nodes = len(error), len(self._kept)  # chains, whatever is asked for
        of, each = np.repeat(np.arange(nodes), size), np.tile(error, (nodes, 1))
        logs = (self._score_given(of, each)[0] + np.log(self.weight)[of]).reshape(-1, size)
        chosen = np.argmax(logs + rng.gumbel(size=logs.shape), axis=0)
        centre = self._score_given(chosen, error)[1:]
        return self._moments_given(error, chosen, centre, np.zeros(size), size, sets, rng)

    def log_density(self, error: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log density of errors (S, d), up to a constant, and its gradient, (S,) and (S, d)."""
        size, law = len(error), self._law
        of, each = np.repeat(np.arange(len(self._kept)), size), np.tile(error, (len(self._kept), 1))
        mass, mean, precision, below, above, _ = self._score_given(of, each)
        # Mean and mean square of c, a normal variable that is cut at the ends.
        root, log_share = np.sqrt(precision), above + np.log1p(-np.exp(below - above))
        low, high = ((end - mean) * root for end in law.ends)
        at = [np.exp(-0.5 * np.square(z) - log_share) / math.sqrt(2.0 * math.pi) for z in (low, high)]
        moved = (at[0] - at[1]) / root
        square = np.square(mean + moved) + (1.0 + low * at[0] - high * at[1]) / precision - np.square(moved)
        c, square = (mean + moved)[:, None], square[:, None]
        # What a score misses is b0 - c b1 with covariance D + s e e': u0, u1 and w are that times it, and times e.
        entry, kept = self._entry[of][:, None], self._kept[of][:, None]
        diagonal = self.noise[of] + entry * _dot(each, each)
        turned = each / diagonal
        by = entry / (1.0 + entry * _dot(each, turned))
        u0, u1, w = (
            part / diagonal - by * turned * _dot(turned, part)
            for part in (law.score - kept * law.eigenvalues * each, (1.0 - kept) * each, each)
        )
        own, other = kept * law.eigenvalues, 1.0 - kept
        gradient = own * u0 + c * (other * u0 - own * u1) - square * other * u1
        gradient += entry * each * (_dot(u0, u0) - 2.0 * c * _dot(u0, u1) + square * _dot(u1, u1))
        a0, a1 = _dot(each, u0), _dot(each, u1)
        gradient += entry * (a0 * u0 - c * (a0 * u1 + a1 * u0) + square * a1 * u1)
        trace = np.sum(1.0 / diagonal, axis=1)[:, None] - by * _dot(turned, turned)
        gradient -= entry * (trace * each + w) + (each + law.position) @ law.prior_precision
        logs = (mass + np.log(self.weight)[of]).reshape(-1, size)
        value = special.logsumexp(logs, axis=0)
        return value, np.sum(np.exp(logs - value)[:, :, None] * gradient.reshape(-1, *error.shape), axis=0)


def _dot(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return products of rows, (S, 1)."""
    return np.asarray(np.sum(left * right, axis=1, keepdims=True))
