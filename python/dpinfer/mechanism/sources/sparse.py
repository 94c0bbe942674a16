"""Rows of mostly zeros, as the kernels read them.

**Privacy.** Holds records.  The kernels find the numbers of the dense rows, to the last bit, at the cost of the
non-zeros (docs/derivations/private-sum.md, "Sparse rows").
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_finite
from dpinfer.errors import RecordError
from dpinfer.mechanism.sources.row_source import total_rows

_MOST_COLUMNS = 2**31 - 1  # indices of 32 bits


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """Checked features, of records, in the kernels' format."""

    # (n_values,) float64 or float32: of the first row, in the order of its columns, then of the second, and so on
    values: npt.NDArray[Any]
    columns: npt.NDArray[np.int32]  # (n_values,) int32: their columns
    starts: npt.NDArray[np.int64]  # (N + 1,) int64: where each row begins
    n_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.starts) - 1, self.n_columns

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> "SparseFeatures":
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        places = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return SparseFeatures(self.values[places], self.columns[places], starts, self.n_columns)

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Everything that is read."""
        return self.values, self.columns, self.starts


def checked_features(features: SparseFeatures, n_columns: int) -> SparseFeatures:
    """Return sparse features, of the right number of finite columns, or refuse them; see :func:`of_matrix`."""
    rows, columns = features.shape
    check_width(columns, n_columns)
    total_rows(rows)
    check_finite("X", features.values)
    return features


def check_width(columns: int, wanted: int) -> None:
    """Refuse another number of columns."""
    if columns != wanted:
        raise RecordError(f"X must be two-dimensional with {wanted} columns, got {columns} columns")


def of_matrix(matrix: Any) -> SparseFeatures:
    """Return a sparse matrix of SciPy as the kernels read it.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if there are no real numbers. Raises RecordError if its parts do not agree.
    """
    if matrix.dtype.kind not in "fiub":
        raise TypeError(f"X must be an array of real numbers, got type {matrix.dtype.type.__name__}")
    if matrix.ndim != 2 or matrix.shape[1] > _MOST_COLUMNS:
        raise RecordError(f"X must be two-dimensional, got {matrix.ndim} dimensions")
    try:
        rows = matrix.tocsr()
        rows.check_format(full_check=True)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
    except Exception:
        rows = None
    if rows is None:
        raise RecordError(
            "X must be a sparse matrix whose parts agree (the reason is withheld: it could quote a record)"
        )
    values = np.require(rows.data, dtype=float_kind(rows.data), requirements=["C_CONTIGUOUS", "ALIGNED"])
    columns = np.require(rows.indices, dtype=np.int32, requirements=["C_CONTIGUOUS", "ALIGNED"])
    starts = np.require(rows.indptr, dtype=np.int64, requirements=["C_CONTIGUOUS", "ALIGNED"])
    # A matrix may have room behind its last number.
    last = int(starts[-1])
    return SparseFeatures(values[:last], columns[:last], starts, int(rows.shape[1]))


def float_kind(values: npt.NDArray[Any]) -> type[np.floating[Any]]:
    """Return the kernels' type of these numbers."""
    return np.float32 if values.dtype == np.float32 else np.float64
