"""Whether the posterior's weights are larger than their prior expects."""

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray


def prior_conflict(location: FloatArray, covariance: FloatArray, prior_variance: FloatArray) -> float:
    """Return the p-value of the weights' size under their prior.

    The statistic is the posterior mean of |weights|**2 / prior variance, which is chi-squared with d degrees of freedom
    if the data determine the weights, and nearer to its mean d if they do not: under the prior the p-value
    is below a level at most about that often.

    Parameters
    ----------
    location : (S, d) array
        Mean of the weights given each draw of the rest.
    covariance : (S, d, d) array
    prior_variance : (S,) array

    Notes
    -----
    Box (1980): the prior predictive law of a statistic checks the prior.
    """
    squares = np.sum(np.square(location), axis=1) + np.trace(covariance, axis1=1, axis2=2)
    statistic = float(np.mean(squares / prior_variance))
    return float(special.chdtrc(location.shape[1], statistic))
