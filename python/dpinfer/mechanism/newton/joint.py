"""Sums whose records are clipped as a whole: the norm of a score, of a curvature, of a score's product with itself.

**Privacy.** A record's vector is shortened to `max_norm` by the sum itself, on its way to the integers: weights and
residuals are not cut off before that (docs/derivations/population.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import OfFeatures, Rows
from dpinfer.mechanism.newton.own_rows import OwnQuery
from dpinfer.mechanism.sums.parts import add_in_place

# In units of the norm that a sum holds its contributions to: a lattice step at most, and what floating point adds to
# products of up to 2000 coordinates.  A sum shortens what is within a millionth of that norm: parts are smaller.
_LATTICE, _FLOATING, _LARGER = 2.0**-30, 1e-11, 1e-5
CLUSTER_NORM = 1.4143  # at least sqrt(2): a row takes one cluster from interval to interval


@dataclass(frozen=True, eq=False)
class _AtPoint(OfFeatures):
    """z = transform x, and the residual r = y - E[y | x] of weights `coefficients`.

    With a finite `weight_bound` r and the derivative of the mean are multiplied by the largest weight, at most 1, with
    which |r z| is at most that for both responses that a record might have: a function of x, so that the score keeps
    the expectation zero where the model is true (docs/derivations/population.md).
    """

    coefficients: FloatArray
    link: str
    weight_bound: float = field(default=math.inf, kw_only=True)

    def _add(self, total: _native.PartialSum, add: Callable[..., None], **options: Any) -> None:
        residuals = _native.Residuals(
            link=self.link, loc=np.ascontiguousarray(self.coefficients), weight_bound=self.weight_bound
        )
        add(total, residuals, transform=np.ascontiguousarray(self.transform), bound=math.inf, **options)


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
        scale = {"scale_weight": self.scale_weight, "scale_unit": self.unit, "scale_centre": self.centre}
        self._add(total, rows.native.add_scores, **scale)


@dataclass(frozen=True, eq=False)
class Curvatures(_AtPoint):
    """svec(s z z'), s the derivative of the mean in the linear predictor: minus the derivative of the score."""

    max_norm: float

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self.triangle

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        self._add(total, rows.native.add_curvature)


@dataclass(frozen=True, eq=False)
class ScoreProducts(Curvatures):
    """svec(r**2 z z')."""

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        self._add(total, rows.native.add_score_products)


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
        add = rows.native.add_curvature_sizes if self.curved else rows.native.add_score_sizes
        self._add(total, add, edges=np.ascontiguousarray(self.edges))


@dataclass(frozen=True, eq=False)
class StratumScores:
    """The score r z of a row, and a count, in the place of its stratum: a row moves one stratum.

    The score is shortened until score and count have one lattice.

    Raises
    ------
    ValueError
        If they have two.
    """

    scores: JointScores
    n_strata: int

    def __post_init__(self) -> None:
        score, both = (_native.PartialSum(length=1, max_norm=norm) for norm in (self.scores.max_norm, self.max_norm))
        if score.lattice_step != both.lattice_step:
            raise ValueError("scores must have the lattice of score and count together: use StratumScores.of")

    @classmethod
    def of(cls, scores: JointScores, n_strata: int) -> "StratumScores":
        """Return the query with scores of at most this norm."""
        most = 2.0 ** math.frexp(scores.max_norm)[1] * (1.0 - 1e-9) / math.hypot(1.0, tuning.POPULATION.counted)
        return cls(replace(scores, max_norm=min(scores.max_norm, most)), n_strata)

    @property
    def unit(self) -> float:
        """What a row adds to its stratum's count."""
        return tuning.POPULATION.counted * self.scores.max_norm

    @property
    def length(self) -> int:
        """For each stratum as many as weights, and the count."""
        return self.n_strata * (self.scores.length + 1)

    @property
    def max_norm(self) -> float:
        """Of the score and the count."""
        return self.scores.max_norm * math.hypot(1.0, tuning.POPULATION.counted) * (1.0 + _FLOATING)

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        for stratum, n_rows, of_stratum in rows.by_stratum():
            part = _native.PartialSum(length=self.scores.length, max_norm=self.scores.max_norm)
            self.scores.add(part, of_stratum)
            count = n_rows * math.floor(self.unit / part.lattice_step)
            add_in_place(total, part, stratum * (self.scores.length + 1), count)


@dataclass(frozen=True, eq=False)
class UnitScores:
    """A unit's score g: the sum of its rows'.  The score of the unit is clipped to `max_norm`, for any number of rows.

    Parameters
    ----------
    scores : JointScores or OwnQuery
        Of a row.  For a user's own model each row is a unit, and vectors may differ from scores.
    max_norm : float
        Norm bound of a unit's contribution.
    """

    scores: JointScores | OwnQuery
    max_norm: float

    @property
    def length(self) -> int:
        """As many as weights."""
        return self.scores.length

    def of_units(self, scores: FloatArray) -> FloatArray:
        """Return the contributions of units, (n, length), from their scores (n, d)."""
        return scores

    def add(self, total: _native.PartialSum, rows: Any) -> None:
        """Add all records, each a unit; rows of larger units are added up first, and then come to :meth:`of_units`."""
        if isinstance(self.scores, JointScores):
            raise TypeError("a query of units needs records with units")
        self.scores.add_made(total, rows, self.of_units)


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


@dataclass(frozen=True, eq=False)
class ClusterSizes(UnitSizes):
    """The indicator for a cluster, where rows are protected: a row moves one cluster from interval to interval.

    Parameters
    ----------
    max_norm : float
        At least sqrt(2).
    """


@dataclass(frozen=True, eq=False)
class ClusterProducts(UnitProducts):
    """svec(g g') of a cluster's score g, shortened to the norm `reach`, where rows are protected.

    A row moves g, which is in a ball of this radius, by at most ``scores.max_norm``, and gg' by at most twice the
    product of both: docs/derivations/population.md.  A cluster adds as many equal parts as keep each within that.

    Parameters
    ----------
    max_norm : float
        What a row moves the sum by at most: :meth:`of`.
    """

    reach: float
    parts: int

    @classmethod
    def of(cls, scores: JointScores, reach: float) -> "ClusterProducts":
        """Return the query for this reach, at least half of ``scores.max_norm``."""
        moved = 2.0 * reach * scores.max_norm
        parts = math.ceil(reach**2 * (1.0 + _LARGER) / moved)
        length = scores.length * (scores.length + 1) // 2
        return cls(scores, moved * (1.0 + parts * (2.1 * math.sqrt(length) * _LATTICE + _FLOATING)), reach, parts)

    def of_units(self, scores: FloatArray) -> FloatArray:
        """Return the contributions of clusters, (n * parts, length), from their scores (n, d)."""
        length = np.linalg.norm(scores, axis=1, keepdims=True)
        shortened = scores * np.minimum(1.0, self.reach / np.maximum(length, 1e-300))
        return np.repeat(super().of_units(shortened) / self.parts, self.parts, axis=0)


@dataclass(frozen=True, eq=False)
class StratumUnits(UnitScores):
    """A unit's or a cluster's score g, shortened to the norm `reach`, and a count, in the place of its stratum.

    A protected unit adds at most ``scores.max_norm``.  Of a cluster, where rows are protected, a row moves g by at most
    that, or makes a cluster of its own.  Either adds as many equal parts as keep each within `max_norm`.

    Parameters
    ----------
    unit : float
        What a unit or cluster adds to its stratum's count.
    """

    n_strata: int
    reach: float
    unit: float
    parts: int

    @classmethod
    def of(cls, scores: JointScores, n_strata: int, reach: float) -> "StratumUnits":
        """Return the query for this reach: of units it is ``scores.max_norm``."""
        unit = tuning.POPULATION.counted * scores.max_norm
        moved = math.hypot(scores.max_norm, unit)
        parts = math.ceil(math.hypot(reach, unit) * (1.0 + _LARGER) / moved)
        larger = 1.0 + parts * (2.1 * math.sqrt(scores.length + 1) * _LATTICE + _FLOATING)
        return cls(scores, moved * larger, n_strata, reach, unit, parts)

    @property
    def length(self) -> int:
        """For each stratum as many as weights, and the count."""
        return self.n_strata * (self.scores.length + 1)

    def in_strata(self, scores: FloatArray, strata: npt.NDArray[np.int64]) -> FloatArray:
        """Return the contributions of units, (n * parts, length), from their scores (n, d) and strata."""
        size = np.linalg.norm(scores, axis=1, keepdims=True)
        shortened = scores * np.minimum(1.0, self.reach / np.maximum(size, 1e-300))
        made = np.zeros((len(scores), self.n_strata, self.scores.length + 1))
        made[np.arange(len(scores)), strata] = np.column_stack((shortened, np.full(len(scores), self.unit)))
        return np.repeat(made.reshape(len(scores), -1) / self.parts, self.parts, axis=0)
