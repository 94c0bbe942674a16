"""Normal draws restricted to an interval, exact in the tails."""

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray

__all__ = ["truncated_normal"]


def truncated_normal(
    mean: FloatArray, stddev: FloatArray, low: npt.ArrayLike, high: npt.ArrayLike, rng: np.random.Generator
) -> FloatArray:
    """Draw from N(mean, stddev**2) restricted to [low, high], elementwise.

    **Privacy.** Post-processing; reads no records.

    Parameters
    ----------
    mean, stddev : (K,) float64
    low, high : float or (K,) float64
        low < high.
    rng : numpy.random.Generator

    Returns
    -------
    (K,) float64

    Notes
    -----
    An unrestricted draw is kept where it is admissible; elsewhere the inverse distribution function is used, in
    logarithms and in the lower tail, so that intervals dozens of standard deviations away are drawn correctly.
    """
    draws = rng.normal(mean, stddev)
    low, high = np.broadcast_to(low, draws.shape), np.broadcast_to(high, draws.shape)
    outside = (draws < low) | (draws > high)
    if not outside.any():
        return draws
    centre, spread = mean[outside], np.broadcast_to(stddev, draws.shape)[outside]
    left, right = (low[outside] - centre) / spread, (high[outside] - centre) / spread
    flip = left + right > 0.0
    left, right = np.where(flip, -right, left), np.where(flip, -left, right)
    log_left, log_right = special.log_ndtr(left), special.log_ndtr(right)
    uniform = rng.random(centre.size)
    level = log_right + np.log(uniform + (1.0 - uniform) * np.exp(log_left - log_right))
    standard = np.clip(special.ndtri_exp(level), left, right)
    draws[outside] = np.clip(centre + spread * np.where(flip, -standard, standard), low[outside], high[outside])
    return draws
