"""Bounded scores of a normal residual: slopes and variances in closed form, and the weights of normal features.

Location: Huber's psi_c(r) = max(-c, min(c, r)).  Scale: chi_b(r) = min(|r| / b, 1).  Both for r ~ N(0, spread**2), with
the bound given in units of the spread.  Mallows weights: w = min(1, B**2 / |z|**2).
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray

_SHARES = (np.arange(400) + 0.5) / 400.0  # for means over a chi-squared law, by its quantiles
_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)  # of the standard normal law


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(_DENSITY_AT_ZERO * np.exp(-0.5 * np.square(x)))


def huber_slope(bound: npt.ArrayLike) -> FloatArray:
    """Return E[psi_c'(r)] = P(|r| < c) for a standard normal r, any shape."""
    return np.asarray(2.0 * special.ndtr(np.asarray(bound)) - 1.0)


def huber_variance(bound: npt.ArrayLike) -> FloatArray:
    """Return E[psi_c(r)**2] for a standard normal r, any shape."""
    c = np.asarray(bound, dtype=np.float64)
    return np.asarray(huber_slope(c) - 2.0 * c * _density(c) + 2.0 * np.square(c) * special.ndtr(-c))


def chi_mean(bound: npt.ArrayLike) -> FloatArray:
    """Return E[chi_b(r)] for a standard normal r, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(2.0 / b * (_DENSITY_AT_ZERO - _density(b)) + 2.0 * special.ndtr(-b))


def chi_slope(bound: npt.ArrayLike) -> FloatArray:
    """Return d E[chi_b(r)] / d log spread at spread 1, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(2.0 / b * (_DENSITY_AT_ZERO - _density(b)))


def chi_second_moment(bound: npt.ArrayLike) -> FloatArray:
    """Return E[chi_b(r)**2] for a standard normal r, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    inside = huber_slope(b) - 2.0 * b * _density(b)
    return np.asarray(inside / np.square(b) + 2.0 * special.ndtr(-b))


def mallows_moment(n_coef: int, bound: float) -> float:
    """Return E[w z'z] / n_coef, w = min(1, bound**2 / z'z), for z ~ N(0, I) with `n_coef` entries."""
    squares = 2.0 * special.gammaincinv(0.5 * n_coef, _SHARES)
    return float(np.mean(np.minimum(squares, bound**2))) / n_coef


def mallows_mean(n_coef: int, bound: float) -> float:
    """Return E[min(1, bound**2 / |z|**2)] for z ~ N(0, I) with `n_coef` entries, by the midpoint rule."""
    squares = 2.0 * special.gammaincinv(0.5 * n_coef, _SHARES)
    return float(np.mean(np.minimum(1.0, bound**2 / squares)))
