"""The likelihood of the weights in a release of a private Newton run, under priors other than the model's."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpinfer._arrays import FloatArray, IntArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.counted import as_counted
from dpinfer.inference.newton.moments_law import MomentsLaw, combined
from dpinfer.inference.newton.population import residual_prior_variance
from dpinfer.inference.newton.posterior import noise_prior
from dpinfer.inference.newton.scores import BoundedScores, LinearScores
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models import tuning as common
from dpinfer.models.base import softplus
from dpinfer.release import GlmNewtonRelease, NewtonRelease, PopulationRelease, Release
from dpinfer.release.newton.regression import spread_of_counts

_MOST = 256  # draws that are kept


@dataclass(frozen=True)
class Likelihoods:
    """Normal likelihoods exp(information' w - w' precision w / 2) of the weights, one for each draw of the matrices."""

    precision: FloatArray  # (S, d, d)
    information: FloatArray  # (S, d)
    prior_precision: FloatArray  # (S, d): of the weights before, independent and with mean zero
    place: IntArray  # (S,): index of the posterior's draw
    data: FloatArray  # (d, d): precision without privacy noise

    def start(self, size: int, rng: np.random.Generator) -> "State":
        """Return the likelihoods of chains: every draw equally often."""
        return self._at(rng.permutation(np.resize(np.arange(len(self.place)), size)))

    def again(self, state: "State", weights: FloatArray, rng: np.random.Generator) -> "State":
        """Return other likelihoods, given weights (C, d): here independent of these."""
        return self._at(rng.integers(len(self.place), size=len(weights)))

    def _at(self, draw: IntArray) -> "State":
        return State(draw, self.precision[draw], self.information[draw])


class State(NamedTuple):
    """Likelihoods of chains: the draw of each, (C,), and its slope M, (C, d, d), if M is drawn."""

    draw: IntArray
    precision: FloatArray
    information: FloatArray
    slope: FloatArray = np.empty(0)


@dataclass(frozen=True)
class ScoreLikelihoods:
    """Likelihoods from scores of all steps, M (u - position) + noise, with M and its spread drawn given the weights.

    At a node of the spread, M is diag(middle) and a symmetric matrix whose entries have variance `entry` beside the
    diagonal and twice that on it, and a multiple of the identity of variance `level`.  Sampling adds to all scores.
    Coordinates are eigenvectors of the release, u = weights @ back.
    """

    back: FloatArray
    # value, position: (S, T, d)
    value: FloatArray
    position: FloatArray
    noise: FloatArray  # (S, T)
    sampling: FloatArray  # (S, d)
    middle: FloatArray  # (K, d)
    # entry, level, log_weight: (K,)
    entry: FloatArray
    level: FloatArray
    log_weight: FloatArray
    weights: FloatArray  # (S, d): where chains start
    # prior_precision, place, data: as of :class:`Likelihoods`
    prior_precision: FloatArray
    place: IntArray
    data: FloatArray

    def start(self, size: int, rng: np.random.Generator) -> State:
        """Return the likelihoods of chains, at draws far from each other."""
        draw = np.linspace(0, len(self.place) - 1, size).astype(np.int64)
        first = np.diag(np.average(self.middle, axis=0, weights=np.exp(self.log_weight)))
        state = State(draw, np.empty(0), np.empty(0), np.tile(first, (size, 1, 1)))
        return self.again(state, self.weights[draw], rng)

    def again(self, state: State, weights: FloatArray, rng: np.random.Generator) -> State:
        """Return likelihoods with M drawn given weights (C, d), its spread with M integrated out.

        Scores are turned to unit noise and orthogonal errors e_t = size_t basis_t: of basis' M basis each entry then
        has one score or two, and of the rest of M basis one.  A draw and its scores, given the release alone, are moved
        to the observed scores.
        """
        draw, u = state.draw, weights @ self.back
        noise, sampling, (size, d) = self.noise[draw][..., None], self.sampling[draw], weights.shape
        score, at, own = combined(self.value[draw], self.position[draw], noise)
        gain = sampling / (sampling + own)
        common = gain * (score - np.einsum("cij,cj->ci", state.slope, u - at))
        common += np.sqrt(own * gain) * rng.standard_normal(u.shape)
        turn, length, basis = np.linalg.svd((u[:, None] - self.position[draw]) / np.sqrt(noise), full_matrices=False)
        value = np.swapaxes(turn, 1, 2) @ ((self.value[draw] - common[:, None]) / np.sqrt(noise))
        errors = length[..., None] * basis
        node = np.argmax(self._log_density(value, length, basis) + rng.gumbel(size=(size, len(self.entry))), axis=1)
        entry, level = self.entry[node, None, None], self.level[node]
        half = rng.standard_normal((size, d, d)) * np.sqrt(0.5 * entry)
        middle = self.middle[node] + (np.sqrt(level) * rng.standard_normal(size))[:, None]
        missed = value - errors @ (half + np.swapaxes(half, 1, 2)) - errors * middle[:, None]
        missed -= rng.standard_normal(missed.shape)
        inside = missed @ np.swapaxes(basis, 1, 2)
        joint, total, along, known = _parts(inside, length, entry, level)
        moved = along / known
        diagonal = np.arange(length.shape[1])
        joint[:, diagonal, diagonal] -= 2.0 * moved[:, None] * np.square(length)
        rest = (missed - inside @ basis) * (length / (1.0 + entry[..., 0] * np.square(length)))[..., None]
        half += entry * np.swapaxes(basis, 1, 2) @ (rest + 0.5 * (joint / total) @ basis)
        slope = half + np.swapaxes(half, 1, 2)
        np.einsum("cii->ci", slope)[:] += middle + moved[:, None]
        pushed, variance = self.back @ slope, own + sampling
        precision = (pushed / variance[:, None, :]) @ np.swapaxes(pushed, 1, 2)
        target = (score + np.einsum("cij,cj->ci", slope, at)) / variance
        return State(draw, precision, np.einsum("cij,cj->ci", pushed, target), slope)

    def _log_density(self, value: FloatArray, length: FloatArray, basis: FloatArray) -> FloatArray:
        """Return the log density of turned scores and of the spread's nodes, (C, K), up to a constant."""
        # As matrix products with the nodes' means of M last.
        norms = np.sum(np.square(value), axis=2)[..., None] - 2.0 * length[..., None] * (
            (basis * value) @ self.middle.T
        )
        norms += np.square(length)[..., None] * (np.square(basis) @ np.square(self.middle.T))
        means = (basis[:, :, None] * basis[:, None]) @ self.middle.T
        inside = (value @ np.swapaxes(basis, 1, 2))[..., None] - length[:, :, None, None] * means
        inside, norms = np.moveaxis(inside, 3, 1), np.moveaxis(norms, 2, 1)
        length, entry = length[:, None], self.entry[:, None, None]
        joint, total, along, known = _parts(inside, length, entry, self.level)
        alone, square = 1.0 + entry[..., 0] * np.square(length), np.square(inside)
        fit = np.maximum(norms - square.sum(axis=3), 0.0) / alone
        fit = np.sum(fit + (value.shape[2] - value.shape[1]) * np.log(alone), axis=2) + square.sum(axis=(2, 3))
        fit += 0.5 * np.sum(np.log(total) - entry * np.square(joint) / total, axis=(2, 3))
        fit += 0.5 * np.sum(np.log(np.einsum("cktt->ckt", total)), axis=2)
        return np.asarray(self.log_weight - 0.5 * (fit + np.log(self.level * known) - np.square(along) / known))


def _parts(inside: FloatArray, length: FloatArray, entry: FloatArray, level: FloatArray) -> tuple[FloatArray, ...]:
    """Return information and variance of each entry of M, from turned scores (..., T, T) in the span of their errors.

    The last two are information and precision of the terms added to the identity.
    """
    rows, square = length[..., None] * inside, np.square(length)
    total = 1.0 + entry * (square[..., None] + square[..., None, :])
    own = np.einsum("...tt->...t", total)
    along, known = np.sum(np.einsum("...tt->...t", rows) / own, axis=-1), np.sum(square / own, axis=-1) + 1.0 / level
    return rows + np.swapaxes(rows, -1, -2), total, along, known


def likelihoods_of(
    release: Release,
    posterior: Posterior,  # of this release, under the prior of its model
) -> Likelihoods | ScoreLikelihoods:
    """Return the likelihoods of the weights that a posterior rests on.

    **Privacy.** Post-processing of a Release: it costs nothing.

    Raises
    ------
    TypeError
        If the release is of another mechanism.
    """
    release, model, found = as_counted(release), posterior.model, posterior.distribution
    known = isinstance(release, (NewtonRelease, GlmNewtonRelease, PopulationRelease))
    if not known or not isinstance(model, GeneralizedLinearModel) or not isinstance(found, DrawnTheta):
        raise TypeError(
            "a prior with a learned scale needs the release of a private Newton run of a linear, logistic, probit or "
            f"Poisson regression, got {type(release).__name__}: fit it with method='newton', without an offset"
        )
    d = model.n_coef
    draws = len(found.location)
    place = np.unique(np.linspace(0, draws - 1, min(_MOST, draws)).astype(np.int64))
    information = np.linalg.inv(np.asarray(found.data_covariance)[:d, :d])

    def data(prior: FloatArray) -> FloatArray:
        values, vectors = np.linalg.eigh(information - np.diag(prior.mean(axis=0)))
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)

    if isinstance(release, PopulationRelease):
        prior = np.full((len(place), d), 1.0 / residual_prior_variance(release, model))
        factor = np.asarray(found.q_factor)[place][:, :d, :d]
        precision = factor @ np.swapaxes(factor, 1, 2)
        told = (precision @ found.location[place, :d, None])[..., 0]
        precision[:, np.arange(d), np.arange(d)] -= prior
        return Likelihoods(precision, told, prior, place, data(prior))
    return _of_all_scores(release, model, posterior.prior, found.location[place], place, data)


def _of_all_scores(
    release: Release,
    model: GeneralizedLinearModel,
    prior: str,
    location: FloatArray,
    place: IntArray,
    data: Callable[[FloatArray], FloatArray],
) -> ScoreLikelihoods:
    """Return the likelihoods from all scores, at places of a posterior with these locations, (S, n).

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
    law = law.at(law.spreads[::2], 2.0 * law.width[::2])
    noise = 1.0 / every.precision
    measured = combined(every.value[:, -last:], every.positions[-last:], noise[:, -last:, None])
    steps = every.value[:, :-last], np.broadcast_to(every.positions[:-last], every.value[:, :-last].shape)
    # A step's score is off by a share of its own mean.
    size = np.mean(np.square(steps[0]), axis=2)
    far = noise[:, :-last] + tuning.TUNING.step_error**2 * np.maximum(size - noise[:, :-last], 0.0)
    value, position = (
        np.concatenate([step, own[:, None]], axis=1) @ law.basis for step, own in zip(steps, measured, strict=False)
    )
    # With a larger spread M would have negative eigenvalues.
    d, centre = model.n_coef, float(np.clip(np.mean(law.eigenvalues), *law.ends))
    nodes = slice(max(1, int(np.sum(law.spreads * math.sqrt(2.0 * d) <= centre))))
    weight, kept = np.maximum(law.weight[nodes], 1e-300), law.kept[nodes]
    middle = law.expected(np.full(len(kept), centre), kept)[1]
    return ScoreLikelihoods(
        back=np.linalg.inv(scores.whitening) @ law.basis,
        value=value,
        position=position,
        noise=np.concatenate([far, measured[2]], axis=1),
        sampling=every.sampling[:, None] * (weight @ middle) / weight.sum(),
        middle=middle,
        entry=0.5 * kept * law.noise,
        level=law.noise**2 / (np.square(law.spreads[nodes]) + law.noise) / d,
        log_weight=np.log(weight),
        weights=location[:, :d],
        prior_precision=1.0 / every.prior_variance,
        place=place,
        data=data(1.0 / every.prior_variance),
    )


def large_effect(release: Release, model: object) -> float:
    """Return the scale of an effect before anything is known: the responses' spread, or 2.5 on the scale of a link.

    Both are the defaults of brms (Buerkner 2017).
    """
    if isinstance(model, LinearRegression) and isinstance(release, (NewtonRelease, PopulationRelease)):
        return spread_of_counts(release.counts, release.edges)
    return common.PRIORS.on_link
