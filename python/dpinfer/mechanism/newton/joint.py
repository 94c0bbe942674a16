"""Sums whose records are clipped as a whole: the norm of a score, of a curvature, of a score's product with itself.

**Privacy.** A record's vector is shortened to `max_norm` by the sum itself, on its way to the integers: weights and
residuals are not cut off before that (docs/derivations/population.md).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism import _native
from dpinfer.mechanism.newton.contributions import Rows

__all__ = ["Curvatures", "JointScores", "ScoreProducts", "Sizes", "UnitProducts", "UnitScores", "UnitSizes"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _AtPoint:
    """z = transform x, and the residual r = y - E[y | x] of weights `coefficients`."""

    transform: FloatArray
    coefficients: FloatArray
    link: str

    @property
    def _arguments(self) -> tuple[_native.Residuals, FloatArray]:
        none = np.empty(0)
        residuals = _native.Residuals(
            link=self.link,
            loc=np.ascontiguousarray(self.coefficients),
            bound=math.inf,
            centre=none,
            slope=none,
            first_node=0.0,
            spacing=1.0,
        )
        return residuals, np.ascontiguousarray(self.transform)

    @property
    def _triangle(self) -> int:
        d = int(self.transform.shape[0])
        return d * (d + 1) // 2


@dataclass(frozen=True, eq=False)
class JointScores(_AtPoint):
    """The score r z, and scale_weight (min(|r| / unit, 1) - centre) where scale_weight is not 0."""

    max_norm: float
    scale_weight: float = 0.0
    unit: float = 1.0
    centre: float = 0.0

    @property
    def length(self) -> int:
        """As many as weights, and one for the scale."""
        return int(self.transform.shape[0]) + (self.scale_weight != 0.0)

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        residuals, transform = self._arguments
        rows.native.add_scores(
            total,
            residuals,
            transform=transform,
            bound=math.inf,
            scale_weight=self.scale_weight,
            scale_unit=self.unit,
            scale_centre=self.centre,
        )


@dataclass(frozen=True, eq=False)
class Curvatures(_AtPoint):
    """svec(s z z'), s the derivative of the mean in the linear predictor: minus the derivative of the score."""

    max_norm: float

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self._triangle

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        residuals, transform = self._arguments
        rows.native.add_curvature(total, residuals, transform=transform, bound=math.inf)


@dataclass(frozen=True, eq=False)
class ScoreProducts(_AtPoint):
    """svec(r**2 z z')."""

    max_norm: float

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self._triangle

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        residuals, transform = self._arguments
        rows.native.add_score_products(total, residuals, transform=transform, bound=math.inf)


@dataclass(frozen=True, eq=False)
class Sizes(_AtPoint):
    """The indicator of the interval between `edges` in which |r z| lies; of s**(1/2) |z| where `curved`."""

    edges: FloatArray
    curved: bool

    @property
    def length(self) -> int:
        """One more than edges."""
        return self.edges.size + 1

    @property
    def max_norm(self) -> float:
        """One."""
        return 1.0

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        residuals, transform = self._arguments
        add = rows.native.add_curvature_sizes if self.curved else rows.native.add_score_sizes
        add(total, residuals, transform=transform, bound=math.inf, edges=np.ascontiguousarray(self.edges))


@dataclass(frozen=True, eq=False)
class UnitScores:
    """A unit's score g: the sum of its rows'.  The score of the unit is clipped to `max_norm`, for any number of rows.

    Parameters
    ----------
    scores : JointScores
        Of a row.
    max_norm : float
        Norm bound of a unit's contribution.
    """

    scores: JointScores
    max_norm: float

    @property
    def length(self) -> int:
        """As many as weights."""
        return self.scores.length

    def of_units(self, scores: FloatArray) -> FloatArray:
        """Return the contributions of units, (n, length), from their scores (n, d)."""
        return scores

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Units are added by :meth:`of_units`: of rows alone nothing is known."""
        raise TypeError("a query of units needs records with units")


@dataclass(frozen=True, eq=False)
class UnitProducts(UnitScores):
    """svec(g g') of a unit's score g."""

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self.scores.length * (self.scores.length + 1) // 2

    def of_units(self, scores: FloatArray) -> FloatArray:
        """Return the contributions of units, (n, length), from their scores (n, d)."""
        rows, columns = np.triu_indices(scores.shape[1])
        root = np.where(rows == columns, 1.0, math.sqrt(2.0))
        return np.ascontiguousarray(scores[:, rows] * scores[:, columns] * root)


@dataclass(frozen=True, eq=False)
class UnitSizes(UnitScores):
    """The indicator of the interval between `edges` in which |g| lies for a unit's score g."""

    edges: FloatArray

    @property
    def length(self) -> int:
        """One more than edges."""
        return self.edges.size + 1

    def of_units(self, scores: FloatArray) -> FloatArray:
        """Return the contributions of units, (n, length), from their scores (n, d)."""
        place = np.searchsorted(self.edges, np.linalg.norm(scores, axis=1), side="right")
        return np.asarray(place[:, None] == np.arange(self.length), dtype=np.float64)
