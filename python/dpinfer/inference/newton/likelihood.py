"""The likelihood of the weights that a posterior of a private Newton run rests on: its prior divided out."""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray, IntArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.population import residual_prior_variance
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models.base import softplus
from dpinfer.release import GlmNewtonRelease, NewtonRelease, PopulationRelease, Release
from dpinfer.release.newton.linear import spread_of_counts

_MOST = 256  # draws that are kept


@dataclass(frozen=True)
class Likelihoods:
    """Normal likelihoods exp(information' w - w' precision w / 2) of the weights, one for each draw of the matrices.

    Parameters
    ----------
    precision : (S, d, d) array
    information : (S, d) array
    prior_precision : (S, d) array
        Of the weights before, independent and with mean zero.
    log_evidence : (S,) array
        Of the likelihood under that prior.
    weighted : bool
        Whether draws are weighted in proportion to their evidence: draws of the population's matrices are not.
    place : (S,) array
        Index of the posterior's draw.
    data : (d, d) array
        Precision without privacy noise.
    """

    precision: FloatArray
    information: FloatArray
    prior_precision: FloatArray
    log_evidence: FloatArray
    weighted: bool
    place: IntArray
    data: FloatArray


def likelihoods_of(release: Release, posterior: Posterior) -> Likelihoods:
    """Return the likelihoods of the weights that a posterior rests on.

    **Privacy.** Post-processing of a Release: it costs nothing.

    Parameters
    ----------
    posterior : Posterior
        Of this release, under the prior of its model.

    Raises
    ------
    TypeError
        If the release is of another mechanism.
    """
    model, found = posterior.model, posterior.distribution
    known = isinstance(release, (NewtonRelease, GlmNewtonRelease, PopulationRelease))
    if not known or not isinstance(model, GeneralizedLinearModel) or not isinstance(found, DrawnTheta):
        raise TypeError(
            "a prior with a learned scale needs the release of a private Newton run of a linear, logistic, probit or "
            f"Poisson regression, got {type(release).__name__}: fit it with method='newton', without an offset"
        )
    d = model.n_coef
    draws = len(found.location)
    place = np.unique(np.linspace(0, draws - 1, min(_MOST, draws)).astype(np.int64))
    factor = np.asarray(found.q_factor)[place][:, :d, :d]
    mean = found.location[place, :d]
    prior = _prior_precision(release, model, found.location[place])
    precision = factor @ np.swapaxes(factor, 1, 2)
    information = (precision @ mean[..., None])[..., 0]
    evidence = 0.5 * np.sum(np.log(prior), axis=1) + 0.5 * np.sum(mean * information, axis=1)
    evidence -= np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1)
    index = np.arange(d)
    precision[:, index, index] -= prior
    data = np.linalg.inv(np.asarray(found.data_covariance)[:d, :d])
    data[index, index] -= prior.mean(axis=0)
    weighted = not isinstance(release, PopulationRelease)
    return Likelihoods(precision, information, prior, evidence, weighted, place, _positive(data))


def _prior_precision(release: Release, model: GeneralizedLinearModel, location: FloatArray) -> FloatArray:
    """Return the prior precision that the posterior's draws were made with, (S, d)."""
    if isinstance(release, PopulationRelease):
        return np.full((len(location), release.n_coef), 1.0 / residual_prior_variance(release, model))
    if not isinstance(release, NewtonRelease):
        return np.full((len(location), model.n_coef), model.prior_scale**-2.0)
    if not isinstance(model, LinearRegression):
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    # The noise variance that the draw was made with is that of the residuals around a fit of d weights.
    freedom = 1.0 - min(release.n_coef / release.n_records, 0.5)
    variance = np.repeat(model.prior_scale**2 * freedom * softplus(location[:, -1:]), release.n_coef, axis=1)
    if model.fit_intercept:
        variance[:, -1] += release.response_spread**2
    return np.asarray(1.0 / variance)


def _positive(matrix: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def large_effect(release: Release, model: GeneralizedLinearModel) -> float:
    """Return the scale of an effect before anything is known: the responses' spread, or 2.5 on the scale of a link.

    Both are the defaults of brms (Buerkner 2017).
    """
    if isinstance(model, LinearRegression) and isinstance(release, (NewtonRelease, PopulationRelease)):
        return spread_of_counts(release.counts, release.edges)
    return tuning.TUNING.large_on_link
