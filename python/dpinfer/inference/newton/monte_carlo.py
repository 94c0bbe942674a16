"""Monte Carlo error of quantiles and equivalent number of sets of draws that are normal distributions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = ["MonteCarloError", "monte_carlo_error"]

FloatArray = npt.NDArray[np.float64]

_LEVELS = (0.05, 0.95)  # ends of 90% intervals
_BISECTIONS = 18  # of 24 spreads: to 1e-4 of one


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
    location, variance = (part.reshape(-1, sets, part.shape[1]) for part in (location, variance))
    mean = location.mean(axis=(0, 1))
    total = variance.mean(axis=(0, 1)) + np.square(location - mean).mean(axis=(0, 1))

    def error(values: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(values.mean(axis=0).var(axis=0, ddof=1) / values.shape[1]))

    scale, spread = np.sqrt(variance), np.sqrt(total)
    worst = np.zeros_like(mean)
    for level in _LEVELS:
        low, high = mean - 12.0 * spread, mean + 12.0 * spread
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = special.ndtr((middle - location) / scale).mean(axis=(0, 1)) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        z = (0.5 * (low + high) - location) / scale
        density = (np.exp(-0.5 * z**2) / scale).mean(axis=(0, 1)) / np.sqrt(2.0 * np.pi)
        worst = np.maximum(worst, error(special.ndtr(z)) / density)
    least = 1e-300 * np.maximum(total, 1.0)
    return MonteCarloError(worst / spread, total / np.maximum(np.square(error(location)), least))
