"""The private Newton method for the population's parameters of a user's own model: sums and public arithmetic."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.contributions import Query
from dpinfer.mechanism.newton.joint import UnitProducts, UnitSizes
from dpinfer.mechanism.newton.own_clipped_model import ClippedNewton
from dpinfer.mechanism.newton.own_model import OwnNewton
from dpinfer.mechanism.newton.own_rows import OwnQuery, OwnRows
from dpinfer.mechanism.newton.pass_records import Passes
from dpinfer.mechanism.newton.population import Coordinates, PopulationNewton
from dpinfer.models.likely_records import Curves, LikelyOwnRecords

_STEP = 1e-3  # of differences, in units that one record tells to about 1: float32 has seven digits


@dataclass(frozen=True, eq=False)
class OwnScores(OwnQuery):
    """The score g = transform grad log p(y | x, theta)."""

    bound: float  # on a record's norm

    @property
    def max_norm(self) -> float:
        """The bound."""
        return self.bound

    @property
    def length(self) -> int:
        """As many as parameters."""
        return self.theta.size

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        return np.ascontiguousarray(self._scores(*rows.arrays(block)).T)


@dataclass(frozen=True, eq=False)
class OwnCurvatures(OwnScores):
    """svec(H), H the symmetric part of minus the derivative of g along the transform's rows: central differences."""

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self.theta.size * (self.theta.size + 1) // 2

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        return self.of_records(*rows.arrays(block))

    def of_records(self, X: FloatArray, y: FloatArray) -> FloatArray:
        """Return the vectors of records, (B, length)."""
        columns = []
        for direction in self.transform:
            ahead, behind = (replace(self, theta=self.theta + step * direction) for step in (_STEP, -_STEP))
            columns.append((behind._scores(X, y) - ahead._scores(X, y)) / (2.0 * _STEP))
        slopes = np.array(columns)  # (along, of, B)
        first, second = np.triu_indices(self.theta.size)
        root = np.where(first == second, 0.5, np.sqrt(0.5))[:, None]
        return np.ascontiguousarray(((slopes[first, second] + slopes[second, first]) * root).T)


@dataclass
class OwnPopulation(PopulationNewton):
    """One run: the steps of the model's own target find the place, and clipped scores that nothing centres measure.

    Made-up records at the prior's mean come first: whatever the model's code raises there is raised, and nothing spent.
    """

    def __post_init__(self) -> None:
        self.d = int(self.model.n_params)
        self._prior = self.model.parameters
        steps = OwnNewton if self.model.has_sampler else ClippedNewton
        self._steps = steps(self.model, self.plan, self.n_records)

    def run(self, passes: Passes) -> dict[str, Any]:
        """Make the plan's passes and return the arrays of the release."""
        units, whitened, localised = self._steps.localised(passes)
        moved = self._prior.prior_scale * units
        transform = whitened * self._prior.prior_scale
        bread, white = self._bread(passes, transform, moved, math.sqrt(self.d))
        position = np.asarray(np.linalg.solve(white.T, moved), dtype=np.float64)
        records = LikelyOwnRecords(self.model, white) if self.model.has_sampler else None
        curves = Curves(white, records, position)
        prior = (white / np.square(self._prior.prior_scale)) @ white.T / self.n_records
        measured: dict[str, Any] = dict(self._measure(passes, white, Coordinates(prior, position, curves), 1.0))
        points = np.array([0.5 * (point + measured["meat_position"]) for point in measured["positions"]])
        points = np.concatenate((points, [measured["meat_position"]]))
        likely = curves.size_shares(measured["positions"][0], float(measured["size_unit"]))
        return {
            **localised,
            **bread,
            **measured,
            "change_points": points,
            "changes": np.array([curves.change(point) for point in points]),
            "likely_sizes": np.empty(0) if likely is None else likely,
            "prior_mean": self._prior.prior_mean.copy(),
            "prior_scale": self._prior.prior_scale.copy(),
        }

    def _theta(self, moved: FloatArray) -> FloatArray:
        return np.asarray(self._prior.prior_mean + moved)

    def _lengths(self, transform: FloatArray, weights: FloatArray, edges: FloatArray) -> Query:
        # A curvature's root is as long as the root of its norm.
        return UnitSizes(self._curvatures(transform, weights, 1.0), 1.0, np.square(edges))

    def _curvatures(self, transform: FloatArray, weights: FloatArray, bound: float) -> OwnCurvatures:
        return OwnCurvatures(self.model, self._theta(weights), transform, bound)

    def _scores(self, white: FloatArray, position: FloatArray, bound: float) -> OwnScores:
        return OwnScores(self.model, self._theta(white.T @ position), white, bound)

    def _sizes(self, white: FloatArray, position: FloatArray, edges: FloatArray) -> Query:
        return UnitSizes(self._scores(white, position, float(edges[-1])), 1.0, edges)

    def _products(self, white: FloatArray, position: FloatArray, bound: float, reach: float) -> Query:
        return UnitProducts(self._scores(white, position, bound), bound**2)
