"""The measured scores of a few-pass run, as a mean score whose expectation the model simulates."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.inference.simulated.emulator import ratio_draws
from dpinfer.models import OwnModel
from dpinfer.release import OwnNewtonRelease

_ROWS, _DRAWS = 1000, 8  # made-up records, and responses of each: as many as the run's centre has (N_DRAWS)
_SMALL = 1e-300  # keeps divisions finite


@dataclass(frozen=True)
class _Measured:
    """Made-up records at one point of measurement."""

    at: FloatArray  # (n,)
    weight: FloatArray  # (B, 1)
    centre: FloatArray  # (n, B)
    # (n,): correction of the mean clipped score of drawn responses, which removes the randomness at the point itself
    known: FloatArray


class NewtonScore:
    """Centred clipped scores averaged over the measurements of a run, by their precision.

    Made-up rows and random words are the same for every truth, and for every point of measurement: a record has one
    response in all passes. Words for weights and centres differ from those of the responses, as in the run.
    """

    def __init__(
        self,
        model: OwnModel,  # with a sampler
        release: OwnNewtonRelease,
        rng: np.random.Generator,
    ) -> None:
        self._model, self._release = model, release
        self.n_records = release.n_records
        precision = 1.0 / release.score_stddev**2
        self._gain = precision / precision.sum()
        self.observed = self._gain @ release.scores
        self.noise = np.eye(release.n_params) / precision.sum()
        self._share = release.centre_share
        self._clip = float(release.score_bounds[-1]) / (1.0 + self._share)
        self._weight_bound = release.slope_bound / release.matrix_factor
        features = model.made_up_features(_ROWS, rng)
        # One for each draw of a response.
        self._rows = np.repeat(features, _DRAWS, axis=0)
        self._responses = self._words(len(self._rows), rng)
        self._points = [self._point(point, features, rng) for point in release.positions]
        self._slope = self._slope_at(release.slope_position, rng)

    def _drawn(self, rows: FloatArray, words: npt.NDArray[np.uint64], truth: FloatArray, at: FloatArray) -> FloatArray:
        """Return scores at a point of responses drawn at the truth, (n, rows, draws)."""
        with np.errstate(all="ignore"):
            responses = self._model.draw_responses(truth, rows, words)
            scores = self._model.scores(rows, responses, at) @ self._release.transform.T
        scores[~np.all(np.isfinite(scores), axis=1)] = 0.0
        return np.ascontiguousarray(scores.T).reshape(self._release.n_params, -1, _DRAWS)

    def _words(self, size: int, rng: np.random.Generator) -> npt.NDArray[np.uint64]:
        return rng.integers(0, 2**64, (size, self._model.n_words), dtype=np.uint64)

    def _weighted(self, features: FloatArray, at: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Return weights (rows, 1), and scores under the model for centres, plain and clipped: (n, rows, draws)."""
        rows = np.repeat(features, _DRAWS, axis=0)
        first, second = (self._drawn(rows, self._words(len(rows), rng), at, at) for _ in range(2))
        size = np.mean(np.sum(first**2, axis=0), axis=1)
        weight = np.minimum(1.0, self._weight_bound / (size + _SMALL))[:, None]
        return weight, second, _cut(second * weight, self._clip)

    def _point(self, at: FloatArray, features: FloatArray, rng: np.random.Generator) -> "_Measured":
        weight, plain, clipped = self._weighted(features, at, rng)
        excess = np.mean(plain * weight - clipped, axis=2)
        centre = _cut(excess, self._share * self._clip)
        here = _cut(self._drawn(self._rows, self._responses, at, at) * weight, self._clip)
        # The weighted score has mean zero here: of the clipped one and the centre together the cut alone is left.
        known = np.mean(centre - excess, axis=1) - np.mean(here, axis=(1, 2))
        return _Measured(at, weight, centre, known)

    def _slope_at(self, at: FloatArray, rng: np.random.Generator) -> FloatArray:
        _, plain, clipped = self._weighted(self._model.made_up_features(_ROWS, rng), at, rng)
        slope = np.einsum("ard,brd->ab", clipped, plain) / (_ROWS * _DRAWS)
        return np.asarray(0.5 * (slope + slope.T))

    def expected(self, truth: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and covariance of a record's centred clipped score, averaged over the measurements."""
        n = self._release.n_params
        mean, scores = np.zeros(n), np.zeros((n, len(self._rows) // _DRAWS, _DRAWS))
        for gain, one in zip(self._gain, self._points, strict=True):
            clipped = _cut(self._drawn(self._rows, self._responses, truth, one.at) * one.weight, self._clip)
            mean += gain * (clipped.mean(axis=(1, 2)) + one.known)
            scores += gain * (clipped + one.centre[:, :, None])
        return mean, np.cov(scores.reshape(n, -1)).reshape(n, n)

    def ratios(self, truth: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
        """Draw the ratio of the slope that was released and the simulated one at its point."""
        return ratio_draws(self._release.slope, self._slope, self._release.slope_stddev, size, rng)


def _cut(values: FloatArray, bound: float) -> FloatArray:
    """Return columns (n, ...) cut to a norm of at most `bound`."""
    norm = np.sqrt(np.sum(values**2, axis=0))
    return np.asarray(values * np.minimum(1.0, bound / np.maximum(norm, math.sqrt(_SMALL))))
