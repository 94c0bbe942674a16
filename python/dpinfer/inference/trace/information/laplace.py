"""Laplace's approximation with a full Hessian: one joint Gaussian of (V, optimum), A = F(V) positive definite."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.information import FullHessian
from dpinfer.inference.trace.information.rows import RowRegressions
from dpinfer.models.base import softplus

_NEWTON_STEPS = 50  # from where L-BFGS ends few are needed: tolerance
_SETTLED = 1e-6  # of the last step, in standard deviations: tolerance
_STEP = 1e-5  # of differences of the gradient, in units of V and of the spread of the positions: tolerance


@dataclass(frozen=True)
class FullJoint:
    """Log density of (V, delta), delta = (optimum - mean position) / spread, and its gradient, for k coordinates.

    V is the lower triangle of L with logarithms on its diagonal, row by row, and ``kappa D A D = L L'`` with D the
    spreads.  The density is with respect to V, flat in A; the optimum has the weak prior.
    """

    rows: RowRegressions
    spread: FloatArray  # (k,)
    inflation: FloatArray  # (k,): noise variance over that of the privacy noise
    prior_scale: float  # of delta

    @property
    def lower(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Rows and columns of V's entries."""
        rows, columns = np.nonzero(np.tri(self.spread.size))
        return rows, columns

    def factor(self, v: FloatArray) -> FloatArray:
        """Return L, (..., k, k), for V (..., k (k + 1) / 2)."""
        k = self.spread.size
        result = np.zeros((*v.shape[:-1], k, k))
        result[..., self.lower[0], self.lower[1]] = v
        diagonal = np.arange(k)
        result[..., diagonal, diagonal] = np.exp(result[..., diagonal, diagonal])
        return result

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Return the log density and its gradient at (V, delta)."""
        k = self.spread.size
        size = k * (k + 1) // 2
        lower, delta = self.factor(x[:size]), x[size:]
        slopes = lower @ lower.T  # of the gradient in units of the spreads: kappa D A D
        rows, spread = self.rows, self.spread
        # Row j of kappa A less its estimate, in the coordinates whose Gram matrix is the identity.
        gap = slopes / (spread[:, None] * spread) - rows.coefficients
        factors = np.broadcast_to(rows.factor, (k, k, k))
        white = np.einsum("jba,jb->ja", factors, gap) / rows.stddev[:, None]
        away = (rows.position_mean - rows.position_mean[0]) / spread - delta
        level = rows.intercept - np.sum(slopes * away, axis=1) / spread
        by_level = level / rows.intercept_variance / self.inflation
        weighted = white / self.inflation[:, None]
        value = -0.5 * (np.sum(white * weighted) + level @ by_level + np.sum((delta / self.prior_scale) ** 2))
        by_slopes = -np.einsum("jab,jb->ja", factors, weighted) / (rows.stddev[:, None] * spread[:, None] * spread)
        by_slopes += (by_level / spread)[:, None] * away
        by_delta = -slopes.T @ (by_level / spread) - delta / self.prior_scale**2
        # The Jacobian of V -> L L' is the product of L_ii^(k - i + 2), i from 1.
        powers = np.arange(k + 1, 1, -1)
        value += powers @ np.log(np.diag(lower))
        by_factor = (by_slopes + by_slopes.T) @ lower
        diagonal = np.arange(k)
        by_factor[diagonal, diagonal] = by_factor[diagonal, diagonal] * lower[diagonal, diagonal] + powers
        return float(value), np.concatenate((by_factor[self.lower], by_delta))

    def curvature(self, x: FloatArray) -> FloatArray:
        """Return the Hessian by central differences of the gradient."""
        result = np.empty((x.size, x.size))
        for index in range(x.size):
            move = np.zeros(x.size)
            move[index] = _STEP
            result[index] = (self(x + move)[1] - self(x - move)[1]) / (2.0 * _STEP)
        return 0.5 * (result + result.T)


def full_laplace(
    rows: RowRegressions,
    spread: FloatArray,  # (k,): of the positions
    *,
    sample_rate: float,
    n_params: int,
    family: str,  # {"mean_field", "point"}
    aligned: bool,  # whether theta given (Hessian, optimum) is N(optimum, Hessian^-1) instead of q
    extra_noise: bool,
    n_draws: int,
    seed: int,
) -> FullHessian:
    """Find the joint mode of (V, optimum) and the curvature there; draw from that Gaussian.

    Raises NumericalError if the density has no interior mode.

    NA-DPVI (2025), appendix C, eqs. A4-A5, for any A: F is Cholesky's factorisation with logarithms on the diagonal,
    and Newton's method takes the place of Adam.  Noise beyond the privacy noise is at its estimate for each row.
    """
    k = spread.size
    inflation = np.maximum(rows.residual / rows.degrees, 1.0) if extra_noise else np.ones(k)
    joint = FullJoint(rows, spread, inflation, tuning.TUNING.optimum_spreads)
    mode, covariance = _mode(joint)
    rng = np.random.default_rng(seed)
    draws = rng.multivariate_normal(mode, covariance, n_draws, method="cholesky")
    size = k * (k + 1) // 2
    lower = joint.factor(draws[:, :size]) / spread[:, None]
    hessian = lower @ lower.swapaxes(1, 2) / sample_rate
    optimum = rows.position_mean[0] + spread * draws[:, size:]
    location = optimum[:, :n_params]
    factor = np.asarray(np.linalg.cholesky(hessian), dtype=np.float64) if aligned else None
    if factor is not None:
        q_stddev = None
        data = np.mean(np.einsum("sjj->sj", np.linalg.inv(hessian)), axis=0)
    else:
        q_stddev = softplus(optimum[:, n_params:]) if family == "mean_field" else np.zeros_like(location)
        data = np.mean(q_stddev**2, axis=0)
    solved = np.linalg.inv(joint.factor(mode[:size]) / spread[:, None])
    from_noise = (solved.T @ solved) ** 2 @ rows.intercept_variance
    total = np.var(location, axis=0)
    privacy = np.minimum(from_noise[:n_params], total)
    return FullHessian(
        DrawnTheta(location, q_stddev, factor, VarianceParts(data, privacy, total - privacy)),
        rows.position_mean[0] + spread * mode[size:],
        spread * np.sqrt(np.diag(covariance)[size:]),
        hessian.mean(axis=0),
        hessian.std(axis=0),
        noise_ratio=np.sqrt(rows.residual / rows.degrees),
    )


def _mode(joint: FullJoint) -> tuple[FloatArray, FloatArray]:
    """Return the mode and the covariance there."""
    spread, rows = joint.spread, joint.rows
    estimate = 0.5 * (rows.coefficients + rows.coefficients.T) * spread[:, None] * spread
    values, axes = np.linalg.eigh(estimate)
    lower = np.linalg.cholesky((axes * np.maximum(values, 1e-3 * np.abs(values).max())) @ axes.T)
    np.fill_diagonal(lower, np.log(np.diag(lower)))
    x = np.concatenate((lower[joint.lower], np.zeros(spread.size)))

    def falling(at: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = joint(at)
        return -value, -gradient

    x = optimize.minimize(falling, x, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    value, gradient = joint(x)
    damping = 0.0
    for _ in range(_NEWTON_STEPS):
        precision = -joint.curvature(x)
        values, axes = np.linalg.eigh(precision)
        step = axes @ (axes.T @ gradient / (np.maximum(np.abs(values), 1e-12 * np.abs(values).max()) + damping))
        if np.sqrt(max(step @ precision @ step, 0.0)) < _SETTLED and values[0] > 0.0:
            return np.asarray(x, dtype=np.float64), np.asarray(np.linalg.inv(precision), dtype=np.float64)
        at, slope = joint(x + step)
        if at >= value - 1e-9 * abs(value):
            x, value, gradient, damping = x + step, at, slope, 0.1 * damping
        else:
            damping = 10.0 * damping + 1e-3 * float(np.abs(values).max())
    raise NumericalError(
        "the posterior of a full Hessian has no interior mode: the trace does not identify it; use "
        "approximation='exact' or hessian='diagonal'"
    )
