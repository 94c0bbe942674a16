"""Records that a regression makes likely, with normal features of released moments, and expected scores of these."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.models.adapters.own_model import OwnModel
from dpinfer.models.clipping import SIZE_EDGES, ResponseGrid
from dpinfer.models.glm import GeneralizedLinearModel
from dpinfer.models.whitening import shrink_moments, transport

_OWN_SEED = 20_261_125  # of public draws: any number
_ROWS, _DRAWS = 1000, 4  # made-up records, and responses of each
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(25)  # exact for polynomials up to degree 49
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_FIRST, _SECOND = np.repeat(_NODES, _NODES.size), np.tile(_NODES, _NODES.size)  # pairs of normals
_PAIR_WEIGHTS = np.repeat(_WEIGHTS, _WEIGHTS.size) * np.tile(_WEIGHTS, _WEIGHTS.size)
_PAIR_BASIS = np.stack((np.ones_like(_FIRST), _FIRST, _SECOND))
_SMALLEST = 1e-9  # a spread below it counts as none: tolerance
# Clips in units of the spread of a response; zeros and ones need none below one half; tolerance.
_CLIPS = {"binary": np.array([0.5, 0.6, 0.7, 0.8, 1.0]), "count": 0.4 * 1.25 ** np.arange(14)}


@dataclass(frozen=True)
class PredictorLaw:
    """A linear predictor that is taken for N(loc, scale**2)."""

    loc: float
    scale: float

    def mean(self, grid: ResponseGrid, values: FloatArray) -> float:
        """Return the expectation of a function that is tabulated on the grid."""
        return float(means_of_laws(grid, values, np.array([self.loc]), np.array([self.scale]))[0])

    def largest(self, grid: ResponseGrid, values: FloatArray, stddevs: float) -> float:
        """Return the function's largest value within `stddevs` of the mean."""
        points = self.loc + self.scale * np.linspace(-stddevs, stddevs, 101)
        return float(np.interp(points, grid.nodes, values).max())


def means_of_laws(grid: ResponseGrid, values: FloatArray, locs: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the expectation of a function that is tabulated on the grid at N(locs, scales**2), elementwise."""
    points = locs[:, None] + scales[:, None] * _NODES
    return np.asarray(np.interp(points.ravel(), grid.nodes, values).reshape(points.shape) @ _WEIGHTS)


def best_clip(
    grid: ResponseGrid,
    response: str,  # "binary" or "count"
    law: PredictorLaw,
    noise: float,  # standard deviation of a score's noise for residuals of at most 1, per record
    n_records: int,
) -> float:
    """Return the clip that minimises the predicted variance of a Newton step."""
    unit = math.sqrt(law.mean(grid, np.square(grid.spread))) if response == "count" else 1.0
    best, least = 0.0, math.inf
    for clip in _CLIPS[response] * unit:
        residual = grid.clipped(float(clip))
        slope = max(law.mean(grid, residual.slope), 1e-300)
        variance = law.mean(grid, residual.variance) / n_records + (noise * residual.bound) ** 2
        if variance / slope**2 < least:
            best, least = float(clip), variance / slope**2
    return best


class ExpectedResidual:
    """E[psi(y, eta)] of a response whose own predictor is another one, between the nodes of a grid."""

    def __init__(self, grid: ResponseGrid, clip: float) -> None:
        self._grid = grid
        self._values = grid.expected(grid.clipped(clip))
        self._slopes = np.gradient(self._values, grid.spacing, axis=0)

    def __call__(self, own: FloatArray, eta: FloatArray, *, slope: bool = True) -> tuple[FloatArray, FloatArray]:
        """Return it and its derivative in the response's own predictor, elementwise; an empty one if not `slope`."""
        last = self._grid.nodes.size - 1
        first, spacing = self._grid.first_node, self._grid.spacing
        places = [np.fmin(np.fmax((values - first) / spacing, 0.0), last) for values in (own, eta)]
        i, j = (np.minimum(place.astype(np.intp), last - 1) for place in places)
        above, right = places[0] - i, places[1] - j
        below, left, corner = 1.0 - above, 1.0 - right, i * (last + 1) + j

        def between(table: FloatArray) -> FloatArray:
            low = left * table.take(corner) + right * table.take(corner + 1)
            high = left * table.take(corner + last + 1) + right * table.take(corner + last + 2)
            return np.asarray(below * low + above * high)

        return between(self._values), between(self._slopes) if slope else np.empty(0)


@dataclass(frozen=True)
class NormalDesign:
    """Whitened features that are taken for normal."""

    mean: FloatArray  # (d,)
    covariance: FloatArray  # (d, d)

    @classmethod
    def of_moments(cls, moments: FloatArray, constant: FloatArray | None) -> "NormalDesign":
        """Return the design with second moments `moments`, (d, d), in which constant'z is 1 (None: mean zero)."""
        if constant is None:
            return cls(np.zeros(moments.shape[0]), moments)
        mean = moments @ constant
        mean = mean / math.sqrt(max(float(constant @ mean), _SMALLEST))
        return cls(mean, moments - np.outer(mean, mean))

    def law(self, weights: FloatArray) -> PredictorLaw:
        """Return the law of the linear predictor weights'z."""
        variance = max(float(weights @ self.covariance @ weights), 0.0)
        return PredictorLaw(float(self.mean @ weights), math.sqrt(variance))

    def expected_slope(self, grid: ResponseGrid, slope: FloatArray, position: FloatArray) -> FloatArray:
        """Return E[slope(eta) z z'] for the predictor position'z, over E[slope(eta)], (d, d)."""
        law = self.law(position)
        along = self.covariance @ position / law.scale if law.scale > _SMALLEST else np.zeros_like(self.mean)
        weight = _WEIGHTS * np.interp(law.loc + law.scale * _NODES, grid.nodes, slope)
        weight = weight / max(float(weight.sum()), 1e-300)
        parts = np.stack((self.mean, along), axis=1)
        basis = np.stack((np.ones_like(_NODES), _NODES))
        seen = parts @ ((basis * weight) @ basis.T) @ parts.T
        return np.asarray(self.covariance - np.outer(along, along) + seen)

    def expected_score(
        self, residual: ExpectedResidual, optimum: FloatArray, position: FloatArray, *, jacobian: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """Return E[psi z] at `position` for the truth `optimum`, (d,), and its derivative in the truth, (d, d).

        The derivative is empty if not `jacobian`.

        z = mean + along e1 + beside e2 + an irrelevant rest, with e1, e2 independent standard normals: e1 is the part
        of z in the predictor at `position`, e2 the additional part in the true one.
        """
        first, own = self.law(position), self.law(optimum)
        turned, straight = self.covariance @ position, self.covariance @ optimum
        along = turned / max(first.scale, _SMALLEST) if first.scale > _SMALLEST else np.zeros_like(turned)
        shared = float(along @ optimum)
        rest = math.sqrt(max(own.scale**2 - shared**2, 0.0))
        beside = (straight - shared * along) / rest if rest > _SMALLEST else np.zeros_like(along)
        etas = own.loc + shared * _FIRST + rest * _SECOND, first.loc + first.scale * _FIRST
        value, slope = residual(*etas, slope=jacobian)
        parts = np.stack((self.mean, along, beside), axis=1)
        score = parts @ (_PAIR_BASIS @ (_PAIR_WEIGHTS * value))
        if not jacobian:
            return score, slope
        unseen = self.covariance - np.outer(along, along) - np.outer(beside, beside)
        seen = (_PAIR_BASIS * (_PAIR_WEIGHTS * slope)) @ _PAIR_BASIS.T
        return score, float(_PAIR_WEIGHTS @ slope) * unseen + parts @ seen @ parts.T


_SEED = 20_261_124  # of public draws: any number
_RECORDS = 8192  # made up, half of them the mirror image of the others: time
_LARGEST_PREDICTOR = 30.0  # e**30 is far beyond the largest mean of a table, and finite
_MOST_CHANGE = 20.0  # of a direction's curvature: limit of the extrapolation for normal features; tolerance
_REACH = 1.0  # of a step, in linear predictors (root mean square): tolerance


@dataclass(frozen=True, eq=False)
class LikelyRecords:
    """Features by row, in units of the users' weights."""

    model: GeneralizedLinearModel  # whose residual has a link
    features: FloatArray  # (n, d)

    @classmethod
    def of_moments(
        cls,
        model: GeneralizedLinearModel,
        arrays: Mapping[str, Any],  # fields of a release: transforms, moments, moment_stddev, moment_bounds
    ) -> "LikelyRecords":
        """Return records whose features are normal, with the moments that a run has released last."""
        noisy, stddev = arrays["moments"][-1], float(arrays["moment_stddev"][-1])
        transform, trace = arrays["transforms"][-1], float(arrays["moment_bounds"][-1]) ** 2
        d = len(noisy)
        rng = np.random.default_rng(_SEED)
        half = rng.normal(size=(_RECORDS // 2, d))
        normal = np.concatenate((half, -half))
        back = np.linalg.inv(transform)
        moments = back @ shrink_moments(noisy, stddev, trace).matrix @ back.T
        if model.fit_intercept:
            mean = moments[:-1, -1] / moments[-1, -1]
            spread = moments[:-1, :-1] - np.outer(mean, mean) * moments[-1, -1]
            features = mean + normal[:, :-1] @ _root(spread)
            return cls(model, np.column_stack((features, np.ones(_RECORDS))))
        return cls(model, normal @ _root(moments))

    def curvature(self, transform: FloatArray, weights: FloatArray) -> FloatArray:
        """Return E[s z z'] for z = transform x, s the derivative of the mean in the predictor, (d, d)."""
        z = self.features @ transform.T
        eta = self._predictor(weights)
        slope = sum(share * self.model.loss_slopes(eta, y, weights)[1] for y, share in self._responses(eta, weights))
        return np.asarray((z * np.asarray(slope)[:, None]).T @ z / len(z))

    def predictor_spread(self, weights: FloatArray) -> float:
        """Return the root mean square of weights'x."""
        return float(np.sqrt(np.mean(np.square(self.features @ weights))))

    def size_shares(self, transform: FloatArray, weights: FloatArray, unit: float) -> FloatArray:
        """Return the shares of the records by |r z|, between the edges SIZE_EDGES times `unit`."""
        eta = self._predictor(weights)
        length = np.linalg.norm(self.features @ transform.T, axis=1) / unit
        counted = np.zeros(SIZE_EDGES.size + 1)
        for response, share in self._responses(eta, weights):
            sizes = np.abs(self.model.loss_slopes(eta, response, weights)[0]) * length
            counted += np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf], weights=share)[0]
        return counted / len(length)

    def _predictor(self, weights: FloatArray) -> FloatArray:
        return np.clip(self.features @ weights, -_LARGEST_PREDICTOR, _LARGEST_PREDICTOR)

    def _responses(self, eta: FloatArray, weights: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Return possible responses of every record with their probabilities: all of them, or one random draw."""
        if self.model.response == "binary":
            mean = np.asarray(self.model.inverse_link(eta), dtype=np.float64)
            return [(np.ones_like(eta), mean), (np.zeros_like(eta), 1.0 - mean)]
        return [(self.model.draw_response(eta, weights, np.random.default_rng(_SEED)), np.ones_like(eta))]


@dataclass(frozen=True, eq=False)
class Curves:
    """How the derivative of a score changes with the point, in coordinates that whiten it at `start`."""

    transform: FloatArray  # (d, d): the coordinates
    records: "LikelyRecords | LikelyOwnRecords | None" = None  # None: it does not change, as in a linear regression
    start: FloatArray | None = None  # (d,)

    @cached_property
    def _first(self) -> FloatArray:
        return self._curvature(self.start)

    def _curvature(self, point: FloatArray | None) -> FloatArray:
        if self.records is None or point is None:
            return np.eye(len(self.transform))
        return self.records.curvature(self.transform, self.transform.T @ point)

    def change(self, point: FloatArray) -> FloatArray:
        """Return the symmetric W by which a curvature A at `start` is W A W at `point`: the identity if none is known.

        Never raises: a run that is paid for goes on.
        """
        same = np.eye(len(self.transform))
        if self.records is None:
            return same
        # Linear algebra, or the code of a model of the user's own.
        with contextlib.suppress(Exception):
            values, vectors = np.linalg.eigh(transport(self._first, self._curvature(point)))
            limit = math.sqrt(_MOST_CHANGE)
            found = np.asarray((vectors * np.clip(values, 1.0 / limit, limit)) @ vectors.T)
            if np.all(np.isfinite(found)):
                return found
        return same

    def slope(self, point: FloatArray) -> FloatArray:
        """Return the derivative at `point`, in coordinates in which it is the identity at `start`."""
        found = self.change(point)
        return found @ found

    def within_reach(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Return the point on the way from `first` to `second` up to which a predictor changes by _REACH."""
        if self.records is None:
            return second
        moved = self.records.predictor_spread(self.transform.T @ (second - first))
        return _shortened(first, second, moved)

    def size_shares(self, point: FloatArray, unit: float) -> FloatArray | None:
        """Return the expected shares of scores by size at `point`; None without a law of responses."""
        if self.records is None:
            return None
        with contextlib.suppress(Exception):
            return self.records.size_shares(self.transform, self.transform.T @ point, unit)
        return None


@dataclass(frozen=True, eq=False)
class KnownCurves:
    """What a release says in the place of :class:`Curves`, for a model whose code is not at hand."""

    points: FloatArray  # (m, d)
    changes: FloatArray  # (m, d, d)
    sizes: FloatArray  # (k,): likely shares of scores by size; empty where there are none

    def change(self, point: FloatArray) -> FloatArray:
        """Return the change at the nearest point that is known."""
        return np.asarray(self.changes[int(np.argmin(np.sum(np.square(self.points - point), axis=1)))])

    def within_reach(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """As :meth:`Curves.within_reach`: in these coordinates one record tells about 1."""
        return _shortened(first, second, float(np.linalg.norm(second - first)))

    def size_shares(self, point: FloatArray, unit: float) -> FloatArray | None:
        """Return the likely shares of the release."""
        return self.sizes if self.sizes.size else None


def _shortened(first: FloatArray, second: FloatArray, moved: float) -> FloatArray:
    return first + min(1.0, _REACH / max(moved, _REACH)) * (second - first)


def _root(matrix: FloatArray) -> FloatArray:
    """Return R with R'R = `matrix`, but for rounding."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)


@dataclass(frozen=True, eq=False)
class LikelyOwnRecords:
    """As :class:`LikelyRecords`, at parameters that are given by how far they are from the prior's mean.

    Methods raise whatever the model's code raises.
    """

    model: OwnModel  # with a sampler
    white: FloatArray  # (n, n): coordinates in which one record tells about 1: how far a step goes is measured in them

    @cached_property
    def _given(self) -> tuple[FloatArray, npt.NDArray[np.uint64]]:
        """Features, and the random words of their responses: the same at all parameters."""
        rng = np.random.default_rng(_OWN_SEED)
        rows = np.repeat(self.model.made_up_features(_ROWS, rng), _DRAWS, axis=0)
        return rows, rng.integers(0, 2**64, (len(rows), self.model.n_words), dtype=np.uint64)

    def _scores(self, transform: FloatArray, moved: FloatArray) -> FloatArray:
        theta = self.model.parameters.prior_mean + moved
        rows, words = self._given
        with np.errstate(all="ignore"):
            scores = self.model.scores(rows, self.model.draw_responses(theta, rows, words), theta) @ transform.T
        return np.asarray(scores[np.all(np.isfinite(scores), axis=1)])

    def curvature(self, transform: FloatArray, moved: FloatArray) -> FloatArray:
        """Return E[g g'] of scores g = transform grad log p under the model: minus the mean derivative (Bartlett)."""
        scores = self._scores(transform, moved)
        return np.asarray(scores.T @ scores / len(scores))

    def predictor_spread(self, moved: FloatArray) -> float:
        """Return how far a step goes, in the coordinates `white`."""
        return float(np.linalg.norm(np.linalg.solve(self.white.T, moved)))

    def size_shares(self, transform: FloatArray, moved: FloatArray, unit: float) -> FloatArray:
        """Return the shares of the records by |g|, between the edges SIZE_EDGES times `unit`."""
        sizes = np.linalg.norm(self._scores(transform, moved), axis=1) / unit
        counted = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0]
        return np.asarray(counted / max(sizes.size, 1), dtype=np.float64)
