"""Bounds of a private Newton run of a user's own model, from the model's own simulation: no records."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.own_rows import N_DRAWS, PERSON_DRAWS, PERSONS_STREAM, draw_sizes, kernel_scores
from dpinfer.models import OwnModel
from dpinfer.models.person_model import PersonModel

_PERSONS = 2 * N_DRAWS // PERSON_DRAWS  # whose draws are as many as those of a record


class MadeUp:
    """Made-up records; each has the random numbers of n_draws responses.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    rng : Generator
        Public.
    """

    def __init__(self, model: OwnModel, size: int, rng: np.random.Generator) -> None:
        self._model: Any = model
        # As many draws in all: a person has fewer of them.
        self._rows = model.made_up_features(size * (_PERSONS if isinstance(model, PersonModel) else 1), rng)
        self.persons = isinstance(model, PersonModel)
        if self.persons:
            self._words = rng.integers(0, 2**64, (len(self._rows), 2), dtype=np.uint64)
        else:
            self._rows = np.repeat(self._rows, 2 * N_DRAWS, axis=0)
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
            return scores.reshape(-1, 2 * N_DRAWS, theta.size)


_WEIGHT_LEVEL = 0.95  # of made-up records' lengths: longer ones weigh less
_CLIP_LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)  # tried: quantiles of made-up scores
_SHARES = (0.25, 0.5, 1.0)  # tried: largest norm of a score's centre over the clip
_BEYOND, _NOTHING = 1.5, 0.05  # half to spare; noise beside what records leave open (derivations/any-model.md)
_RIDGE = 1e-4  # of the mean information: a parameter that made-up records do not inform stays finite
_LEAST = 1e-12  # keeps divisions finite
_LARGEST_SCORE = 1e50  # its square is finite


@dataclass(frozen=True)
class SimulatedBounds:
    """Bounds from simulated records at one point, in coordinates in which their information is the identity.

    Parameters
    ----------
    information : (n, n) array
        Of one made-up record, in the given coordinates.
    weight_bound, clip, share : float
        Of :class:`CentredScores` behind ``information ** (-1/2)``.
    slope : float
        Mean eigenvalue of the slope of the clipped score.
    variance_ratio : float
        Variance of the clipped score over its slope.
    square : float
        Mean of |clip(w s)|^2 over clip^2.
    square_slope : (n,) array
        Of that in the truth behind ``information ** (-1/2)``.
    square_variance : float
        Of a record's, less its mean over draws at the same features.
    """

    information: FloatArray
    weight_bound: float
    clip: float
    share: float
    slope: float
    variance_ratio: float
    square: float
    square_slope: FloatArray
    square_variance: float


def symmetric_inverse_root(matrix: FloatArray) -> FloatArray:
    """Return matrix ** (-1/2), with eigenvalues of at least a thousandth of the largest."""
    eigenvalues, eigenvectors = np.linalg.eigh(matrix)
    held = np.maximum(eigenvalues, max(1e-3 * float(eigenvalues[-1]), _LEAST))
    return np.asarray((eigenvectors / np.sqrt(held)) @ eigenvectors.T)


def simulate_bounds(
    model: OwnModel,
    theta: FloatArray,
    unit: FloatArray,
    *,
    noise: float,
    n_records: int,
    rng: np.random.Generator,
    n_rows: int,
) -> SimulatedBounds:
    """Choose bounds by the predicted variance of one measurement, on made-up records at `theta`.

    Parameters
    ----------
    theta : (n,) array
    unit : (n,) array
        Units of the coordinates: the prior's standard deviations.
    noise : float
        Noise multiplier of all measurements together.
    rng : Generator
        Public.
    n_rows : int
        Made-up records.

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
    level = max(float(np.trace(information)) / n, _LEAST)
    information = information + _RIDGE * level * np.eye(n)
    white = scores @ symmetric_inverse_root(information)
    size = draw_sizes(np.sum(white**2, axis=2), persons=persons)
    longest = _BEYOND * max(float(np.sqrt(np.max(np.sum(white**2, axis=2)))), _LEAST)
    # A bound that holds no made-up score back, where its noise is nothing beside what the records leave open.
    unbounded = noise * (1.0 + _SHARES[0]) * longest < _NOTHING * math.sqrt(n_records)
    weight_bound = longest**2 if unbounded else max(float(np.quantile(size, _WEIGHT_LEVEL)), _LEAST)
    weight = np.minimum(1.0, weight_bound / np.maximum(size, _LEAST))
    white = white if persons else white[:, N_DRAWS:]
    weighted = white * weight[:, :, None]
    norm = np.sqrt(np.sum(weighted**2, axis=2))
    products = np.sum(weighted * white, axis=2)
    total = weighted.mean(axis=1)
    narrowest, best = np.inf, (0.0, 0.0, 0.0, 0.0)
    clips = [longest] if unbounded else [max(float(np.quantile(norm, level)), _LEAST) for level in _CLIP_LEVELS]
    for clip in clips:
        kept = np.minimum(1.0, clip / np.maximum(norm, _LEAST))
        inside = np.mean(kept[:, :, None] * weighted, axis=1)
        excess = total - inside
        length = np.sqrt(np.sum(excess**2, axis=1)) + _LEAST
        slope = max(float(np.mean(kept * products)) / n, _LEAST)
        for share in _SHARES:
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
        variance_ratio=ratio,
        square=float(np.mean(squares)),
        square_slope=np.mean(squares[:, :, None] * white, axis=(0, 1)),
        square_variance=float(np.mean(np.var(squares, axis=1, ddof=1))) * (1.0 + 1.0 / squares.shape[1]),
    )


def _simulated_scores(model: OwnModel, theta: FloatArray, rng: np.random.Generator, n_rows: int) -> FloatArray:
    """Return scores of made-up records with drawn responses, (rows, draws, n), finite."""
    scores = MadeUp(model, n_rows, rng).scores(theta, theta)
    kept = np.nan_to_num(scores, nan=0.0, posinf=_LARGEST_SCORE, neginf=-_LARGEST_SCORE)
    return np.clip(kept, -_LARGEST_SCORE, _LARGEST_SCORE)
