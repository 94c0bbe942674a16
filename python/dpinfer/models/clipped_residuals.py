"""Clipped residuals of a generalised linear model, centred under the model: their mean, slope, variance and bound.

psi(y, eta) = clip(y - E[y | eta], -c, c) - centre(eta), with the centre that makes E[psi | eta] = 0: a score
psi(y, eta) w(x) x is then unbiased at the true weights for any features, weights w and clip c (Kuensch, Stefanski and
Carroll 1989). Only the law of a response given its predictor is needed, summed over zero and one, or over counts, from
the model's ``log_density``, ``loss_slopes`` and ``inverse_link``.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.models.glm import GeneralizedLinearModel

_SHARES = (np.arange(400) + 0.5) / 400.0  # for means over a chi-squared law, by its quantiles
_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)  # of the standard normal law


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(_DENSITY_AT_ZERO * np.exp(-0.5 * np.square(x)))


def huber_slope(bound: npt.ArrayLike) -> FloatArray:
    """Return E[psi_c'(r)] = P(|r| < c) for a standard normal r, any shape."""
    return np.asarray(2.0 * special.ndtr(np.asarray(bound)) - 1.0)


def huber_variance(bound: npt.ArrayLike) -> FloatArray:
    """Return E[psi_c(r)**2] for a standard normal r, any shape."""
    c = np.asarray(bound, dtype=np.float64)
    return np.asarray(huber_slope(c) - 2.0 * c * _density(c) + 2.0 * np.square(c) * special.ndtr(-c))


def chi_mean(bound: npt.ArrayLike) -> FloatArray:
    """Return E[chi_b(r)] for a standard normal r, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(2.0 / b * (_DENSITY_AT_ZERO - _density(b)) + 2.0 * special.ndtr(-b))


def chi_slope(bound: npt.ArrayLike) -> FloatArray:
    """Return d E[chi_b(r)] / d log spread at spread 1, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(2.0 / b * (_DENSITY_AT_ZERO - _density(b)))


def chi_second_moment(bound: npt.ArrayLike) -> FloatArray:
    """Return E[chi_b(r)**2] for a standard normal r, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    inside = huber_slope(b) - 2.0 * b * _density(b)
    return np.asarray(inside / np.square(b) + 2.0 * special.ndtr(-b))


def mallows_moment(n_coef: int, bound: float) -> float:
    """Return E[w z'z] / n_coef, w = min(1, bound**2 / z'z), for z ~ N(0, I) with `n_coef` entries."""
    squares = 2.0 * special.gammaincinv(0.5 * n_coef, _SHARES)
    return float(np.mean(np.minimum(squares, bound**2))) / n_coef


def mallows_mean(n_coef: int, bound: float) -> float:
    """Return E[min(1, bound**2 / |z|**2)] for z ~ N(0, I) with `n_coef` entries, by the midpoint rule."""
    squares = 2.0 * special.gammaincinv(0.5 * n_coef, _SHARES)
    return float(np.mean(np.minimum(1.0, bound**2 / squares)))


# Predictors: of zeros and ones, and of counts up to that of the largest mean.
_BINARY_REACH = 12.0
# From the predictor of a mean of exp(-10) to a mean of 2000, where tables end (docs/private-newton.md).
_LEAST_LOG_MEAN, _LARGEST_MEAN = -10.0, 2000.0
_TAIL, _NEGLIGIBLE = 1e-12, 1e-18  # probability of responses left out, and of those that are dropped at every node
_MOST_COUNTS = 2**14  # responses of a table, more than a mean of 2000 needs


@dataclass(frozen=True, eq=False)
class ClippedResidual:
    """psi on an even grid of linear predictors.

    Parameters
    ----------
    first_node, spacing : float
        The grid; tabulated functions are linear between its nodes and constant beyond.
    centre : (n,) array
        E[clip(r, -c, c)] under the model.
    slope : (n,) array
        -dE[psi]/d eta at the true predictor, E[psi (d log p / d eta)] (Bartlett), at most `slope_bound`.
    variance : (n,) array
        E[psi**2].
    bound : float
        On abs(psi), for responses that the model can have.
    """

    clip: float
    first_node: float
    spacing: float
    centre: FloatArray
    slope: FloatArray
    variance: FloatArray
    bound: float
    slope_bound: float

    def with_slope_at_most(self, largest: float) -> "ClippedResidual":
        """Return the same with a slope that is cut off."""
        if largest >= self.slope_bound:
            return self
        return replace(self, slope=np.minimum(self.slope, largest), slope_bound=largest)


@dataclass(frozen=True, eq=False)
class _Block:
    """Neighbouring nodes with the responses that are not negligible at any of them."""

    responses: FloatArray  # (K,)
    probabilities: FloatArray  # (n, K)
    residuals: FloatArray  # (n, K)
    scores: FloatArray  # (n, K), d log p / d eta


def response_grid(model: GeneralizedLinearModel, spacing: float) -> "ResponseGrid":
    """Return a model's grid.  Those of the last few models are kept: counts take a tenth of a second each."""
    try:
        hash(model)
    except TypeError:
        return ResponseGrid(model, spacing)
    return _kept(model, spacing)


@lru_cache(maxsize=4)
def _kept(model: GeneralizedLinearModel, spacing: float) -> "ResponseGrid":
    return ResponseGrid(model, spacing)


class ResponseGrid:
    """The law of a response on an even grid of linear predictors.

    Raises TypeError if responses are neither.

    Parameters
    ----------
    model : GeneralizedLinearModel
        Whose responses are zeros and ones, or counts.
    """

    def __init__(self, model: GeneralizedLinearModel, spacing: float) -> None:
        if model.response not in ("binary", "count"):
            raise TypeError(f"{type(model).__name__} has neither binary responses nor counts")
        self._model, self.spacing = model, spacing
        self.first_node = -_BINARY_REACH if model.response == "binary" else _LEAST_LOG_MEAN
        self.nodes: FloatArray = self.first_node + spacing * np.arange(float(self._count_nodes()))
        self.mean: FloatArray = np.asarray(model.inverse_link(self.nodes), dtype=np.float64)
        self._largest_response = 1.0 if model.response == "binary" else math.inf
        self._blocks = [self._block(nodes) for nodes in self._split()]

    def _count_nodes(self) -> int:
        if self._model.response == "binary":
            return int(2.0 * _BINARY_REACH / self.spacing) + 1
        mean = np.asarray(self._model.inverse_link(np.arange(_LEAST_LOG_MEAN, 2.0 * _BINARY_REACH, 0.125)))
        reached = _LEAST_LOG_MEAN + 0.125 * max(int(np.sum(mean <= _LARGEST_MEAN)) - 1, 1)
        return int((reached - _LEAST_LOG_MEAN) / self.spacing) + 1

    def _split(self) -> list[FloatArray]:
        """Return the nodes in blocks over which a mean that is not small doubles."""
        octave = np.floor(np.log2(np.maximum(self.mean, 1.0)))
        return np.split(self.nodes, np.flatnonzero(np.diff(octave)) + 1)

    def _block(self, nodes: FloatArray) -> _Block:
        if self._model.response == "binary":
            responses = np.array([0.0, 1.0])
        else:
            responses = np.arange(float(self._enough_counts(nodes[-1:])))
        pairs = np.broadcast_arrays(nodes[:, None], responses)
        probabilities = np.exp(self._model.log_density(pairs[0], pairs[1]))
        visible = probabilities.max(axis=0) > _NEGLIGIBLE
        responses, probabilities = responses[visible], probabilities[:, visible]
        pairs = np.broadcast_arrays(nodes[:, None], responses)
        scores = -self._model.loss_slopes(pairs[0], pairs[1], np.zeros(self._model.n_params))[0]
        mean = np.asarray(self._model.inverse_link(nodes))
        return _Block(responses, probabilities, responses - mean[:, None], np.asarray(scores))

    def _enough_counts(self, node: FloatArray) -> int:
        size = 16
        while size < _MOST_COUNTS:
            total = np.exp(self._model.log_density(np.broadcast_to(node, size), np.arange(float(size)))).sum()
            if total > 1.0 - _TAIL:
                break
            size *= 2
        return size

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of a response at each node, (n,)."""
        variance = [np.sum(block.probabilities * np.square(block.residuals), axis=1) for block in self._blocks]
        return np.asarray(np.sqrt(np.concatenate(variance)))

    @property
    def information(self) -> FloatArray:
        """Fisher information of a response about its predictor at each node, (n,)."""
        values = [np.sum(block.probabilities * np.square(block.scores), axis=1) for block in self._blocks]
        return np.asarray(np.concatenate(values))

    def clipped(self, clip: float) -> ClippedResidual:
        """Return the residual that is clipped at `clip`, and centred."""
        parts = []
        for block in self._blocks:
            psi = np.clip(block.residuals, -clip, clip)
            weighted = block.probabilities * psi
            parts.append([np.sum(weighted * factor, axis=1) for factor in (np.ones_like(psi), block.scores, psi)])
        centre, slope, square = (np.concatenate(values) for values in zip(*parts, strict=True))
        above = np.minimum(clip, self._largest_response - self.mean) - centre
        below = np.minimum(clip, self.mean) + centre
        slope = np.maximum(slope, 0.0)
        return ClippedResidual(
            clip=clip,
            first_node=self.first_node,
            spacing=self.spacing,
            centre=centre,
            slope=slope,
            variance=np.maximum(square - np.square(centre), 0.0),
            bound=float(np.maximum(above, below).max()),
            slope_bound=float(slope.max()),
        )

    def expected(self, residual: ClippedResidual) -> FloatArray:
        """Return E[psi(y, eta_j)] of a response whose predictor is eta_i, (n, n); `residual` is of this grid."""
        rows = []
        for block in self._blocks:
            psi = np.clip(block.responses[:, None] - self.mean, -residual.clip, residual.clip)
            rows.append(block.probabilities @ psi)
        return np.asarray(np.concatenate(rows) - residual.centre)

    def shares(self, edges: FloatArray) -> FloatArray:
        """Return the probability of each interval between `edges` at each node, (n, edges + 1)."""
        rows = []
        for block in self._blocks:
            place = np.searchsorted(edges, block.responses, side="right")
            rows.append(block.probabilities @ (place[:, None] == np.arange(edges.size + 1)).astype(np.float64))
        return np.asarray(np.concatenate(rows))
