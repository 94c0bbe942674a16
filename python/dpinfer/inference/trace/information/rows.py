"""Full Hessian: conjugate regressions row by row, exact independent draws, the optimum by solving a linear system."""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference import _native
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.trace.information import FullHessian
from dpinfer.models.base import softplus

_MOST_TRIALS = 20  # of each wanted draw, if some are positive definite
_HOPELESS = 300  # trials without a positive definite draw
_INFLATION_POINTS = 400  # of a tabulated density: smooth


@dataclass(frozen=True)
class RowRegressions:
    """Row j of (kappa A, kappa A (mean position - optimum)) regressed on the centred positions."""

    position_mean: FloatArray  # (m, k): weighted mean position, for each response or once (m = 1)
    intercept: FloatArray  # (k,): weighted mean gradients: least-squares intercepts at the mean position
    intercept_variance: FloatArray  # (k,): their variances when the privacy noise is all there is
    coefficients: FloatArray  # (k, k): row j: least-squares estimate of row j of kappa A
    # (m, k, k): lower Cholesky factors of the Gram matrices; row j has covariance tau_j**2 times the inverse
    factor: FloatArray
    stddev: FloatArray  # (k,): reference noise tau_j
    residual: FloatArray  # (k,): residual sums of squares in units of tau_j**2
    degrees: int  # residual degrees of freedom n - k - 1


def row_regressions(
    positions: FloatArray, gradients: FloatArray, noise_stddev: FloatArray, *, n_threads: int = 0
) -> RowRegressions:
    """Regress every gradient coordinate on all positions.

    Raises NumericalError if there are too few steps or the positions are collinear.

    `positions` and `gradients` (T, k) float64: the steps used.  `noise_stddev` (k,) or (T, k) float64.

    Bayesian linear regression with known variance and a flat prior (Gelman et al. 2013, section 14.2).
    """
    steps, width = positions.shape
    if steps < width + 2:
        raise NumericalError(
            f"hessian='full' needs at least {width + 2} steps after the burn-in for {width} coordinates, got {steps}; "
            "use hessian='diagonal'"
        )
    if noise_stddev.ndim == 1:
        groups, stddev, weights = [slice(0, width)], noise_stddev, np.ones((steps, 1))
    else:
        stddev = np.ascontiguousarray(noise_stddev[0])
        relative = (stddev / noise_stddev) ** 2
        shared = bool(np.allclose(relative, relative[:, :1], rtol=1e-12, atol=0.0))
        groups = [slice(0, width)] if shared else [slice(j, j + 1) for j in range(width)]
        weights = relative[:, :1] if shared else relative
    means, factors = [], []
    intercept, variance, residual = np.empty(width), np.empty(width), np.empty(width)
    coefficients = np.empty((width, width))
    for column, group in enumerate(groups):
        weight = np.ascontiguousarray(weights[:, column])
        response = np.ascontiguousarray(gradients[:, group])
        mean, mean_g, gram, cross, squares = _native.gram_statistics(positions, response, weight, n_threads)
        factor = _cholesky(gram)
        solution = np.linalg.solve(factor.T, np.linalg.solve(factor, cross))
        coefficients[group] = solution.T
        means.append(mean)
        factors.append(factor)
        intercept[group] = mean_g
        variance[group] = stddev[group] ** 2 / weight.sum()
        explained = np.sum(cross * solution, axis=0)
        residual[group] = np.maximum(squares - explained, 0.0) / stddev[group] ** 2
    return RowRegressions(
        np.stack(means), intercept, variance, coefficients, np.stack(factors), stddev, residual, steps - width - 1
    )


def full_hessian_posterior(
    rows: RowRegressions,
    *,
    sample_rate: float,
    n_params: int,
    family: str,  # {"mean_field", "point"}
    aligned: bool,  # whether theta given (Hessian, optimum) is N(optimum, Hessian^-1) instead of q
    extra_noise: bool,
    n_draws: int,
    seed: int,
) -> FullHessian:
    """Draw the Hessian and the optimum from their exact posterior.

    Raises NumericalError if no draw has a positive definite symmetrised Hessian.

    Given A the optimum is normal with mean ``position_mean - (kappa A)^-1 intercept``, because intercepts at the mean
    position are independent of the slopes; so the variance splits exactly into a part from the noise in the intercepts
    and a part from the unknown Hessian and noise.
    """
    rng = np.random.default_rng(seed)
    width = rows.intercept.shape[0]
    shared = rows.factor.shape[0] == 1
    inverse = np.linalg.inv(rows.factor)
    table = _InflationTable(rows) if extra_noise else None
    kept: list[tuple[FloatArray, FloatArray]] = []
    tried = 0
    while len(kept) < n_draws and tried < (_MOST_TRIALS * n_draws if kept else _HOPELESS):
        inflation = np.ones(width) if table is None else table.draw(rng)
        z = rng.standard_normal((width, width))
        noise = z @ inverse[0] if shared else np.einsum("ji,jik->jk", z, inverse)
        slopes = rows.coefficients + (rows.stddev * np.sqrt(inflation))[:, None] * noise
        tried += 1
        if _is_positive_definite(slopes + slopes.T):
            kept.append((slopes, inflation))
    if not kept:
        raise NumericalError(
            f"none of {tried} draws of the Hessian is positive definite: the trace does not identify a full Hessian; "
            "use hessian='diagonal', more steps or a larger learning rate"
        )
    position_mean = rows.position_mean
    draws = np.empty((len(kept), width))
    means, within, from_noise = np.empty_like(draws), np.empty_like(draws), np.empty_like(draws)
    total, total_squares = np.zeros((width, width)), np.zeros((width, width))
    factor = np.empty((len(kept), width, width)) if aligned else None
    for s, (slopes, inflation) in enumerate(kept):
        solved = np.linalg.inv(slopes)
        # Intercepts belong to each row's own mean position: move them all to the first row's.
        reference = position_mean[0]
        shift = np.einsum("jk,jk->j", slopes, reference - position_mean) if position_mean.shape[0] > 1 else 0.0
        centred = rows.intercept + shift
        means[s] = reference - solved @ centred
        from_noise[s] = solved**2 @ rows.intercept_variance
        within[s] = solved**2 @ (rows.intercept_variance * inflation)
        stddev = np.sqrt(rows.intercept_variance * inflation)
        draws[s] = means[s] - solved @ (stddev * rng.standard_normal(width))
        hessian = slopes / sample_rate
        total += hessian
        total_squares += hessian**2
        if factor is not None:
            factor[s] = np.linalg.cholesky(0.5 * (hessian + hessian.T))
    hessian_mean = total / len(kept)
    hessian_variance = np.maximum(total_squares / len(kept) - hessian_mean**2, 0.0)
    location = draws[:, :n_params]
    if aligned:
        q_stddev = None
        data = np.mean(np.stack([np.sum(np.linalg.inv(item) ** 2, axis=0) for item in np.asarray(factor)]), axis=0)
    else:
        q_stddev = softplus(draws[:, n_params:]) if family == "mean_field" else np.zeros_like(location)
        data = np.mean(q_stddev**2, axis=0)
    spread = np.var(location, axis=0)
    # The draws' own spread is the total, so that the parts sum to the variance that the posterior reports.
    privacy = np.minimum(np.mean(from_noise[:, :n_params], axis=0), spread)
    parts = VarianceParts(data, privacy, spread - privacy)
    optimum_mean = np.mean(means, axis=0)
    optimum_variance = np.mean(within, axis=0) + np.var(means, axis=0)
    return FullHessian(
        DrawnTheta(location, q_stddev, factor, parts),
        optimum_mean,
        np.sqrt(optimum_variance),
        hessian_mean,
        np.sqrt(hessian_variance),
        share_dropped=1.0 - len(kept) / tried,
        noise_ratio=np.sqrt(rows.residual / rows.degrees),
    )


def _cholesky(gram: FloatArray) -> FloatArray:
    scale = np.sqrt(np.diag(gram))
    if np.all(scale > 0.0):
        try:
            factor = scale[:, None] * np.linalg.cholesky(gram / np.outer(scale, scale))
        except np.linalg.LinAlgError:
            factor = None
        if factor is not None and np.min(np.diag(factor) / scale) > 1e-7:
            return np.asarray(factor)
    raise NumericalError("the positions after the burn-in are collinear: use hessian='diagonal'")


def _is_positive_definite(matrix: FloatArray) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


class _InflationTable:
    """Inversion tables of nu = cosh(w)**2 per row: half-Cauchy prior on omega / tau, likelihood of the residuals."""

    def __init__(self, rows: RowRegressions) -> None:
        power = rows.degrees + 1.0
        mode = np.arccosh(np.sqrt(np.maximum(1.0, rows.residual / power)))
        curvature = np.maximum(2.0 * power * np.tanh(mode) ** 2, np.maximum(power - rows.residual, np.sqrt(power)))
        reach = 9.0 / np.sqrt(curvature)
        low = np.maximum(0.0, mode - reach)
        self._edges = low[:, None] + (mode + reach - low)[:, None] * np.linspace(0.0, 1.0, _INFLATION_POINTS + 1)
        w = 0.5 * (self._edges[:, :-1] + self._edges[:, 1:])
        log_density = -power * np.log(np.cosh(w)) - 0.5 * rows.residual[:, None] / np.cosh(w) ** 2
        weight = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        self._cumulative = np.cumsum(weight, axis=1) / weight.sum(axis=1, keepdims=True)

    def draw(self, rng: np.random.Generator) -> FloatArray:
        """Return one draw per row."""
        level = rng.random((self._edges.shape[0], 1))
        cell = np.minimum((self._cumulative < level).sum(axis=1), _INFLATION_POINTS - 1)
        row = np.arange(cell.size)
        low, high = self._edges[row, cell], self._edges[row, cell + 1]
        return np.asarray(np.cosh(low + rng.random(cell.size) * (high - low)) ** 2)
