"""The collapsed posterior of each coordinate: its dimensionless statement, its log density, its quadrature nodes."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference import _native
from dpinfer.inference.trace.priors import CoordinatePriors
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.models.base import softplus, softplus_inverse


@dataclass(frozen=True)
class SideRegression:
    """A second regression that shares the slope (tied posterior): ``response ~ N(h * design, tau**2)``."""

    count: int  # number of steps
    slope: FloatArray  # (k,): least-squares h
    precision: FloatArray  # (k,): 1 / variance of that
    residual: FloatArray  # (k,): residual sum of squares in units of the noise variance


class ProblemColumns(NamedTuple):
    """The dimensionless numbers of k problems, (k,) each, in the order of the kernel's ``CollapsedProblem``."""

    # n, the least-squares slope in standard errors, the residual sum in tau**2, the mean gradient in its error
    n_steps: FloatArray
    slope_score: FloatArray
    residual: FloatArray
    mean_score: FloatArray
    # optimum_offset, optimum_scale: mean position less the prior's location, and the prior's scale, in spreads D
    optimum_offset: FloatArray
    optimum_scale: FloatArray
    hessian_unit: FloatArray  # se / kappa
    # the prior of beta; see :class:`dpinfer.inference.trace.priors.CoordinatePriors`
    wide_scale: FloatArray
    wide_power: FloatArray
    raw_loc: FloatArray
    raw_scale: FloatArray
    extra_noise: FloatArray  # 0: nu = 1
    # the side regression of beta; count 0 without one
    side_count: FloatArray
    side_score: FloatArray
    side_precision: FloatArray
    side_residual: FloatArray


@dataclass(frozen=True)
class CollapsedProblems:
    """The k one-coordinate problems in dimensionless form, and the units that lead back.

    Legend: D spread of the positions, se = tau / sqrt(S_xx), beta = kappa a / se, delta = (optimum - mean position) / D
    and nu = 1 + omega**2 / tau**2 = cosh(w)**2.
    """

    table: FloatArray  # (k, 16): rows of the kernel's ``CollapsedProblem``
    # position_mean, spread, hessian_unit: (k,): optimum = position_mean + spread * delta; a = hessian_unit * beta
    position_mean: FloatArray
    spread: FloatArray
    hessian_unit: FloatArray

    @classmethod
    def build(
        cls,
        statistics: TraceStatistics,
        priors: CoordinatePriors,
        # float or (k,) array: kappa, or another factor from the Hessian to the slope, per coordinate
        sample_rate: float | FloatArray,
        *,
        extra_noise: bool,  # whether the noise may be larger than the privacy noise
        side: SideRegression | None = None,
    ) -> "CollapsedProblems":
        """State the problems of a trace."""
        unit = statistics.slope_stderr / sample_rate
        zero = np.zeros_like(unit)
        columns = ProblemColumns(
            n_steps=zero + statistics.count,
            slope_score=statistics.slope_score,
            residual=statistics.residual,
            mean_score=statistics.mean_score,
            optimum_offset=(statistics.position_mean - priors.optimum_loc) / statistics.spread,
            optimum_scale=priors.optimum_scale / statistics.spread,
            hessian_unit=unit,
            wide_scale=priors.wide_scale / unit,
            wide_power=priors.wide_power,
            raw_loc=priors.raw_loc,
            raw_scale=priors.raw_scale,
            extra_noise=zero + float(extra_noise),
            side_count=zero if side is None else zero + side.count,
            side_score=zero if side is None else side.slope / unit,
            side_precision=zero if side is None else side.precision * unit**2,
            side_residual=zero if side is None else side.residual,
        )
        table = np.stack(columns, axis=1)
        return cls(table, statistics.position_mean, statistics.spread, unit)

    @property
    def columns(self) -> ProblemColumns:
        """The columns of the table."""
        return ProblemColumns(*self.table.T)

    @property
    def extra_noise(self) -> bool:
        """Whether nu is unknown."""
        return bool(self.columns.extra_noise[0] > 0.0)

    @property
    def raw_normal(self) -> npt.NDArray[np.bool_]:
        """Whether the prior is normal in v, with Hessian softplus(v), (k,)."""
        return np.asarray((self.columns.wide_scale <= 0.0) & (self.columns.wide_power > 0.0))

    def slope(self, y: FloatArray) -> FloatArray:
        """Return beta at a sampler's variable y (..., k): softplus(y); under a normal prior of v, v standardised by it.

        The tail of softplus(y) towards 0 would be as wide as that prior, in units of 1.
        """
        columns, raw = self.columns, self.raw_normal
        raw_loc, raw_scale = np.where(raw, columns.raw_loc, 0.0), np.where(raw, columns.raw_scale, 1.0)
        return np.asarray(softplus(raw_loc + raw_scale * y) / np.where(raw, self.hessian_unit, 1.0))

    def start(self, beta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return a sampler's start and its width, (k,) each, where the likelihood of beta (k,) is about N(beta, 1)."""
        columns, raw = self.columns, self.raw_normal
        score = (softplus_inverse(self.hessian_unit * beta) - columns.raw_loc) / columns.raw_scale
        width = 1.0 / np.hypot(columns.raw_scale / self.hessian_unit, 1.0)
        # Between the modes of likelihood and prior, by their precisions.
        start = np.where(raw, score * (1.0 - width**2), softplus_inverse(beta))
        return start, np.where(raw, width, 1.0)

    def log_prior_slope(self, beta: FloatArray) -> FloatArray:
        """Return the log prior density of beta, up to a constant; beta (..., k)."""
        columns = self.columns
        wide_scale, power, raw_loc, raw_scale = (
            columns.wide_scale,
            columns.wide_power,
            columns.raw_loc,
            columns.raw_scale,
        )
        hessian = self.hessian_unit * beta
        with np.errstate(divide="ignore", invalid="ignore"):
            wide = (power - 1.0) * np.log(beta) - 0.5 * (beta / np.where(wide_scale > 0.0, wide_scale, 1.0)) ** 2
            raw = softplus_inverse(hessian)
            normal = -0.5 * ((raw - raw_loc) / raw_scale) ** 2 - np.log(-np.expm1(-hessian))
            log_normal = -0.5 * ((np.log(hessian) - raw_loc) / raw_scale) ** 2 - np.log(beta)
        return np.where(wide_scale > 0.0, wide, np.where(power > 0.0, normal, log_normal))

    def log_density(self, y: FloatArray, w: FloatArray | float = 0.0) -> FloatArray:
        """Return the collapsed log density in (y, w), up to a constant; y of :meth:`slope` and w (..., k).

        The Jacobians of both variables and the half-Cauchy prior of omega / tau = sinh(w) are in it; the optimum is
        integrated out.
        """
        count, score, residual, mean_score, offset, scale, *_ = self.columns
        beta, raw = self.slope(y), self.raw_normal
        log_cosh = np.logaddexp(w, -np.asarray(w)) - np.log(2.0)
        nu = np.exp(2.0 * log_cosh)
        spread = nu + (beta * scale) ** 2
        fit = (residual + (beta - score) ** 2) / nu + np.log(spread) + (mean_score - beta * offset) ** 2 / spread
        power = count if self.extra_noise else 0.0
        prior = -0.5 * y**2 if np.all(raw) else np.where(raw, -0.5 * y**2, self.log_prior_slope(beta) + y - beta)
        return np.asarray(-power * log_cosh - 0.5 * fit + prior)


@dataclass(frozen=True)
class Nodes:
    """Weighted nodes over (a, nu) for k coordinates; given a node the optimum is normal."""

    offsets: npt.NDArray[np.int64]  # (k + 1,) int64: coordinate j owns the nodes ``offsets[j]:offsets[j + 1]``
    # (nodes,): a, nu = 1 + omega**2 / tau**2, the weight (they sum to 1 per coordinate), mean and variance of the
    # optimum
    hessian: FloatArray
    inflation: FloatArray
    weight: FloatArray
    mean: FloatArray
    variance: FloatArray

    def expectation(self, values: FloatArray) -> FloatArray:
        """Return sum(weight * values) per coordinate, (k,)."""
        return np.add.reduceat(self.weight * values, self.offsets[:-1])

    def moments(self, values: FloatArray, variance: FloatArray | float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance, two (k,) arrays, of mixtures with these means and variances at the nodes."""
        mean = self.expectation(values)
        return mean, self.expectation(variance + (values - self.spread_to_nodes(mean)) ** 2)

    def spread_to_nodes(self, per_coordinate: FloatArray) -> FloatArray:
        """Repeat (k,) values at the nodes."""
        return np.repeat(per_coordinate, np.diff(self.offsets))

    def replaced(
        self,
        where: npt.NDArray[np.bool_],
        *,
        hessian: FloatArray | float,
        inflation: FloatArray | float,
        mean: FloatArray,
        variance: FloatArray,
    ) -> "Nodes":
        """Return nodes in which some coordinates have a single node."""
        old = ~np.repeat(where, np.diff(self.offsets))
        sizes = np.where(where, 1, np.diff(self.offsets))
        fresh = np.repeat(where, sizes)

        def column(values: FloatArray, new: FloatArray | float) -> FloatArray:
            result = np.empty(fresh.size)
            result[fresh], result[~fresh] = new, values[old]
            return result

        return Nodes(
            np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
            column(self.hessian, hessian),
            column(self.inflation, inflation),
            column(self.weight, 1.0),
            column(self.mean, mean),
            column(self.variance, variance),
        )


def collapsed_nodes(problems: CollapsedProblems, names: tuple[str, ...], *, n_threads: int = 0) -> Nodes:
    """Integrate the collapsed posteriors by quadrature.

    Raises NumericalError if the trapezoid rule did not converge for some coordinate.

    The trapezoid rule for analytic functions: Trefethen and Weideman (2014), SIAM Review 56, 385-458.
    """
    nodes, solved = solved_nodes(problems, n_threads=n_threads)
    if not np.all(solved):
        index = int(np.argmin(solved))
        raise NumericalError(
            f"the quadrature over the Hessian of {names[index]!r} did not converge: {_cause(problems, index)}"
        )
    return nodes


def _cause(problems: CollapsedProblems, index: int) -> str:
    """Say why a quadrature failed."""
    row = ProblemColumns(*problems.table[index])
    if not np.all(np.isfinite(problems.table[index])):
        return "the sums of its trace, or its prior, are beyond double precision"
    if row.wide_scale <= 0.0 < row.wide_power:
        likely = problems.hessian_unit[index] * row.slope_score
        apart = (softplus(row.raw_loc) - likely) / np.hypot(problems.hessian_unit[index], row.raw_scale)
        return (
            f"its prior is {abs(apart):.3g} standard errors away from the trace's Hessian, or too narrow beside it; "
            "widen raw_hessian_scale of the prior, or use prior='weak'"
        )
    return (
        f"with {row.n_steps:.0f} steps and a Hessian of {row.slope_score:.3g} standard errors its posterior spans too "
        "many orders of magnitude; run more steps, or shorten burn_in"
    )


def solved_nodes(problems: CollapsedProblems, *, n_threads: int = 0) -> tuple[Nodes, npt.NDArray[np.bool_]]:
    """Integrate the collapsed posteriors, and return a mask (k,) of the coordinates whose nodes are of use."""
    offsets, cells, converged = _native.collapsed_posteriors(problems.table, n_threads)
    sizes = np.diff(offsets)
    if not sizes.all():
        # A coordinate without nodes gets a marked one: an empty sum would take its neighbour's.
        empty = offsets[:-1][sizes == 0]
        cells = np.stack([np.insert(values, empty, np.nan) for values in cells])
        sizes = np.maximum(sizes, 1)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    nodes = Nodes(offsets, *cells)
    unit, mean, spread = (
        np.repeat(values, sizes) for values in (problems.hessian_unit, problems.position_mean, problems.spread)
    )
    mean, variance = mean + spread * nodes.mean, spread**2 * nodes.variance
    return replace(nodes, hessian=unit * nodes.hessian, mean=mean, variance=variance), converged
