"""The noise variance of a regression: from a trace's likelihood to the posterior of rho."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import logsumexp, softmax

from dpinfer._arrays import FloatArray
from dpinfer.inference.trace.collapsed import Nodes
from dpinfer.models import DispersionClipping, LinearRegression
from dpinfer.models.base import softplus_inverse

CELLS = 400  # of log v over its support, for prior and trace each: smooth
_SPREADS = 8.0  # exp(-8**2 / 2) is 1e-14
TAIL = 1e-7  # probability of the prior outside of the grid


@dataclass(frozen=True)
class VarianceSlope:
    """How clipped gradients depend on the noise variance: ``kappa eta gain (v_t - u / stretch)``, (runs,) each.

    The clipped mean at v_t is ``kappa eta v_t (s (1 - u / v_t) + b)``, s and b the tangent of
    :class:`dpinfer.models.DispersionClipping`; with gain = s + b it is linear in v_t with its zero at u s / (s + b).
    """

    # (runs,): u / v_t at the mean of the steps, s + b, (s + b) / s, and by how much clipping widens the distribution
    # of u
    ratio: FloatArray
    gain: FloatArray
    stretch: FloatArray
    spread: FloatArray

    @classmethod
    def at(
        cls,
        clipping: DispersionClipping | None,  # None: nothing is clipped
        position: FloatArray,  # (runs,): mean of v_t over the steps
        level: FloatArray,  # (runs,): mean of the gradients, over kappa N
    ) -> "VarianceSlope":
        """Take the tangent at the value of u / v_t from the means of the scaled gradients and of v_t."""
        if clipping is None:
            return cls(*(np.ones_like(position) for _ in range(4)))
        ratio = clipping.ratio_at(level / position)
        slope, offset, spread = clipping.linearised(ratio)
        return cls(ratio, slope + offset, (slope + offset) / slope, spread)


def with_variance_prior(
    nodes: Nodes,  # over runs * n coordinates; every n-th is the zero of the gradients in v
    model: LinearRegression,
    stretch: FloatArray,  # (runs,): factor from that zero to u: see :class:`VarianceSlope`
    # excess, excess_variance: (runs,): mean and variance of the part of the weights' excursions in the variance of
    # the residuals
    excess: FloatArray,
    excess_variance: FloatArray,
) -> Nodes:  # with one node for each such coordinate; its Hessian still over the information
    """Replace the last coordinate's nodes, about v, by a normal in rho: the trace's likelihood times the prior.

    Given its node, u is normal; at small epsilon its standard deviation is a good part of its value and of the prior's,
    so the product is taken on a grid of log v over its support: if prior and trace disagree, that may be beyond every
    quantile of the prior.  The moments of rho under it make the normal.
    """
    n = model.n_params
    runs = stretch.shape[0]
    ends = nodes.offsets.reshape(-1)[1:].reshape(runs, n)
    low_prior, high_prior = model.variance_prior_quantile([TAIL, 1.0 - TAIL])
    replaced = {name: np.empty(runs) for name in ("hessian", "inflation", "mean", "variance")}
    for row in range(runs):
        begin, end = (int(ends[row, -2]) if n > 1 else int(nodes.offsets[row * n])), int(ends[row, -1])
        part = slice(begin, end)
        mean = nodes.mean[part] * stretch[row] - excess[row]
        variance = nodes.variance[part] * stretch[row] ** 2 + excess_variance[row]
        spread = _SPREADS * np.sqrt(np.max(variance))
        near = np.linspace(np.min(mean) - spread, np.max(mean) + spread, CELLS)
        near = near[near > 1e-3 * low_prior]  # far below that the prior has nothing
        values = np.sort(np.concatenate((np.geomspace(low_prior, high_prior, CELLS), near)))
        log_density = partial(_log_density, model, nodes.weight[part], mean, variance)
        logs = log_density(values)
        (held,) = np.nonzero(logs > np.max(logs) - 0.5 * _SPREADS**2)
        values = np.geomspace(values[max(held[0] - 1, 0)], values[min(held[-1] + 1, values.size - 1)], CELLS)
        density = softmax(log_density(values))
        rho = softplus_inverse(values)
        centre = float(density @ rho)
        replaced["mean"][row] = centre
        replaced["variance"][row] = float(density @ np.square(rho - centre))
        replaced["hessian"][row] = float(nodes.weight[part] @ nodes.hessian[part])
        replaced["inflation"][row] = float(nodes.weight[part] @ nodes.inflation[part])
    return nodes.replaced(np.arange(runs * n) % n == n - 1, **replaced)


def _log_density(
    model: LinearRegression, weight: FloatArray, mean: FloatArray, variance: FloatArray, values: FloatArray
) -> FloatArray:
    """Return the log density of log v at some values of v, but for a constant: a mixture of normals times the prior."""
    square = np.square(values[:, None] - mean) / variance
    likelihood = logsumexp(-0.5 * square, axis=1, b=weight / np.sqrt(variance))
    return np.asarray(likelihood + model.variance_prior_logpdf(values) + np.log(values))
