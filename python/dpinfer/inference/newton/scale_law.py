"""The law of log sigma given second moments and weights, by quadrature, and its integral."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.inference.newton.matrices import FactoredMoments, transposed
from dpinfer.inference.newton.trace_model import TraceModel

__all__ = ["ScaleLaw"]

FloatArray = npt.NDArray[np.float64]

_COARSE = 3.0 * np.linspace(-1.0, 1.0, 25) ** 3  # close together near the start
_NEWTON_STEPS, _LONGEST_STEP, _DIFFERENCE = 2, 0.25, 1e-3
_LEAST_CURVATURE, _LOWEST = -4.0, -1e100
_REACH, _NODES = 5.0, 21


@dataclass(frozen=True)
class ScaleLaw:
    """p(log sigma | M, u*, releases) of B chains at P nodes.

    Parameters
    ----------
    nodes, cumulated : (P, B) arrays
        Nodes of log sigma at equal distances, and the distribution function there.
    surplus : (B,) array
        Log of the density of (M, u*), log sigma integrated out, over that with slopes and noise variance held.
    """

    nodes: FloatArray
    cumulated: FloatArray
    surplus: FloatArray

    @classmethod
    def given(
        cls, trace: TraceModel, moments: FactoredMoments, optimum: FloatArray, held: FloatArray, reference: FloatArray
    ) -> "ScaleLaw":
        """Return the law.

        Parameters
        ----------
        trace : TraceModel
        moments : FactoredMoments
        optimum : (B, d) array
        held : (B, T) array
            The excess at which slopes are held.
        reference : (B,) array
            Where log sigma is held.

        Notes
        -----
        Newton steps from `reference` to the mode, then the trapezoidal rule over 5 standard deviations to both sides:
        all of it depends on (M, u*) and what is held alone, as the second acceptance needs.
        """
        density = _density(trace, moments, optimum, held)
        mode, stddev = _mode(density.moving, reference)
        nodes = mode + stddev * np.linspace(-_REACH, _REACH, _NODES)[:, None]
        values = density.moving(nodes)
        most = values.max(axis=0)
        weights = np.exp(values - most)
        cumulated = np.cumsum(weights, axis=0)
        total = cumulated[-1]
        spacing = stddev * (2.0 * _REACH / (_NODES - 1))
        surplus = most + np.log(total * spacing) - density.held(reference)
        return cls(nodes, cumulated / total, surplus)

    def where(self, chosen: npt.NDArray[np.bool_], other: "ScaleLaw") -> "ScaleLaw":
        """Return `other` where `chosen` (B,), else self."""
        return ScaleLaw(
            np.where(chosen, other.nodes, self.nodes),
            np.where(chosen, other.cumulated, self.cumulated),
            np.where(chosen, other.surplus, self.surplus),
        )

    def draw(self, rng: np.random.Generator) -> FloatArray:
        """Draw log sigma, (B,): a node, moved by up to half of the distance between two."""
        uniform = rng.uniform(size=(2, self.nodes.shape[1]))
        index = np.minimum(np.sum(self.cumulated < uniform[0], axis=0), len(self.nodes) - 1)
        spacing = self.nodes[1] - self.nodes[0]
        return np.asarray(self.nodes[index, np.arange(index.size)] + spacing * (uniform[1] - 0.5))


@dataclass(frozen=True)
class _Densities:
    """Log densities of (M, u*, log sigma), (..., B): with moving slopes, and as the first stage has it."""

    moving: Callable[[FloatArray], FloatArray]
    held: Callable[[FloatArray], FloatArray]


def _density(trace: TraceModel, moments: FactoredMoments, optimum: FloatArray, held: FloatArray) -> _Densities:
    """Return both, without what does not depend on log sigma nor on the slopes.

    With M = L L' and L' Q L = V diag(values) V', the prior covariance v Q + kappa**2 M^-1 of u* is
    L^-T V diag(v values + kappa**2) V' L^-1.
    """
    products = trace.products(moments.matrix, optimum)
    root = moments.root
    values, vectors = np.linalg.eigh(transposed(root) @ trace.prior_covariance @ root)
    squares = np.square((transposed(vectors) @ (transposed(root) @ optimum[..., None]))[..., 0])

    def prior(log_scale: FloatArray) -> FloatArray:
        spread = np.sqrt(np.exp(2.0 * log_scale) + held[:, -1])
        variance = trace.prior_variance(log_scale)[..., None] * values + trace.sampling(spread)[..., None]
        return np.asarray(-0.5 * np.sum(np.log(variance) + squares / variance, axis=-1))

    def moving(log_scale: FloatArray) -> FloatArray:
        value = trace.log_scale_prior.log_density(log_scale) + trace.log_scales(log_scale, products.excess)
        return value + trace.log_scores(products, log_scale, products.excess, held) + prior(log_scale)

    def at_held(log_scale: FloatArray) -> FloatArray:
        return trace.log_scores(products, log_scale, held, held) + prior(log_scale)

    return _Densities(moving, at_held)


def _mode(density: Callable[[FloatArray], FloatArray], start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mode and the standard deviation that the curvature there says, (B,) each.

    The best of a coarse grid around `start`, then Newton steps; where these lead down, the best of the grid.
    """
    coarse = start + _COARSE[:, None]
    values = _finite(density(coarse))
    best = np.argmax(values, axis=0)
    columns = np.arange(start.size)
    mode = coarse[best, columns]
    for _ in range(_NEWTON_STEPS):
        slope, curvature, _ = _differences(density, mode)
        mode = mode + np.clip(-slope / curvature, -_LONGEST_STEP, _LONGEST_STEP)
    _, curvature, reached = _differences(density, mode)
    lost = reached < values[best, columns]
    if np.any(lost):
        mode = np.where(lost, coarse[best, columns], mode)
        curvature = _differences(density, mode)[1]
    return mode, 1.0 / np.sqrt(-curvature)


def _differences(
    density: Callable[[FloatArray], FloatArray], at: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return slope, curvature, which is negative, and the value."""
    low, middle, high = _finite(density(at + _DIFFERENCE * np.array([-1.0, 0.0, 1.0])[:, None]))
    curvature = np.minimum((high - 2.0 * middle + low) / _DIFFERENCE**2, _LEAST_CURVATURE)
    return (high - low) / (2.0 * _DIFFERENCE), curvature, middle


def _finite(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values), values, _LOWEST)
