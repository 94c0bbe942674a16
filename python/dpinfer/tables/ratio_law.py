"""How far the noise, and what a sample leaves open, move a noisy sum less mu times a noisy count.

**Privacy.** Post-processing.  Proofs: docs/derivations/private-queries.md.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from dpinfer._arrays import FloatArray

_HALVINGS = 60  # of [-1, 1]: beyond the last bit of a double
# Two Laplace scales are told apart by this much: their law is a difference of two that cancels where they are equal.
_NEAREST = 0.9999


def probability_beyond(
    distance: FloatArray, noise: str, scale: float, variance: FloatArray, factor: FloatArray
) -> FloatArray:
    """Return P(abs(V + A + factor B) > distance), any shape: V ~ N(0, variance), A and B noise of `scale`.

    Parameters
    ----------
    distance : array
        At least 0.
    noise : {"gaussian", "laplace"}
    scale : float
        Standard deviation of Gaussian noise, or b of Laplace noise.
    variance : array
        At least 0.
    factor : array
        In [-1, 1].
    """
    if noise == "gaussian":
        return np.asarray(2.0 * ndtr(-distance / np.sqrt(variance + scale**2 * (1.0 + factor**2))))
    # The law of two Laplace numbers is a difference of two laws of one, by partial fractions of 1 / ((1 + t**2)(1 +
    # factor**2 t**2)).
    t, deviation, size = distance / scale, np.sqrt(variance) / scale, np.minimum(np.abs(factor), _NEAREST)
    second = np.where(size > 1e-9, size, 1.0)
    taken = np.where(size > 1e-9, size**2 * _beyond(t / second, deviation / second), 0.0)
    return np.asarray((_beyond(t, deviation) - taken) / (1.0 - size**2))


def _beyond(t: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return P(abs(N(0, deviation**2) + Laplace(1)) > t) for t >= 0 (Reed 2006)."""
    s = np.maximum(deviation, 1e-9)
    z = t / s
    near = np.exp(0.5 * s**2 - t + log_ndtr(z - s))
    far = np.exp(0.5 * s**2 + t + log_ndtr(-z - s))
    return np.asarray(2.0 * ndtr(-z) + near - far)


def hull_of_ratios(
    total: FloatArray, count: FloatArray, level: float, beyond: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return the ends in [-1, 1] of Fieller's set: all mu from which total - mu count is not too far from 0.

    Where no mu agrees all of [-1, 1] is returned.

    Parameters
    ----------
    total, count : (c,) array
    beyond : callable
        From a distance (c,) and mu (c,) to the probability that total - mu count is farther than that from 0.
    """

    def agrees(mu: FloatArray) -> npt.NDArray[np.bool_]:
        return np.asarray(beyond(np.abs(total - mu * count), mu) >= 1.0 - level)

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.clip(total / count, -1.0, 1.0))
    ends = np.full_like(ratio, -1.0), np.full_like(ratio, 1.0)
    inside = [agrees(end) for end in ends]
    centre = np.where(agrees(ratio), ratio, np.where(inside[0], ends[0], ends[1]))
    known = agrees(centre)
    found = []
    for end, reached in zip(ends, inside, strict=True):
        good, bad = centre, end
        for _ in range(_HALVINGS):
            middle = 0.5 * (good + bad)
            held = agrees(middle)
            good, bad = np.where(held, middle, good), np.where(held, bad, middle)
        found.append(np.where(reached | ~known, end, bad))
    return found[0], found[1]
