"""Schemas guessed from the records themselves: convenient, and a leak."""

import os
import warnings

import numpy as np

from dpinfer._values import text_of
from dpinfer.errors import PrivacyLeakWarning, RecordError, SchemaError
from dpinfer.tabular.columns import CategoricalColumn, Column, ContinuousColumn, IgnoredColumn, TargetColumn
from dpinfer.tabular.reading import RawColumn, read_chunks
from dpinfer.tabular.schema import Schema

_LEAK = "bounds and categories were read from the private records"

BOUNDS_FROM_DATA = (
    "The bounds and categories of the columns were read from the private records, without noise, and appear in the "
    "published results. The privacy guarantee covers the rest only.  Write a schema from public knowledge instead."
)

_MISSING_VALUES = ("", "?")
_MAXIMUM_CATEGORIES = 100  # a column with more labels is an identifier or text: format


def schema_from_data(
    path: str | os.PathLike[str], *, target: str | None = None, positive: str | None = None, delimiter: str = ","
) -> Schema:
    """Derive a schema from a file: bounds are the extreme values, categories the values found.

    Numbers that all parse become continuous columns (scaled by their bounds), other columns categorical; a column
    that is neither (constant, or more than 100 labels) is ignored.  The schema's `leaks` say where it came from; they
    are saved with it, and shown by every release made with it.

    **Privacy.** Leaks: the extremes of every number, every label that occurs and the number of missing values shape
    the result, and nothing is added to hide them.  A :class:`PrivacyLeakWarning` says so.  Use it on public or
    simulated data, or to draft a schema that you then correct from public knowledge.

    Raises RecordError or SchemaError if it is not a table, or `target` is not one of its columns or not binary.

    Parameters
    ----------
    path : path-like
    target : str, optional
        The column to predict; it must hold two distinct values.
    positive : str, optional
        The label that counts as 1; by default the last in sorted order (as numbers if both are).
    delimiter : str
    """
    warnings.warn(BOUNDS_FROM_DATA, PrivacyLeakWarning, stacklevel=2)
    found: dict[str, set[str]] = {}
    for chunk in read_chunks(path, None, delimiter=delimiter):
        for name, raw in chunk.items():
            found.setdefault(name, set()).update(_distinct(raw))
    if not found:
        raise RecordError("the table must hold at least 2 usable records")
    if target is not None and target not in found:
        raise SchemaError(f"target must name a column of the file, and none is called {target!r}")
    columns: list[Column] = []
    for name, values in found.items():
        present = values - set(_MISSING_VALUES)
        columns.append(_target(name, present, positive) if name == target else _feature(name, present))
    return Schema(columns=tuple(columns), missing_values=_MISSING_VALUES, delimiter=delimiter, leaks=(_LEAK,))


def _distinct(raw: RawColumn) -> set[str]:
    values = np.unique(raw).tolist() if isinstance(raw, np.ndarray) else set(raw)
    return {text_of(value) or "" for value in values}


def _feature(name: str, present: set[str]) -> Column:
    numbers = _as_numbers(present)
    if numbers and min(numbers) < max(numbers):
        return ContinuousColumn(name=name, bounds=(min(numbers), max(numbers)))
    if numbers or not 2 <= len(present) <= _MAXIMUM_CATEGORIES:
        return IgnoredColumn(name=name)
    return CategoricalColumn(name=name, categories=tuple(sorted(present)))


def _target(name: str, present: set[str], positive: str | None) -> Column:
    if len(present) != 2:
        raise SchemaError(f"the target column {name!r} must hold exactly two distinct values")
    numbers = _as_numbers(present)
    low, high = sorted(present, key=float) if numbers else sorted(present)
    if positive is not None:
        if positive not in present:
            raise SchemaError(f"positive must be a value of the target column {name!r}, got {positive!r}")
        if positive == low:
            low, high = high, low
    return TargetColumn(name=name, positive=(high,), negative=(low,))


def _as_numbers(texts: set[str]) -> list[float]:
    """Return the finite numbers that all of `texts` are, or nothing."""
    if any("_" in text for text in texts):
        return []
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(np.isfinite(numbers)) else []
