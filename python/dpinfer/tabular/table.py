"""Tables in the form the mechanism takes: X, y and the names of the features."""

import os
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import DeferredArray, check_type
from dpinfer.errors import RecordError, SchemaError
from dpinfer.tabular.columns import BinaryColumn, CategoricalColumn, ContinuousColumn, TargetColumn, numeric
from dpinfer.tabular.decoding import MINIMUM_RECORDS, DecodedChunk, decode, refuses_lines, too_few_records
from dpinfer.tabular.reading import LineCounts, check_header, read_chunks
from dpinfer.tabular.schema import Schema


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
    """A file of records of which only the header has been read.

    Private functions take its `X` and `y` in place of arrays, or it in place of a :class:`Table`, and read it when they
    are charged: whether its records can be read is then nothing that was learned for free.

    **Privacy.** Making one reads the header alone, which is public.  `X`, `y` and :meth:`read` read the records.

    Raises OSError, RecordError, SchemaError or BackendUnavailableError if the file is missing, or has not the schema's
    columns, or cannot be read here; see :func:`read_table`.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        self._path, self.schema = path, check_type("schema", schema, Schema)
        self._table: Table | None = None
        # Array-likes: they are read when they are made arrays.
        self.X = DeferredArray(lambda: self.read().X)
        self.y = None if schema.target is None else DeferredArray(self._target)
        names = [column.name for column in schema.columns]
        check_header(path, names, delimiter=schema.delimiter, used=numeric(schema.columns))

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
    the file, under add/remove adjacency of its lines.  No statistic of the records is used or reported: values outside
    of their bounds are clamped silently, and malformed lines are dropped silently (:func:`check_table` counts them, for
    the curator's eyes only).  Whether the table is refused can depend on a record: see :class:`Schema`.

    Raises SchemaError if the file's columns are not the schema's, or a value is in no declared category; the column is
    named, the value is not. Raises RecordError if the file is not a table, lacks a value (or a line is no record) where
    the policy is "refuse", or holds fewer than two records. Raises BackendUnavailableError if pyarrow is needed and
    absent.

    Parameters
    ----------
    path : path-like
        CSV in UTF-8 with a header line (``.gz``: gzipped), or ``.parquet`` with the extra ``dpinfer[parquet]``.  A
        line that is no record (a quote inside a field or not closed on its line, another number of fields than the
        header, not UTF-8, longer than 1 MiB) is left out, or refuses the table where a missing value does; a quoted
        line break is such a line.
    schema : Schema
        Declares every column of the file.
    """
    check_type("schema", schema, Schema)
    parts: list[FloatArray] = []
    targets: list[FloatArray] = []
    names = [column.name for column in schema.columns]
    refuse = refuses_lines(schema)
    empty, lines = set(names), LineCounts()
    for chunk in read_chunks(path, names, delimiter=schema.delimiter, refuse_malformed=refuse, counts=lines):
        decoded = decode(chunk, schema)
        empty &= decoded.empty
        X, y = encode(decoded, schema)
        parts.append(X)
        if y is not None:
            targets.append(y)
    if sum(map(len, parts)) < MINIMUM_RECORDS:
        raise RecordError(too_few_records(schema, lines, empty if lines.records else ()))
    return Table(
        X=np.concatenate(parts) if len(parts) > 1 else parts[0],
        y=None if schema.target is None else np.concatenate(targets),
        schema=schema,
    )


def encode(decoded: DecodedChunk, schema: Schema) -> tuple[FloatArray, FloatArray | None]:
    """Return the features and targets of the records of a chunk that lack no value that they need.

    **Privacy.** Reads records, each by itself, and returns them encoded.
    """
    X = np.zeros((int(np.count_nonzero(decoded.keep)), len(schema.feature_names)))
    y: FloatArray | None = None
    position = 0
    for column, values in decoded.kept():
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
