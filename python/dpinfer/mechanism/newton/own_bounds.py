"""Bounds of a run of a user's own model, and whether its posterior is near normal: by simulation, no records."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import NEGLIGIBLE, TINY, FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.own_rows import (
    PERSONS_STREAM,
    draw_sizes,
    kernel_scores,
    score_norms,
    score_vector,
)
from dpinfer.models import OwnModel
from dpinfer.models.person_model import PersonModel

_ROWS, _GROUPS, _PAIRS = 500, 10, 8  # made-up records, groups of them for the jackknife, pairs of truths
_PERSONS = 2 * tuning.OWN.draws // tuning.OWN.person_draws  # whose draws are as many as those of a record


class MadeUp:
    """Made-up records; each has the random numbers of n_draws responses.

    **Privacy.** Reads no records.
    """

    def __init__(
        self,
        model: OwnModel,  # with a sampler
        size: int,
        rng: np.random.Generator,  # public
    ) -> None:
        self._model: Any = model
        # As many draws in all: a person has fewer of them.
        self._rows = model.made_up_features(size * (_PERSONS if isinstance(model, PersonModel) else 1), rng)
        self.persons = isinstance(model, PersonModel)
        if self.persons:
            self._words = rng.integers(0, 2**64, (len(self._rows), 2), dtype=np.uint64)
        else:
            self._rows = np.repeat(self._rows, 2 * tuning.OWN.draws, axis=0)
            self._words = rng.integers(0, 2**64, (len(self._rows), model.n_words), dtype=np.uint64)

    def scores(self, theta: FloatArray, truth: FloatArray) -> FloatArray:
        """Return the scores at `theta` of responses that are drawn with `truth`, (rows, draws, n)."""
        with np.errstate(all="ignore"):
            if self.persons:
                found = kernel_scores(
                    self._model, theta, truth, np.eye(theta.size), self._rows, None, self._words, PERSONS_STREAM
                )
                return np.ascontiguousarray(found.transpose(2, 1, 0))
            drawn = self._model.draw_responses(truth, self._rows, self._words)
            scores: FloatArray = self._model.scores(self._rows, drawn, theta)
            return scores.reshape(-1, 2 * tuning.OWN.draws, theta.size)


_RIDGE = 1e-4  # of the mean information: a parameter that made-up records do not inform stays finite
_LARGEST_SCORE = 1e50  # its square is finite


@dataclass(frozen=True)
class SimulatedBounds:
    """Bounds from simulated records at one point, in coordinates where their information is the identity."""

    information: FloatArray  # (n, n): of one made-up record, in the given coordinates
    # weight_bound, clip, share: of :class:`CentredScores` behind ``information ** (-1/2)``
    weight_bound: float
    clip: float
    share: float
    slope: float  # mean eigenvalue of the slope of the clipped score
    variance_ratio: float  # variance of the clipped score over its slope
    square: float  # mean of |clip(w s)|^2 over clip^2
    square_slope: FloatArray  # (n,): of that in the truth behind ``information ** (-1/2)``
    square_variance: float  # of a record's, less its mean over draws at the same features


def symmetric_inverse_root(matrix: FloatArray) -> FloatArray:
    """Return matrix ** (-1/2), with eigenvalues of at least a thousandth of the largest."""
    eigenvalues, eigenvectors = np.linalg.eigh(matrix)
    held = np.maximum(eigenvalues, max(1e-3 * float(eigenvalues[-1]), NEGLIGIBLE))
    return np.asarray((eigenvectors / np.sqrt(held)) @ eigenvectors.T)


def simulate_bounds(
    model: OwnModel,
    theta: FloatArray,  # (n,)
    unit: FloatArray,  # (n,): units of the coordinates: the prior's standard deviations
    *,
    noise: float,  # noise multiplier of all measurements together
    n_records: int,
    rng: np.random.Generator,  # public
    n_rows: int,  # made-up records
) -> SimulatedBounds:
    """Choose bounds by the predicted variance of one measurement, on made-up records at `theta`.

    Notes
    -----
    Minimises (V / N + (noise (1 + share) clip / N)**2 + bias**2) / J**2, with the variance V, the slope J and the bias
    that the bound on the centre leaves, all simulated.
    """
    persons = isinstance(model, PersonModel)
    scores = _simulated_scores(model, theta, rng, n_rows) * unit
    n = scores.shape[2]
    flat = scores.reshape(-1, n)
    information = flat.T @ flat / len(flat)
    level = max(float(np.trace(information)) / n, NEGLIGIBLE)
    information = information + _RIDGE * level * np.eye(n)
    white = scores @ symmetric_inverse_root(information)
    size = draw_sizes(np.sum(white**2, axis=2), persons=persons)
    longest = tuning.OWN.spare * max(float(np.sqrt(np.max(np.sum(white**2, axis=2)))), NEGLIGIBLE)
    # A bound that holds no made-up score back, where its noise is nothing beside what the records leave open.
    unbounded = noise * (1.0 + tuning.OWN.centres[0]) * longest < tuning.OWN.negligible * math.sqrt(n_records)
    weight_bound = longest**2 if unbounded else max(float(np.quantile(size, tuning.OWN.weight_level)), NEGLIGIBLE)
    weight = np.minimum(1.0, weight_bound / np.maximum(size, NEGLIGIBLE))
    white = white if persons else white[:, tuning.OWN.draws :]
    weighted = white * weight[:, :, None]
    norm = np.sqrt(np.sum(weighted**2, axis=2))
    products = np.sum(weighted * white, axis=2)
    total = weighted.mean(axis=1)
    narrowest, best = np.inf, (0.0, 0.0, 0.0, 0.0)
    levels = () if unbounded else tuning.OWN.clip_levels
    clips = [max(float(np.quantile(norm, level)), NEGLIGIBLE) for level in levels] or [longest]
    for clip in clips:
        kept = np.minimum(1.0, clip / np.maximum(norm, NEGLIGIBLE))
        inside = np.mean(kept[:, :, None] * weighted, axis=1)
        excess = total - inside
        length = np.sqrt(np.sum(excess**2, axis=1)) + NEGLIGIBLE
        slope = max(float(np.mean(kept * products)) / n, NEGLIGIBLE)
        for share in tuning.OWN.centres:
            cut = excess * np.minimum(1.0, share * clip / length)[:, None]
            square = np.mean((kept * norm) ** 2) + np.mean(np.sum((2.0 * inside + cut) * cut, axis=1))
            variance = float(square) / n
            bias = float(np.sum(np.mean(excess - cut, axis=0) ** 2))
            width = (variance / n_records + (noise * (1.0 + share) * clip / n_records) ** 2 + bias) / slope**2
            if width < narrowest:
                narrowest, best = width, (clip, share, slope, variance / slope)
    if not best[0]:
        raise RuntimeError("no bound was tried")
    clip, share, slope, ratio = best
    squares = np.minimum(1.0, norm / clip) ** 2
    return SimulatedBounds(
        information=information,
        weight_bound=weight_bound,
        clip=clip,
        share=share,
        slope=slope,
        variance_ratio=max(ratio, NEGLIGIBLE),
        square=float(np.mean(squares)),
        square_slope=np.mean(squares[:, :, None] * white, axis=(0, 1)),
        square_variance=float(np.mean(np.var(squares, axis=1, ddof=1))) * (1.0 + 1.0 / squares.shape[1]),
    )


def _simulated_scores(model: OwnModel, theta: FloatArray, rng: np.random.Generator, n_rows: int) -> FloatArray:
    """Return scores of made-up records with drawn responses, (rows, draws, n), finite."""
    scores = MadeUp(model, n_rows, rng).scores(theta, theta)
    kept = np.nan_to_num(scores, nan=0.0, posinf=_LARGEST_SCORE, neginf=-_LARGEST_SCORE)
    return np.clip(kept, -_LARGEST_SCORE, _LARGEST_SCORE)


@dataclass(frozen=True)
class NormalPosterior:
    """The normal posterior that one mean of scores gives if the expected score is linear."""

    spread: FloatArray  # (n, n): L with covariance L L', in the coordinates of the transformed score
    gain: FloatArray  # (n, n): from a shift of the mean score to that of the posterior's centre, in units of L

    @classmethod
    def of(cls, slope: FloatArray, covariance: FloatArray, prior_precision: FloatArray) -> "NormalPosterior":
        """Return it for a score with this slope and covariance, and a normal prior."""
        weighted = np.linalg.solve(covariance, slope).T
        precision = weighted @ slope + prior_precision
        root = np.linalg.cholesky(0.5 * (precision + precision.T))
        spread = np.linalg.inv(root).T
        return cls(spread, spread.T @ weighted)


class ExpectedScore:
    """The mean clipped score of simulated records at one point, for any parameters of their responses.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    theta : (n,) array
        Where scores are taken.
    transform : (n, n) array
        Of the scores.
    rng : Generator
        Public.
    n_rows : int
        Made-up records; their rows and random numbers are common to all truths.

    Attributes
    ----------
    at_point : (n, groups) array
        :meth:`at` for the point itself.
    """

    def __init__(
        self,
        model: OwnModel,
        theta: FloatArray,
        transform: FloatArray,
        bounds: SimulatedBounds,
        rng: np.random.Generator,
        n_rows: int,
    ) -> None:
        self._transform, self._bounds = transform, bounds
        self._records = MadeUp(model, n_rows, rng)
        self._move(theta)

    def _move(self, theta: FloatArray) -> None:
        self._theta = theta
        self._here = self._scores(theta)
        size = draw_sizes(score_norms(self._here) ** 2, persons=self._records.persons)
        self._weight = np.minimum(1.0, self._bounds.weight_bound / (size + TINY))
        self.at_point = self._grouped(self._clipped(self._here))

    def moved_to(self, theta: FloatArray) -> "ExpectedScore":
        """Return the same rows and random numbers at another point."""
        other = copy.copy(self)
        other._move(theta)
        return other

    def _scores(self, truth: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            drawn = self._records.scores(self._theta, truth) @ self._transform.T
        drawn[~np.all(np.isfinite(drawn), axis=2)] = 0.0
        return np.ascontiguousarray(np.moveaxis(drawn, 2, 0))

    def _clipped(self, drawn: FloatArray) -> FloatArray:
        return score_vector(drawn * self._weight, self._bounds.clip)

    def _grouped(self, values: FloatArray) -> FloatArray:
        return np.asarray(values.reshape(self._theta.size, _GROUPS, -1).mean(axis=2))

    def slope(self) -> FloatArray:
        """Return the slope of the mean clipped score at the point, by Bartlett's identity, (n, n, groups)."""
        n = self._theta.size
        clipped, own = (values.reshape(n, _GROUPS, -1) for values in (self._clipped(self._here), self._here))
        return np.asarray(np.einsum("agr,bgr->abg", clipped, own) / clipped.shape[2])

    def at(self, truth: FloatArray) -> FloatArray:
        """Return the mean clipped score of each group of rows when `truth` is the truth, (n, groups)."""
        return self._grouped(self._clipped(self._scores(truth)))


def simulate_reach(
    score: ExpectedScore,
    theta: FloatArray,  # (n,): where the step begins
    step: FloatArray,  # (n,): of theta
    released: FloatArray,  # (n,): the released score at theta
    margin: float,  # margin of the released score over the expected one along the step, for a longer step
) -> float:  # at least 1
    """Return the factor of a step at whose end the expected score equals the released one.

    **Privacy.** Reads no records.
    """
    direction = released / max(float(np.linalg.norm(released)), TINY)
    wanted, reach = float(direction @ released) - margin, 1.0
    for longer in tuning.OWN.longer:
        expected = direction @ (score.at(theta + longer * step) - score.at_point).mean(axis=1)
        if not expected < wanted:
            break
        reach = longer
    return reach


def simulate_shift(
    model: OwnModel,  # with a sampler
    theta: FloatArray,  # (n,): where scores are measured
    slope_point: FloatArray,  # (n,): where their slope was
    transform: FloatArray,  # (n, n): of the scores
    bounds: SimulatedBounds,
    posterior: NormalPosterior,
    rng: np.random.Generator,  # public
) -> float:  # 0 if it is not distinguished from zero by three jackknife errors
    """Return the mean square of the shift of the posterior's centre by curvature, in posterior variances.

    **Privacy.** Reads no records.

    Notes
    -----
    With truths theta + d and theta - d, d drawn from the posterior, the mean of the two expected scores at theta, less
    that at the truth theta, is zero if the expected score is linear in the truth.  Random numbers are common to the
    three, and the square is a product of independent groups of rows: its own noise does not bias it. Half of the
    difference of the two, less the image of d under the slope at `slope_point`, is zero as well; both squares are
    added.
    """
    n = theta.size
    score = ExpectedScore(model, theta, transform, bounds, rng, _ROWS)
    centre, slope = score.at_point, score.moved_to(slope_point).slope()
    # Steps in the coordinates of the transformed score are steps of theta by the transposed transform.
    scored = posterior.spread @ rng.standard_normal((n, _PAIRS))
    steps: npt.NDArray[Any] = transform.T @ scored
    even, odd = [], []
    if isinstance(model, PersonModel):
        # Symmetric steps that stay where the model is one.
        after, before = (np.abs(model.held(theta + sign * steps.T) - theta).T for sign in (1.0, -1.0))
        steps = np.sign(steps) * np.minimum(np.abs(steps), np.minimum(after, before))
        scored = np.linalg.solve(transform.T, steps)
    for step, own in zip(steps.T, scored.T, strict=True):
        after, before = score.at(theta + step), score.at(theta - step)
        even.append(posterior.gain @ (0.5 * (after + before) - centre) / np.sqrt(n))
        odd.append(posterior.gain @ (0.5 * (after - before) - np.einsum("abg,b->ag", slope, own)) / np.sqrt(n))
    return sum(_squared(np.concatenate(shifts) / np.sqrt(_PAIRS)) for shifts in (even, odd))


def _squared(means: FloatArray) -> float:
    """Return the squared norm of an expectation from independent means, columns; 0 if not clearly above zero."""
    products = means.T @ means
    np.fill_diagonal(products, 0.0)
    groups = len(products)
    total = float(np.sum(products))
    # Leaving out a group takes away its row and its column.
    without = (total - 2.0 * np.sum(products, axis=1)) / ((groups - 1) * (groups - 2))
    error = np.sqrt((groups - 1) * np.var(without))
    found = total / (groups * (groups - 1))
    return found if found > tuning.OWN.shifted * error else 0.0
