"""Monte Carlo error of quantiles and equivalent number of draws of chains whose draws are normal distributions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = ["MonteCarloError", "monte_carlo_error"]

FloatArray = npt.NDArray[np.float64]

_LEVELS = (0.05, 0.95)
_BATCHES = 5


@dataclass(frozen=True)
class MonteCarloError:
    """Errors of n coordinates.

    Parameters
    ----------
    quantile : (n,) array
        The larger standard error of the 5% and 95% quantiles, in posterior standard deviations.
    equivalent_draws : (n,) array
        How many independent draws of the posterior would give as exact a mean: more than there are draws of a chain,
        each of which is a normal distribution.
    """

    quantile: FloatArray
    equivalent_draws: FloatArray


def monte_carlo_error(location: FloatArray, variance: FloatArray) -> MonteCarloError:
    """Return the Monte Carlo error of the mixture of N(location, variance) over steps and chains.

    Parameters
    ----------
    location, variance : (S, C, n) arrays

    Notes
    -----
    Batch means: every chain is cut into five batches, and the variance of their means, between chains and within,
    divided by their number is that of the overall mean.  A quantile's error is that of the distribution function there,
    divided by the density (Doss, Flegal, Jones and Neath 2014, with the distribution function of each normal in place
    of an indicator).
    """
    steps, chains, n = location.shape
    mean = location.mean(axis=(0, 1))
    total = variance.mean(axis=(0, 1)) + np.square(location - mean).mean(axis=(0, 1))
    size = max(1, steps // _BATCHES)
    used = size * (steps // size)

    def error(values: FloatArray) -> FloatArray:
        batches = values[:used].reshape(-1, size, chains, n).mean(axis=1).reshape(-1, n)
        return np.asarray(np.sqrt(batches.var(axis=0, ddof=1) / batches.shape[0]))

    scale = np.sqrt(variance)
    worst = np.zeros(n)
    for level in _LEVELS:
        quantile = _quantile(location, scale, mean, np.sqrt(total), level)
        z = (quantile - location) / scale
        density = (np.exp(-0.5 * z**2) / scale).mean(axis=(0, 1)) / np.sqrt(2.0 * np.pi)
        worst = np.maximum(worst, error(special.ndtr(z)) / density)
    equivalent = total / np.maximum(np.square(error(location)), 1e-300)
    return MonteCarloError(worst / np.sqrt(total), equivalent)


def _quantile(
    location: FloatArray, scale: FloatArray, mean: FloatArray, spread: FloatArray, level: float
) -> FloatArray:
    """Return a quantile of each mixture by bisection, (n,), to 1e-4 of its spread."""
    low, high = mean - 12.0 * spread, mean + 12.0 * spread
    for _ in range(18):
        middle = 0.5 * (low + high)
        below = special.ndtr((middle - location) / scale).mean(axis=(0, 1)) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
