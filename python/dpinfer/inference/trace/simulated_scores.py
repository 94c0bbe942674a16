"""The mean of a trace of aligned gradients: a mean score whose expectation the model simulates, clipping included."""

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.simulated.emulator import ratio_draws
from dpinfer.models import OwnModel
from dpinfer.release import GradientTrace

# Monte Carlo error 1 / sqrt(12 000) of a score's standard deviation; a covariance needs fewer.
_ROWS, _COVARIANCE_ROWS = 12_000, 800
_POINTS_PER_PARAMETER, _LEAST_POINTS = 4, 24  # points that represent a trace (docs/derivations/any-model.md)
_SMALL = 1e-300  # avoids division by zero


class AlignedScore:
    """Clipped scores averaged over the steps of a run with aligned gradients.

    A few of the sampled points represent all, with weights that keep the mean of the points: the expected clipped
    score is nearly linear in the point.  Made-up rows and random words are the same for every truth.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    release : GradientTrace
        Aligned, split, with a constant preconditioner.
    first : int
        First step used.
    """

    def __init__(self, model: OwnModel, release: GradientTrace, first: int, rng: np.random.Generator) -> None:
        if release.grad_scale is None or release.max_grad_norm is None or release.n_records is None:
            raise ValueError("release must hold grad_scale, max_grad_norm and n_records")
        self._model, self._norm, self._beta = model, release.max_grad_norm, release.grad_scale
        self.n_records = release.n_records
        n, rate = release.n_params, release.sample_rate
        points = release.positions[first:]
        prior = np.stack([model.log_prior_gradient(point) for point in points])
        # The released gradients are of minus the log joint density, times the sampling rate.
        self._clipped = -(release.noisy_gradients[first:] + rate * prior) * self._beta / (rate * self.n_records)
        self.observed = self._clipped.mean(axis=0)
        stddev = np.broadcast_to(release.noise_stddev * self._beta / (rate * self.n_records), (n,))
        self._points, self._stddev, self._rate = points, float(np.sqrt(np.mean(stddev**2))), rate
        self.noise = np.diag(stddev**2) / len(points)
        self._chosen, self._weights = _thinned(points, rng)
        self._rows = model.made_up_features(_ROWS, rng)
        self._words = rng.integers(0, 2**64, (_ROWS, model.n_words), dtype=np.uint64)
        self._blocks = np.array_split(np.arange(_ROWS), len(self._chosen))
        self._centre = points.mean(axis=0)

    def _scores(self, rows: FloatArray, responses: FloatArray, point: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            scores = self._model.scores(rows, responses, point) * self._beta
        scores[~np.all(np.isfinite(scores), axis=1)] = 0.0
        norm = np.sqrt(np.sum(scores**2, axis=1)) + _SMALL
        return np.asarray(scores * np.minimum(1.0, self._norm / norm)[:, None])

    def _means(self, truth: FloatArray) -> FloatArray:
        """Return the expected clipped score at each chosen point, (K, n)."""
        with np.errstate(all="ignore"):
            drawn = self._model.draw_responses(truth, self._rows, self._words)
        pairs = zip(self._blocks, self._chosen, strict=True)
        return np.stack([self._scores(self._rows[own], drawn[own], point).mean(axis=0) for own, point in pairs])

    def expected(self, truth: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and covariance of a record's clipped score, averaged over the steps."""
        rows = slice(0, _COVARIANCE_ROWS)
        with np.errstate(all="ignore"):
            drawn = self._model.draw_responses(truth, self._rows[rows], self._words[rows])
        scores = self._scores(self._rows[rows], drawn, self._centre)
        covariance = np.atleast_2d(np.cov(scores, rowvar=False))
        # Records that a step leaves out are others in every step.
        left_out = (1.0 / self._rate - 1.0) / len(self._points) * (scores.T @ scores / len(scores))
        return self._weights @ self._means(truth), covariance + left_out

    def ratios(self, truth: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
        """Draw the ratio of the slopes of clipped scores in the point: the trace's, and the simulated one's."""
        around = (self._points - self._centre) / self._beta
        gram = around.T @ around
        released = -np.linalg.solve(gram, around.T @ (self._clipped - self.observed)).T
        chosen = (self._chosen - self._chosen.mean(axis=0)) / self._beta
        means = self._means(truth)
        simulated = -np.linalg.lstsq(chosen, means - means.mean(axis=0), rcond=None)[0].T
        error = self._stddev * float(np.sqrt(np.trace(np.linalg.inv(gram)) / len(gram)))
        return ratio_draws(0.5 * (released + released.T), 0.5 * (simulated + simulated.T), error, size, rng)


def _thinned(points: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return a sample of the points, and nearly equal weights that keep the mean of all points."""
    steps, n = points.shape
    size = min(steps, max(_LEAST_POINTS, _POINTS_PER_PARAMETER * (n + 1)))
    chosen = points[rng.choice(steps, size, replace=False)]
    moments = np.vstack((np.ones(size), (chosen - points.mean(axis=0)).T))
    equal = np.full(size, 1.0 / size)
    targets = np.concatenate(([1.0], np.zeros(n)))
    return chosen, equal + np.linalg.pinv(moments) @ (targets - moments @ equal)
