"""Checks of the form of records (dimensions, columns and types are public) without reading one; null records.

An array has its shape and type without reading a record, so that a run can be refused before it is charged. Lists,
which have neither, are checked after their conversion to arrays.

**Privacy.** Under ``zero_out`` a neighbour's record is replaced with one that contributes exactly zero.  A row of zeros
does not: with an intercept its gradient can be as long as any. So a null record is a row that holds only NaN, and it is
removed before any use, here: docs/derivations/dpvi-mechanism.md.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_container, known_shape
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError

Array = npt.NDArray[Any]
Features = TypeVar("Features", bound=Array)

_CHUNK = 1 << 14  # records at once: memory only


def without_null_records(adjacency: Adjacency, features: Array, response: Array | None) -> tuple[Array, Array]:
    """Return the records without null records: under ``zero_out`` those that are not NaN in every number; else all.

    **Privacy.** Reads the records. The result for one record does not depend on another.

    Parameters
    ----------
    features : (N, d) or (N,) array
    response : (N,) array, optional
        Empty if there is none.

    Returns
    -------
    features, response : array
        Not copied if no record is removed.
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


def check_numbers(name: str, array: Any) -> None:
    """Refuse objects that are not arrays, and arrays without real numbers.

    **Privacy.** Reads no record.

    Raises TypeError if it is not an array, or its type is not one of real numbers.
    """
    check_container(name, array)
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind not in "fiub":
        # The width of a type of text is the length of the longest one.
        raise TypeError(f"{name} must be an array of real numbers, got type {dtype.type.__name__}")


def check_columns(X: Any, n_columns: int) -> None:
    """Refuse features that are not a table of numbers with so many columns.

    **Privacy.** Reads no record, and does not reveal the number of rows, which is private under add/remove adjacency.

    Raises TypeError if they are no real numbers. Raises RecordError if the shape is wrong.
    """
    check_numbers("X", X)
    shape = known_shape(X)
    if shape is not None and (len(shape) != 2 or shape[1] != n_columns):
        raise RecordError(f"X must be two-dimensional with {n_columns} columns, got {_columns(shape)}")


def check_response(X: Any, y: Any, *, weighted: bool = False) -> None:
    """Refuse responses that are not one number for each row, or a response and its survey weight.

    **Privacy.** Reads no record: a record is a row with its response, so that no data set has more of one.

    Raises TypeError if they are no real numbers. Raises RecordError if the shape is wrong.
    """
    check_numbers("y", y)
    rows, shape = known_shape(X), known_shape(y)
    if weighted and shape is not None and (shape[1:] != (2,) or (rows is not None and rows[0] != shape[0])):
        raise RecordError("y must have two columns, response and survey weight, and as many rows as X")
    if not weighted and shape is not None and (len(shape) != 1 or (rows is not None and rows[:1] != shape)):
        raise RecordError("y must be one-dimensional with as many entries as X has rows")


def check_values(X: Any, owner: str) -> None:
    """Refuse records that are not one number each.

    **Privacy.** Reads no record.

    Raises TypeError if they are no real numbers. Raises RecordError if the shape is wrong.
    """
    check_numbers("X", X)
    shape = known_shape(X)
    if shape is not None and len(shape) != 1 and shape[1:] != (1,):
        raise RecordError(f"X must have shape (N,) or (N, 1) for {owner}, got {_columns(shape)}")


def check_layout(model: Any, X: Any, y: Any) -> None:
    """Refuse arrays whose form is not that of the records of `model`.

    **Privacy.** Reads no record.

    Raises TypeError if an array does not hold real numbers. Raises RecordError if a shape is wrong.
    """
    if model.record_form == "values":
        check_values(X, type(model).__name__)
        return
    check_columns(X, model.n_features)
    if model.record_form == "regression":
        check_response(X, y, weighted=has_weights(model))


def has_weights(model: Any) -> bool:
    """Return whether each response of the model has a survey weight beside it."""
    return getattr(model, "survey_weights", None) is not None


def _columns(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} columns" if len(shape) == 2 else f"{len(shape)} dimensions"
