"""The standard normal distribution by the C library's ``erfc``: importing SciPy takes longer than most accounts."""

import math

import numpy as np
import numpy.typing as npt

__all__ = ["ndtr", "upper_quantile"]

FloatArray = npt.NDArray[np.float64]

_BISECTIONS = 60  # 60 halvings exhaust double precision


def ndtr(x: npt.ArrayLike) -> FloatArray:
    """Return the standard normal mass below each entry, with the relative accuracy of ``erfc`` in either tail.

    Parameters
    ----------
    x : array

    Returns
    -------
    array of the shape of `x`
    """
    points = np.asarray(x, dtype=np.float64)
    tails = np.fromiter(map(math.erfc, (points * -math.sqrt(0.5)).ravel().tolist()), np.float64, points.size)
    return 0.5 * tails.reshape(points.shape)


def upper_quantile(mass: float) -> float:
    """Return a point with about `mass` of the standard normal above it, to nine digits.

    Parameters
    ----------
    mass : float
        In [1e-300, 0.5].
    """
    low, high = 0.0, 38.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if 0.5 * math.erfc(middle * math.sqrt(0.5)) > mass:
            low = middle
        else:
            high = middle
    return high
