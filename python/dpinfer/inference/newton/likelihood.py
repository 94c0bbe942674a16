"""The likelihood of the weights in a release of a private Newton run, under priors other than the model's."""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray, IntArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.glm_scores import BoundedScores
from dpinfer.inference.newton.moments_law import MomentsLaw, combined, stratified
from dpinfer.inference.newton.population import residual_prior_variance
from dpinfer.inference.newton.posterior import noise_prior
from dpinfer.inference.newton.scores import LinearScores
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models.base import softplus
from dpinfer.release import GlmNewtonRelease, NewtonRelease, PopulationRelease, Release
from dpinfer.release.newton.linear import spread_of_counts

_MOST, _SEED = 256, 0  # draws that are kept, and of the spread of the matrix


@dataclass(frozen=True)
class Likelihoods:
    """Normal likelihoods exp(information' w - w' precision w / 2) of the weights, one for each draw of the matrices.

    Parameters
    ----------
    precision : (S, d, d) array
    information : (S, d) array
    prior_precision : (S, d) array
        Of the weights before, independent and with mean zero.
    place : (S,) array
        Index of the posterior's draw.
    data : (d, d) array
        Precision without privacy noise.
    """

    precision: FloatArray
    information: FloatArray
    prior_precision: FloatArray
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
    if isinstance(release, PopulationRelease):
        prior = np.full((len(place), d), 1.0 / residual_prior_variance(release, model))
        factor = np.asarray(found.q_factor)[place][:, :d, :d]
        precision = factor @ np.swapaxes(factor, 1, 2)
        information = (precision @ found.location[place, :d, None])[..., 0]
        precision[:, np.arange(d), np.arange(d)] -= prior
    else:
        precision, information, prior = _of_all_scores(release, model, posterior.prior, found.location[place])
    data = np.linalg.inv(np.asarray(found.data_covariance)[:d, :d])
    data[np.arange(d), np.arange(d)] -= prior.mean(axis=0)
    return Likelihoods(precision, information, prior, place, _positive(data))


def _of_all_scores(
    release: Release, model: GeneralizedLinearModel, prior: str, location: FloatArray
) -> tuple[FloatArray, ...]:
    """Return precision and information of the weights from all scores, and the prior precision of the model.

    Where noise hides the slope M, the measurements M (u - position) + noise do not tell whether u is near their
    position or M is small: the steps that led there, each from where it was taken, do.
    """
    scores: LinearScores | BoundedScores
    if isinstance(release, NewtonRelease) and isinstance(model, LinearRegression):
        scores, last = LinearScores(release, model, noise_prior(release, model, prior)[0]), tuning.TUNING.scores
        # The noise variance of residuals around a fit of d weights, over the population's.
        freedom = 1.0 - min(release.n_coef / release.n_records, 0.5)
        every = scores.every(0.5 * np.log(freedom * softplus(location[:, -1])))
    elif isinstance(release, GlmNewtonRelease):
        scores, last = BoundedScores(release, model), len(release.scores)
        every = scores.every(len(location))
    else:
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    law = MomentsLaw(scores.noisy, scores.stddev, scores.middle().mean_scores(scores.whitening))
    noise = 1.0 / every.precision[..., None]
    measured = combined(every.value[:, -last:], every.positions[-last:], noise[:, -last:])
    steps = every.value[:, :-last], np.broadcast_to(every.positions[:-last], every.value[:, :-last].shape)
    # A step's score is off by a share of its own mean.
    size = np.mean(np.square(steps[0]), axis=2, keepdims=True)
    far = noise[:, :-last] + tuning.TUNING.step_error**2 * np.maximum(size - noise[:, :-last], 0.0)
    value, position = (
        np.concatenate([step, own[:, None]], axis=1) @ law.basis for step, own in zip(steps, measured, strict=False)
    )
    noise = np.concatenate([far, measured[2][:, None, :1]], axis=1)
    drawn = stratified(law.weight, len(location), 1, np.random.default_rng(_SEED))
    nodes, chosen = np.unique(drawn, return_inverse=True)
    middle = value.mean(axis=0), position.mean(axis=0), noise.mean(axis=(0, 2)), float(every.sampling.mean())
    values, extra = (part[chosen] for part in law.expected_errors(nodes, *middle))
    score, at, variance = combined(value, position, noise + extra)
    variance = variance + every.sampling[:, None] * values
    pushed = (np.linalg.inv(scores.whitening) @ law.basis) * values[:, None, :]
    precision = (pushed / variance[:, None, :]) @ np.swapaxes(pushed, 1, 2)
    information = (pushed @ ((score + values * at) / variance)[..., None])[..., 0]
    return precision, information, 1.0 / every.prior_variance


def _positive(matrix: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def large_effect(release: Release, model: object) -> float:
    """Return the scale of an effect before anything is known: the responses' spread, or 2.5 on the scale of a link.

    Both are the defaults of brms (Buerkner 2017).
    """
    if isinstance(model, LinearRegression) and isinstance(release, (NewtonRelease, PopulationRelease)):
        return spread_of_counts(release.counts, release.edges)
    return tuning.TUNING.large_on_link
