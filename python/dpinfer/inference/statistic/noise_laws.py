"""The laws of the noise in a released sum: discrete Laplace and the rounded Gaussian, on the integers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._validate import check_interval

__all__ = ["LaplaceLaw", "NoiseLaw", "RoundedGaussianLaw"]

FloatArray = npt.NDArray[np.float64]


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
    """P(k) proportional to exp(-|k| / scale) on the integers (Ghosh, Roughgarden and Sundararajan 2012).

    Parameters
    ----------
    scale : float
        Positive.
    """

    scale: float

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
class RoundedGaussianLaw:
    """A Gaussian rounded to the nearest integer: P(k) = Phi((k + 1/2) / s) - Phi((k - 1/2) / s).

    Parameters
    ----------
    stddev : float
        Of the Gaussian, positive.
    """

    stddev: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "stddev", check_interval("stddev", self.stddev, 0.0))

    @property
    def variance(self) -> float:
        """stddev**2 + 1/12, to a part in 1e-8 for standard deviations of at least 1; exact below."""
        if self.stddev >= 1.0:
            return self.stddev**2 + 1.0 / 12.0
        steps = np.arange(-64.0, 65.0)
        return float(np.exp(self.log_probability(steps)) @ steps**2)

    def log_probability(self, noise: FloatArray) -> FloatArray:
        """Return log P(noise)."""
        inner = (0.5 - np.abs(noise)) / self.stddev
        outer = (-0.5 - np.abs(noise)) / self.stddev
        high, low = special.log_ndtr(inner), special.log_ndtr(outer)
        return np.asarray(high + np.log1p(-np.exp(np.minimum(low - high, -1e-300))))

    def transform(self, frequency: FloatArray) -> FloatArray:
        """Return exp(-(stddev frequency)**2 / 2)."""
        return np.asarray(np.exp(-0.5 * (self.stddev * frequency) ** 2))

    def reach(self, log_ratio: float) -> float:
        """Return ``stddev * sqrt(2 log_ratio)``, and one step."""
        return self.stddev * float(np.sqrt(2.0 * log_ratio)) + 1.0
