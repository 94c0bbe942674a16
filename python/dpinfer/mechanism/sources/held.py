"""Records in memory: arrays, sparse matrices, codes of categories, and arrays whose passes are made on a GPU.

**Privacy.** Holds the records.  A GPU holds them while a run lasts, and its memory is wiped after it; it returns the
integers of the CPU's passes, bit for bit (docs/derivations/private-sum.md), and noise is drawn on the CPU, as ever.
"""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._validate import (
    DeferredArray,
    as_record_array,
    check_container,
    check_integer,
    check_layout,
    check_numbers,
    check_response,
    known_shape,
    survey_columns,
)
from dpinfer.errors import BackendUnavailableError, RecordError
from dpinfer.mechanism.sources.row_source import Records, RowSource
from dpinfer.mechanism.sources.sparse import SparseFeatures, check_width, float_kind, of_matrix

T = TypeVar("T")

# Memory of a pass besides the rows: its sums, and its public numbers.
_PASS_BYTES = 2**30
_NOT_SPARSE = (
    "{name} must be an array, not sparse: run_newton alone takes sparse matrices and CodedRows, for the library's "
    "models and without units"
)


def records_of(X: Any, y: Any = None) -> Records:
    """Return the records of a run from its arguments, whatever holds them: an array becomes :class:`HeldRows`.

    **Privacy.** Reads no records.

    Raises TypeError if there are responses twice.
    """
    records = X if isinstance(X, Records) else HeldRows(X)
    return records.with_response(y)


class HeldRows(Records):
    """An array or a sparse matrix, with its responses beside it."""

    _y: Any = None

    def __init__(self, X: Any) -> None:
        self._X = X

    @property
    def demands(self) -> Mapping[str, str]:
        """Nothing of an array; of a sparse matrix a run that takes one."""
        # A sparse matrix implies that they are imported.
        scipy_sparse = sys.modules.get("scipy.sparse")
        return {"sparse": _NOT_SPARSE} if scipy_sparse is not None and scipy_sparse.issparse(self._X) else {}

    @property
    def held(self) -> tuple[Any, Any] | None:
        """(X, y)."""
        return self._X, self._y

    def each_part(self, function: Callable[..., T], *public: Any) -> list[T]:
        """Return the function's result for a source of one block."""
        return [function(RowSource(partial(iter, [(self._X, self._y)])), *public)]

    def with_response(self, y: Any) -> Records:
        """Return these records with responses."""
        if y is None:
            return self
        found = copy.copy(self)
        found._y = y
        return found

    def check_form(self, model: Any) -> None:
        """Refuse a missing or superfluous response, and another form than that of the model's records."""
        name, responds = type(model).__name__, model.record_form == "regression"
        if responds and self._y is None:
            raise TypeError(f"y must be given for {name}")
        if not responds and self._y is not None:
            raise TypeError(f"y must be None for {name}, whose records are X")
        self._check_layout(model, self._y)

    def _check_layout(self, model: Any, y: Any) -> None:
        check_layout(model, self._X, y)

    def responses(self) -> Any:
        """Return the responses as an array, which is made when it is read."""

        def load() -> npt.NDArray[Any]:
            array = as_record_array("y", self._y)
            if array.dtype.kind not in "fiub" or array.ndim != 1:
                raise RecordError("y must be a one-dimensional array of real numbers")
            return np.asarray(array, dtype=np.float64)

        return DeferredArray(load)

    def length(self) -> int:
        """Return the number of rows of a sparse matrix, which is private."""
        return int(self._X.shape[0])

    def sparse(self) -> SparseFeatures:
        """Return a sparse matrix as the kernels read it.

        **Privacy.** Reads the records.
        """
        return of_matrix(self._X)

    def to_gpu(self) -> Records:
        """Return the array as a GPU sums it."""
        return CudaRows(self._X).with_response(self._y)


class CodedRows(HeldRows):
    """Numbers and codes of categories, with an indicator column for each category, as `X` of a run.

    The columns of `numeric` come first, then an indicator for each category of each column of `codes`.  The release has
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
        super().__init__(self)

    @property
    def demands(self) -> Mapping[str, str]:
        """A run that takes sparse rows."""
        return {"sparse": _NOT_SPARSE}

    @property
    def n_features(self) -> int:  # type: ignore[override]
        """Columns: looks at the shape of the numbers, and not at these."""
        lost = len(self.n_categories) if self.drop_first else 0
        shape = () if self._numeric is None else as_record_array("X", self._numeric).shape
        return self._n_numeric(shape) + sum(self.n_categories) - lost

    def length(self) -> int:
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

    def sparse(self) -> SparseFeatures:
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

    def _check_layout(self, model: Any, y: Any) -> None:
        self._check_parts(self._codes, self._numeric)
        if self._numeric is None or known_shape(self._numeric) is not None:
            check_width(self.n_features, model.n_features)
        check_response(self._codes, y, beside=survey_columns(model))

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
        return codes.astype(np.int64), numeric.astype(float_kind(numeric), copy=False)


class CudaRows(HeldRows):
    """An array of features whose passes are made on a GPU, as `X` of ``run_newton``.

    The release has the bits of a run on the CPU.  The rows are copied to the GPU once; numbers of every kind are
    float64 or float32 there, as on the CPU.

    **Privacy.** Holds the records.

    Parameters
    ----------
    X : (N, n_features) array

    Raises
    ------
    BackendUnavailableError
        If the package was built without it (``-DDPINFER_CUDA=ON``), there is no GPU, or its free memory is less than
        the rows need.
    TypeError
        If X is sparse, a RowSource or ShardedRows.
    RecordError
        If X cannot be made an array.
    """

    on_gpu = True

    def __init__(self, X: npt.ArrayLike) -> None:
        if records_of(X).demands:
            raise TypeError(f"X must be an array for a GPU, got {type(X).__name__}")
        backend = _backend()
        array = as_record_array("X", X)
        super().__init__(array)
        # Types other than float64 and float32 become float64.
        size = array.itemsize if array.dtype == np.float32 else 8
        n_rows = array.shape[0] if array.ndim else 1
        if array.size * size + 8 * n_rows + _PASS_BYTES > backend.free_bytes():
            raise BackendUnavailableError("X needs more memory than is free on the GPU: pass the array itself")

    @property
    def demands(self) -> Mapping[str, str]:
        """A run with passes on a GPU."""
        return {"cuda": "{name} must be an array, not CudaRows: run_newton alone takes them, without units or weights"}

    def to_gpu(self) -> Records:
        """Return these."""
        return self


def _backend() -> ModuleType:
    try:
        from dpinfer.mechanism import _cuda
    except ImportError as error:
        raise BackendUnavailableError(
            "passes on a GPU (backend='cuda', CudaRows) need a build of the package with -DDPINFER_CUDA=ON, and CUDA's "
            "library"
        ) from error
    if _cuda.device_count() == 0:
        raise BackendUnavailableError("passes on a GPU (backend='cuda', CudaRows) need a GPU, and CUDA finds none")
    return _cuda
