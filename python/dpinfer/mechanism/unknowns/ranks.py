"""Columns of numbers that are used through ranks only: numbers of values below public edges.

**Privacy.** Reads the records; the results have no noise, and are for a mechanism only.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray, IntArray
from dpinfer._validate import as_record_array, check_numbers, known_shape
from dpinfer._values import is_listed, text_of
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.mechanism.records import records_of, without_null_records
from dpinfer.mechanism.sources.row_source import Records, RowSource


class RankedColumn(ABC):
    """A column of numbers; NaN is a missing value and is left out.

    Parameters
    ----------
    size : int
        Values that are not missing.
    """

    size: int

    @abstractmethod
    def below(self, edges: FloatArray) -> IntArray:
        """Return how many values are less than each of the edges, which increase."""


class HeldColumn(RankedColumn):
    """A column in memory."""

    def __init__(
        self,
        values: FloatArray,  # (N,) float64
    ) -> None:
        self._ordered = np.sort(values[~np.isnan(values)])
        self.size = int(self._ordered.size)

    def below(self, edges: FloatArray) -> IntArray:
        """Return how many values are less than each of the edges, which increase."""
        return np.asarray(np.searchsorted(self._ordered, edges, side="left"), dtype=np.int64)


class ReadColumn(RankedColumn):
    """A column of a stream, read again for each query: memory holds one block."""

    def __init__(
        self,
        rows: Records,
        place: int,  # of the column
        n_columns: int,  # that every block must have
    ) -> None:
        self._rows, self._place, self._n_columns = rows, place, n_columns
        self.size = int(self._ranks(np.empty(0))[-1])

    def below(self, edges: FloatArray) -> IntArray:
        """Return how many values are less than each of the edges, which increase.

        Raises RecordError if there are not as many values as before.
        """
        ranks = self._ranks(edges)
        if ranks[-1] != self.size:
            raise RecordError("X must give the same rows in every pass, and gave another number")
        return ranks[:-1]

    def _ranks(self, edges: FloatArray) -> IntArray:
        return np.asarray(sum(self._rows.each_part(_ranks_of, edges, self._place, self._n_columns)), dtype=np.int64)


def _ranks_of(rows: RowSource, edges: FloatArray, place: int, n_columns: int) -> IntArray:
    """Return the ranks of the edges in a column of a source, and how many values it has."""
    ranks = np.zeros(len(edges) + 1, dtype=np.int64)
    for (block,) in rows.each(_features_alone):
        column = HeldColumn(_checked(as_record_array("X", block), n_columns)[:, place].astype(np.float64))
        ranks += np.append(column.below(edges), column.size)
    return ranks


def _features_alone(features: Any, *_: Any) -> tuple[Any]:
    return (features,)


def count_rows(records: npt.ArrayLike | Records, adjacency: Adjacency) -> int:
    """Return how many records there are; under "zero_out" rows of NaN alone are not counted.

    Raises RecordError if there are no rows.
    """
    return sum(records_of(records).each_part(_count_part, adjacency))


def _count_part(source: RowSource, adjacency: Adjacency) -> int:
    return sum(_length(block, adjacency) for (block,) in source.each(_features_alone))


def _length(block: Any, adjacency: Adjacency) -> int:
    found: Any = records_of(block)
    if "sparse" in found.demands:
        return int(found.length())
    rows = block if is_listed(block) else as_record_array("records", block)
    if isinstance(rows, np.ndarray) and rows.ndim == 0:
        raise RecordError("records must have a row for each record, got a single value")
    if adjacency is not Adjacency.ZERO_OUT:
        return len(rows)
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiub":
        return len(without_null_records(adjacency, rows, None)[0]) if rows.dtype.kind == "f" else len(rows)
    # Each value by itself: one text would make texts of all numbers, NaN among them.
    return sum(any(text_of(value) is not None for value in (row if is_listed(row) else np.ravel(row))) for row in rows)


def _checked(array: npt.NDArray[Any], n_columns: int) -> npt.NDArray[Any]:
    """Return numbers as (N, n_columns)."""
    check_ranked(array, n_columns)
    return array[:, None] if array.ndim == 1 else array


def check_ranked(X: Any, n_columns: int) -> None:
    """Refuse other arguments than arrays of numbers with this many columns; one column may lack the second dimension.

    **Privacy.** Reads no record.

    Raises TypeError if its type is not one of numbers. Raises RecordError if its shape is another.
    """
    check_numbers("X", X)
    shape = known_shape(X)
    if shape is not None and (len(shape) not in (1, 2) or (*shape, 1)[1] != n_columns):
        shape_text = f"{shape[1]} columns" if len(shape) == 2 else f"{len(shape)} dimensions"
        raise RecordError(f"X must have {n_columns} columns, one for each of names, got {shape_text}")


def columns_of(X: npt.ArrayLike | Records, n_columns: int) -> list[RankedColumn]:
    """Return the columns of an array or a stream.

    Raises TypeError or RecordError if they are no numbers, or other columns.
    """
    records = records_of(X)
    if records.held is None:
        return [ReadColumn(records, place, n_columns) for place in range(n_columns)]
    array = _checked(as_record_array("X", records.held[0]), n_columns)
    return [HeldColumn(column) for column in array.astype(np.float64).T]
