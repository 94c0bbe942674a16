"""The laws of the noise in a released sum: discrete Laplace and the rounded Gaussian, on the integers."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_interval

_FINE = 200.0  # see `DiscreteLaplaceSum`: the continuous law agrees to a part in 1e4; tolerance
_FARTHEST = 60.0  # exp(-60) is below any weight that counts
_BEYOND = 100.0  # of the logarithm, for each step beyond a table: the rest is below exp(-45)


class NoiseLaw(Protocol):
    """The law of noise on the integers, symmetric around 0, with a tail that falls at least exponentially."""

    @property
    def variance(self) -> float:
        """The variance."""

    def log_probability(self, noise: FloatArray) -> FloatArray:
        """Return log P(noise) for integers, or between them for a law that is summed finely."""

    def transform(self, frequency: FloatArray) -> FloatArray:
        """Return the characteristic function E cos(frequency * noise) of the continuous law, (...,)."""

    def reach(self, log_ratio: float) -> float:
        """Return how far from 0 the probability has fallen by exp(-log_ratio)."""


@dataclass(frozen=True)
class LaplaceLaw:
    """P(k) proportional to exp(-|k| / scale) on the integers (Ghosh, Roughgarden and Sundararajan 2012)."""

    scale: float  # positive

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_interval("scale", self.scale, 0.0))

    @property
    def variance(self) -> float:
        """2 a / (1 - a)**2 with a = exp(-1 / scale)."""
        ratio = np.exp(-1.0 / self.scale)
        return float(2.0 * ratio / np.expm1(-1.0 / self.scale) ** 2)

    def log_probability(self, noise: FloatArray) -> FloatArray:
        """Return log P(noise)."""
        return np.asarray(np.log(np.tanh(0.5 / self.scale)) - np.abs(noise) / self.scale)

    def transform(self, frequency: FloatArray) -> FloatArray:
        """Return 1 / (1 + (scale frequency)**2)."""
        return np.asarray(1.0 / (1.0 + (self.scale * frequency) ** 2))

    def reach(self, log_ratio: float) -> float:
        """Return ``scale * log_ratio``."""
        return self.scale * log_ratio


@dataclass(frozen=True)
class LaplaceSharesLaw:
    """The sum of `shape` times the shares of one discrete Laplace: noise of more sites than would suffice.

    A difference of two negative binomials.  With a = exp(-1 / scale) its probabilities follow the recurrence
    a (k - 1 + shape) P(k - 1) + a (k + 1 - shape) P(k + 1) = (1 + a**2) k P(k), from its generating function; backward,
    which is stable.  At scales of `_FINE` and more the continuous law is the same to a part in 1e4: a variance gamma
    density (Madan, Carr and Chang 1998).
    """

    scale: float  # of the Laplace law that has `shape` 1, positive
    shape: float  # at least 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_interval("scale", self.scale, 0.0))
        object.__setattr__(self, "shape", check_interval("shape", self.shape, 1.0, low_open=False))

    @property
    def variance(self) -> float:
        """`shape` times that of the Laplace law."""
        return self.shape * LaplaceLaw(self.scale).variance

    def log_probability(self, noise: FloatArray) -> FloatArray:
        """Return log P(noise)."""
        distance = np.abs(np.asarray(noise, dtype=np.float64))
        if self.scale >= _FINE:
            return np.asarray(_log_variance_gamma(distance / self.scale, self.shape) - np.log(self.scale))
        table = _log_differences(self.scale, self.shape, int(np.ceil(self.reach(_FARTHEST))))
        inside = np.interp(distance, np.arange(table.size), table)
        # Beyond the table, where nothing has weight, as an exponential.
        return np.asarray(inside - np.maximum(distance - (table.size - 1), 0.0) / self.scale)

    def transform(self, frequency: FloatArray) -> FloatArray:
        """Return (1 + (scale frequency)**2)**-shape."""
        return np.asarray((1.0 + (self.scale * frequency) ** 2) ** -self.shape)

    def reach(self, log_ratio: float) -> float:
        """Return the distance at which an exponential times distance**(shape - 1) has fallen so far."""
        distance = log_ratio
        for _ in range(50):
            distance = log_ratio + (self.shape - 1.0) * float(np.log1p(distance))
        return self.scale * distance


def _log_variance_gamma(distance: FloatArray, shape: float) -> FloatArray:
    """Return the log density of a sum of `shape` Laplace laws of scale 1."""
    order = shape - 0.5
    x = np.maximum(distance, 1e-3 if order > 20.0 else 1e-6)
    log_bessel = np.log(special.kve(order, x)) - x
    return np.asarray(
        order * np.log(0.5 * x) + log_bessel - special.gammaln(shape) - 0.5 * np.log(np.pi), dtype=np.float64
    )


@lru_cache(maxsize=32)
def _log_differences(scale: float, shape: float, size: int) -> FloatArray:
    """Return log P(0), ..., log P(size) by the recurrence, backward from a negligible term."""
    a = math.exp(-1.0 / scale)
    start = size + 20 + int(20.0 * scale)
    logs = np.empty(start + 1)
    # P(k) over P(k + 1), from the minimal solution: ratios neither overflow nor vanish.
    ratio = 1.0 / a
    logs[start] = 0.0
    for k in range(start, 0, -1):
        # P(k - 1) / P(k), given P(k) / P(k + 1).
        ratio = ((1.0 + a * a) * k - a * (k + 1.0 - shape) / ratio) / (a * (k - 1.0 + shape))
        logs[k - 1] = logs[k] + math.log(ratio)
    logs -= logs[0]
    total = 2.0 * np.exp(logs[1:]).sum() + 1.0
    return np.asarray((logs - np.log(total))[: size + 1])


@dataclass(frozen=True)
class TableLaw:
    """P(k) proportional to ``weights[abs(k)]``: the law of a :class:`dpinfer.accounting.NoiseTable`."""

    weights: tuple[int, ...]

    @property
    def _logs(self) -> FloatArray:
        return np.log(np.array(self.weights, dtype=np.float64))

    @property
    def variance(self) -> float:
        """The variance."""
        distance = np.arange(len(self.weights), dtype=np.float64)
        weight = np.array(self.weights, dtype=np.float64)
        return float(2.0 * (weight @ distance**2) / (2.0 * weight.sum() - weight[0]))

    def log_probability(self, noise: FloatArray) -> FloatArray:
        """Return log P(noise), up to a constant; beyond the table it falls so fast that only values within count."""
        distance, last = np.abs(np.asarray(noise, dtype=np.float64)), len(self.weights) - 1
        inside = np.interp(distance, np.arange(last + 1), self._logs)
        return np.asarray(inside - _BEYOND * np.maximum(distance - last, 0.0))

    def transform(self, frequency: FloatArray) -> FloatArray:
        """Refuse: the law is of counts alone."""
        raise NotImplementedError("a table is a law of counts, which need no transform")

    def reach(self, log_ratio: float) -> float:
        """Return the distance at which the probability has fallen by this much, or the end of the table."""
        fallen = np.flatnonzero(self._logs < self._logs.max() - log_ratio)
        return float(fallen[0]) if fallen.size else float(len(self.weights))
