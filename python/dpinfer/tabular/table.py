"""Tables in the form the mechanism takes: X, y and the names of the features."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._records import DeferredArray
from dpinfer.errors import RecordError, SchemaError
from dpinfer.tabular.columns import (
    BinaryColumn,
    CategoricalColumn,
    Column,
    ContinuousColumn,
    IgnoredColumn,
    TargetColumn,
)
from dpinfer.tabular.reading import RawColumn, check_header, read_chunks
from dpinfer.tabular.schema import Schema

__all__ = ["Table", "UnreadTable", "read_table"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_MINIMUM_RECORDS = 2


@dataclass(frozen=True, eq=False)
class Table:
    """Encoded records.

    **Privacy.** Holds records: do not publish it.  Its repr shows neither a value nor the number of records.

    Parameters
    ----------
    X : (N, n_features) float64
        C-contiguous; inside ``schema.feature_bounds``.
    y : (N,) float64 or None
        The target, 0 or 1; None when the schema declares none.
    schema : Schema
    """

    X: FloatArray
    y: FloatArray | None
    schema: Schema

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return self.schema.feature_names

    def __repr__(self) -> str:
        target = self.schema.target
        name = "no target" if target is None else f"target {target.name!r}"
        return f"Table({len(self.feature_names)} features, {name}; private records, not shown)"


class UnreadTable:
    """A file of records that nobody has looked at but for its header.

    Private functions take its `X` and `y` in place of arrays, or it in place of a :class:`Table`, and read it when they
    are charged: whether its records can be read is then nothing that was learned for free.

    **Privacy.** Making one reads the header alone, which is public.  `X`, `y` and :meth:`read` read the records.

    Parameters
    ----------
    path : path-like
    schema : Schema

    Raises
    ------
    OSError, RecordError, SchemaError, BackendUnavailableError
        If the file is missing, or has not the schema's columns, or cannot be read here; see :func:`read_table`.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        self._path, self.schema = path, _check_schema(schema)
        self._table: Table | None = None
        # Array-likes: they are read when they are made arrays.
        self.X = DeferredArray(lambda: self.read().X)
        self.y = None if schema.target is None else DeferredArray(self._target)
        check_header(path, [column.name for column in schema.columns], delimiter=schema.delimiter)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return self.schema.feature_names

    def read(self) -> Table:
        """Return the table, read at the first call.

        **Privacy.** Reads the records: see :func:`read_table`.
        """
        if self._table is None:
            self._table = read_table(self._path, self.schema)
        return self._table

    def _target(self) -> FloatArray:
        target = self.read().y
        if target is None:
            raise SchemaError("the schema must declare one column of kind 'target'")
        return target

    def __repr__(self) -> str:
        return f"UnreadTable({len(self.feature_names)} features; private records, not shown)"


def read_table(path: str | os.PathLike[str], schema: Schema) -> Table:
    """Read a file of records and encode it by a public schema.

    **Privacy.** Reads records and returns them encoded; spends nothing and publishes nothing.  Every step acts on one
    record alone (splitting, dropping, clamping, encoding), so a mechanism's guarantee for the encoded table holds for
    the file, under add/remove adjacency of its lines.  No statistic of the records is used, and none is reported: a
    value outside its bounds is clamped silently, and so is a line left out that is no record.  Whether the table is
    refused can depend on a record: see :class:`Schema`.

    Parameters
    ----------
    path : path-like
        CSV in UTF-8 with a header line (``.gz``: gzipped), or ``.parquet`` with the extra ``dpinfer[parquet]``.  A
        line that is no record (a quote inside a field or not closed on its line, another number of fields than the
        header, not UTF-8, longer than 1 MiB) is left out, or refuses the table where a missing value does; a quoted
        line break is such a line.
    schema : Schema
        Declares every column of the file.

    Returns
    -------
    Table
        X (N, n_features) float64 C-contiguous, y (N,) float64 of 0 and 1 or None, and the feature names.

    Raises
    ------
    OSError
        If the file is missing or cannot be read.
    SchemaError
        If the file's columns are not the schema's, or a value is in no declared category; the column is named, the
        value is not.
    RecordError
        If the file is not a table, lacks a value (or a line is no record) where the policy is "refuse", or holds fewer
        than two records.
    BackendUnavailableError
        If pyarrow is needed and absent.
    """
    _check_schema(schema)
    parts: list[FloatArray] = []
    targets: list[FloatArray] = []
    names = [column.name for column in schema.columns]
    # A line that is no record lacks every value.
    refuse = "refuse" in (schema.missing, *(column.missing for column in schema.columns))
    for chunk in read_chunks(path, names, delimiter=schema.delimiter, refuse_malformed=refuse):
        X, y = _encode(chunk, schema)
        parts.append(X)
        if y is not None:
            targets.append(y)
    if sum(map(len, parts)) < _MINIMUM_RECORDS:
        raise RecordError(f"the table must hold at least {_MINIMUM_RECORDS} usable records")
    return Table(
        X=np.concatenate(parts) if len(parts) > 1 else parts[0],
        y=None if schema.target is None else np.concatenate(targets),
        schema=schema,
    )


def _check_schema(schema: Schema) -> Schema:
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be a Schema, got {type(schema).__name__}")
    return schema


def _encode(chunk: Mapping[str, RawColumn], schema: Schema) -> tuple[FloatArray, FloatArray | None]:
    n_rows = len(next(iter(chunk.values())))
    keep = np.ones(n_rows, dtype=bool)
    encoded: list[tuple[Column, npt.NDArray[np.float64] | npt.NDArray[np.intp]]] = []
    for column in schema.columns:
        if isinstance(column, IgnoredColumn) and column.missing is None:
            continue
        markers = frozenset(schema.missing_values) | frozenset(column.missing_values)
        policy = column.missing or schema.missing
        raw = chunk[column.name]
        if isinstance(column, ContinuousColumn):
            values: npt.NDArray[np.float64] | npt.NDArray[np.intp] = _numbers(raw, markers)
            absent = np.isnan(values)
        else:
            values = _codes(raw, column, markers)
            absent = values == _MISSING
        if policy == "other" and isinstance(column, CategoricalColumn) and column.other is not None:
            values[absent] = column.categories.index(column.other)
        else:
            if policy == "refuse" and bool(absent.any()):
                raise RecordError(
                    f"column {column.name!r} lacks a value in at least one record, which its policy refuses"
                )
            keep &= ~absent
        encoded.append((column, values))

    X = np.zeros((int(np.count_nonzero(keep)), len(schema.feature_names)))
    y: FloatArray | None = None
    position = 0
    for column, all_values in encoded:
        values = all_values[keep]
        # Checked on the kept records only: a record that is dropped anyway must not be able to stop the run.
        if not isinstance(column, (ContinuousColumn, IgnoredColumn)) and bool(np.any(values == _UNKNOWN)):
            raise SchemaError(_unknown_value(column))
        if isinstance(column, ContinuousColumn):
            low, high = column.bounds
            offset, scale = column.offset_and_scale
            X[:, position] = (np.clip(values, low, high) - offset) / scale
        elif isinstance(column, CategoricalColumn):
            for offset_in_column, level in enumerate(column.levels):
                X[:, position + offset_in_column] = values == column.categories.index(level)
        elif isinstance(column, TargetColumn):
            y = values.astype(np.float64)
        elif isinstance(column, BinaryColumn):
            X[:, position] = values
        position += len(column.feature_names)
    return X, y


_MISSING = -1
_UNKNOWN = -2


def _numbers(raw: RawColumn, markers: frozenset[str]) -> FloatArray:
    """Return the column as floats; NaN where there is no number."""
    if isinstance(raw, np.ndarray):
        return raw.astype(np.float64)
    values = np.fromiter((_number(text) for text in raw), dtype=np.float64, count=len(raw))
    numeric_markers = [text for text in markers if not np.isnan(_number(text))]
    if numeric_markers:
        absent = np.fromiter((text is None or text.strip() in markers for text in raw), dtype=bool, count=len(raw))
        values[absent] = np.nan
    return values


def _number(text: str | None) -> float:
    # Python's float() also reads "1_000"; no data file means that.
    try:
        return float("nan") if text is None or "_" in text else float(text)
    except ValueError:
        return float("nan")


def _codes(raw: RawColumn, column: Column, markers: frozenset[str]) -> npt.NDArray[np.intp]:
    """Return the index of each value's category; _MISSING and _UNKNOWN are negative."""
    known: dict[str, int] = {}
    fallback = _UNKNOWN
    if isinstance(column, CategoricalColumn):
        known = {category: index for index, category in enumerate(column.categories)}
        if column.other is not None:
            fallback = known[column.other]
    elif isinstance(column, BinaryColumn):
        known = dict.fromkeys(column.negative, 0) | dict.fromkeys(column.positive, 1)
    known |= dict.fromkeys(markers - known.keys(), _MISSING)
    texts: Sequence[str | None] = [_text(value) for value in raw.tolist()] if isinstance(raw, np.ndarray) else raw
    codes = {text: _MISSING if text is None else known.get(text.strip(), fallback) for text in set(texts)}
    return np.fromiter((codes[text] for text in texts), dtype=np.intp, count=len(texts))


def _text(value: float) -> str | None:
    """Return a number of a Parquet column as it would stand in a CSV file; None for no number."""
    if np.isnan(value):
        return None
    return str(int(value)) if value.is_integer() else repr(value)


def _unknown_value(column: Column) -> str:
    message = f"column {column.name!r} holds a value that the schema does not declare (it is not shown)"
    if isinstance(column, CategoricalColumn):
        return f"{message}; declare it, or declare columns.{column.name}.other to collect such values"
    return f"{message}; declare its spelling in columns.{column.name}.positive or .negative"
