"""Checks on the private records: once, before anything is spent, and without quoting any of them.

**Privacy.** Under ``zero_out`` a neighbour's record is replaced with one that contributes exactly zero.  A row of zeros
does not: with an intercept its gradient can be as long as any. So a null record is a row that holds only NaN, and it is
removed before any use, here: docs/derivations/dpvi-mechanism.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import as_record_array, check_columns, check_response, check_values, survey_columns
from dpinfer._values import is_listed
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.mechanism.sources.held import records_of
from dpinfer.mechanism.sources.row_source import Arrays, Records, RowSource, total_rows
from dpinfer.mechanism.sources.sparse import SparseFeatures, checked_features

Array = npt.NDArray[Any]
Features = npt.NDArray[np.float64] | npt.NDArray[np.float32]

_CHUNK = 4096  # records at once: memory only


def without_null_records(
    adjacency: Adjacency,
    features: Array,  # (N, d) or (N,) array
    response: Array | None,  # (N,): empty if there is none
) -> tuple[Array, Array]:  # not copied if no record is removed
    """Return the records without null records: under ``zero_out`` those that are not NaN in every number; else all.

    **Privacy.** Reads the records. The result for one record does not depend on another.
    """
    targets = np.empty(0) if response is None else response
    if adjacency is not Adjacency.ZERO_OUT:
        return features, targets
    columns = features.reshape(features.shape[0], -1)
    null = np.empty(columns.shape[0], dtype=bool)
    for start in range(0, columns.shape[0], _CHUNK):
        rows = slice(start, start + _CHUNK)
        null[rows] = np.isnan(columns[rows]).all(axis=1) & (True if response is None else _is_null(response[rows]))
    if not null.any():
        return features, targets
    return features[~null], targets if response is None else response[~null]


def _is_null(response: Array) -> Array:
    """Return a mask of responses that are NaN, together with any weights."""
    return np.asarray(np.isnan(response.reshape(len(response), -1)).all(axis=1))


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
    check_response(features, response, beside=survey_columns(model))
    total_rows([features.shape[0] or None])
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
    if not np.all(np.isfinite(response)):
        raise RecordError("y must be finite: it holds a NaN or an infinity")
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


def check_alone(
    model: Any, X: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> npt.NDArray[np.float64]:  # (N,), or (N, n_features)
    """Return records without a response, numbers or rows of them, without null records.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if the array does not hold real numbers. Raises RecordError if the shape is wrong, there is no
    record, or a value is not finite or outside the model's range.
    """
    records = as_record_array("X", X)
    if model.record_form == "values":
        check_values(records, type(model).__name__)
        records = records[:, 0] if records.ndim == 2 else records
    else:
        check_columns(records, model.n_features)
    total_rows([records.shape[0] or None])
    records, _ = without_null_records(adjacency, records, None)
    values: npt.NDArray[np.float64] = _readable(records, np.float64)
    if not np.all(np.isfinite(values)):
        raise RecordError("X must be finite: it holds a NaN or an infinity")
    required = model.invalid_records(values)
    if required is not None:
        raise RecordError(f"X must hold {required} for {type(model).__name__}")
    return values


def load_records(model: Any, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Arrays:
    """Return the records of any model as the kernels read them: features and responses, numbers, or rows alone.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if `y` is missing or superfluous, or an array does not hold real numbers. Raises RecordError if the
    records cannot be used.
    """
    check_arguments(model, y, X)
    if model.record_form == "regression":
        return check_records(model, X, y, adjacency)
    return (check_alone(model, X, adjacency),)


def check_arguments(model: Any, y: Any, X: Any, takes: Sequence[str] = (), *, weighted: bool = False) -> Records:
    """Return the records of a run, after refusing those that it cannot take, or of another form than the model's.

    **Privacy.** Reads no record: these refusals come before the charge, and do not depend on records.

    Parameters
    ----------
    takes : sequence of str
        What the run can do, of :attr:`Records.demands`.
    weighted : bool
        Whether it takes survey weights.
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
    return found.source().checked(lambda features, response: load_records(model, features, response, adjacency))
