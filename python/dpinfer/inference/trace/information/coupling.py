"""Whether the gradients of some weights move with other weights, as they do where features are correlated."""

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.trace.information.under_model import InformationTrace

_NULL = 1e-10  # relative rank tolerance: far above rounding


def coupling_pvalue(trace: InformationTrace, expected: FloatArray) -> float:
    """Return the p-value of "the information is diagonal, with the expected diagonal".

    Parameters
    ----------
    trace : InformationTrace
        Of p weights.
    expected : (p,) array
        Information of all records about each weight, to about 10%.

    Returns
    -------
    float
        1 for a single weight.

    Notes
    -----
    With a diagonal information every weight has a recursion of its own, so that given the paths of all others the noise
    in its gradient is still independent normal.  A gradient less its expected slope is projected on the paths of
    the others: in units of the noise the square of that is chi-square with p - 1 degrees of freedom, exactly.  The
    smallest of the p p-values counts p times (Bonferroni), since they depend on each other.
    """
    size = expected.size
    if size < 2:
        return 1.0
    rate = trace.sample_rate
    noise = trace.noise_variance + rate * (1.0 - rate) * trace.score_variance * expected
    scale = np.sqrt(np.diag(trace.gram))
    correlation = trace.gram / np.outer(scale, scale)
    slopes = (trace.cross - rate * expected[:, None] * trace.gram) / scale
    smallest = 1.0
    for j in range(size):
        others = np.arange(size) != j
        values, axes = np.linalg.eigh(correlation[np.ix_(others, others)])
        nonzero = values > _NULL * values[-1]
        explained = np.sum(np.square(slopes[j, others] @ axes[:, nonzero]) / values[nonzero]) / noise[j]
        smallest = min(smallest, float(special.chdtrc(np.count_nonzero(nonzero), explained)))
    return min(1.0, size * smallest)
