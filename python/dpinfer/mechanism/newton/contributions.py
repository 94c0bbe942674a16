"""Contributions of one record to each sum of a private Newton run: public numbers, and the compiled rows for them.

**Privacy.** Each query declares the length and the largest norm of its vector; the sum clips every record to that
norm, on the integers, for any result of the query (docs/derivations/private-sum.md).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.sources.sparse import SparseFeatures
from dpinfer.models.clipping import ClippedResidual

Features = FloatArray | npt.NDArray[np.float32]

_BLOCK = 4096  # responses at once: half a megabyte of indicators
_NO_RESIDUAL = 2.0**-60  # what residuals are cut off at where they shall not count: tolerance


@dataclass(frozen=True, eq=False)
class Rows:
    """The records of one run.

    **Privacy.** Holds the records.
    """

    native: _native.RegressionRows
    response: FloatArray  # (N,)
    by_stratum: Any = None  # returns an iterator over strata: its number, how many rows, and these

    @classmethod
    def of(
        cls,
        features: Features | SparseFeatures,
        response: FloatArray,
        *,
        intercept: bool,
        n_threads: int,
        on_cuda: bool = False,
    ) -> "Rows":
        """Return the rows of checked records; dense ones may be on a GPU.  Responses may have survey weights."""
        values: Any = features
        if on_cuda:
            from dpinfer.mechanism import _cuda

            return cls(_cuda.DeviceRows(features=values, response=response, intercept=intercept), response)
        places: dict[str, Any] = {}
        if isinstance(features, SparseFeatures):
            values = features.values
            places = {"columns": features.columns, "starts": features.starts, "n_features": features.n_columns}
        strata = None
        if response.ndim == 2:
            strata = partial(cls._by_stratum, features, response, intercept=intercept, n_threads=n_threads)
            places["weights"], response = np.ascontiguousarray(response[:, 1]), np.ascontiguousarray(response[:, 0])
        native = _native.RegressionRows(
            features=values, response=response, intercept=intercept, n_threads=n_threads, **places
        )
        return cls(native, response, strata)

    @classmethod
    def _by_stratum(cls, features: Any, response: FloatArray, **options: Any) -> Iterator[tuple[int, int, "Rows"]]:
        for stratum in np.unique(response[:, 2]):
            of_stratum = np.flatnonzero(response[:, 2] == stratum)
            yield int(stratum), of_stratum.size, cls.of(features[of_stratum], response[of_stratum, :2], **options)


class Query(Protocol):
    """A sum over the records."""

    @property
    def length(self) -> int:
        """How many numbers a record adds."""

    @property
    def max_norm(self) -> float:
        """The largest norm of an ordinary record's vector, and of every record's integers."""

    def add(self, total: _native.PartialSum, rows: Any) -> None:
        """Add all records to `total`, from the rows that this kind of query reads."""


class ReadRecords(ABC):
    """Checked records that a pass sums, here or elsewhere; the run draws the noise."""

    n_rows: int  # how many there are: private under add/remove adjacency
    # (N, 4): hashes of records whose contributions depend on the number of equal ones before them; else none
    kinds: npt.NDArray[np.uint64] = np.empty((0, 4), dtype=np.uint64)
    own_noise: ClassVar[bool] = False
    secure: ClassVar[bool] = True

    @abstractmethod
    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Return all records, by which a checkpoint recognises them."""

    @abstractmethod
    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all records' contributions to a query, each once."""

    def state(self) -> dict[str, FloatArray]:
        """Return what a checkpoint needs beside the released sums."""
        return {}

    def excess(self, index: int) -> float:
        """Return the ratio of the noise of a pass to the planned one."""
        return 1.0

    def close(self, plan: Any) -> dict[str, Any]:
        """End the run, and return what its release says of the records' places."""
        return {}


def smat(vector: FloatArray, d: int) -> FloatArray:
    """Return the symmetric matrix of a vector of its upper triangle, off-diagonal entries times sqrt(2)."""
    rows, columns = np.triu_indices(d)
    matrix = np.zeros((d, d))
    values = np.where(rows == columns, vector, vector / math.sqrt(2.0))
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix


@dataclass(frozen=True, eq=False)
class LogScaleCounts:
    """The indicator of the interval between `edges` in which abs(y) lies; norm 1."""

    edges: FloatArray

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
        for start in range(0, rows.response.size, _BLOCK):
            size = np.abs(rows.response[start : start + _BLOCK])
            place = np.searchsorted(self.edges, size, side="right")
            total.add_contributions((place[:, None] == np.arange(self.length)).astype(np.float64))


@dataclass(frozen=True, eq=False)
class OfFeatures:
    """A query of z = transform x, with a number for each weight."""

    transform: FloatArray

    @property
    def length(self) -> int:
        """As many as weights."""
        return int(self.transform.shape[0])

    @property
    def triangle(self) -> int:
        """Entries of a triangle of a matrix."""
        d = int(self.transform.shape[0])
        return d * (d + 1) // 2


@dataclass(frozen=True, eq=False)
class FeatureMeans(OfFeatures):
    """w z of z = transform x with w = min(1, bound**2 / |z|**2); norm at most bound.

    The rows of scores with 1 in the place of residuals: they are cut off at next to nothing, and the centre is -1.
    """

    bound: float

    @property
    def max_norm(self) -> float:
        """Of w z."""
        return self.bound

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        ones = _native.Residuals(
            link="logistic",
            loc=np.zeros(self.length),
            bound=_NO_RESIDUAL,
            centre=np.full(2, -1.0),
            slope=np.zeros(2),
        )
        rows.native.add_scores(total, ones, transform=np.ascontiguousarray(self.transform), bound=self.bound)


@dataclass(frozen=True, eq=False)
class SecondMoments(OfFeatures):
    """svec(w z z') of z = transform x with w = min(1, bound**2 / |z|**2); norm at most bound**2."""

    bound: float

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self.triangle

    @property
    def max_norm(self) -> float:
        """Of w z z' in the Frobenius norm."""
        return self.bound**2

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        rows.native.add_second_moments(total, transform=np.ascontiguousarray(self.transform), bound=self.bound)


@dataclass(frozen=True, eq=False)
class RobustScores(OfFeatures):
    """(w psi_clip(r) z, scale_weight * w (min(|r| / unit, 1) - centre)) for r = y - coefficients'x.

    A centre near the mean makes the last sum small, so that a wrong number of records hardly affects its use.
    """

    bound: float
    coefficients: FloatArray
    clip: float
    unit: float
    centre: float
    scale_weight: float

    @property
    def length(self) -> int:
        """One more than weights."""
        return int(self.transform.shape[0]) + 1

    @property
    def max_norm(self) -> float:
        """Of both parts together."""
        return math.hypot(self.clip * self.bound, self.scale_weight * max(self.centre, 1.0 - self.centre))

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        rows.native.add_scores(
            total,
            _native.Residuals(link="gaussian", loc=np.ascontiguousarray(self.coefficients), bound=self.clip),
            transform=np.ascontiguousarray(self.transform),
            bound=self.bound,
            scale_weight=self.scale_weight,
            scale_unit=self.unit,
            scale_centre=self.centre,
        )


@dataclass(frozen=True, eq=False)
class ClippedScores(OfFeatures):
    """w psi z, psi = clip(r, -c, c) - centre(eta) for r = y - E[y | eta], eta = coefficients'x.

    The norm is at most bound times the largest abs(psi), which `residual` contains.
    """

    bound: float
    coefficients: FloatArray
    link: str
    residual: ClippedResidual

    @property
    def max_norm(self) -> float:
        """Of w z times the largest residual."""
        return self.bound * self.residual.bound

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        self._add(total, rows.native.add_scores)

    def _add(self, total: _native.PartialSum, add: Callable[..., None]) -> None:
        found = self.residual
        residuals = _native.Residuals(
            link=self.link,
            loc=np.ascontiguousarray(self.coefficients),
            bound=found.clip,
            centre=np.ascontiguousarray(found.centre),
            slope=np.ascontiguousarray(found.slope),
            first_node=found.first_node,
            spacing=found.spacing,
        )
        add(total, residuals, transform=np.ascontiguousarray(self.transform), bound=self.bound)


@dataclass(frozen=True, eq=False)
class ClippedCurvatures(ClippedScores):
    """svec(w slope(eta) z z'), minus the expected derivative of ClippedScores; norm at most bound**2 max slope."""

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self.triangle

    @property
    def max_norm(self) -> float:
        """Of w z z' times the largest slope."""
        return self.bound**2 * self.residual.slope_bound

    def add(self, total: _native.PartialSum, rows: Rows) -> None:
        """Add all records to `total`."""
        self._add(total, rows.native.add_curvature)
