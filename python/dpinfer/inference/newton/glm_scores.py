"""Likelihood of the weights of a regression without a scale, from its measured scores given their slope."""

from dataclasses import replace

import numpy as np

from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.moments_law import MomentsDraws
from dpinfer.inference.newton.scores import SWEEPS, GivenMoments, Measured
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.clipping import ResponseGrid, response_grid
from dpinfer.models.likely_records import NormalDesign, PredictorLaw
from dpinfer.models.whitening import shrink_moments
from dpinfer.release import GlmNewtonRelease

_SPACING = 1.0 / 8.0  # nodes of the predictor: as coarse as the run's for what is expected (mechanism/newton/glm.py)
_LEAST_TRACE = 0.01  # of the slope, per weight


class BoundedScores:
    """Scores near their zeros: g_t = J (u* - u_t) + noise, u* ~ N(u, kappa**2 J^-1), in the place of M the slope J.

    The score's variance is taken for kappa**2 N J.  The noise takes in a relative error of the slope, which is released
    at one point and used at others.
    """

    def __init__(self, release: GlmNewtonRelease, model: GeneralizedLinearModel) -> None:
        self._release, self._model, self._prior_variance = release, model, model.prior_scale**2
        self.noisy, self.stddev = release.slope, float(release.slope_stddev)
        self.whitening = release.score_transform
        self._sampling = sampling_ratio(release, model) / release.n_records
        self._excess = np.zeros(len(release.scores))
        self.freedom = np.array([float(release.scores.size)])
        trace = max(float(np.trace(self.noisy)), _LEAST_TRACE * release.n_coef)
        slope = shrink_moments(self.noisy, self.stddev, trace).matrix
        for _ in range(SWEEPS):
            self._excess = self.middle().predictor_errors(release.positions, slope, self.whitening)

    def middle(self) -> Measured:
        """Return the scores."""
        return self._measured(1)

    def given(self, draws: MomentsDraws, rng: np.random.Generator) -> GivenMoments:
        """Return the weights' laws given draws of J."""
        return self._measured(len(draws.matrix)).given(draws, self.whitening, rng)

    def _measured(self, size: int) -> Measured:
        """Return the scores, the same for each of `size` draws."""
        release = self._release
        # |J away|**2 <= (largest eigenvalue of J) away'J away, and w z z' is near the identity on average.
        wrong = release.slope_bound * tuning.TUNING.slope_error**2 * self._excess / release.n_coef
        precision = 1.0 / (np.square(release.score_stddev) + wrong)
        return Measured(
            release.positions,
            np.broadcast_to(release.scores, (size, *release.scores.shape)),
            np.broadcast_to(precision, (size, len(precision))),
            np.full(size, self._sampling),
            np.full((size, release.n_coef), self._prior_variance),
        )

    def every(self, size: int) -> Measured:
        """Return the scores of the steps in the coordinates of the measurements, then these, as of `size` draws.

        The steps' clip is another: their scores are brought to the slope of the measurements' residual.
        """
        release, found = self._release, self._measured(size)
        forth = release.score_transform @ np.linalg.inv(release.transforms[-1])
        grid, law = _at_the_end(release, self._model)
        slopes = [law.mean(grid, grid.clipped(clip).slope) for clip in (release.localise_clip, release.clip)]
        ratio = slopes[1] / max(slopes[0], 1e-300)
        own = release.n_coef / np.square(ratio * release.localise_score_stddev) / np.sum(np.square(forth))
        value = ratio * release.localise_scores @ forth.T
        return replace(
            found,
            positions=np.vstack([np.linalg.solve(forth.T, release.localise_positions.T).T, found.positions]),
            value=np.concatenate([np.broadcast_to(value, (size, *value.shape)), found.value], axis=1),
            precision=np.hstack([np.broadcast_to(own, (size, len(own))), found.precision]),
        )


def _at_the_end(release: GlmNewtonRelease, model: GeneralizedLinearModel) -> tuple[ResponseGrid, PredictorLaw]:
    """Return the responses' table, and the law of the predictor where the run ended."""
    whitening = release.transforms[-1]
    trace = float(release.moment_bounds[-1]) ** 2
    moments = shrink_moments(release.moments[-1], float(release.moment_stddev[-1]), trace).matrix
    constant = np.linalg.solve(whitening.T, np.eye(model.n_coef)[-1]) if model.fit_intercept else None
    position = np.linalg.solve(whitening.T, release.score_transform.T @ release.positions[-1])
    return response_grid(model, _SPACING), NormalDesign.of_moments(moments, constant).law(position)


def sampling_ratio(release: GlmNewtonRelease, model: GeneralizedLinearModel) -> float:
    """Return the variance of a clipped residual over its slope, each expected at the predictors where the run ended."""
    grid, law = _at_the_end(release, model)
    residual = grid.clipped(release.clip).with_slope_at_most(release.slope_bound)
    return law.mean(grid, residual.variance) / max(law.mean(grid, residual.slope), 1e-300)
