"""Maps between constrained and unconstrained spaces, stable over the whole range of float64."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray


def softplus(x: npt.ArrayLike) -> FloatArray:
    """Return log(1 + exp(x)).

    Examples
    --------
    >>> float(softplus(0.0)) == float(np.log(2.0))
    True
    """
    return np.logaddexp(0.0, np.asarray(x, dtype=np.float64))


def softplus_inverse(y: npt.ArrayLike) -> FloatArray:
    """Return log(exp(y) - 1) for positive y.

    Examples
    --------
    >>> round(float(softplus_inverse(softplus(-4.0))), 12)
    -4.0
    """
    values = np.asarray(y, dtype=np.float64)
    return values + np.log(-np.expm1(-values))


def sigmoid(x: npt.ArrayLike) -> FloatArray:
    """Return 1 / (1 + exp(-x)), the derivative of softplus."""
    values = np.asarray(x, dtype=np.float64)
    decay = np.exp(-np.abs(values))
    return np.where(values >= 0.0, 1.0, decay) / (1.0 + decay)


def log_sigmoid(x: npt.ArrayLike) -> FloatArray:
    """Return log(sigmoid(x))."""
    return -softplus(-np.asarray(x, dtype=np.float64))
