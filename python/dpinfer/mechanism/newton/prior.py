"""The prior's precision in the coordinates of a private Newton run, as far as it can matter: public arithmetic."""

import numpy as np

from dpinfer._arrays import FloatArray

# Of weights in scaled units: over what all records say, and how far apart doubles hold them.
_TIGHTEST, _RANGE = 1e6, 1e12


def prior_in(transform: FloatArray, variance: FloatArray, sizes: FloatArray, informed: float) -> FloatArray:
    """Return the prior's precision of weights in the coordinates z = transform x, within a relevant range, (d, d).

    A weight of a feature in another unit can have a precision of 1e24 times that of others, and no double holds both
    once they are mixed.  In units of the features' sizes a precision of a million times that of all records is as good
    as a larger one, and a millionth of a millionth of it as good as a smaller one.

    Parameters
    ----------
    transform : (d, d) array
    variance : (d,) array
        Prior variances of the weights.
    sizes : (d,) array
        Declared root mean squares of the features.
    informed : float
        About the precision that the records give a weight in units of its feature's size.
    """
    precision = 1.0 / (variance * np.square(sizes))
    largest = min(float(precision.max()), _TIGHTEST * informed)
    held = np.clip(precision, largest / _RANGE, largest)
    if np.array_equal(held, precision):
        return np.asarray((transform / variance) @ transform.T)
    scaled = transform * (sizes * np.sqrt(held))
    return np.asarray(scaled @ scaled.T)
