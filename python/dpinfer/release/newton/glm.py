"""The release of a private Newton run of a regression without a scale: noisy second moments, curvature and scores."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.release.fields import POSITIVE, Shape
from dpinfer.release.newton.linear import RegressionSums


@dataclass(frozen=True, eq=False, kw_only=True)
class GlmNewtonRelease(RegressionSums):
    """Everything a private Newton run of a logistic, probit or Poisson regression has published.

    Sums are divided by the public number of records.  With z, w, B and u as in :class:`NewtonRelease`, r = y - E[y | x]
    at u and psi = clip(r, -c, c) - E[clip(r, -c, c) | x], score t is the mean of w psi z at u_t plus noise of standard
    deviation score_stddev[t] in every coordinate, and the slope is the mean of w s z z' at `slope_position`, with s, an
    expected -d psi / d eta, cut off at `slope_bound`, and noise of standard deviation `slope_stddev` on the diagonal
    and 1 / sqrt(2) of it beside the diagonal.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    counts : (m,) float64
        Noisy shares of the records with a response between successive `edges`; empty for responses of 0 and 1.
    counts_stddev : float
    edges : (m - 1,) float64
    transforms, moments : (K, d, d) float64
    moment_stddev, moment_bounds : (K,) float64
    localise_positions, localise_scores : (L, d) float64
        Of the steps toward the zero of the score.
    localise_score_stddev : (L,) float64
    localise_clip, localise_residual_bound : float
        c of these steps, and the largest abs(psi).
    score_transform : (d, d) float64
        Takes the place of transforms[-1] in the slope and the measurements.
    score_radius : float
        Takes the place of moment_bounds[-1] there.
    slope : (d, d) float64
    slope_stddev : float
    slope_position : (d,) float64
    positions, scores : (T, d) float64
        Of the measurements near the zero.
    score_stddev : (T,) float64
    clip, residual_bound, slope_bound : float
        c of the measurements, the largest abs(psi), and the largest s.
    names : tuple of str
    n_records : int
    means, means_stddev, means_bounds
        As in :class:`NewtonRelease`.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.
    """

    localise_positions: Annotated[FloatArray, Shape("L d")]
    localise_scores: Annotated[FloatArray, Shape("L d")]
    localise_score_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    localise_clip: Annotated[float, POSITIVE]
    localise_residual_bound: Annotated[float, POSITIVE]
    score_transform: Annotated[FloatArray, Shape("d d")]
    score_radius: Annotated[float, POSITIVE]
    slope: Annotated[FloatArray, Shape("d d")]
    slope_stddev: Annotated[float, POSITIVE]
    slope_position: Annotated[FloatArray, Shape("d")]
    clip: Annotated[float, POSITIVE]
    residual_bound: Annotated[float, POSITIVE]
    slope_bound: Annotated[float, POSITIVE]

    format_name: ClassVar[str] = "dpinfer-glm-newton-release"

    def __post_init__(self) -> None:
        self._check_names(self._check_regression()["d"])
        self._check_event()
        self._check_guarantee()

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        bound = float(self.moment_bounds[-1])
        counted = [self.counts_stddev] if self.counts.size else []
        stddev = (
            counted,
            self.means_stddev,
            self.moment_stddev,
            self.localise_score_stddev,
            self.score_stddev,
            [self.slope_stddev],
        )
        norms = (
            np.ones(len(counted)),
            self.means_bounds,
            np.square(self.moment_bounds),
            np.full(self.localise_score_stddev.size, self.localise_residual_bound * bound),
            np.full(self.score_stddev.size, self.residual_bound * self.score_radius),
            [self.slope_bound * self.score_radius**2],
        )
        return np.concatenate(stddev) * self.n_records, np.concatenate(norms)

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        return f"GlmNewtonRelease({model}: {self.n_passes} passes, {self.n_coef} weights)\n  {self.guarantee}"
