"""The density of the second moments given everything released, with the weights integrated out in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.inference.newton.matrices import cholesky_factors, inverses, transposed
from dpinfer.inference.newton.matrix_prior import FlattenedWishart, MatrixState
from dpinfer.inference.newton.trace_model import Linearised, Trace
from dpinfer.models.whitening import shrink_moments
from dpinfer.release import LogisticNewtonRelease, NewtonRelease

__all__ = ["MomentRelease", "MomentsTarget", "data_precision", "draw_optimum", "weights_given"]

FloatArray = npt.NDArray[np.float64]

# Second moments of the features in the declared units, after the Mallows weights: a common level and its spread.
_DECLARED_LEVEL, _DECLARED_LEVEL_STDDEV, _DECLARED_STDDEV = 0.9, 0.4, 0.2
# The first round's weights differ from the last one's: relative error granted to its diagonal.
_REWEIGHTING_ERROR = 0.1


def _symmetric(array: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (array + transposed(array)))


@dataclass(frozen=True)
class MomentRelease:
    """The released matrices of a batch, and the start of a sampler.

    Parameters
    ----------
    noisy : (B, d, d) array
        The last release.
    stddev : (B,) array
    to_declared : (B, d, d) array
        From the last coordinates to those of the declared units.
    diagonal, diagonal_stddev : (B, d) arrays, or None
        Diagonal of the first release, in the declared units; None where nothing is declared of the matrix.
    start : (B, d, d) array
        A factor of the shrunken last release.
    """

    noisy: FloatArray
    stddev: FloatArray
    to_declared: FloatArray
    diagonal: FloatArray | None
    diagonal_stddev: FloatArray | None
    start: FloatArray

    @classmethod
    def from_releases(cls, releases: Sequence[NewtonRelease]) -> "MomentRelease":
        """Stack releases whose arrays have the same shapes."""
        starts = []
        for release in releases:
            trace = float(release.moment_bounds[-1]) ** 2
            shrunken = shrink_moments(release.moments[-1], float(release.moment_stddev[-1]), trace)
            starts.append(np.linalg.cholesky(shrunken.matrix))
        diagonal = np.stack([np.diagonal(release.moments[0]) for release in releases])
        first = np.array([release.moment_stddev[0] for release in releases])
        error = np.sqrt(np.square(first)[:, None] + np.square(_REWEIGHTING_ERROR * np.maximum(diagonal, 0.3)))
        return cls(
            noisy=np.stack([release.moments[-1] for release in releases]),
            stddev=np.array([release.moment_stddev[-1] for release in releases]),
            to_declared=np.stack(
                [release.transforms[0] @ np.linalg.inv(release.transforms[-1]) for release in releases]
            ),
            diagonal=diagonal,
            diagonal_stddev=error,
            start=np.stack(starts),
        )

    @classmethod
    def from_slopes(cls, releases: Sequence[LogisticNewtonRelease]) -> "MomentRelease":
        """Stack the slopes of releases whose arrays have the same shapes."""
        d = releases[0].n_coef
        starts = []
        for release in releases:
            trace = max(float(np.trace(release.slope)), 0.01 * d)
            starts.append(np.linalg.cholesky(shrink_moments(release.slope, release.slope_stddev, trace).matrix))
        return cls(
            noisy=np.stack([release.slope for release in releases]),
            stddev=np.array([release.slope_stddev for release in releases]),
            to_declared=np.stack([np.eye(d)] * len(releases)),
            diagonal=None,
            diagonal_stddev=None,
            start=np.stack(starts),
        )


class MomentsTarget:
    """log p(state | releases) at given slopes, noise variance and concentration, and its gradient.

    Parameters
    ----------
    released : MomentRelease
    trace : Trace
    """

    def __init__(self, released: MomentRelease, trace: Trace) -> None:
        self._released, self._trace = released, trace
        self.prior = FlattenedWishart(trace.n_coef)

    def value_and_gradient(
        self, state: MatrixState, concentration: FloatArray, flatness: FloatArray, linear: Linearised
    ) -> tuple[FloatArray, MatrixState]:
        """Return the log density, (B,), up to a constant at given slopes, noise variance and concentration.

        The second result is its gradient in the state's coordinates.
        """
        expanded = state.expand()
        moments = expanded.moments
        log_trace, in_trace = self._trace_terms(moments, linear)
        log_matrices, in_matrices = self._matrix_terms(moments)
        log_prior, own = self.prior.value_and_gradient(state, concentration, flatness)
        pulled = expanded.pull_back(in_matrices + in_trace)
        gradient = MatrixState(pulled.factor + own.factor, pulled.direction + own.direction, pulled.logit + own.logit)
        return log_trace + log_matrices + log_prior, gradient

    def _declared(self, moments: FloatArray) -> FloatArray:
        to = self._released.to_declared
        return np.asarray(np.einsum("bij,bij->bi", to @ moments, to))

    def _diagonal_terms(self, moments: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log density of the diagonal in the declared units, (B,), and its gradient, (B, d)."""
        released, declared = self._released, self._declared(moments)
        if released.diagonal is None or released.diagonal_stddev is None:
            return np.zeros(len(declared)), np.zeros_like(declared)
        precision = 1.0 / np.square(released.diagonal_stddev)
        missed = released.diagonal - declared
        # The common level is integrated out: level ~ N, declared_j ~ N(level, spread**2).
        d = declared.shape[1]
        spread2, level2 = _DECLARED_STDDEV**2, _DECLARED_LEVEL_STDDEV**2
        away = declared - _DECLARED_LEVEL
        shared = away.sum(axis=1) * level2 / (spread2 + d * level2)
        value = -0.5 * np.sum(precision * missed**2, axis=1)
        value = value - 0.5 * np.sum(away * (away - shared[:, None]), axis=1) / spread2
        return value, precision * missed - (away - shared[:, None]) / spread2

    def _matrix_terms(self, moments: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log p(released matrices | M), (B,), and its gradient in M."""
        released = self._released
        missed = released.noisy - moments
        log_diagonal, inner = self._diagonal_terms(moments)
        precision = 1.0 / np.square(released.stddev)
        value = log_diagonal - 0.5 * precision * np.einsum("bij,bij->b", missed, missed)
        to = released.to_declared
        return value, precision[:, None, None] * missed + (transposed(to) * inner[:, None, :]) @ to

    def _trace_terms(self, moments: FloatArray, linear: Linearised) -> tuple[FloatArray, FloatArray]:
        """Return log p(scores | M) with u* and u integrated out, (B,), and its gradient in M."""
        covariance, error, weighted = _innovation(moments, linear, self._trace.prior_covariance)
        inverse = inverses(covariance)
        solved = (inverse @ error[..., None])[..., 0]
        fits = linear.deviation + linear.moved @ moments
        scaled = linear.precision[..., None] * fits
        value = -0.5 * np.einsum("bti,bti->b", scaled, fits)
        value = value - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * np.einsum("bi,bi->b", error, solved)
        half = -0.5 * (inverse - solved[:, :, None] * solved[:, None, :])
        inner = -transposed(scaled) @ linear.moved
        inner = inner - solved[:, :, None] * linear.mean_position[:, None, :]
        inner = inner + 2.0 * linear.prior_variance[:, None, None] * (half @ weighted)
        return value, _symmetric(inner) + linear.sampling[:, None, None] * half


def _innovation(
    moments: FloatArray, linear: Linearised, prior_covariance: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return covariance and value of b + M ubar, whose mean is zero, and M times the prior covariance."""
    identity = np.eye(moments.shape[1])
    weighted = moments @ prior_covariance
    covariance = identity / linear.total[:, None, None] + linear.sampling[:, None, None] * moments
    covariance = covariance + linear.prior_variance[:, None, None] * (weighted @ moments)
    error = linear.mean_score + (moments @ linear.mean_position[..., None])[..., 0]
    return covariance, error, weighted


def draw_optimum(
    moments: FloatArray, linear: Linearised, prior_covariance: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw u* given M and the trace, (B, d).

    u* = ubar + e, with prior N(0, R), R = prior variance Q + kappa**2 M^-1, and b measuring M (u* - ubar).
    """
    prior = linear.prior_variance[:, None, None] * prior_covariance
    prior = prior + linear.sampling[:, None, None] * inverses(moments)
    precision = inverses(prior) + linear.total[:, None, None] * (moments @ moments)
    measured = linear.mean_score + np.einsum("bij,bj->bi", moments, linear.mean_position)
    right = linear.total[:, None] * np.einsum("bij,bj->bi", moments, measured)
    return _draw(_symmetric(precision), right, rng)


def _draw(precision: FloatArray, right: FloatArray, rng: np.random.Generator) -> FloatArray:
    factor = cholesky_factors(precision)
    z = rng.standard_normal((*right.shape, 1))
    whitened = np.linalg.solve(factor, right[..., None]) + z
    return np.asarray(np.linalg.solve(transposed(factor), whitened)[..., 0])


def weights_given(
    moments: FloatArray, linear: Linearised, prior_covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean (B, d) and precision (B, d, d) of u given M and the trace, u* integrated out."""
    identity = np.eye(moments.shape[1])
    noise = identity / linear.total[:, None, None] + linear.sampling[:, None, None] * moments
    solved = np.linalg.solve(noise, moments)
    measured = linear.mean_score + np.einsum("bij,bj->bi", moments, linear.mean_position)
    precision = moments @ solved + np.linalg.inv(prior_covariance) / linear.prior_variance[:, None, None]
    right = np.einsum("bij,bi->bj", solved, measured)
    return np.linalg.solve(precision, right[..., None])[..., 0], _symmetric(precision)


def data_precision(moments: FloatArray, linear: Linearised, prior_covariance: FloatArray) -> FloatArray:
    """Return the precision of u given M if u* were known, (B, d, d): that of no privacy noise."""
    prior = np.linalg.inv(prior_covariance) / linear.prior_variance[:, None, None]
    return _symmetric(moments / linear.sampling[:, None, None] + prior)
