"""Laplace's approximation of the trace posterior: one joint Gaussian per coordinate at the mode."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpinfer._arrays import TINY, FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.mixture import HERMITE_NODES
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes
from dpinfer.models.base import gauss_hermite, sigmoid, softplus, softplus_inverse

_RELATIVE_STEP = 1e-2  # of central differences, relative to the posterior's width: error of order 1e-4
_NEWTON_STEPS = 200  # damped steps converge in tens: tolerance


@dataclass(frozen=True)
class LaplacePosterior:
    """Gaussian approximation of (optimum, v[, log omega**2]) per coordinate, Hessian = softplus(v)."""

    mean: FloatArray  # (k, 2 or 3): mode; the optimum in its own units, v, log(omega**2 / tau**2)
    covariance: FloatArray  # (k, 2 or 3, 2 or 3)

    def nodes(
        self,
        *,
        coupled: bool,  # whether theta's variance given the optimum depends on the Hessian
    ) -> Nodes:
        """Return the Gaussian as nodes: Gauss-Hermite in v, the optimum given v; or one node for the optimum alone."""
        k = self.mean.shape[0]
        z, z_weight = gauss_hermite(HERMITE_NODES) if coupled else (np.zeros(1), np.ones(1))
        sd_v = np.sqrt(self.covariance[:, 1, 1])
        slope = self.covariance[:, 0, 1] / sd_v
        total = self.covariance[:, 0, 0]
        given_rest = 1.0 / np.linalg.inv(self.covariance)[:, 0, 0]
        nu = 1.0 + np.exp(self.mean[:, 2]) if self.mean.shape[1] == 3 else np.ones(k)
        within = total - slope**2 if coupled else total
        # Of the variance at a node only the part at fixed (Hessian, noise) comes from the privacy noise.
        inflation = np.maximum(within / given_rest, 1.0) * nu
        return Nodes(
            np.arange(0, k * z.size + 1, z.size, dtype=np.int64),
            softplus(self.mean[:, 1, None] + sd_v[:, None] * z).ravel(),
            np.repeat(inflation, z.size),
            np.tile(z_weight, k),
            (self.mean[:, 0, None] + slope[:, None] * z).ravel(),
            np.repeat(within, z.size),
        )

    def hessian_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of softplus(v) under the Gaussian."""
        z, weight = gauss_hermite(HERMITE_NODES)
        values = softplus(self.mean[:, 1, None] + np.sqrt(self.covariance[:, 1, 1])[:, None] * z)
        mean = values @ weight
        return mean, np.sqrt(np.maximum(values**2 @ weight - mean**2, 0.0))


def laplace_posterior(
    problems: CollapsedProblems,
    nodes: Nodes,  # exact quadrature nodes, for the start and the step sizes
    names: tuple[str, ...],
) -> LaplacePosterior:
    """Find the joint mode of (optimum, v[, log omega**2]) and the curvature there.

    Raises NumericalError if Newton's method finds no maximum.

    NA-DPVI (2025), appendix C, eqs. A4-A5, with Newton's method instead of Adam.  The density is with respect to the
    unconstrained variables, so the Jacobians of softplus and exp are part of it.
    """
    k = problems.spread.shape[0]
    unit = problems.hessian_unit

    def density(x: FloatArray) -> FloatArray:
        hessian = softplus(x[..., 1])
        value = np.log(sigmoid(x[..., 1]))
        nu = np.ones_like(hessian)
        if problems.extra_noise:
            nu = 1.0 + np.exp(x[..., 2])
            value = value + 0.5 * x[..., 2]
        return np.asarray(value + problems.joint_log_density(x[..., 0], hessian / unit, nu))

    width = 3 if problems.extra_noise else 2
    start, scale = np.empty((k, width)), np.empty((k, width))
    centre = nodes.spread_to_nodes(problems.position_mean)
    spread = nodes.spread_to_nodes(problems.spread)
    columns = [(nodes.mean - centre) / spread, softplus_inverse(np.maximum(nodes.hessian, TINY))]
    if problems.extra_noise:
        columns.append(np.log(np.maximum(nodes.inflation - 1.0, 1e-12)))
    for index, column in enumerate(columns):
        mean = nodes.expectation(column)
        variance = nodes.expectation((column - nodes.spread_to_nodes(mean)) ** 2)
        if index == 0:
            variance = variance + nodes.expectation(nodes.variance) / problems.spread**2
        start[:, index] = mean
        scale[:, index] = np.sqrt(np.maximum(variance, 1e-300))
    heaviest = np.array([low + np.argmax(nodes.weight[low:high]) for low, high in pairwise(nodes.offsets)])
    start[:, 0] = columns[0][heaviest]
    start[:, 1] = columns[1][heaviest]
    mode, hessian = _climb(density, start, scale, names)
    covariance = np.linalg.inv(-hessian)
    stretch = np.ones((k, width))
    stretch[:, 0] = problems.spread
    mean = mode * stretch
    mean[:, 0] += problems.position_mean
    return LaplacePosterior(mean, covariance * stretch[:, :, None] * stretch[:, None, :])


def _climb(
    density: Callable[[FloatArray], FloatArray], start: FloatArray, scale: FloatArray, names: tuple[str, ...]
) -> tuple[FloatArray, FloatArray]:
    """Damped Newton on all coordinates at once, with central differences at steps of a hundredth of the spread."""
    step = _RELATIVE_STEP * scale
    x, damping = start.copy(), np.full(start.shape[0], 1e-3)
    value = density(x)
    # Differences cannot locate a mode better than this share of a standard deviation.
    tolerance = 1e-4
    for _ in range(_NEWTON_STEPS):
        gradient, hessian = _differences(density, x, value, step)
        # In units of the spread, so that damping means the same for every variable.
        scaled = -hessian * scale[:, :, None] * scale[:, None, :]
        eigenvalues, vectors = np.linalg.eigh(scaled)
        safe = np.maximum(np.abs(eigenvalues), 1e-3) + damping[:, None]
        push = np.einsum("kij,kj->ki", vectors, np.einsum("kji,kj->ki", vectors, gradient * scale) / safe)
        push *= np.minimum(1.0, 3.0 / np.maximum(np.linalg.norm(push, axis=1), 1e-300))[:, None]
        candidate = x + push * scale
        candidate_value = density(candidate)
        better = candidate_value >= value
        x = np.where(better[:, None], candidate, x)
        value = np.where(better, candidate_value, value)
        damping = np.where(better, damping * 0.1, damping * 10.0 + 1e-6)
        small = np.max(np.abs(push), axis=1) < tolerance
        if np.all(small | (~better & (damping > 1e6))):
            break
    _, hessian = _differences(density, x, value, step)
    definite = np.linalg.eigvalsh(-hessian * scale[:, :, None] * scale[:, None, :])[:, 0] > 1e-6
    if not np.all(definite & np.isfinite(value)):
        name = names[int(np.argmin(definite & np.isfinite(value)))]
        raise NumericalError(f"the trace posterior of {name!r} has no interior mode; use approximation='exact'")
    return x, hessian


def _differences(
    density: Callable[[FloatArray], FloatArray], x: FloatArray, value: FloatArray, step: FloatArray
) -> tuple[FloatArray, FloatArray]:
    k, width = x.shape
    gradient, hessian = np.empty((k, width)), np.empty((k, width, width))
    for i in range(width):
        move = np.zeros_like(x)
        move[:, i] = step[:, i]
        high, low = density(x + move), density(x - move)
        gradient[:, i] = (high - low) / (2.0 * step[:, i])
        hessian[:, i, i] = (high - 2.0 * value + low) / step[:, i] ** 2
        for j in range(i):
            other = np.zeros_like(x)
            other[:, j] = step[:, j]
            mixed = density(x + move + other) - density(x + move - other)
            mixed = mixed - density(x - move + other) + density(x - move - other)
            hessian[:, i, j] = hessian[:, j, i] = mixed / (4.0 * step[:, i] * step[:, j])
    return gradient, hessian
