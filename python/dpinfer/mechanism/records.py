"""Records in memory, and their checks: once, before anything is spent, and without quoting any of them.

Arrays, sparse matrices, codes of categories, and arrays whose passes are made on a GPU.  A check raises TypeError if
there are no real numbers, or `y` is missing or superfluous, and RecordError if the records cannot be used: their shapes
disagree, there is none, a value is not finite, or outside the model's range.  It names no value and no row.

**Privacy.** Under ``zero_out`` a neighbour's record is replaced with one that contributes exactly zero.  A row of zeros
does not: with an intercept its gradient can be as long as any. So a null record is a row that holds only NaN, and it is
removed before any use, here: docs/derivations/dpvi-mechanism.md.  A GPU holds records while a run lasts, and its memory
is wiped after it; it returns the integers of the CPU's passes, bit for bit (docs/derivations/private-sum.md), and noise
is drawn on the CPU, as ever.
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
    check_columns,
    check_container,
    check_finite,
    check_integer,
    check_layout,
    check_numbers,
    check_response,
    check_values,
    known_shape,
    survey_columns,
)
from dpinfer._values import is_listed
from dpinfer.accounting import Adjacency
from dpinfer.errors import BackendUnavailableError, RecordError
from dpinfer.mechanism.sources.row_source import Arrays, Records, RowSource, numbers_alone, total_rows
from dpinfer.mechanism.sources.sparse import SparseFeatures, check_width, checked_features, float_kind, of_matrix

Array = npt.NDArray[Any]
Features = npt.NDArray[np.float64] | npt.NDArray[np.float32]
T = TypeVar("T")

_PASS_BYTES = 2**30  # memory of a pass besides the rows: its sums, and its public numbers
_NOT_SPARSE = (
    "{name} must be an array, not sparse: run_newton alone takes sparse matrices and CodedRows, for the library's "
    "models and without units"
)


def records_of(X: Any, y: Any = None) -> Records:
    """Return the records of a run from its arguments, whatever holds them, without reading any.

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
        """Return the responses as an array that is made when it is read."""
        return DeferredArray(lambda: numbers_alone(self._y).astype(np.float64, copy=False))

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
        return self if self.on_gpu else CudaRows(self._X).with_response(self._y)


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
        shape = (0, 0) if self._numeric is None else as_record_array("X", self._numeric).shape
        return (shape[1] if len(shape) == 2 else 1) + sum(self.n_categories) - lost

    def length(self) -> int:
        """Return the number of rows, which is private: looks at the codes."""
        codes = as_record_array("codes", self._codes)
        if codes.ndim == 0:
            raise RecordError("codes must have a row for each record, got a single value")
        return len(codes)

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

    Raises BackendUnavailableError if the package was built without it (``-DDPINFER_CUDA=ON``), there is no GPU, or its
    free memory is less than the rows need. Raises TypeError if X is sparse, a RowSource or ShardedRows. Raises
    RecordError if X cannot be made an array.

    Parameters
    ----------
    X : (N, n_features) array
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


_CHUNK = 4096  # records at once: memory only


def without_null_records(adjacency: Adjacency, features: Array, response: Array | None) -> tuple[Array, Array]:
    """Return the records without null records: under ``zero_out`` those that are not NaN in every number; else all.

    Features are (N, d) or (N,), and not copied if no record is removed; without a response the second array is empty.

    **Privacy.** Reads the records. The result for one record does not depend on another.
    """
    targets = np.empty(0) if response is None else response
    if adjacency is not Adjacency.ZERO_OUT:
        return features, targets
    null = np.ones(len(features), dtype=bool)
    for start in range(0, len(features), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for part in (features,) if response is None else (features, response):
            null[rows] &= np.isnan(part[rows].reshape(len(part[rows]), -1)).all(axis=1)
    if not null.any():
        return features, targets
    return features[~null], targets if response is None else response[~null]


def check_records(
    model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[Features, npt.NDArray[np.float64]]:
    """Return (X, y) as the kernels read them, without a copy when X is C-contiguous float64 or float32.

    Under ``zero_out`` null records, NaN in every number, are taken out.

    **Privacy.** Reads the records.
    """
    features, response = _arrays_of(model, X), as_record_array("y", y)
    beside = survey_columns(model)
    if response.shape == (0,) and beside:
        response = np.empty((0, 1 + beside))
    check_columns(features, model.n_features)
    check_response(features, response, beside=beside)
    total_rows(len(features))
    features, response = without_null_records(adjacency, features, response)
    # A list is of single precision, or not, by its records.
    single = features.dtype == np.float32 and not is_listed(X)
    features = _readable(features, np.float32 if single else np.float64)
    check_finite("X", features)
    return features, _checked_response(model, response)


def _arrays_of(model: Any, X: Any) -> Array:
    """Return features as an array: a list without rows has no columns, and is one with the model's."""
    features = as_record_array("X", X)
    return np.empty((0, model.n_features)) if features.shape == (0,) else features


def no_records(model: Any) -> tuple[Array, Array | None]:
    """Return (X, y) without rows."""
    if model.record_form == "values":
        return np.empty(0), None
    return np.empty((0, model.n_features)), np.empty(0) if model.record_form == "regression" else None


def check_rows(
    model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[Features | SparseFeatures, npt.NDArray[np.float64]]:
    """Return (X, y) in the form of the passes over regressions: :func:`check_records`, with X sparse if given so.

    **Privacy.** Reads the records.

    Raises RecordError also if they are sparse under ``zero_out``: a sparse row cannot be all NaN.
    """
    found: Any = records_of(X)
    if "sparse" not in found.demands:
        return check_records(model, X, y, adjacency)
    if adjacency is Adjacency.ZERO_OUT:
        raise RecordError("X must be an array for the relation 'zero_out': no sparse row is a null record")
    features = checked_features(found.sparse(), model.n_features)
    response = as_record_array("y", y)
    check_response(features, response, beside=survey_columns(model))
    return features, _checked_response(model, response)


def _checked_response(model: Any, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    response: npt.NDArray[np.float64] = _readable(values, np.float64)
    check_finite("y", response)
    required = model.invalid_records(response[:, 0] if survey_columns(model) else response)
    if required is not None:
        raise RecordError(f"y must hold {required} for {type(model).__name__}")
    if survey_columns(model):
        if not np.all(response[:, 1] >= 0.0):
            raise RecordError("y must have survey weights of at least 0 in its second column")
        strata = model.survey_weights.strata
        if strata and not np.all(np.isin(response[:, 2], np.arange(strata))):
            raise RecordError(f"y must have strata in its third column, whole numbers from 0 to {strata - 1}")
        response = np.column_stack((response[:, 0], model.survey_weights.relative(response[:, 1]), response[:, 2:]))
    return response


def _readable(array: npt.NDArray[Any], kind: type[np.floating[Any]]) -> Any:
    """Return the array as the kernels read it: itself, unless its type, order or alignment in memory is another."""
    return np.require(array, dtype=kind, requirements=["C_CONTIGUOUS", "ALIGNED"])


def check_alone(model: Any, X: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> npt.NDArray[np.float64]:
    """Return records without a response, (N,) or (N, n_features), without null records.

    **Privacy.** Reads the records.
    """
    records = as_record_array("X", X) if model.record_form == "values" else _arrays_of(model, X)
    if model.record_form == "values":
        check_values(records, type(model).__name__)
        records = records[:, 0] if records.ndim == 2 else records
    else:
        check_columns(records, model.n_features)
    total_rows(len(records))
    records, _ = without_null_records(adjacency, records, None)
    values: npt.NDArray[np.float64] = _readable(records, np.float64)
    check_finite("X", values)
    required = model.invalid_records(values)
    if required is not None:
        raise RecordError(f"X must hold {required} for {type(model).__name__}")
    return values


def load_records(model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Arrays:
    """Return the records of any model as the kernels read them: features and responses, numbers, or rows alone.

    **Privacy.** Reads the records.
    """
    check_arguments(model, y, X)
    if model.record_form == "regression":
        return check_records(model, X, y, adjacency)
    return (check_alone(model, X, adjacency),)


def check_arguments(model: Any, y: Any, X: Any, takes: Sequence[str] = (), *, weighted: bool = False) -> Records:
    """Return the records of a run, after refusing those that it cannot take, or of another form than the model's.

    `takes` names what the run can do, of :attr:`Records.demands`; `weighted`: whether it takes survey weights.

    **Privacy.** Reads no record: these refusals come before the charge, and do not depend on records.
    """
    if survey_columns(model) and not weighted:
        raise TypeError(
            "model must be without survey_weights: a run with a plan for target='population' alone has them"
        )
    found = records_of(X)
    found.refuse("X", takes)
    found = found.with_response(y)
    found.check_form(model)
    return found


def load_source(model: Any, X: Any, y: Any, adjacency: Adjacency) -> RowSource:
    """Return a source of checked records: records in memory stay there, all others are read in every pass."""
    found = records_of(X, y)
    if found.held is not None:
        return RowSource.of_arrays(load_records(model, *found.held, adjacency))
    check = partial(load_records, model, adjacency=adjacency)
    return found.source().checked(check, lambda: check(*no_records(model)))
