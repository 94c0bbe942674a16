"""The posterior distribution of theta on the unconstrained space, in its three forms, and the model's own space."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.mixture import NormalMixtures, ThetaMarginals
from dpinfer.inference.posterior.units import Units
from dpinfer.models import Model
from dpinfer.models.base import softplus

if TYPE_CHECKING:
    from dpinfer.inference.trace.collapsed import Nodes

_REACH = 20.0  # far out on the unconstrained space, and without overflow in exp
_ROUNDING = 1e-11  # of sums of doubles, with a wide margin


@dataclass(frozen=True)
class ParameterSpace:
    """The map from unconstrained to constrained parameters, coordinate by coordinate."""

    constrain: Callable[[FloatArray], FloatArray]  # the map of unconstrained parameters (..., n)
    # (n,) bool arrays: coordinates with the identity, other linear ones, those that depend on their own input only,
    # and increasing ones of these
    identity: npt.NDArray[np.bool_]
    linear: npt.NDArray[np.bool_]
    elementwise: npt.NDArray[np.bool_]
    increasing: npt.NDArray[np.bool_]
    # rows, shift: (n, n) and (n,): a linear coordinate j is ``rows[j] @ theta + shift[j]``
    rows: FloatArray
    shift: FloatArray

    @classmethod
    def of(
        cls,
        model: Model | None,  # None: the map is the identity
        n_params: int,
        units: Units | None = None,  # those of the user, in place of the model's
    ) -> "ParameterSpace":
        """Determine the kinds for `model` by evaluating its map at a few points.

        Raises ValueError if the model has another number of parameters, or its map changes their number.
        """
        every, unit = np.ones(n_params, dtype=bool), np.eye(n_params)
        if units is None and (model is None or type(model).constrain is Model.constrain):
            return cls(lambda theta: theta, every, ~every, every, every, unit, np.zeros(n_params))
        if model is not None and model.n_params != n_params:
            raise ValueError(f"model must have {n_params} parameters, got {model.n_params}")

        def constrain(theta: FloatArray) -> FloatArray:
            params = theta if model is None else model.constrain(theta)
            return params if units is None else units.parameters(params)

        base = 0.3 * np.cos(np.arange(n_params, dtype=np.float64))
        at_base, at_moved = constrain(base), constrain(base + unit)
        if at_base.shape != base.shape or at_moved.shape != unit.shape:
            raise ValueError("model.constrain must return as many parameters as it is given")
        depends = at_moved != at_base
        elementwise = np.sum(depends, axis=0) == np.diag(depends)
        identity, linear = elementwise.copy(), every.copy()
        rows = (at_moved - at_base).T
        shift = at_base - rows @ base
        for level in (-_REACH, -1.0, 0.0, 1.0, _REACH):
            point = base + level
            value = constrain(point)
            identity &= value == point
            linear &= np.abs(value - rows @ point - shift) <= _ROUNDING * (np.abs(rows) @ np.abs(point) + np.abs(shift))
        return cls(constrain, identity, linear & ~identity, elementwise, np.diag(at_moved) > at_base, rows, shift)

    def constrain_one(self, index: int, values: FloatArray) -> FloatArray:
        """Map values (m,) of one elementwise coordinate."""
        if self.identity[index]:
            return values
        theta = np.zeros((values.size, self.identity.size))
        theta[:, index] = values
        return np.asarray(self.constrain(theta)[:, index])


_ENTRIES_AT_ONCE = 2**22  # 32 MiB


@dataclass(frozen=True)
class VarianceParts:
    """Parts of the variance of each unconstrained parameter, (n,) each, with the variance as sum."""

    data: FloatArray
    privacy: FloatArray
    approximation: FloatArray


class ThetaDistribution(Protocol):
    """Interface of a posterior to a distribution of theta."""

    @property
    def marginals(self) -> ThetaMarginals:
        """The n marginal distributions."""

    @property
    def independent(self) -> bool:
        """Whether the coordinates are independent."""
        return True

    @property
    def covariance(self) -> FloatArray:
        """Covariance, (n, n)."""
        return np.diag(self.marginals.variance)

    def variance_parts(self) -> VarianceParts:
        """Return the causes of the variance."""

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size, n)."""


@dataclass(frozen=True)
class IndependentTheta(ThetaDistribution):
    """Independent coordinates: theta_j = optimum_j + noise of q, the optimum a mixture over (Hessian, noise) nodes."""

    optimum: NormalMixtures  # mixtures of the optimum's locations
    inflation: FloatArray  # (components,): nu = 1 + omega**2 / tau**2 at each component
    # (components,): variance of theta given the optimum, if it belongs to the node (1 / Hessian); else 0
    q_variance: FloatArray
    raw_scale: NormalMixtures | None  # mixtures of u*, where the variance of theta given the optimum is softplus(u*)**2

    @classmethod
    def from_nodes(
        cls,
        # over k coordinates: (location, raw scale) for ``family="mean_field"`` unless `hessian_is_precision`
        nodes: "Nodes",
        *,
        family: str,  # {"mean_field", "point"}
        width: int,  # number of model parameters n
        # whether theta given the optimum is normal with variance 1 / Hessian (aligned and tied posteriors)
        hessian_is_precision: bool,
    ) -> "IndependentTheta":
        """Build the distribution from the nodes of the trace posterior."""
        mixtures = NormalMixtures(nodes.offsets, nodes.weight, nodes.mean, nodes.variance)
        if hessian_is_precision:
            return cls(mixtures, nodes.inflation, 1.0 / nodes.hessian, None)
        own = int(nodes.offsets[width])
        scale = mixtures.take(width, 2 * width) if family == "mean_field" else None
        return cls(mixtures.take(0, width), nodes.inflation[:own], np.zeros(own), scale)

    @cached_property
    def marginals(self) -> ThetaMarginals:
        """The n marginal distributions."""
        total = self.optimum.variance + self.q_variance
        location = NormalMixtures(self.optimum.offsets, self.optimum.weight, self.optimum.mean, total)
        return ThetaMarginals(location, self.raw_scale)

    def variance_parts(self) -> VarianceParts:
        """Return the parts: E[Var q], E[Var of the optimum from tau alone], and the part of (Hessian, omega)."""
        mixture = self.optimum
        data = mixture.expectation(self.q_variance) + self.marginals.scale_variance
        privacy = mixture.expectation(mixture.variance / self.inflation)
        beyond = mixture.expectation(mixture.variance * (1.0 - 1.0 / self.inflation))
        return VarianceParts(data, privacy, beyond + mixture.variance_of_means)

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size, n)."""
        theta = self.marginals.location.draw(size, rng)
        if self.raw_scale is not None:
            theta += softplus(self.raw_scale.draw(size, rng)) * rng.standard_normal(theta.shape)
        return theta


def inverse_factors(factor: FloatArray) -> FloatArray:
    """Return the inverses of lower triangular matrices, (S, n, n)."""
    inverse = np.empty(factor.shape)
    for one, of in zip(inverse, factor, strict=True):
        one[:] = lapack.dtrtri(of.T)[0].T
    return inverse


@dataclass(frozen=True)
class DrawnTheta:
    """Joint draws of the optimum with a Gaussian q around each: theta | draw s ~ N(location_s, covariance of q)."""

    location: FloatArray  # (S, n)
    q_stddev: FloatArray | None  # (S, n) or None: standard deviations of a diagonal q
    # (S, n, n) or None: lower Cholesky factors of q's precision; given when `q_stddev` is not
    q_factor: FloatArray | None
    parts: VarianceParts
    data_covariance: FloatArray | None = None  # (n, n): covariance of the sampling error, with variances ``parts.data``

    @cached_property
    def _q_variance(self) -> FloatArray:
        return self._of_q[0] if self.q_stddev is None else self.q_stddev**2

    @cached_property
    def _of_q(self) -> tuple[FloatArray, FloatArray]:
        """Variances of a full q, (S, n), and its mean covariance, (n, n)."""
        rows = self._inverse.reshape(-1, self._inverse.shape[2])
        return np.einsum("sij,sij->sj", self._inverse, self._inverse), rows.T @ rows / len(self._inverse)

    @cached_property
    def _inverse(self) -> FloatArray:
        return inverse_factors(np.asarray(self.q_factor))

    @cached_property
    def marginals(self) -> ThetaMarginals:
        """The n marginal distributions: equally weighted mixtures over the draws."""
        return ThetaMarginals(NormalMixtures.from_draws(self.location, self._q_variance), None)

    @property
    def independent(self) -> bool:
        """Whether the coordinates are independent: no."""
        return False

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance, (n, n)."""
        between = np.atleast_2d(np.cov(self.location, rowvar=False, bias=True))
        if self.q_stddev is not None:
            return np.asarray(between + np.diag(np.mean(self._q_variance, axis=0)))
        return np.asarray(between + self._of_q[1])

    def combined(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance, (S, k) each, of linear combinations of theta given each draw; `rows` is (k, n)."""
        mean = self.location @ rows.T
        if self.q_stddev is not None:
            return mean, np.asarray(self._q_variance @ np.square(rows).T)
        return mean, np.sum(np.square(self._inverse @ rows.T), axis=1)

    def variance_parts(self) -> VarianceParts:
        """Return the parts, computed when the draws were made."""
        return self.parts

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size, n): a draw of the optimum, then one of q."""
        chosen = rng.integers(self.location.shape[0], size=size)
        z = rng.standard_normal((size, self.location.shape[1]))
        if self.q_stddev is not None:
            return np.asarray(self.location[chosen] + self.q_stddev[chosen] * z)
        theta = np.asarray(self.location[chosen])
        count, n = self.location.shape
        if 8 * count > size:  # one by one
            for part in np.array_split(np.arange(size), math.ceil(n**2 * size / _ENTRIES_AT_ONCE)):
                theta[part] += np.einsum("sji,sj->si", self._inverse[chosen[part]], z[part])
        else:
            ends = np.cumsum(np.bincount(chosen, minlength=count))[:-1]
            for rows, own in zip(np.split(np.argsort(chosen, kind="stable"), ends), self._inverse, strict=True):
                theta[rows] += z[rows] @ own
        return theta


def visible_range(log_density: FloatArray, log_ratio: float) -> tuple[int, int]:
    """Return the first and the last place less than `log_ratio` below the top, and one more on either side."""
    visible = np.flatnonzero(log_density > log_density.max() - log_ratio)
    return max(int(visible[0]) - 1, 0), min(int(visible[-1]) + 1, log_density.size - 1)


def mixture_of_table(grid: FloatArray, log_density: FloatArray) -> NormalMixtures:
    """Return a mixture of normals that represents a density, known up to a constant, on an even grid that resolves it.

    Kernels of half a grid step's standard deviation add a quarter of the squared step to the variance.
    """
    weight = np.exp(log_density - log_density.max())
    offsets = np.array([0, grid.size], dtype=np.int64)
    return NormalMixtures(offsets, weight / weight.sum(), grid, np.full(grid.size, (0.5 * (grid[1] - grid[0])) ** 2))


@dataclass(frozen=True)
class TabulatedTheta(ThetaDistribution):
    """The distribution of one parameter, tabulated."""

    table: NormalMixtures  # one mixture
    parts: VarianceParts  # shares of its variance

    @cached_property
    def marginals(self) -> ThetaMarginals:
        """The marginal distribution."""
        return ThetaMarginals(self.table, None)

    def variance_parts(self) -> VarianceParts:
        """Return the parts, computed with the table."""
        return self.parts

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size, 1)."""
        return self.table.draw(size, rng)
