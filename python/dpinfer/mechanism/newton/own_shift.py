"""Whether a posterior is near normal, from the model's own simulation at released points: no records."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.own_bounds import MadeUp, SimulatedBounds
from dpinfer.mechanism.newton.own_rows import draw_sizes, score_norms, score_vector
from dpinfer.models import OwnModel
from dpinfer.models.person_model import PersonModel

__all__ = ["ExpectedScore", "NormalPosterior", "simulate_reach", "simulate_shift"]


_ROWS, _GROUPS, _PAIRS = 500, 10, 8  # made-up records, groups of them for the jackknife, pairs of truths
_LONGER = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # tried in turn, while the expected score is short of the released one
_SMALL = 1e-300  # keeps divisions finite
# A shift that cannot be distinguished from zero counts as zero.
_ERRORS = 3.0


@dataclass(frozen=True)
class NormalPosterior:
    """The normal posterior that one mean of scores gives if the expected score is linear.

    Parameters
    ----------
    spread : (n, n) array
        L with covariance L L', in the coordinates of the transformed score.
    gain : (n, n) array
        From a shift of the mean score to that of the posterior's centre, in units of L.
    """

    spread: FloatArray
    gain: FloatArray

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
        self._weight = np.minimum(1.0, self._bounds.weight_bound / (size + _SMALL))
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
    score: ExpectedScore, theta: FloatArray, step: FloatArray, released: FloatArray, margin: float
) -> float:
    """Return the factor of a step at whose end the expected score equals the released one.

    **Privacy.** Reads no records.

    Parameters
    ----------
    theta : (n,) array
        Where the step begins.
    step : (n,) array
        Of theta.
    released : (n,) array
        The released score at theta.
    margin : float
        Margin of the released score over the expected one along the step, for a longer step.

    Returns
    -------
    float
        At least 1.
    """
    direction = released / max(float(np.linalg.norm(released)), _SMALL)
    wanted, reach = float(direction @ released) - margin, 1.0
    for longer in _LONGER:
        expected = direction @ (score.at(theta + longer * step) - score.at_point).mean(axis=1)
        if not expected < wanted:
            break
        reach = longer
    return reach


def simulate_shift(
    model: OwnModel,
    theta: FloatArray,
    slope_point: FloatArray,
    transform: FloatArray,
    bounds: SimulatedBounds,
    posterior: NormalPosterior,
    rng: np.random.Generator,
) -> float:
    """Return the mean square of the shift of the posterior's centre by curvature, in posterior variances.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    theta : (n,) array
        Where scores are measured.
    slope_point : (n,) array
        Where their slope was.
    transform : (n, n) array
        Of the scores.
    rng : Generator
        Public.

    Returns
    -------
    float
        0 if it is not distinguished from zero by three jackknife errors.

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
    return found if found > _ERRORS * error else 0.0
