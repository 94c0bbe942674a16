"""Records that a regression without a scale makes likely: normal features of released moments, and the model's law."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.models.glm import GeneralizedLinearModel
from dpinfer.models.likely_own import LikelyOwnRecords
from dpinfer.models.size_shares import SIZE_EDGES
from dpinfer.models.whitening import shrink_moments, transport

_SEED = 20_261_124  # of public draws: any number
_RECORDS = 8192  # made up, half of them the mirror image of the others
_LARGEST_PREDICTOR = 30.0  # e**30 is far beyond the largest mean of a table, and finite
_MOST_CHANGE = 20.0  # of a direction's curvature: limit of the extrapolation for normal features
_REACH = 1.0  # of a step, in linear predictors (root mean square)


@dataclass(frozen=True, eq=False)
class LikelyRecords:
    """Features by row, in units of the users' weights.

    Parameters
    ----------
    model : GeneralizedLinearModel
        Whose residual has a link.
    features : (n, d) array
    """

    model: GeneralizedLinearModel
    features: FloatArray

    @classmethod
    def of_moments(cls, model: GeneralizedLinearModel, arrays: Mapping[str, Any]) -> "LikelyRecords":
        """Return records whose features are normal, with the moments that a run has released last.

        Parameters
        ----------
        arrays : mapping
            Fields of a release: transforms, moments, moment_stddev, moment_bounds.
        """
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
        """Return responses of every record and how likely each is: all that there are, or one that is drawn."""
        if self.model.response == "binary":
            mean = np.asarray(self.model.inverse_link(eta), dtype=np.float64)
            return [(np.ones_like(eta), mean), (np.zeros_like(eta), 1.0 - mean)]
        return [(self.model.draw_response(eta, weights, np.random.default_rng(_SEED)), np.ones_like(eta))]


@dataclass(frozen=True, eq=False)
class Curves:
    """How the derivative of a score changes with the point, in coordinates that whiten it at `start`.

    Parameters
    ----------
    transform : (d, d) array
        The coordinates.
    records : LikelyRecords or LikelyOwnRecords, optional
        None: it does not change, as in a linear regression.
    start : (d,) array, optional
    """

    transform: FloatArray
    records: LikelyRecords | LikelyOwnRecords | None = None
    start: FloatArray | None = None

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
            return found if np.all(np.isfinite(found)) else same
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
    """What a release says in the place of :class:`Curves`, for a model whose code is not at hand.

    Parameters
    ----------
    points : (m, d) array
    changes : (m, d, d) array
    sizes : (k,) array
        Likely shares of scores by size; empty where there are none.
    """

    points: FloatArray
    changes: FloatArray
    sizes: FloatArray

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
