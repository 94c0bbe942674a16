"""What the released sums of a private Newton run say about the second moments, the weights and the noise variance.

All arrays have a leading axis: chains, or chains of several releases, side by side.  With M the weighted second moments
in the last whitened coordinates, u* the zero of the exact score and sigma the noise's standard deviation,

    g_t = a_t M (u* - u_t) + noise,   a_t = P(|r_t| < c_t),   r_t ~ N(0, sigma**2 + (u_t - u*)' M (u_t - u*)),

u* ~ N(u, kappa**2 M^-1) with the sandwich's kappa**2 = E[psi**2] / (N a**2), and u ~ N(0, (prior scale sigma)**2 W W').
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpinfer.inference.newton.matrices import cholesky_factors
from dpinfer.models.huber import chi_mean, chi_second_moment, chi_slope, huber_slope, huber_variance, mallows_mean
from dpinfer.release import GlmNewtonRelease, NewtonRelease

__all__ = [
    "FixedSlopeTrace",
    "Linearised",
    "ModelScalePrior",
    "NoiseScalePrior",
    "ScoreProducts",
    "Trace",
    "TraceModel",
    "WeakScalePrior",
]

FloatArray = npt.NDArray[np.float64]

# The score's slope is that of normal residuals with second moments M.  Relative error granted to it: a constant, and
# a share of how much of the residual's variance is error of the predictor.
_SLOPE_ERROR = 0.05
_SLOPE_ERROR_OF_EXCESS = 0.15
_SCALE_ERROR_OF_EXCESS = 0.1
_RECORDS_ERROR = 0.1  # of the public number of records, to which a scale score is proportional
_WEIGHT_ERROR = 0.05  # of the mean weight of the records, which is that of normal features
_SAMPLING_SHARE = 0.15  # of the score's sampling variance that steps do not share


class NoiseScalePrior(Protocol):
    """A prior of eta, the log of the noise's standard deviation, for each chain."""

    def log_density(self, log_scale: FloatArray) -> FloatArray:
        """Return the log density up to a constant, (..., B) as `log_scale`."""


@dataclass(frozen=True)
class WeakScalePrior:
    """eta ~ N(loc, stddev**2), one loc (B,) for each chain."""

    loc: FloatArray
    stddev: float

    def log_density(self, log_scale: FloatArray) -> FloatArray:
        """Return the log density up to a constant, (..., B) as `log_scale`."""
        return np.asarray(-0.5 * np.square((log_scale - self.loc) / self.stddev))


@dataclass(frozen=True)
class ModelScalePrior:
    """exp(2 eta) ~ InvGamma(shape, rate), the model's own prior."""

    shape: float
    rate: float

    def log_density(self, log_scale: FloatArray) -> FloatArray:
        """Return the log density up to a constant, (..., B) as `log_scale`."""
        return np.asarray(-2.0 * self.shape * log_scale - self.rate * np.exp(-2.0 * log_scale))


@dataclass(frozen=True)
class Linearised:
    """The trace at given slopes: y_t = g_t / a_t measures M (u* - u_t) with precision p_t.

    Parameters
    ----------
    precision : (B, T) array
    deviation : (B, T, d) array
        y_t less its mean.
    moved : (B, T, d) array
        u_t less its mean.
    total : (B,) array
        Sum of the precisions.
    mean_score, mean_position : (B, d) arrays
    sampling : (B,) array
        kappa**2.
    prior_variance : (B,) array
    """

    precision: FloatArray
    deviation: FloatArray
    moved: FloatArray
    total: FloatArray
    mean_score: FloatArray
    mean_position: FloatArray
    sampling: FloatArray
    prior_variance: FloatArray


@dataclass(frozen=True)
class ScoreProducts:
    """What log p(scores) needs of M and u*, (B, T) each.

    Parameters
    ----------
    squares, cross, pushed : (B, T) arrays
        g'g, g'h and h'h with h = M (u* - u_t).
    excess : (B, T) array
        (u_t - u*)' M (u_t - u*).
    """

    squares: FloatArray
    cross: FloatArray
    pushed: FloatArray
    excess: FloatArray


class Trace(Protocol):
    """What the sampler asks of the scores of a batch of B runs."""

    @property
    def positions(self) -> FloatArray:
        """Where the scores were taken, (B, T, d)."""

    @property
    def prior_covariance(self) -> FloatArray:
        """Prior covariance of the weights in units of the prior's variance, (B, d, d)."""

    @property
    def prior_precision(self) -> FloatArray:
        """Its inverse."""

    @property
    def prior_factor(self) -> FloatArray:
        """Its lower Cholesky factor."""

    @property
    def n_coef(self) -> int:
        """Number of weights d."""

    def rotated(self, basis: FloatArray) -> "Trace":
        """Return the same in other coordinates, z = basis' z, with orthogonal matrices (B, d, d)."""

    def excess(self, moments: FloatArray, optimum: FloatArray) -> FloatArray:
        """Return (u_t - u*)' M (u_t - u*), (B, T)."""

    def linearised(self, log_scale: FloatArray, excess: FloatArray) -> Linearised:
        """Return the trace at given slopes."""

    def misfit(self, moments: FloatArray, optimum: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return chi-squared sums of what the model misses, (B, k)."""

    @property
    def misfit_sizes(self) -> FloatArray:
        """Their degrees of freedom, (k,)."""


@dataclass(frozen=True)
class TraceModel:
    """Released arrays of a batch of runs of the same shape, and the likelihoods they give.

    Parameters
    ----------
    positions, scores : (B, T, d) arrays
    score_stddev, clips, scale_scores, scale_stddev, scale_units : (B, T) arrays
    scale_centre, mean_weight : (B,) arrays
        What a scale score is centred at, and the mean of the records' weights.
    prior_covariance : (B, d, d) array
        Of u in units of the prior's variance.
    prior_scale : (B,) array
        Prior standard deviation of a weight in units of sigma.
    n_records : (B,) array
    records_ratio, records_error : (B,) arrays
        The number of records over the public one, and its error.
    log_scale_prior : NoiseScalePrior
    """

    positions: FloatArray
    scores: FloatArray
    score_stddev: FloatArray
    clips: FloatArray
    scale_scores: FloatArray
    scale_stddev: FloatArray
    scale_units: FloatArray
    scale_centre: FloatArray
    mean_weight: FloatArray
    prior_covariance: FloatArray
    prior_scale: FloatArray
    n_records: FloatArray
    records_ratio: FloatArray
    records_error: FloatArray
    log_scale_prior: NoiseScalePrior

    @classmethod
    def from_releases(
        cls, releases: Sequence[NewtonRelease], prior_scales: Sequence[float], log_scale_prior: NoiseScalePrior
    ) -> "TraceModel":
        """Stack releases whose arrays have the same shapes."""

        def stacked(name: str) -> FloatArray:
            return np.stack([getattr(release, name) for release in releases])

        whitening = np.stack([release.transforms[-1] for release in releases])
        # Every record is in one octave: the noisy shares sum to the number of records over the public one.
        total, noise = stacked("counts").sum(axis=1), stacked("counts_stddev") * np.sqrt(releases[0].counts.size)
        gain = _RECORDS_ERROR**2 / (_RECORDS_ERROR**2 + np.square(noise))
        return cls(
            positions=stacked("positions"),
            scores=stacked("scores"),
            score_stddev=stacked("score_stddev"),
            clips=stacked("clips"),
            scale_scores=stacked("scale_scores"),
            scale_stddev=stacked("scale_stddev"),
            scale_units=stacked("scale_units"),
            scale_centre=np.array([release.scale_centre for release in releases]),
            mean_weight=np.array([mallows_mean(item.n_coef, float(item.moment_bounds[-1])) for item in releases]),
            prior_covariance=np.linalg.inv(whitening @ np.swapaxes(whitening, -1, -2)),
            prior_scale=np.asarray(prior_scales, dtype=np.float64),
            n_records=np.array([float(release.n_records) for release in releases]),
            records_ratio=1.0 + gain * (total - 1.0),
            records_error=_RECORDS_ERROR * np.sqrt(1.0 - gain),
            log_scale_prior=log_scale_prior,
        )

    def rotated(self, basis: FloatArray) -> "TraceModel":
        """Return the same in other coordinates, z = basis' z, with orthogonal matrices (B, d, d)."""
        return dataclasses.replace(
            self,
            positions=self.positions @ basis,
            scores=self.scores @ basis,
            prior_covariance=np.swapaxes(basis, -1, -2) @ self.prior_covariance @ basis,
        )

    @property
    def n_coef(self) -> int:
        """Number of weights d."""
        return int(self.positions.shape[2])

    @cached_property
    def prior_precision(self) -> FloatArray:
        """Inverse of the prior covariance, (B, d, d)."""
        return np.asarray(np.linalg.inv(self.prior_covariance))

    @cached_property
    def prior_factor(self) -> FloatArray:
        """Lower Cholesky factor of the prior covariance, (B, d, d)."""
        return cholesky_factors(self.prior_covariance)

    @cached_property
    def _score_squares(self) -> FloatArray:
        return np.asarray(np.sum(np.square(self.scores), axis=2))

    def excess(self, moments: FloatArray, optimum: FloatArray) -> FloatArray:
        """Return (u_t - u*)' M (u_t - u*), (B, T)."""
        away = self.positions - optimum[:, None, :]
        return np.asarray(np.maximum(np.sum((away @ moments) * away, axis=2), 0.0))

    def products(self, moments: FloatArray, optimum: FloatArray) -> ScoreProducts:
        """Return what :meth:`log_scores` needs of M and u*."""
        away = optimum[:, None, :] - self.positions
        pushed = away @ moments
        return ScoreProducts(
            self._score_squares,
            np.einsum("bti,bti->bt", self.scores, pushed),
            np.einsum("bti,bti->bt", pushed, pushed),
            np.maximum(np.einsum("bti,bti->bt", pushed, away), 0.0),
        )

    def _shared_error(self, excess: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return the variance of g_t / a_t per coordinate beyond the privacy noise, (B, T).

        `excess` over d bounds |M (u_t - u*)|**2 / d where M is near the identity, as it is after the whitening.
        """
        variance = np.exp(2.0 * log_scale)[..., None]
        share = excess / (variance + excess)
        relative = _SLOPE_ERROR**2 + np.square(_SLOPE_ERROR_OF_EXCESS * share)
        own = np.full(self.clips.shape[1], _SAMPLING_SHARE)
        own[-1] = 0.0
        return np.asarray(relative * excess / self.n_coef + own * variance / self.n_records[:, None])

    def sampling(self, spread: FloatArray) -> FloatArray:
        """Return kappa**2 = E[psi**2] / (N a**2) at the last score, (B,)."""
        bound = self.clips[:, -1] / spread
        variance = np.square(spread) * huber_variance(bound) / np.square(huber_slope(bound))
        return np.asarray(variance / self.n_records)

    def prior_variance(self, log_scale: FloatArray) -> FloatArray:
        """Return the prior variance of a weight, (B,)."""
        return np.asarray(np.square(self.prior_scale) * np.exp(2.0 * log_scale))

    def linearised(self, log_scale: FloatArray, excess: FloatArray) -> Linearised:
        """Return the trace with the slopes that `log_scale` (B,) and `excess` (B, T) give."""
        spread = np.sqrt(np.exp(2.0 * log_scale)[:, None] + excess)
        slope = huber_slope(self.clips / spread)
        noise = np.square(self.score_stddev / slope) + self._shared_error(excess, log_scale)
        precision = 1.0 / noise
        total = precision.sum(axis=1)
        measured = self.scores / slope[..., None]
        mean_score = np.sum(precision[..., None] * measured, axis=1) / total[:, None]
        mean_position = np.sum(precision[..., None] * self.positions, axis=1) / total[:, None]
        return Linearised(
            precision=precision,
            deviation=measured - mean_score[:, None],
            moved=self.positions - mean_position[:, None],
            total=total,
            mean_score=mean_score,
            mean_position=mean_position,
            sampling=self.sampling(spread[:, -1]),
            prior_variance=self.prior_variance(log_scale),
        )

    def log_scores(
        self, products: ScoreProducts, log_scale: FloatArray, excess: FloatArray, known: FloatArray
    ) -> FloatArray:
        """Return log p(scores | M, u*, sigma) with slopes at `excess`, errors at `known`; shaped as `log_scale`."""
        squares, noise = self._missed_scores(products, log_scale, excess, known)
        return np.asarray(-0.5 * np.sum(self.n_coef * np.log(noise) + squares / noise, axis=-1))

    def _missed_scores(
        self, products: ScoreProducts, log_scale: FloatArray, excess: FloatArray, known: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return squared norms of what the scores differ from their expectation, and their noise, (B, T)."""
        spread = np.sqrt(np.exp(2.0 * log_scale)[..., None] + excess)
        slope = huber_slope(self.clips / spread)
        noise = np.square(self.score_stddev) + np.square(slope) * self._shared_error(known, log_scale)
        return products.squares - slope * (2.0 * products.cross - slope * products.pushed), noise

    def log_scales(self, log_scale: FloatArray, excess: FloatArray) -> FloatArray:
        """Return log p(scale scores | sigma, excess), (..., B) as `log_scale`."""
        missed, noise = self._missed_scales(log_scale, excess)
        return np.asarray(-0.5 * np.sum(np.log(noise) + np.square(missed) / noise, axis=-1))

    def _missed_scales(self, log_scale: FloatArray, excess: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the scale scores differ from their expectation, and the variance of that, (B, T)."""
        weight = self.mean_weight[:, None]
        spread = np.sqrt(np.exp(2.0 * log_scale)[..., None] + excess / weight)
        expected = weight * (chi_mean(self.scale_units / spread) - self.scale_centre[:, None])
        error = np.square(_SCALE_ERROR_OF_EXCESS * excess / np.square(spread))
        error = error + (np.square(self.records_error[:, None]) + _WEIGHT_ERROR**2) * np.square(expected)
        return self.scale_scores - self.records_ratio[:, None] * expected, np.square(self.scale_stddev) + error

    def misfit(self, moments: FloatArray, optimum: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return sums of squares of what scores and scale scores miss over their noise, (B, 2): chi-squared."""
        products = self.products(moments, optimum)
        squares, noise = self._missed_scores(products, log_scale, products.excess, products.excess)
        missed, scale_noise = self._missed_scales(log_scale, products.excess)
        return np.stack((np.sum(squares / noise, axis=1), np.sum(np.square(missed) / scale_noise, axis=1)), axis=1)

    @property
    def misfit_sizes(self) -> FloatArray:
        """Degrees of freedom of :meth:`misfit`, (2,)."""
        steps = self.positions.shape[1]
        return np.array([steps * self.n_coef, steps], dtype=np.float64)

    def sampling_stddev_of_log_scale(self, log_scale: FloatArray) -> FloatArray:
        """Return the sampling error of log sigma as the last scale score measures it, (B,)."""
        bound = self.scale_units[:, -1] / np.exp(log_scale)
        variance = np.maximum(chi_second_moment(bound) - np.square(chi_mean(bound)), 0.0)
        return np.asarray(np.sqrt(variance / self.n_records) / chi_slope(bound))


@dataclass(frozen=True)
class FixedSlopeTrace:
    """Scores of a batch of regressions without a scale near their zeros: g_t = J (u* - u_t) + noise.

    u* ~ N(u, kappa**2 J^-1): the score's variance is taken for kappa**2 N J.  The noise takes in a relative error of
    the slope, which is released at one point and used at others.

    Parameters
    ----------
    positions, scores : (B, T, d) arrays
    score_stddev : (B, T) array
    prior_covariance : (B, d, d) array
        Of u in units of the prior's variance.
    prior_scale : (B,) array
    sampling : (B,) array
        kappa**2.
    steepest : (B,) array
        Largest slope of a residual.
    """

    positions: FloatArray
    scores: FloatArray
    score_stddev: FloatArray
    prior_covariance: FloatArray
    prior_scale: FloatArray
    sampling: FloatArray
    steepest: FloatArray

    @classmethod
    def from_releases(
        cls, releases: Sequence[GlmNewtonRelease], prior_scales: Sequence[float], sampling: Sequence[float]
    ) -> "FixedSlopeTrace":
        """Stack releases whose arrays have the same shapes, with the kappa**2 of each."""
        whitening = np.stack([release.score_transform for release in releases])
        return cls(
            positions=np.stack([release.positions for release in releases]),
            scores=np.stack([release.scores for release in releases]),
            score_stddev=np.stack([release.score_stddev for release in releases]),
            prior_covariance=np.asarray(np.linalg.inv(whitening @ np.swapaxes(whitening, -1, -2)), dtype=np.float64),
            prior_scale=np.asarray(prior_scales, dtype=np.float64),
            sampling=np.asarray(sampling, dtype=np.float64),
            steepest=np.array([release.slope_bound for release in releases]),
        )

    def rotated(self, basis: FloatArray) -> "FixedSlopeTrace":
        """Return the same in other coordinates, z = basis' z, with orthogonal matrices (B, d, d)."""
        return dataclasses.replace(
            self,
            positions=self.positions @ basis,
            scores=self.scores @ basis,
            prior_covariance=np.swapaxes(basis, -1, -2) @ self.prior_covariance @ basis,
        )

    @property
    def n_coef(self) -> int:
        """Number of weights d."""
        return int(self.positions.shape[2])

    @cached_property
    def prior_precision(self) -> FloatArray:
        """Inverse of the prior covariance, (B, d, d)."""
        return np.asarray(np.linalg.inv(self.prior_covariance))

    @cached_property
    def prior_factor(self) -> FloatArray:
        """Lower Cholesky factor of the prior covariance, (B, d, d)."""
        return cholesky_factors(self.prior_covariance)

    def excess(self, moments: FloatArray, optimum: FloatArray) -> FloatArray:
        """Return (u_t - u*)' J (u_t - u*), (B, T)."""
        away = self.positions - optimum[:, None, :]
        return np.asarray(np.maximum(np.sum((away @ moments) * away, axis=2), 0.0))

    def linearised(self, log_scale: FloatArray, excess: FloatArray) -> Linearised:
        """Return the trace; `log_scale` is not used, and `excess` sets the error of the slope alone."""
        del log_scale
        # |J away|**2 <= (largest eigenvalue of J) away'J away, and w z z' is near the identity on average.
        noise = np.square(self.score_stddev) + self.steepest[:, None] * _SLOPE_ERROR**2 * excess / self.n_coef
        precision = 1.0 / noise
        total = precision.sum(axis=1)
        mean_score = np.sum(precision[..., None] * self.scores, axis=1) / total[:, None]
        mean_position = np.sum(precision[..., None] * self.positions, axis=1) / total[:, None]
        return Linearised(
            precision=precision,
            deviation=self.scores - mean_score[:, None],
            moved=self.positions - mean_position[:, None],
            total=total,
            mean_score=mean_score,
            mean_position=mean_position,
            sampling=self.sampling,
            prior_variance=np.square(self.prior_scale),
        )

    def misfit(self, moments: FloatArray, optimum: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return the sum of squares of what the scores miss over their noise, (B, 1): chi-squared."""
        linear = self.linearised(log_scale, self.excess(moments, optimum))
        missed = self.scores - (optimum[:, None, :] - self.positions) @ moments
        return np.asarray(np.sum(linear.precision[..., None] * np.square(missed), axis=(1, 2))[:, None])

    @property
    def misfit_sizes(self) -> FloatArray:
        """Degrees of freedom of :meth:`misfit`, (1,)."""
        return np.array([self.positions.shape[1] * self.n_coef], dtype=np.float64)
