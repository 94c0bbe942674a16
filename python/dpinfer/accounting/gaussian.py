"""The exact trade-off of composed plain Gaussian mechanisms, evaluated so that rounding errs on the safe side."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray


def ndtr(x: npt.ArrayLike) -> FloatArray:
    """Return the standard normal mass below each entry, with the relative accuracy of ``erfc`` in either tail."""
    points = np.asarray(x, dtype=np.float64)
    tails = np.fromiter(map(math.erfc, (points * -math.sqrt(0.5)).ravel().tolist()), np.float64, points.size)
    return 0.5 * tails.reshape(points.shape)


def upper_quantile(
    mass: float,  # in [1e-300, 0.5]
) -> float:
    """Return a point with about `mass` of the standard normal above it, to nine digits."""
    return bisected(lambda point: 0.5 * math.erfc(point * math.sqrt(0.5)) <= mass, 0.0, 38.0)[1]


def bisected(
    meets: Callable[[float], bool], low: float, high: float, *, halvings: int = 60, tolerance: float = 0.0
) -> tuple[float, float]:
    """Return the ends of a short interval from (low, high): `meets` holds from some point in it on.

    It was evaluated at both ends, but for those given.  `tolerance` is relative to the upper end; 60 halvings exhaust
    double precision.
    """
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        if high - low <= tolerance * high or not low < middle < high:
            break
        low, high = (low, middle) if meets(middle) else (middle, high)
    return low, high


_UNIT = 2.0**-53  # unit roundoff of double precision
_SLACK = 16.0  # units of roundoff granted to log_ndtr, which is accurate to a few in the last place
_MAX_EPSILON = 1e12  # a larger epsilon counts as infinite
_LARGEST_EXPONENT = 700.0  # exp(700) is within the range of doubles


def gaussian_delta(
    shift: float,  # L2 sensitivity divided by the noise's standard deviation, in (0, inf)
    epsilon: float,  # in [0, inf)
) -> float:  # delta in [0, 1]
    """Return an upper bound, tight to rounding, on delta of a Gaussian mechanism.

    **Privacy.** Reads no records.  Valid under the adjacency relation whose sensitivity `shift` was computed with.

    Balle and Wang (2018), Theorem 8: delta = Phi(a) - e^epsilon Phi(b) with a, b = +-shift / 2 - epsilon / shift.
    It is evaluated as Phi(a) (1 - e^x), x = epsilon + log Phi(b) - log Phi(a), and the rounding error of x is added.

    Examples
    --------
    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    # Imported here, as in pure_mu: the import takes longer than most accounts, and few need it.
    from scipy.special import log_ndtr

    ratio = epsilon / shift
    log_upper = float(log_ndtr(0.5 * shift - ratio))
    log_lower = float(log_ndtr(-0.5 * shift - ratio))
    if log_upper == -math.inf:
        return 0.0
    # An error of the argument of log_ndtr of |argument| u moves its value by up to about argument^2 u, that is, by a
    # multiple of the value's own size, which the relative term covers.
    error = _SLACK * _UNIT * (1.0 + epsilon + abs(log_upper) + abs(log_lower) + shift * ratio + shift * shift)
    if not math.isfinite(error):
        return 1.0
    exponent = epsilon + log_lower - log_upper
    fraction = 1.0 if exponent == -math.inf else -math.expm1(min(exponent, 0.0))
    return min(1.0, math.exp(log_upper) * (1.0 + error) * min(1.0, fraction + error))


def gaussian_epsilon(
    shift: float,  # L2 sensitivity divided by the noise's standard deviation, in (0, inf)
    delta: float,  # in (0, 1)
) -> float:  # epsilon in [0, inf]; infinity where the search leaves the range of the arithmetic
    """Return the least epsilon, rounded up, at which a Gaussian mechanism meets `delta`.

    **Privacy.** Reads no records.  Valid under the adjacency relation whose sensitivity `shift` was computed with.

    Balle and Wang (2018), Theorem 8, inverted by bisection on :func:`gaussian_delta`; the returned end of the bracket
    is one where the bound itself was evaluated and met.

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if gaussian_delta(shift, 0.0) <= delta:
        return 0.0
    low, high = 0.0, shift * (0.5 * shift + 1.0)
    while gaussian_delta(shift, high) > delta:
        low, high = high, 2.0 * high
        if not high < _MAX_EPSILON:
            return math.inf
    return bisected(lambda point: gaussian_delta(shift, point) <= delta, low, high, halvings=200, tolerance=1e-13)[1]


def pure_mu(
    epsilon: float,  # of the pure guarantee, positive
) -> float:
    """Return a mu, rounded up, with which every mechanism of a pure guarantee is Gaussian differentially private.

    The trade-off curve of pure guarantees runs straight from (0, 1) to the corner where both rates are
    1 / (1 + e**epsilon), and is symmetric.  That of G_mu is convex, so it lies below once it does in the corner
    (Dong, Roth and Su 2022, section 2.2).

    Examples
    --------
    >>> round(pure_mu(0.1), 4)
    0.1253
    """
    from scipy.special import ndtri, ndtri_exp

    if epsilon > _LARGEST_EXPONENT:
        # 1 / (1 + e**epsilon) is above e**-(epsilon + 1): the mu of the latter is larger.
        return -2.0 * float(ndtri_exp(-(epsilon + 1.0))) * (1.0 + 1e-9)
    corner = float(ndtri(1.0 / (1.0 + math.exp(epsilon))))
    # Rounding moves the corner by a few units at one half, for any epsilon.
    return -2.0 * corner * (1.0 + 1e-12) + 1e-15
