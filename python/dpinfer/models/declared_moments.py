"""Declared second moments of the features brought in line with noisy means: public arithmetic."""

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray

_ALIKE = 1e-9  # a mean and a mean square from a file agree up to rounding
_SWEEPS, _CLOSE = 40, 1e-3  # of iterative scaling; stops when every variance is met to 0.1%
_LEAST_VARIANCE = 1e-12  # avoids division by zero


def indicators_of(moments: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask of features whose declared mean square is their mean, (n,): those with values 0 and 1."""
    means, squares = moments[-1, :-1], np.diag(moments)[:-1]
    return np.asarray(np.abs(means - squares) <= _ALIKE * squares)


def moments_of_means(moments: FloatArray, means: FloatArray, stddev: FloatArray) -> FloatArray:
    """Return second moments nearest to the declared ones that have other means.

    Parameters
    ----------
    moments : (n + 1, n + 1) array
        Declared, the constant's last.
    means, stddev : (n,) arrays
        Noisy means of the features, and the standard deviation of their noise.

    Returns
    -------
    (n + 1, n + 1) array
        Positive semidefinite, singular where `moments` is but for the constant.

    Notes
    -----
    The mean p of an indicator is that of a normal law cut at 0 and 1, and sets its variance p (1 - p); other means have
    the declared law as prior, other variances stay.  Covariances are those of :func:`with_variances`.
    """
    centre = moments[-1, :-1]
    covariance = moments[:-1, :-1] - np.outer(centre, centre)
    variance = np.maximum(np.diag(covariance), 0.0)
    present, absent = _positive(means, stddev), _positive(1.0 - means, stddev)
    share = present / (present + absent)
    gain = variance / np.maximum(variance + np.square(stddev), _LEAST_VARIANCE)
    indicator = indicators_of(moments)
    estimate = np.where(indicator, share, centre + gain * (means - centre))
    covariance = with_variances(covariance, np.where(indicator, share * (1.0 - share), variance))
    inner = covariance + np.outer(estimate, estimate)
    return np.block([[inner, estimate[:, None]], [estimate[None, :], np.ones((1, 1))]])


def with_variances(covariance: FloatArray, variance: FloatArray) -> FloatArray:
    """Return the covariance matrix with these variances that is nearest to another one.

    Parameters
    ----------
    covariance : (n, n) array
        Positive semidefinite; its null space stays.
    variance : (n,) array

    Notes
    -----
    Nearest in the Kullback-Leibler divergence of normal laws: iterative proportional scaling (Csiszar 1975), one
    variance at a time.  Only the diagonal of the precision changes: conditional independence is kept.  The
    covariance of indicators of all categories of a column becomes that of the new shares, exactly.  Variances that are
    impossible with this null space are met approximately.
    """
    result = np.array(covariance)
    for _ in range(_SWEEPS):
        worst = 0.0
        for index in range(len(result)):
            now, wanted = float(result[index, index]), float(variance[index])
            if min(now, wanted) < _LEAST_VARIANCE:
                continue
            column = result[:, index].copy()
            result -= np.outer(column, column * ((now - wanted) / now**2))
            worst = max(worst, abs(wanted / now - 1.0))
        if worst < _CLOSE:
            break
    return 0.5 * (result + result.T)


def _positive(mean: FloatArray, stddev: FloatArray) -> FloatArray:
    """Return the mean of N(mean, stddev**2) cut at zero."""
    score = mean / stddev
    log_hazard = -0.5 * np.square(score) - 0.5 * np.log(2.0 * np.pi) - special.log_ndtr(score)
    return np.asarray(np.maximum(mean + stddev * np.exp(log_hazard), 1e-6 * stddev))
