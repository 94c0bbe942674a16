"""Causes of a width: sampling error, privacy noise, and the prior alone."""

from typing import TYPE_CHECKING

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.models import LinearRegression
from dpinfer.models.base import NormalPriorModel

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

DOMINATED = 0.5  # a row with more of its variance from the prior than not is marked: formula
PRIOR_DOMINATES = "the prior dominates"


def prior_precision(posterior: "Posterior") -> FloatArray:
    """Return the prior precision of each unconstrained parameter, (n,); 0 if unknown, or not normal.

    A linear regression's is that at the posterior mean of its noise variance, whose own prior is not counted.
    """
    model = posterior.model
    if isinstance(model, LinearRegression):
        variance = float(posterior.mean[-1]) / (1.0 if posterior.units is None else posterior.units.unit**2)
        weights = 1.0 / (model.prior_scale**2 * variance)
        return np.append(np.full(posterior.n_params - 1, weights), 0.0)
    if isinstance(model, NormalPriorModel):
        return np.asarray(model.prior_moments()[1] ** -2.0)
    return np.zeros(posterior.n_params)


def causes(posterior: "Posterior", rows: FloatArray | None = None) -> FloatArray:
    """Return shares of the variance of parameters, or of linear combinations of them: records, privacy, prior; (3, k).

    `rows` (k, n): weights of the unconstrained parameters in each combination; the parameters themselves by default.
    Shares are NaN if the posterior does not have them for several parameters together.

    With prior precision L and covariance S = (P + L)^-1 the identity S = S P S + S L S holds: the second term is the
    prior's part of the variance, and all of it if P = 0.  Of the covariance D without privacy noise, D - D L D is the
    records'; the privacy noise adds the rest.  A mixture has its own S and D.
    """
    found, precision = posterior.distribution, prior_precision(posterior)
    parts = found.variance_parts()
    if rows is None:
        rows = np.eye(posterior.n_params)
    covariance = found.covariance
    if found.independent:
        data = np.diag(parts.data)
    elif isinstance(found, DrawnTheta) and found.data_covariance is not None:
        data = found.data_covariance
    elif np.count_nonzero(rows) == len(rows):
        # Parameters alone need no more than variances.
        data = np.diag(parts.data)
    else:
        return np.full((3, len(rows)), np.nan)
    total, own = (np.einsum("ki,ij,kj->k", rows, each, rows) for each in (covariance, data))
    total = np.maximum(total, 1e-300)
    prior = np.minimum(np.square(rows @ covariance) @ precision / total, 1.0)
    likelihood = 1.0 - prior
    records = np.clip((own - np.square(rows @ data) @ precision) / total, 0.0, likelihood)
    return np.stack([records, likelihood - records, prior])
