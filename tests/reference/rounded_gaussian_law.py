"""A law of noise that the library does not have: its posteriors take any."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundedGaussianLaw:
    """A Gaussian rounded to the nearest integer: P(k) = Phi((k + 1/2) / s) - Phi((k - 1/2) / s).

    Parameters
    ----------
    stddev : float
        Of the Gaussian, positive.
    """

    stddev: float

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
