"""One-dimensional mixtures of normals, one per coordinate: moments, distribution functions, quantiles, draws."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference import _native
from dpinfer.models.base import gauss_hermite, softplus

HERMITE_NODES = 15  # exact to degree 29
_MOST_NODES = 24  # see the docstring of `gauss_rule`
_NEGLIGIBLE = 1e-12  # nodes of smaller weight change no printed digit
_TOGETHER = 200_000  # entries of a matrix for each draw of a part: a core's cache
_MOST_POINTS, _CELLS = 200_000, 32_768  # more points are binned first, to cells of their range: memory and time


def in_parts(
    compute: Callable[..., tuple[FloatArray, ...]], threads: int, *arrays: Any, entries: int = 0
) -> tuple[FloatArray, ...]:
    """Return arrays over draws, (S, ...), computed on several cores: LAPACK runs outside of Python's lock.

    `entries`: of a draw's matrix, to divide draws further, into parts that a core keeps in its cache.
    """
    parts = min(max(threads, len(arrays[0]) * entries // _TOGETHER), len(arrays[0]))
    divided = (np.array_split(values, parts) for values in arrays)
    with ThreadPoolExecutor(min(threads, parts)) as pool:
        return tuple(map(np.concatenate, zip(*pool.map(compute, *divided), strict=True)))


def gauss_rule(points: FloatArray, weights: FloatArray, size: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Return the Gauss quadrature rule with at most `size` nodes of a discrete probability measure.

    `points` and `weights` (m,): the measure; weights are positive and sum to 1.  `size`: by default enough for a
    function that is analytic on the scale of 1: 4 to 24, by the measure's spread.  Nodes and weights are exact for
    polynomials of degree ``2 size - 1``.

    Lanczos with full reorthogonalisation (Gautschi 2004, section 2.2.3), then Golub and Welsch (1969).

    Examples
    --------
    >>> import numpy as np
    >>> nodes, weights = gauss_rule(np.array([-1.0, 0.0, 1.0]), np.array([0.25, 0.5, 0.25]), 2)
    >>> np.round(nodes**2 @ weights, 12).item()
    0.5
    """
    centre = float(weights @ points)
    scale = math.sqrt(max(float(weights @ (points - centre) ** 2), 0.0))
    if scale <= 1e-13 * (1.0 + abs(centre)):
        return np.array([centre]), np.array([1.0])
    if points.size > _MOST_POINTS:
        points, weights = _thinned(points, weights)
    if size is None:
        size = 4 if scale < 0.03 else 6 if scale < 0.1 else 12 if scale < 0.5 else _MOST_NODES
    x = (points - centre) / scale
    vector = np.sqrt(weights / weights.sum())
    size = min(size, points.size)
    basis = np.empty((size + 1, points.size))
    basis[0] = vector
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for order in range(size):
        image = x * basis[order]
        diagonal.append(float(basis[order] @ image))
        stack = basis[: order + 1]
        for _pass in range(2):
            image = image - stack.T @ (stack @ image)
        norm = float(np.linalg.norm(image))
        if norm < 1e-10:
            break
        off_diagonal.append(norm)
        basis[order + 1] = image / norm
    order = len(diagonal)
    matrix = np.diag(diagonal) + np.diag(off_diagonal[: order - 1], 1) + np.diag(off_diagonal[: order - 1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return centre + scale * values, vectors[0] ** 2


def _thinned(points: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gather a measure's points in narrow cells, each at its centre of mass."""
    low, width = points.min(), np.ptp(points) / _CELLS
    cell = np.minimum(((points - low) / width).astype(np.int64), _CELLS - 1)
    mass = np.bincount(cell, weights, _CELLS)
    moment = np.bincount(cell, weights * (points - low), _CELLS)
    filled = mass > 0.0
    return low + moment[filled] / mass[filled], np.asarray(mass[filled], dtype=np.float64)


@dataclass(frozen=True)
class NormalMixtures:
    """k independent mixtures of normals."""

    offsets: npt.NDArray[np.int64]  # (k + 1,) int64: mixture j owns the components ``offsets[j]:offsets[j + 1]``
    # weight, mean, variance: (components,): weights sum to 1 within a mixture; a variance may be 0
    weight: FloatArray
    mean: FloatArray
    variance: FloatArray

    @classmethod
    def single(cls, mean: FloatArray, variance: FloatArray) -> "NormalMixtures":
        """Return mixtures of one component each."""
        return cls(np.arange(mean.shape[0] + 1, dtype=np.int64), np.ones_like(mean), mean, variance)

    @classmethod
    def from_draws(cls, mean: FloatArray, variance: FloatArray) -> "NormalMixtures":
        """Return mixtures of equally weighted components, (draws, k)."""
        draws, width = mean.shape
        weight = np.full(draws * width, 1.0 / draws)
        offsets = np.arange(0, draws * width + 1, draws, dtype=np.int64)
        return cls(offsets, weight, mean.T.ravel(), variance.T.ravel())

    @property
    def width(self) -> int:
        """Number of mixtures k."""
        return int(self.offsets.shape[0]) - 1

    def take(self, first: int, last: int) -> "NormalMixtures":
        """Return the mixtures ``first <= j < last``."""
        low, high = int(self.offsets[first]), int(self.offsets[last])
        return NormalMixtures(
            self.offsets[first : last + 1] - low, self.weight[low:high], self.mean[low:high], self.variance[low:high]
        )

    def components(self, index: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return weights, means and variances of one mixture, its negligible components dropped."""
        part = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        weight, mean, variance = self.weight[part], self.mean[part], self.variance[part]
        keep = weight > _NEGLIGIBLE
        weight = weight[keep]
        return weight / weight.sum(), mean[keep], variance[keep]

    def expectation(self, values: FloatArray) -> FloatArray:
        """Return sum(weight * values) per mixture."""
        return np.add.reduceat(self.weight * values, self.offsets[:-1])

    @cached_property
    def means(self) -> FloatArray:
        """Mean of each mixture, (k,)."""
        return self.expectation(self.mean)

    @cached_property
    def variance_of_means(self) -> FloatArray:
        """Variance of the component means, (k,)."""
        centred = self.mean - np.repeat(self.means, np.diff(self.offsets))
        return self.expectation(centred**2)

    @cached_property
    def variances(self) -> FloatArray:
        """Variance of each mixture, (k,)."""
        return self.expectation(self.variance) + self.variance_of_means

    def quantile(self, levels: FloatArray) -> FloatArray:
        """Return the quantiles of each mixture, (levels, k): Newton's method kept inside a shrinking bracket.

        Negligible components are left out.

        Raises NumericalError if the root finding did not converge.
        """
        levels = np.ascontiguousarray(levels, dtype=np.float64)
        weight, mean, variance = (np.ascontiguousarray(values) for values in (self.weight, self.mean, self.variance))
        quantiles = _native.mixture_quantiles(self.offsets, weight, mean, variance, levels, special.ndtri(levels))
        if np.isnan(quantiles).any():
            raise NumericalError("the root finding for a quantile did not converge")
        return quantiles

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return independent draws, (size, k)."""
        within = np.cumsum(self.weight)
        # One sorted table for all mixtures: mixture j's cumulative weights lie in (j, j + 1].
        start = np.repeat(np.append(0.0, within)[self.offsets[:-1]], np.diff(self.offsets))
        table = within - start + np.repeat(np.arange(self.width), np.diff(self.offsets))
        chosen = np.searchsorted(table, rng.random((size, self.width)) + np.arange(self.width), side="right")
        chosen = np.clip(chosen, self.offsets[:-1], self.offsets[1:] - 1)
        return self.mean[chosen] + np.sqrt(self.variance[chosen]) * rng.standard_normal((size, self.width))


@dataclass(frozen=True)
class ThetaMarginals:
    """Marginal distributions of n parameters theta = location + noise of the variational approximation."""

    location: NormalMixtures  # mixtures of n locations, the part of q's variance that depends on the node included
    # independent mixtures of u: theta gets further noise with standard deviation softplus(u)
    raw_scale: NormalMixtures | None

    @cached_property
    def scale_variance(self) -> FloatArray:
        """E[softplus(u)**2], (n,)."""
        if self.raw_scale is None:
            return np.zeros(self.location.width)
        z, z_weights = gauss_hermite(HERMITE_NODES)
        points = self.raw_scale.mean[:, None] + np.sqrt(self.raw_scale.variance)[:, None] * z
        return self.raw_scale.expectation(softplus(points) ** 2 @ z_weights)

    @cached_property
    def mean(self) -> FloatArray:
        """Mean of each parameter, (n,)."""
        return self.location.means

    @cached_property
    def variance(self) -> FloatArray:
        """Variance of each parameter, (n,)."""
        return self.location.variances + self.scale_variance

    def components(self, index: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return weights, means and variances of one parameter's mixture of normals, (components,).

        The distribution of softplus(u)**2 enters by a Gauss rule for its logarithm.
        """
        weight, mean, variance = self.location.components(index)
        if self.raw_scale is None:
            return weight, mean, variance
        u_weight, u_mean, u_variance = self.raw_scale.components(index)
        z, z_weights = gauss_hermite(HERMITE_NODES)
        u = u_mean[:, None] + np.sqrt(u_variance)[:, None] * z
        log_variance, s_weight = gauss_rule(
            2.0 * np.log(softplus(np.maximum(u, -700.0))).ravel(), (u_weight[:, None] * z_weights).ravel()
        )
        return (
            (weight[:, None] * s_weight).ravel(),
            np.repeat(mean, s_weight.size),
            (variance[:, None] + np.exp(log_variance)).ravel(),
        )

    def cdf(self, index: int, theta: FloatArray) -> FloatArray:
        """Return P(theta_index <= theta) for an array theta."""
        weight, mean, variance = self.components(index)
        scale = np.sqrt(np.maximum(variance, np.finfo(float).tiny))
        # Weights sum to 1 but for rounding.
        total = special.ndtr((np.asarray(theta)[..., None] - mean) / scale) @ weight
        return np.asarray(np.clip(total, 0.0, 1.0))

    def quantile(self, levels: FloatArray) -> FloatArray:
        """Return quantiles by root finding on the distribution function, (levels, n)."""
        if self.raw_scale is None:
            return self.location.quantile(levels)
        result = np.empty((levels.size, self.location.width))
        for index in range(self.location.width):
            result[:, index] = mixture_quantile(*self.components(index), levels)
        return result


def mixture_quantile(weight: FloatArray, mean: FloatArray, variance: FloatArray, levels: FloatArray) -> FloatArray:
    """Return quantiles of one mixture, (levels,); see :meth:`NormalMixtures.quantile`."""
    offsets = np.array([0, weight.shape[0]], dtype=np.int64)
    return NormalMixtures(offsets, weight, mean, variance).quantile(levels)[:, 0]
