"""Laplace's approximation of the trace posterior: one joint Gaussian per coordinate at the mode."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpinfer._arrays import TINY, FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.mixture import HERMITE_NODES
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes
from dpinfer.models.base import gauss_hermite, sigmoid, softplus, softplus_inverse

_NEWTON_STEPS = 300  # damped steps converge in tens; at a bend of softplus in a hundred: tolerance
_SETTLED = 1e-6  # of the last step, in widths of the posterior: tolerance


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
    nodes: Nodes,  # exact quadrature nodes, for the start
    names: tuple[str, ...],
) -> LaplacePosterior:
    """Find the joint mode of (optimum, v[, log omega**2]) and the curvature there.

    Raises NumericalError if Newton's method finds no maximum.

    NA-DPVI (2025), appendix C, eqs. A4-A5, with Newton's method instead of Adam.  The density is with respect to the
    unconstrained variables, so the Jacobians of softplus and exp are part of it.
    """
    unit = problems.hessian_unit
    centre, spread = nodes.spread_to_nodes(problems.position_mean), nodes.spread_to_nodes(problems.spread)
    positive = np.maximum(nodes.hessian, TINY)
    columns = [(nodes.mean - centre) / spread, softplus_inverse(positive)]
    if problems.extra_noise:
        columns.append(np.log(np.maximum(nodes.inflation - 1.0, 1e-12)))
    # A node's weight as a density of v: nodes are equally spaced in y, softplus(y) = Hessian / unit.
    bend = np.log(-np.expm1(-positive)) - np.log(-np.expm1(-positive / nodes.spread_to_nodes(unit)))
    density = np.log(np.maximum(nodes.weight, TINY)) + bend
    density = np.where(nodes.hessian > 0.0, density, -np.inf)
    heaviest = [low + int(np.argmax(density[low:high])) for low, high in pairwise(nodes.offsets)]
    start = np.stack([column[heaviest] for column in columns], axis=1)
    # All of the posterior may lie where the Hessian is 0: there it is the prior of v.
    start[:, 1] = np.where(np.isneginf(density[heaviest]), problems.columns.raw_loc, start[:, 1])
    joint = JointDensity(problems)
    x, hessian = _climb(joint, start, names)
    stretch = np.ones_like(x)
    stretch[:, 0] = problems.spread
    mean = x * stretch
    mean[:, 0] += problems.position_mean
    covariance = np.linalg.inv(-hessian)
    return LaplacePosterior(mean, covariance * stretch[:, :, None] * stretch[:, None, :])


@dataclass(frozen=True)
class JointDensity:
    """Log density of (delta, v[, log(omega**2 / tau**2)]) per coordinate, and its first two derivatives."""

    problems: CollapsedProblems

    def __call__(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return value (k,), gradient (k, width) and Hessian (k, width, width) at x (k, width)."""
        count, score, residual, mean_score, offset, scale, *_ = self.problems.columns
        delta, v = x[:, 0], x[:, 1]
        rise = sigmoid(v) / self.problems.hessian_unit
        bend = rise * sigmoid(-v)
        beta = softplus(v) / self.problems.hessian_unit
        ratio = np.exp(x[:, 2]) if self.problems.extra_noise else np.zeros_like(v)
        nu = 1.0 + ratio
        off, level = beta - score, mean_score + beta * delta
        fit = (residual + off**2 + level**2) / nu
        prior, prior_rise, prior_bend = self._prior(v)
        value = -0.5 * (fit + ((delta + offset) / scale) ** 2) + prior
        by_beta = -(off + level * delta) / nu
        by_both = -(level + beta * delta) / nu
        gradient, hessian = np.empty_like(x), np.empty((*x.shape, x.shape[1]))
        gradient[:, 0] = -beta * level / nu - (delta + offset) / scale**2
        gradient[:, 1] = by_beta * rise + prior_rise
        hessian[:, 0, 0] = -(beta**2) / nu - scale**-2.0
        hessian[:, 0, 1] = hessian[:, 1, 0] = by_both * rise
        hessian[:, 1, 1] = -(1.0 + delta**2) / nu * rise**2 + by_beta * bend + prior_bend
        if self.problems.extra_noise:
            # The half-Cauchy prior of omega, and the Jacobian of log omega**2.
            share, power = ratio / nu, 0.5 * count + 1.0
            value = value - power * np.log(nu) + 0.5 * x[:, 2]
            gradient[:, 2] = (0.5 * fit - power) * share + 0.5
            hessian[:, 0, 2] = hessian[:, 2, 0] = beta * level / nu * share
            hessian[:, 1, 2] = hessian[:, 2, 1] = -by_beta * share * rise
            hessian[:, 2, 2] = (0.5 * fit * (1.0 - 2.0 * share) - power * (1.0 - share)) * share
        return value, gradient, hessian

    def _prior(self, v: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the log prior density of v and its first two derivatives, (k,) each."""
        columns = self.problems.columns
        loc, scale = columns.raw_loc, columns.raw_scale
        score = (v - loc) / scale
        hessian = np.maximum(softplus(v), TINY)
        down = sigmoid(-v)
        relative = sigmoid(v) / hessian  # of the Hessian's logarithm in v
        relative_bend = relative * (down - relative)
        log_score = (np.log(hessian) - loc) / scale
        wide = np.where(columns.wide_scale > 0.0, columns.wide_scale, 1.0)
        power, size = columns.wide_power - 1.0, (hessian / (wide * self.problems.hessian_unit)) ** 2
        log_rise = np.log(np.maximum(sigmoid(v), TINY))
        kinds = [
            (-0.5 * score**2, -score / scale, -(scale**-2.0) + 0.0 * v),
            (
                -0.5 * log_score**2 - np.log(hessian) + log_rise,
                -(log_score / scale + 1.0) * relative + down,
                -((relative / scale) ** 2) - (log_score / scale + 1.0) * relative_bend - down * sigmoid(v),
            ),
            (
                power * np.log(hessian) - 0.5 * size + log_rise,
                (power - size) * relative + down,
                (power - size) * relative_bend - 2.0 * size * relative**2 - down * sigmoid(v),
            ),
        ]
        raw, log = self.problems.raw_normal, columns.wide_scale <= 0.0
        chosen = np.where(raw, kinds[0], np.where(log, kinds[1], kinds[2]))
        return chosen[0], chosen[1], chosen[2]


@np.errstate(over="ignore", invalid="ignore")  # a step too far is not taken
def _climb(joint: JointDensity, start: FloatArray, names: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Return the mode of every coordinate and the Hessian there, by damped Newton steps of all coordinates at once."""
    x, damping = start.copy(), np.full(start.shape[0], 1e-3)
    value, gradient, hessian = joint(x)
    settled = np.zeros(start.shape[0], dtype=bool)
    for _ in range(_NEWTON_STEPS):
        # In units of the diagonal's widths, so that damping means the same for every variable.
        scale = 1.0 / np.sqrt(np.maximum(np.abs(np.einsum("kii->ki", hessian)), TINY))
        eigenvalues, vectors = np.linalg.eigh(-hessian * scale[:, :, None] * scale[:, None, :])
        safe = np.maximum(np.abs(eigenvalues), 1e-6) + damping[:, None]
        push = np.einsum("kij,kj->ki", vectors, np.einsum("kji,kj->ki", vectors, gradient * scale) / safe)
        push *= np.minimum(1.0, 3.0 / np.maximum(np.linalg.norm(push, axis=1), 1e-300))[:, None]
        candidate = x + push * scale
        at, slope, curvature = joint(candidate)
        better = at >= value
        x = np.where(better[:, None], candidate, x)
        value = np.where(better, at, value)
        gradient = np.where(better[:, None], slope, gradient)
        hessian = np.where(better[:, None, None], curvature, hessian)
        damping = np.where(better, damping * 0.1, damping * 10.0 + 1e-6)
        settled = np.max(np.abs(push), axis=1) < _SETTLED
        if np.all(settled):
            break
    scale = 1.0 / np.sqrt(np.maximum(np.abs(np.einsum("kii->ki", hessian)), TINY))
    definite = np.linalg.eigvalsh(-hessian * scale[:, :, None] * scale[:, None, :])[:, 0] > 1e-9
    found = definite & settled & np.isfinite(value)
    if not np.all(found):
        name = names[int(np.argmin(found))]
        raise NumericalError(f"the trace posterior of {name!r} has no interior mode; use approximation='exact'")
    return x, hessian
