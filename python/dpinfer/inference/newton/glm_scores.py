"""Likelihood of the weights of a regression without a scale, from its measured scores given their slope."""

import numpy as np

from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.moments_law import MomentsDraws
from dpinfer.inference.newton.scores import SWEEPS, GivenMoments, Measured
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.clipped_residuals import ResponseGrid
from dpinfer.models.likely_records import NormalDesign
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
        self._release, self._prior_variance = release, model.prior_scale**2
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


def sampling_ratio(release: GlmNewtonRelease, model: GeneralizedLinearModel) -> float:
    """Return the variance of a clipped residual over its slope, each expected at the predictors where the run ended."""
    whitening = release.transforms[-1]
    trace = float(release.moment_bounds[-1]) ** 2
    moments = shrink_moments(release.moments[-1], float(release.moment_stddev[-1]), trace).matrix
    constant = np.linalg.solve(whitening.T, np.eye(model.n_coef)[-1]) if model.fit_intercept else None
    position = np.linalg.solve(whitening.T, release.score_transform.T @ release.positions[-1])
    law = NormalDesign.of_moments(moments, constant).law(position)
    grid = ResponseGrid(model, _SPACING)
    residual = grid.clipped(release.clip).with_slope_at_most(release.slope_bound)
    return law.mean(grid, residual.variance) / max(law.mean(grid, residual.slope), 1e-300)
