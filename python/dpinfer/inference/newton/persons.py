"""Effects of persons: the law of their standard deviations where the likelihood reaches beyond zero.

The scores of a run say a normal law of theta, in which a variance may be negative: theta is smooth there.  But a
covariance is in its cone, and standard deviations have a prior of their own.  docs/derivations/people.md, "Near zero".
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.pooling import ScalePrior
from dpinfer.models import tuning as common
from dpinfer.models.person_model import PersonModel

EFFECT_PRIOR = ScalePrior(common.PRIORS.on_link, common.PRIORS.degrees)  # of sds over the noise's or on the link
NOT_TOLD = 1.645  # 5% of a normal law lies above: the likelihood ratio at the boundary is half zero, half chi-squared
_DRAWS = 4  # of each normal law, in even steps: of the mixture there are four times as many as laws
_NODES = 400  # of tau, from one end of its likelihood to the other: tolerance
_LARGEST = 300.0  # logarithm of a variance: double precision
_BEYOND = 8.0  # standard deviations of the likelihood: tolerance
_NARROW = 1e-3  # spread that a drawn parameter has left, over that of its likelihood: next to nothing; tolerance
_CANDIDATES, _AT_ONCE = (128, 4096), 2**18  # of a law, more where fewer than _DRAWS count; and in memory at once


@dataclass(frozen=True)
class BoundedEffects:
    """A mixture of normals with effects inside of their cone, and the evidence about zero."""

    location: FloatArray  # (S, n)
    precision: FloatArray  # (S, n, n)
    distance: FloatArray  # (1,) or (2,): of each variance from zero, in standard deviations of the likelihood
    log_bayes_factor: float  # of a model with the effect against one without; nan with a slope


def bounded_effects(
    model: PersonModel,
    location: FloatArray,  # (S, n): means of theta, without a prior of the effects' parameters
    precision: FloatArray,  # (S, n, n)
    rng: np.random.Generator,
) -> BoundedEffects:
    """Return the posterior under the prior of standard deviations.

    **Privacy.** Post-processing of a release.

    Notes
    -----
    Given a normal law, effects' parameters are drawn from their marginal law times the prior's density there, and the
    others keep their normal law given them.
    """
    at = model.first_effect
    covariance: npt.NDArray[Any] = np.linalg.inv(precision)
    own, variance = location[:, at:], covariance[:, at:, at:]
    distance = _distance(model, own, variance)
    if model.n_effects == 2 and model.response == "binary" and distance.min() > tuning.TUNING.pair_far:
        found = _with_less_ridge(model, location, precision, rng)
        if found is not None:
            return replace(found, distance=distance)
    if model.n_effects == 1:
        drawn, log_bayes_factor = _one(model, own[:, 0], variance[:, 0, 0], rng)
    else:
        drawn, log_bayes_factor = _two(model, own, variance, rng), float("nan")
    repeated = np.repeat(np.arange(len(location)), _DRAWS)
    moved = drawn - own[repeated]
    gain = np.linalg.solve(variance, np.swapaxes(covariance[:, :at, at:], 1, 2))[repeated]
    others = location[repeated, :at] + np.einsum("sj,sjk->sk", moved, gain)
    kept = np.zeros((len(repeated), *precision.shape[1:]))
    kept[:, :at, :at] = precision[repeated, :at, :at]
    place = np.arange(at, precision.shape[1])
    spread = np.sqrt(np.diagonal(variance, axis1=1, axis2=2).mean(axis=0))
    kept[:, place, place] = (_NARROW * spread) ** -2.0
    return BoundedEffects(np.column_stack((others, drawn)), kept, distance, log_bayes_factor)


def _with_less_ridge(
    model: PersonModel, location: FloatArray, precision: FloatArray, rng: np.random.Generator
) -> BoundedEffects | None:
    """Return the posterior of a likelihood that is normal in parameters with less ridge; None if a mean has none."""
    other, at = copy.copy(model), model.first_effect
    other.ridge, other.response = model.ridge / tuning.TUNING.pair_ridge, ""
    covariance = model.covariance(location)
    if np.linalg.eigvalsh(covariance).min() <= -0.5 * other.ridge:
        return None
    moved = np.column_stack((location[:, :at], other.from_covariance(covariance)))
    pairs = zip(location, moved, strict=True)
    turn = np.array([np.linalg.solve(model.jacobian(one), other.jacobian(same)) for one, same in pairs])
    found = bounded_effects(other, moved, np.swapaxes(turn, 1, 2) @ precision @ turn, rng)
    drawn = model.from_covariance(other.covariance(found.location))
    return replace(found, location=np.column_stack((found.location[:, :at], drawn)))


def _distance(model: PersonModel, own: FloatArray, variance: FloatArray) -> FloatArray:
    """Return how far each variance is from zero: that of the intercept, and that of the slope."""
    within = variance.mean(axis=0) + np.cov(own, rowvar=False).reshape(own.shape[1], -1)
    centre = own.mean(axis=0)
    floor = np.log(model.ridge)
    if model.n_effects == 1:
        return np.array([(centre[0] - floor) / np.sqrt(within[0, 0])])
    # The slope's variance plus the ridge is d**2 + exp(eta), by its logarithm.
    square = centre[1] ** 2 + np.exp(centre[2])
    slope = np.array([0.0, 2.0 * centre[1], np.exp(centre[2])]) / square
    first = (centre[0] - floor) / np.sqrt(within[0, 0])
    return np.array([first, (np.log(square) - floor) / np.sqrt(slope @ within @ slope)])


def _one(
    model: PersonModel, mean: FloatArray, variance: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    """Draw log(tau**2 + ridge) for each normal law, and return the log Bayes factor against tau = 0."""
    stddev = np.sqrt(variance)
    far = np.maximum(mean + _BEYOND * stddev, np.log(model.ridge) + stddev)
    # Beyond e**_LARGEST the prior has no mass to speak of, and squares of its square root leave the arithmetic's range.
    far = np.minimum(far, _LARGEST)
    near = np.minimum(mean - _BEYOND * stddev, far - 1.0)
    # Even steps near zero, and in log(tau) far out: a wide likelihood reaches over many powers of ten.
    unit = np.sqrt(model.ridge)
    least, most = (np.arcsinh(np.sqrt(np.maximum(np.exp(end) - model.ridge, 0.0)) / unit) for end in (near, far))
    share = (np.arange(_NODES) + 0.5) / _NODES
    step = least[:, None] + (most - least)[:, None] * share
    level = np.log(model.ridge) + 2.0 * np.log(np.cosh(step))
    log_density = -0.5 * np.square((level - mean[:, None]) / stddev[:, None]) + np.log(unit * np.cosh(step))
    log_density += EFFECT_PRIOR.log_density(unit * np.sinh(step))
    top = log_density.max(axis=1, keepdims=True)
    weight = np.cumsum(np.exp(log_density - top), axis=1)
    total = weight[:, -1]
    # Even steps within each law, so that the mixture of all has little Monte Carlo error.
    aim = (np.arange(_DRAWS) + rng.random((len(mean), _DRAWS))) / _DRAWS * total[:, None]
    place = np.minimum(np.sum(weight[:, None, :] < aim[:, :, None], axis=2), _NODES - 1)
    rows = np.arange(len(mean))[:, None]
    before = np.where(place > 0, weight[rows, np.maximum(place - 1, 0)], 0.0)
    inside = (aim - before) / (weight[rows, place] - before)
    width = (most - least) / _NODES
    drawn = unit * np.sinh(least[:, None] + width[:, None] * (place + inside))
    zero = np.square((np.log(model.ridge) - mean) / stddev)
    at_zero = -0.5 * zero + EFFECT_PRIOR.log_density(np.zeros(1)) - top[:, 0] - np.log(total * width)
    posterior = special.logsumexp(at_zero) - np.log(len(mean))
    return np.log(np.square(drawn) + model.ridge).reshape(-1, 1), float(_log_prior_at_zero() - posterior)


def _log_prior_at_zero() -> float:
    """Return the log density of the half-t prior at zero."""
    half = 0.5 * EFFECT_PRIOR.df
    constant = special.gammaln(half + 0.5) - special.gammaln(half) - 0.5 * np.log(np.pi * EFFECT_PRIOR.df)
    return float(constant + np.log(2.0 / EFFECT_PRIOR.scale))


def _two(model: PersonModel, mean: FloatArray, variance: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw the parameters of a covariance for each normal law, by sampling and resampling inside of the cone."""
    root, k = np.linalg.cholesky(variance), mean.shape[1]
    drawn = np.empty((len(mean), _DRAWS, k))
    waiting = np.arange(len(mean))
    for size in _CANDIDATES:
        for chunk in np.array_split(waiting, max(1, waiting.size * size // _AT_ONCE)):
            normal = rng.standard_normal((chunk.size, size, k))
            candidates = mean[chunk, None] + normal @ np.swapaxes(root[chunk], 1, 2)
            log_weight = _log_prior_of_pair(model, candidates.reshape(-1, k)).reshape(chunk.size, size)
            top = np.maximum(log_weight.max(axis=1, keepdims=True), -1e300)
            total = np.cumsum(np.exp(log_weight - top), axis=1)
            aim = rng.random((chunk.size, _DRAWS)) * total[:, -1:]
            chosen = np.minimum(np.sum(total[:, None, :] < aim[:, :, None], axis=2), size - 1)
            drawn[chunk] = np.take_along_axis(candidates, chosen[:, :, None], axis=1)
            drawn[chunk[np.sum(np.isfinite(log_weight), axis=1) < _DRAWS]] = np.nan
        waiting = np.flatnonzero(np.isnan(drawn[:, 0, 0]))
    if waiting.size:
        padded = np.zeros((waiting.size, model.n_params))
        padded[:, model.first_effect :] = mean[waiting]
        drawn[waiting] = model.held(padded)[:, None, model.first_effect :]
    return drawn.reshape(-1, k)


def _log_prior_of_pair(model: PersonModel, own: FloatArray) -> FloatArray:
    """Return the log prior density of a pair's parameters, -inf outside of the cone; a correlation is uniform."""
    padded = np.zeros((len(own), model.n_params))
    padded[:, model.first_effect :] = own
    found = model.covariance(padded)
    first, between, second = found[:, 0, 0], found[:, 0, 1], found[:, 1, 1]
    inside = (first > 0.0) & (second > 0.0) & (first * second > np.square(between))
    square = np.where(inside, first * second, 1.0)
    stddev = np.sqrt(np.where(inside, first, 1.0)), np.sqrt(np.where(inside, second, 1.0))
    density = sum(EFFECT_PRIOR.log_density(each) for each in stddev)
    # From standard deviations and correlation to variances and covariance, and on to the parameters.
    return np.where(inside, density - np.log(square) + 1.5 * own[:, 0] + own[:, 2], -np.inf)
