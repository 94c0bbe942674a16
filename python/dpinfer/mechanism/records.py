"""Checks on the private records: once, before anything is spent, and without quoting any of them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._records import as_record_array
from dpinfer._values import is_listed
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.mechanism.layout import check_columns, check_layout, check_response, check_values, has_weights
from dpinfer.mechanism.null_records import without_null_records
from dpinfer.mechanism.silos.rows import Silos
from dpinfer.mechanism.sources.cuda import CudaRows
from dpinfer.mechanism.sources.row_source import Records, RowSource
from dpinfer.mechanism.sources.shards import ShardedRows
from dpinfer.mechanism.sources.sparse import CodedRows, SparseFeatures, is_sparse, sparse_features
from dpinfer.models import ConjugateModel

Features = npt.NDArray[np.float64] | npt.NDArray[np.float32]

_MAX_RECORDS = 2**31  # exact integer sums of 64 bits are proved for so many
_CHUNK = 4096  # records at once: memory only


def check_records(
    model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[Features, npt.NDArray[np.float64]]:
    """Return (X, y) as the kernels read them, without a copy when X is C-contiguous float64 or float32.

    Under ``zero_out`` null records, NaN in every number, are taken out.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if an array does not hold real numbers. Raises RecordError if shapes disagree, there is no record,
    a value is not finite, or a response is outside the model's range.
    """
    features = as_record_array("X", X)
    response = as_record_array("y", y)
    check_columns(features, model.n_features)
    check_response(features, response, weighted=has_weights(model))
    if features.shape[0] == 0:
        raise RecordError("X must have at least one row, got none")
    if features.shape[0] > _MAX_RECORDS:
        raise RecordError(f"X must have at most {_MAX_RECORDS} rows")
    features, response = without_null_records(adjacency, features, response)
    # A list is of single precision, or not, by its records.
    single = features.dtype == np.float32 and not is_listed(X)
    features = _readable(features, np.float32 if single else np.float64)
    for start in range(0, features.shape[0], _CHUNK):
        if not np.all(np.isfinite(features[start : start + _CHUNK])):
            raise RecordError("X must be finite: it holds a NaN or an infinity")
    return features, _checked_response(model, response)


def check_rows(
    model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[Features | SparseFeatures, npt.NDArray[np.float64]]:
    """Return (X, y) in the form of the passes over regressions: :func:`check_records`, with X sparse if given so.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if an array does not hold real numbers. Raises RecordError if the records cannot be used, or are
    sparse under ``zero_out``: a sparse row cannot be all NaN.
    """
    if not is_sparse(X):
        return check_records(model, X, y, adjacency)
    if adjacency is Adjacency.ZERO_OUT:
        raise RecordError("X must be an array for the relation 'zero_out': no sparse row is a null record")
    features = sparse_features(model, X)
    response = as_record_array("y", y)
    check_response(features, response, weighted=has_weights(model))
    return features, _checked_response(model, response)


def _checked_response(model: Any, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    response: npt.NDArray[np.float64] = _readable(values, np.float64)
    if not np.all(np.isfinite(response)):
        raise RecordError("y must be finite: it holds a NaN or an infinity")
    required = model.invalid_records(response[:, 0] if has_weights(model) else response)
    if required is not None:
        raise RecordError(f"y must hold {required} for {type(model).__name__}")
    if has_weights(model):
        if not np.all(response[:, 1] >= 0.0):
            raise RecordError("y must have survey weights of at least 0 in its second column")
        response = np.column_stack((response[:, 0], model.survey_weights.relative(response[:, 1])))
    return response


def _readable(array: npt.NDArray[Any], kind: type[np.floating[Any]]) -> Any:
    """Return the array as the kernels read it: itself, unless its type, order or alignment in memory is another."""
    return np.require(array, dtype=kind, requirements=["C_CONTIGUOUS", "ALIGNED"])


def check_conjugate_records(
    model: ConjugateModel, X: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> npt.NDArray[np.float64]:
    """Return the records of a conjugate model as (N,) float64.

    Under ``zero_out`` null records, NaN, are taken out.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if the array does not hold real numbers. Raises RecordError if the shape is wrong, there is no
    record, or a value is not finite or outside the model's range.
    """
    records = as_record_array("X", X)
    check_values(records, type(model).__name__)
    records = records[:, 0] if records.ndim == 2 else records
    if records.shape[0] == 0:
        raise RecordError("X must have at least one row, got none")
    if records.shape[0] > _MAX_RECORDS:
        raise RecordError(f"X must have at most {_MAX_RECORDS} rows")
    records, _ = without_null_records(adjacency, records, None)
    values: npt.NDArray[np.float64] = _readable(records, np.float64)
    if not np.all(np.isfinite(values)):
        raise RecordError("X must be finite: it holds a NaN or an infinity")
    required = model.invalid_records(values)
    if required is not None:
        raise RecordError(f"X must hold {required} for {type(model).__name__}")
    return values


def check_points(model: Any, X: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> npt.NDArray[np.float64]:
    """Return rows of numbers without a response, (N, n_features) float64, without null records.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if the array does not hold real numbers. Raises RecordError if the shape is wrong, there is no
    record, or a value is not finite.
    """
    records = as_record_array("X", X)
    check_columns(records, model.n_features)
    if records.shape[0] == 0:
        raise RecordError("X must have at least one row, got none")
    if records.shape[0] > _MAX_RECORDS:
        raise RecordError(f"X must have at most {_MAX_RECORDS} rows")
    records, _ = without_null_records(adjacency, records, None)
    points: npt.NDArray[np.float64] = _readable(records, np.float64)
    if not np.all(np.isfinite(points)):
        raise RecordError("X must be finite: it holds a NaN or an infinity")
    return points


def load_records(model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Records:
    """Return the records of any model as the kernels read them: features and responses, numbers, or rows alone.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if `y` is missing or superfluous, or an array does not hold real numbers. Raises RecordError if the
    records cannot be used.
    """
    check_arguments(model, y, X)
    if model.record_form == "regression":
        return check_records(model, X, y, adjacency)
    check = check_conjugate_records if model.record_form == "values" else check_points
    return (check(model, X, adjacency),)


def check_arguments(
    model: Any,
    y: Any,
    X: Any,
    *,
    streamed: bool = False,
    sharded: bool = False,
    units: bool = False,
    sparse: bool = False,
    weighted: bool = False,
) -> None:
    """Refuse a missing or superfluous response, and arrays with another form than the model's records.

    **Privacy.** Reads no record: these refusals come before the charge, and do not depend on records.

    With a :class:`RowSource` for `X`, the responses are in its blocks: for runs that are `streamed`.
    :class:`ShardedRows`, :class:`Silos` and sparse rows are for the few-pass runs, and sources with units for those
    that take `unit`; survey weights for those that are `weighted`.
    """
    name = type(model).__name__
    if has_weights(model) and not weighted:
        raise TypeError(
            "model must be without survey_weights: a run with a plan for target='population' alone has them"
        )
    if is_sparse(X) and not sparse:
        raise TypeError("X must be an array, not sparse: run_newton alone takes sparse matrices and CodedRows")
    if isinstance(X, RowSource) and X.units and not units:
        raise TypeError("X must be a source without units: this run protects rows")
    if isinstance(X, RowSource) and not streamed:
        raise TypeError("X must be an array, not a RowSource: this run needs its rows in memory")
    if isinstance(X, ShardedRows) and not sharded:
        raise TypeError("X must be an array or a RowSource: a run that samples rows needs them in one place")
    if isinstance(X, Silos) and not sharded:
        raise TypeError("X must be an array or a RowSource, not Silos: run_newton and run_statistic alone take them")
    if isinstance(X, (RowSource, ShardedRows, Silos)):
        if y is not None:
            raise TypeError(f"y must be None with a {type(X).__name__}, whose records have their responses")
        columns = getattr(model, "n_features", 1)
        if X.n_features not in (None, columns):
            raise ValueError(f"X must have {columns} columns for {name}, got {X.n_features}")
        return
    if model.record_form == "regression" and y is None:
        raise TypeError(f"y must be given for {name}")
    if model.record_form != "regression" and y is not None:
        raise TypeError(f"y must be None for {name}, whose records are X")
    if isinstance(X, CodedRows):
        X.check_layout(model.n_features, y)
    else:
        check_layout(model, X.array if isinstance(X, CudaRows) else X, y)


def load_source(model: Any, X: Any, y: Any, adjacency: Adjacency) -> Records | RowSource:
    """Return records in memory, or a checked source of rows where `X` is one."""
    if not isinstance(X, RowSource):
        return load_records(model, X, y, adjacency)
    return X.checked(lambda features, response: load_records(model, features, response, adjacency))
