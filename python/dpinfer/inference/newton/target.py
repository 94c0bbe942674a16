"""The density of the second moments given everything released, with the weights integrated out in closed form."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.inference import _native
from dpinfer.inference.newton.matrices import FactoredMoments, transposed
from dpinfer.inference.newton.matrix_prior import FLATTEST, POWER, FlattenedWishart, MatrixState
from dpinfer.inference.newton.trace_model import Linearised, Trace
from dpinfer.models.whitening import ShrunkenMoments, shrink_moments
from dpinfer.release import GlmNewtonRelease, NewtonRelease

__all__ = ["LeapfrogPath", "MomentRelease", "MomentsTarget", "data_precision", "draw_optimum", "weights_given"]

FloatArray = npt.NDArray[np.float64]

# Second moments of the features in the declared units, after the Mallows weights: a common level and its spread.
_DECLARED_LEVEL, _DECLARED_LEVEL_STDDEV, _DECLARED_STDDEV = 0.9, 0.4, 0.2
# The first round's weights differ from the last one's: relative error granted to its diagonal.
_REWEIGHTING_ERROR = 0.1
# Directions and logits of the flattening are standard normal and logistic.  Metropolis steps on them before and after a
# path, fewer that keep M where there are many weights; and how far they may move along a path.
_REGROUPED, _REGROUPED_OF_MANY, _FEW_COEF, _FOLLOWED = 12, 3, 24, 1
_DIRECTION_SCALE, _LOGIT_SCALE = 0.25, 0.5


def _symmetric(array: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (array + transposed(array)))


@dataclass(frozen=True)
class MomentRelease:
    """The released matrices of a batch.

    Parameters
    ----------
    noisy : (B, d, d) array
        The last release.
    stddev : (B,) array
    to_declared : (B, d, d) array
        From the last coordinates to those of the declared units.
    diagonal, diagonal_stddev : (B, d) arrays, or None
        Diagonal of the first release, in the declared units; None where nothing is declared of the matrix.
    shrunken : tuple of B ShrunkenMoments
        The last release.
    """

    noisy: FloatArray
    stddev: FloatArray
    to_declared: FloatArray
    diagonal: FloatArray | None
    diagonal_stddev: FloatArray | None
    shrunken: tuple[ShrunkenMoments, ...]

    def rotated(self, basis: FloatArray) -> "MomentRelease":
        """Return the same in other coordinates, z = basis' z, with orthogonal matrices (B, d, d)."""
        shrunken = tuple(
            dataclasses.replace(one, eigenvectors=turn.T @ one.eigenvectors)
            for one, turn in zip(self.shrunken, basis, strict=True)
        )
        noisy = transposed(basis) @ self.noisy @ basis
        return dataclasses.replace(self, noisy=noisy, to_declared=self.to_declared @ basis, shrunken=shrunken)

    @classmethod
    def from_releases(cls, releases: Sequence[NewtonRelease]) -> "MomentRelease":
        """Stack releases whose arrays have the same shapes."""
        shrunken = [
            shrink_moments(release.moments[-1], float(release.moment_stddev[-1]), float(release.moment_bounds[-1]) ** 2)
            for release in releases
        ]
        to_declared = [release.transforms[0] @ np.linalg.inv(release.transforms[-1]) for release in releases]
        diagonal, error = _first_diagonals(releases)
        return cls(
            noisy=np.stack([release.moments[-1] for release in releases]),
            stddev=np.array([release.moment_stddev[-1] for release in releases]),
            to_declared=np.stack(to_declared),
            diagonal=diagonal,
            diagonal_stddev=error,
            shrunken=tuple(shrunken),
        )

    @classmethod
    def from_slopes(cls, releases: Sequence[GlmNewtonRelease]) -> "MomentRelease":
        """Stack the slopes of releases whose arrays have the same shapes."""
        d = releases[0].n_coef
        shrunken = [
            shrink_moments(release.slope, release.slope_stddev, max(float(np.trace(release.slope)), 0.01 * d))
            for release in releases
        ]
        return cls(
            noisy=np.stack([release.slope for release in releases]),
            stddev=np.array([release.slope_stddev for release in releases]),
            to_declared=np.stack([np.eye(d)] * len(releases)),
            diagonal=None,
            diagonal_stddev=None,
            shrunken=tuple(shrunken),
        )


def _first_diagonals(releases: Sequence[NewtonRelease]) -> tuple[FloatArray | None, FloatArray | None]:
    """Return the first rounds' diagonals and their errors, (B, d) each; None where it was not in the features' units.

    Then declared correlations were whitened, of which directions without any feature may be a part.
    """
    if any(np.count_nonzero(release.transforms[0]) > release.n_coef for release in releases):
        return None, None
    diagonal = np.stack([np.diagonal(release.moments[0]) for release in releases])
    stddev = np.array([release.moment_stddev[0] for release in releases])
    return diagonal, np.sqrt(np.square(stddev)[:, None] + np.square(_REWEIGHTING_ERROR * np.maximum(diagonal, 0.3)))


class MomentsTarget:
    """log p(state | releases) at given slopes, noise variance and hyperparameters.

    Parameters
    ----------
    released : MomentRelease
    trace : Trace
    n_threads : int
        Over which chains are shared out; 0 for all that OpenMP has.
    """

    def __init__(self, released: MomentRelease, trace: Trace, n_threads: int = 0) -> None:
        self.prior = FlattenedWishart(trace.n_coef)
        self._released = released
        to_declared = diagonal = diagonal_precision = np.zeros(0)
        if released.diagonal is not None and released.diagonal_stddev is not None:
            to_declared, diagonal = released.to_declared, released.diagonal
            diagonal_precision = 1.0 / np.square(released.diagonal_stddev)
        self._native = _native.NewtonMoments(
            noisy=released.noisy,
            precision=1.0 / np.square(released.stddev),
            prior_factor=trace.prior_factor,
            to_declared=to_declared,
            diagonal=diagonal,
            diagonal_precision=diagonal_precision,
            prior=np.array([POWER, FLATTEST, _DECLARED_LEVEL, _DECLARED_LEVEL_STDDEV, _DECLARED_STDDEV]),
            concentrations=self.prior.concentrations,
            locations=self.prior.locations,
            threads=n_threads,
        )

    def density(self, state: MatrixState, linear: Linearised) -> tuple[FloatArray, FloatArray]:
        """Return the log density, (B,), up to a constant, and its gradient in the state's coordinates, (B, n)."""
        return self._native.density(state.points, _scores(linear))

    def leapfrog(self, state: MatrixState, linear: Linearised, path: "LeapfrogPath") -> tuple[MatrixState, FloatArray]:
        """Return where a path leads, and the log of its acceptance ratio, (B,), -inf where it ran away."""
        points, change = self._native.leapfrog(
            state.points, path.momentum, path.step, path.scale, path.n_leaps, _scores(linear)
        )
        return MatrixState(points, state.d), change

    def step(
        self, state: MatrixState, linear: Linearised, path: "LeapfrogPath", rng: np.random.Generator
    ) -> tuple[MatrixState, FloatArray]:
        """Make a step; return where it led and the probability with which its path was accepted, (B,).

        The path stands between Metropolis steps on directions and levels, of which some leave M what it is and some
        have it follow, as many before as after it: a step is reversible.
        """
        size = len(state.points)
        each = _FOLLOWED + (_REGROUPED if state.d <= _FEW_COEF else _REGROUPED_OF_MANY)
        numbers = rng.standard_normal((size, 2 * each, state.d + 4))
        numbers[:, :, -3:] = rng.uniform(size=(size, 2 * each, 3))
        points, accepted = self._native.step(
            state.points, path.momentum, path.step, path.scale, numbers, rng.uniform(size=size),
            path.n_leaps, _FOLLOWED, _scores(linear),
        )  # fmt: skip
        return MatrixState(points, state.d), accepted

    def scales(self, state: MatrixState, linear: Linearised) -> FloatArray:
        """Return by how much each coordinate may move, (B, n): one over the root of the density's curvature, about.

        The released matrix and the scores measure M with precision h_i + h_j in entry (i, j), h the diagonal of
        I / stddev**2 + sum_t p_t (u_t - ubar)(u_t - ubar)'; an entry of F above the diagonal does not move.
        """
        factor, d = state.factor, state.d
        entries = np.square(factor)
        measured = np.sum(linear.precision[..., None] * np.square(linear.moved), axis=1)
        precision = 1.0 / np.square(self._released.stddev)[:, None] + measured
        curvature = precision[:, :, None] * entries.sum(axis=1)[:, None, :]
        curvature += np.einsum("bi,bij->bj", precision, entries)[:, None, :]
        concentration = self.prior.concentration(state)
        trace = entries.sum(axis=(1, 2))
        index = np.arange(d)
        curvature[:, index, index] *= 2.0
        bartlett = np.maximum(concentration[:, None] - index - 1.0, 0.0)
        curvature[:, index, index] += bartlett / np.maximum(entries[:, index, index], 1e-12)
        curvature += (concentration * d / trace)[:, None, None]
        if self._released.diagonal is not None and self._released.diagonal_stddev is not None:
            known = 1.0 / np.square(self._released.diagonal_stddev) + 1.0 / _DECLARED_STDDEV**2
            squares = known[:, :, None] * np.square(self._released.to_declared @ factor)
            curvature += 4.0 * transposed(np.square(self._released.to_declared)) @ squares
        moving = np.tril(1.0 / np.sqrt(curvature))
        flattening = np.repeat([_DIRECTION_SCALE, _LOGIT_SCALE], [state.n_flattened * d, state.n_flattened])
        return np.concatenate((moving.reshape(len(moving), -1), np.tile(flattening, (len(moving), 1))), axis=1)


@dataclass(frozen=True)
class LeapfrogPath:
    """Leapfrog steps: momenta (B, n), step sizes (B,), and how many times farther each coordinate moves, (B, n)."""

    momentum: FloatArray
    step: FloatArray
    scale: FloatArray
    n_leaps: int


def _scores(linear: Linearised) -> tuple[FloatArray, ...]:
    return (
        linear.precision,
        linear.deviation,
        linear.moved,
        linear.total,
        linear.mean_score,
        linear.mean_position,
        linear.sampling,
        linear.prior_variance,
    )


def draw_optimum(factored: FactoredMoments, linear: Linearised, trace: Trace, rng: np.random.Generator) -> FloatArray:
    """Draw u* given M and the trace, (B, d).

    u* ~ N(0, R), R = prior variance Q + kappa**2 M^-1, and b + M ubar measures M u* with variance I / P: a draw of both
    from the prior is moved by what the measurement differs (Hoffman and Ribak 1991).
    """
    moments, root = factored.matrix, factored.root
    identity = np.eye(moments.shape[1])
    draw = rng.standard_normal((3, *linear.mean_score.shape, 1))
    prior_stddev, stddev = np.sqrt(linear.prior_variance)[:, None, None], np.sqrt(linear.sampling)[:, None, None]
    noise = 1.0 / np.sqrt(linear.total)[:, None, None]
    start = prior_stddev * (trace.prior_factor @ draw[0]) + stddev * np.linalg.solve(transposed(root), draw[1])
    weighted = moments @ trace.prior_covariance
    covariance = linear.prior_variance[:, None, None] * (weighted @ moments)
    covariance += linear.sampling[:, None, None] * moments + np.square(noise) * identity
    missed = linear.mean_score[..., None] + moments @ (linear.mean_position[..., None] - start) - noise * draw[2]
    solved = np.linalg.solve(covariance, missed)
    moved = linear.prior_variance[:, None, None] * (transposed(weighted) @ solved)
    return np.asarray((start + moved + linear.sampling[:, None, None] * solved)[..., 0])


def weights_given(moments: FloatArray, linear: Linearised, trace: Trace) -> tuple[FloatArray, FloatArray]:
    """Return mean (B, d) and precision (B, d, d) of u given M and the trace, u* integrated out."""
    identity = np.eye(moments.shape[1])
    noise = identity / linear.total[:, None, None] + linear.sampling[:, None, None] * moments
    solved = np.linalg.solve(noise, moments)
    measured = linear.mean_score + np.einsum("bij,bj->bi", moments, linear.mean_position)
    precision = moments @ solved + trace.prior_precision / linear.prior_variance[:, None, None]
    right = np.einsum("bij,bi->bj", solved, measured)
    return np.linalg.solve(precision, right[..., None])[..., 0], _symmetric(precision)


def data_precision(moments: FloatArray, linear: Linearised, trace: Trace) -> FloatArray:
    """Return the precision of u given M if u* were known, (B, d, d): that of no privacy noise."""
    prior = trace.prior_precision / linear.prior_variance[:, None, None]
    return _symmetric(moments / linear.sampling[:, None, None] + prior)
