"""Rows most of whose numbers are zeros: sparse matrices, and codes of categories.

**Privacy.** Holds records.  The kernels find the numbers of the dense rows, to the last bit, at the cost of the
non-zeros (docs/derivations/private-sum.md, "Sparse rows").
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._records import as_record_array, check_container, known_shape
from dpinfer._validate import check_integer
from dpinfer.errors import RecordError
from dpinfer.mechanism.layout import check_numbers, check_response

_MAX_RECORDS = 2**31  # as in all runs
_MOST_COLUMNS = 2**31 - 1  # indices of 32 bits


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """Checked features in the kernels' format.

    **Privacy.** Holds the records.

    Parameters
    ----------
    values : (n_values,) float64 or float32
        Of the first row, in the order of its columns, then of the second, and so on.
    columns : (n_values,) int32
        Their columns.
    starts : (N + 1,) int64
        Where each row begins.
    """

    values: npt.NDArray[Any]
    columns: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    n_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.starts) - 1, self.n_columns

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Everything that is read."""
        return self.values, self.columns, self.starts


class CodedRows:
    """Numbers and codes of categories, with an indicator column for each category, as `X` of a run.

    Its columns are those of `numeric`, then an indicator for each category of each column of `codes`.  The release has
    the bits of a run over those columns, which are never formed.

    **Privacy.** Holds the records, which are not looked at before a run asks for them.  `n_categories` is public: from
    a code book, not from these rows.

    Parameters
    ----------
    codes : (N, k) or (N,) array of integers
        0, 1, ... of each category.
    n_categories : sequence of k int
        How many categories there are.
    numeric : (N, q) or (N,) array of numbers, optional
    drop_first : bool
        Whether category 0 has no column, since the intercept represents it.

    Raises
    ------
    TypeError, ValueError
        If a public argument is wrong.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(0)
    >>> X = dpi.mechanism.CodedRows(rng.integers(0, 4, size=(2000, 2)), [4, 4], drop_first=True)
    >>> model = dpi.models.LogisticRegression(X.n_features, fit_intercept=True)
    >>> plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=2000)
    >>> dpi.run_newton(model, X, rng.integers(0, 2, size=2000), plan=plan, n_records=2000).epsilon <= 1.0
    True
    """

    def __init__(
        self,
        codes: npt.ArrayLike,
        n_categories: Sequence[int],
        numeric: npt.ArrayLike | None = None,
        *,
        drop_first: bool = False,
    ) -> None:
        least = 2 if drop_first else 1
        self.n_categories = tuple(check_integer("n_categories", item, least) for item in n_categories)
        if not self.n_categories:
            raise ValueError("n_categories must have at least one number")
        self.drop_first = bool(drop_first)
        self._codes, self._numeric = codes, numeric

    @property
    def n_features(self) -> int:
        """Columns: looks at the shape of the numbers, and not at these."""
        lost = len(self.n_categories) if self.drop_first else 0
        shape = () if self._numeric is None else as_record_array("X", self._numeric).shape
        return self._n_numeric(shape) + sum(self.n_categories) - lost

    def _length(self) -> int:
        """Return the number of rows, which is private: looks at the codes."""
        codes = as_record_array("codes", self._codes)
        if codes.ndim == 0:
            raise RecordError("codes must have a row for each record, got a single value")
        return len(codes)

    def _n_numeric(self, shape: Sequence[int]) -> int:
        return 0 if self._numeric is None else shape[1] if len(shape) == 2 else 1

    def __repr__(self) -> str:
        names = f"n_categories={list(self.n_categories)}, drop_first={self.drop_first}"
        return f"CodedRows({names}; private records, not shown)"

    def _sparse(self) -> SparseFeatures:
        """Check the records, and return every number and the one 1 of each code: a dropped category's is a 0."""
        codes, numeric = self._checked()
        q, lost = numeric.shape[1], int(self.drop_first)
        sizes = np.array(self.n_categories) - lost
        first = q + np.concatenate(([0], np.cumsum(sizes)[:-1])) - lost
        n, width = len(codes), q + codes.shape[1]
        values = np.empty((n, width), dtype=numeric.dtype)
        columns = np.empty((n, width), dtype=np.int32)
        values[:, :q], columns[:, :q] = numeric, np.arange(q)
        values[:, q:] = codes >= lost
        columns[:, q:] = np.where(codes >= lost, codes + first, 0)
        starts = np.arange(0, n * width + 1, width, dtype=np.int64)
        return SparseFeatures(values.ravel(), columns.ravel(), starts, q + int(np.sum(sizes)))

    def check_layout(self, n_features: int, y: Any) -> None:
        """Refuse codes, numbers and responses of a wrong shape or type.

        **Privacy.** Reads no record.

        Raises
        ------
        TypeError
            If codes are no integers, or numbers and responses no real numbers.
        RecordError
            If a shape is wrong.
        """
        self._check_parts(self._codes, self._numeric)
        if self._numeric is None or known_shape(self._numeric) is not None:
            _check_width(self.n_features, n_features)
        check_response(self._codes, y)

    def _check_parts(self, codes: Any, numeric: Any) -> None:
        check_container("X", codes)
        dtype, shape = getattr(codes, "dtype", None), known_shape(codes)
        if isinstance(dtype, np.dtype) and dtype.kind not in "iu":
            raise TypeError(f"X must have codes that are integers, got type {dtype.type.__name__}")
        if shape is not None and (len(shape) not in (1, 2) or (*shape, 1)[1] != len(self.n_categories)):
            raise RecordError(f"X must have codes in {len(self.n_categories)} columns")
        if numeric is None:
            return
        check_numbers("X", numeric)
        numbers = known_shape(numeric)
        if numbers is not None and (len(numbers) not in (1, 2) or (shape is not None and numbers[0] != shape[0])):
            raise RecordError("X must have as many rows of numbers as of codes")

    def _checked(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        codes = as_record_array("X", self._codes)
        numeric = as_record_array("X", np.empty((*codes.shape[:1], 0)) if self._numeric is None else self._numeric)
        self._check_parts(codes, numeric)
        codes = codes[:, None] if codes.ndim == 1 else codes
        numeric = numeric[:, None] if numeric.ndim == 1 else numeric
        if np.any(codes < 0) or np.any(codes >= np.array(self.n_categories)):
            raise RecordError("X must have codes from 0 to one less than n_categories: it holds another one")
        return codes.astype(np.int64), numeric.astype(_kind(numeric), copy=False)


def is_sparse(X: Any) -> bool:
    """Return whether these are rows for :func:`sparse_features`; reads no record."""
    if isinstance(X, CodedRows):
        return True
    # A sparse matrix implies that they are imported.
    scipy_sparse = sys.modules.get("scipy.sparse")
    return scipy_sparse is not None and bool(scipy_sparse.issparse(X))


def sparse_length(X: Any) -> int:
    """Return the number of rows of an object for which :func:`is_sparse` is true.

    **Privacy.** Reads the records.

    Raises
    ------
    RecordError
        If coded rows are no array.
    """
    return X._length() if isinstance(X, CodedRows) else int(X.shape[0])


def sparse_features(model: Any, X: Any) -> SparseFeatures:
    """Return coded rows or a sparse matrix of SciPy as the kernels read them.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises
    ------
    TypeError
        If there are no real numbers.
    RecordError
        If the shape is wrong, there is no row, or a number is not finite.
    """
    features = X._sparse() if isinstance(X, CodedRows) else _of_matrix(X)
    rows, columns = features.shape
    _check_width(columns, model.n_features)
    if rows == 0:
        raise RecordError("X must have at least one row, got none")
    if rows > _MAX_RECORDS:
        raise RecordError(f"X must have at most {_MAX_RECORDS} rows")
    if not np.all(np.isfinite(features.values)):
        raise RecordError("X must be finite: it holds a NaN or an infinity")
    return features


def _check_width(columns: int, wanted: int) -> None:
    if columns != wanted:
        raise RecordError(f"X must be two-dimensional with {wanted} columns, got {columns} columns")


def _of_matrix(matrix: Any) -> SparseFeatures:
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
    values = np.require(rows.data, dtype=_kind(rows.data), requirements=["C_CONTIGUOUS", "ALIGNED"])
    columns = np.require(rows.indices, dtype=np.int32, requirements=["C_CONTIGUOUS", "ALIGNED"])
    starts = np.require(rows.indptr, dtype=np.int64, requirements=["C_CONTIGUOUS", "ALIGNED"])
    # A matrix may have room behind its last number.
    last = int(starts[-1])
    return SparseFeatures(values[:last], columns[:last], starts, int(rows.shape[1]))


def _kind(values: npt.NDArray[Any]) -> type[np.floating[Any]]:
    return np.float32 if values.dtype == np.float32 else np.float64
