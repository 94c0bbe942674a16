"""Whether a posterior is near normal, from the model's own simulation at released points: no records."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism.newton.own_bounds import SimulatedBounds
from dpinfer.mechanism.newton.own_rows import N_DRAWS, score_norms, score_vector
from dpinfer.models import OwnModel

__all__ = ["NormalPosterior", "simulate_shift"]

FloatArray = npt.NDArray[np.float64]

_ROWS, _GROUPS, _PAIRS = 500, 10, 8
_SMALL = 1e-300
# A shift that is not told from zero is zero.
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


def simulate_shift(
    model: OwnModel,
    theta: FloatArray,
    transform: FloatArray,
    bounds: SimulatedBounds,
    posterior: NormalPosterior,
    rng: np.random.Generator,
) -> float:
    """Return the mean square by which curvature shifts the posterior's centre, in posterior variances.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    theta : (n,) array
        Where scores are measured.
    transform : (n, n) array
        Of the scores.
    bounds : SimulatedBounds
    posterior : NormalPosterior
    rng : Generator
        Public.

    Returns
    -------
    float
        0 where it is not told from zero, by three jackknife errors.

    Notes
    -----
    With truths theta + d and theta - d, d drawn from the posterior, the mean of the two expected scores at theta, less
    that at the truth theta, is zero if the expected score is linear in the truth.  Random numbers are common to the
    three, and the square is a product of independent groups of rows: its own noise does not bias it.
    """
    n = theta.size
    rows = np.repeat(model.made_up_features(_ROWS, rng), 2 * N_DRAWS, axis=0)
    words = rng.integers(0, 2**64, (len(rows), model.n_words), dtype=np.uint64)

    def scores(truth: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            drawn = model.scores(rows, model.draw_responses(truth, rows, words), theta) @ transform.T
        drawn[~np.all(np.isfinite(drawn), axis=1)] = 0.0
        return np.ascontiguousarray(drawn.T).reshape(n, _ROWS, 2 * N_DRAWS)

    here = scores(theta)
    size = np.mean(score_norms(here[:, :, :N_DRAWS]) ** 2, axis=1)
    weight = np.minimum(1.0, bounds.weight_bound / (size + _SMALL))[:, None]

    def clipped(drawn: FloatArray) -> FloatArray:
        """Return the mean clipped score of each group of rows, (n, groups)."""
        return np.asarray(score_vector(drawn * weight, bounds.clip).reshape(n, _GROUPS, -1).mean(axis=2))

    centre = clipped(here)
    # Steps in the coordinates of the transformed score are steps of theta by the transposed transform.
    steps = transform.T @ posterior.spread @ rng.standard_normal((n, _PAIRS))
    shifts = []
    for step in steps.T:
        bent = 0.5 * (clipped(scores(theta + step)) + clipped(scores(theta - step))) - centre
        shifts.append(posterior.gain @ bent / np.sqrt(n))
    return _squared(np.concatenate(shifts) / np.sqrt(_PAIRS))


def _squared(means: FloatArray) -> float:
    """Return the squared norm of an expectation from independent means of it, columns; 0 if not told from zero."""
    products = means.T @ means
    np.fill_diagonal(products, 0.0)
    groups = len(products)
    total = float(np.sum(products))
    # Leaving out a group takes away its row and its column.
    without = (total - 2.0 * np.sum(products, axis=1)) / ((groups - 1) * (groups - 2))
    error = np.sqrt((groups - 1) * np.var(without))
    found = total / (groups * (groups - 1))
    return found if found > _ERRORS * error else 0.0
