"""Decoding of raw columns to numbers and categories by a public schema, for the reader and the check.

**Privacy.** Reads records, each on its own; returns them decoded.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._values import number_of, text_of
from dpinfer.errors import RecordError, SchemaError
from dpinfer.tabular.columns import BinaryColumn, CategoricalColumn, Column, ContinuousColumn, IgnoredColumn
from dpinfer.tabular.reading import LineCounts, RawColumn
from dpinfer.tabular.schema import Schema

BoolArray = npt.NDArray[np.bool_]

MINIMUM_RECORDS = 2  # fewer have no spread: formula
SEE_CHECK = "'dpinfer check' shows the curator the effect of the schema on the file"

_MISSING, _UNKNOWN = -1, -2  # marks in an array of indices, which are not negative


@dataclass(frozen=True, eq=False)
class DecodedColumn:
    """One column of a chunk."""

    column: Column
    policy: str  # {"drop", "refuse", "other"}
    markers: frozenset[str]  # markers of missing values, in the spelling of :func:`dpinfer._values.text_of`
    raw: RawColumn  # sequence of str or None, or (n,) float64
    # (n,) float64 or intp: numbers (NaN if missing), or indices of categories (negative if missing); the policy or
    # the column's `other` may map a missing value to a category
    values: FloatArray | npt.NDArray[np.intp]
    absent: BoolArray  # (n,) bool: whether there is no value, or no number
    unseen: BoolArray  # (n,) bool: whether there is a label that the schema does not declare

    @property
    def lost(self) -> BoolArray:
        """Where the policy lets the absence of a value take the record with it, (n,)."""
        return np.zeros_like(self.absent) if self.policy == "other" else self.absent

    @property
    def undeclared(self) -> BoolArray:
        """Where a record that is kept refuses the table, (n,)."""
        collected = isinstance(self.column, CategoricalColumn) and self.column.other is not None
        return np.zeros_like(self.unseen) if collected else self.unseen


@dataclass(frozen=True, eq=False)
class DecodedChunk:
    """The decoded columns of a chunk, and a mask (n,) of the records to keep."""

    columns: tuple[DecodedColumn, ...]
    keep: BoolArray

    @property
    def empty(self) -> set[str]:
        """Names of the columns without a value in any record."""
        return {item.column.name for item in self.columns if bool(item.absent.all())}

    def refuse_missing(self) -> None:
        """Raise RecordError if a value is missing where the policy is "refuse"."""
        for item in self.columns:
            if item.policy == "refuse" and bool(item.absent.any()):
                raise RecordError(lacking_value(item.column))

    def kept(self) -> Iterator[tuple[Column, FloatArray | npt.NDArray[np.intp]]]:
        """Yield each column with its values in the records to keep.

        Raises RecordError or SchemaError if a value is missing where the policy is "refuse", or in no declared
        category.
        """
        self.refuse_missing()
        for item in self.columns:
            # Checked on the kept records only: a record that is dropped anyway must not be able to stop the run.
            if bool(item.undeclared[self.keep].any()):
                raise SchemaError(undeclared_value(item.column))
            yield item.column, item.values[self.keep]


def decode(
    chunk: Mapping[str, RawColumn],  # raw columns by name, as :func:`dpinfer.tabular.reading.read_chunks` gives them
    schema: Schema,
    names: Collection[str] | None = None,  # columns to look at; by default all whose values matter
) -> DecodedChunk:
    """Return the columns of a chunk as the schema takes them; an ignored one only where its `missing` is declared.

    **Privacy.** Reads records, each by itself.
    """
    chosen = [item for item in looked_at(schema) if names is None or item[0] in names]
    columns = tuple(_decoded(column, policy, chunk[name], schema) for name, column, policy in chosen)
    keep = np.ones(len(next(iter(chunk.values()))), dtype=bool)
    for item in columns:
        keep &= ~item.lost
    return DecodedChunk(columns, keep)


def looked_at(schema: Schema) -> tuple[tuple[str, Column, str], ...]:
    """Return name, declaration and policy of missing values of each column whose values matter."""
    return tuple(
        (column.name, column, column.missing or schema.missing)
        for column in schema.columns
        if not isinstance(column, IgnoredColumn) or column.missing is not None
    )


def texts_of(raw: RawColumn) -> list[str | None]:
    """Return a raw column as texts of a CSV file; None for missing values."""
    return list(map(text_of, raw.tolist())) if isinstance(raw, np.ndarray) else list(raw)


def _decoded(column: Column, policy: str, raw: RawColumn, schema: Schema) -> DecodedColumn:
    spelled = map(text_of, (*schema.missing_values, *column.missing_values))
    markers = frozenset(marker for marker in spelled if marker is not None)
    values: FloatArray | npt.NDArray[np.intp]
    if isinstance(column, ContinuousColumn):
        values = _numbers(raw, markers)
        absent = np.isnan(values)
        return DecodedColumn(column, policy, markers, raw, values, absent, np.zeros_like(absent))
    values = _codes(raw, column, markers)
    absent, unseen = values == _MISSING, values == _UNKNOWN
    if isinstance(column, CategoricalColumn) and column.other is not None:
        other = column.categories.index(column.other)
        values[unseen] = other
        if policy == "other":
            values[absent] = other
    elif isinstance(column, IgnoredColumn):
        # Any content is a value.
        unseen = np.zeros_like(unseen)
    return DecodedColumn(column, policy, markers, raw, values, absent, unseen)


def _numbers(raw: RawColumn, markers: frozenset[str]) -> FloatArray:
    """Return the column as floats; NaN for other content."""
    numbers = raw.astype(np.float64) if isinstance(raw, np.ndarray) else np.array(_floats(raw))
    numbers[np.isin(numbers, [number_of(marker) for marker in markers])] = np.nan
    # Minus zero, which "-0" is among fractions and not among whole numbers, is zero.
    return numbers + 0.0


def _floats(raw: Sequence[Any]) -> list[float]:
    """Return number_of each text: what float() reads there, but for underscores."""
    with contextlib.suppress(TypeError, ValueError):
        if "_" not in "".join(raw):
            return list(map(float, raw))
    known = {text: number_of(text) for text in set(raw)}
    return list(map(known.__getitem__, raw))


def _codes(raw: RawColumn, column: Column, markers: frozenset[str]) -> npt.NDArray[np.intp]:
    """Return the index of each value's category; _MISSING and _UNKNOWN are negative."""
    code_of: dict[str | None, int] = {}
    if isinstance(column, CategoricalColumn):
        code_of = {text_of(category): index for index, category in enumerate(column.categories)}
    elif isinstance(column, BinaryColumn):
        code_of = dict.fromkeys(map(text_of, column.negative), 0) | dict.fromkeys(map(text_of, column.positive), 1)
    code_of = dict.fromkeys(markers, _MISSING) | code_of | {None: _MISSING}
    texts = texts_of(raw)
    codes = {text: code_of.get(text_of(text), _UNKNOWN) for text in set(texts)}
    return np.fromiter(map(codes.__getitem__, texts), np.intp, len(texts))


def refuses_lines(schema: Schema) -> bool:
    """Return whether a line that is no record refuses the table: it lacks every value."""
    return "refuse" in (schema.missing, *(column.missing for column in schema.columns))


def lacking_value(column: Column) -> str:
    """Return the error for a missing value under the policy "refuse"."""
    what = "a value" if not isinstance(column, ContinuousColumn) else "a value, or holds one that is no number,"
    return f"column {column.name!r} lacks {what} in at least one record, which its policy refuses; {SEE_CHECK}"


def undeclared_value(column: Column) -> str:
    """Return the error for an undeclared label in a complete record."""
    message = f"column {column.name!r} holds a value that the schema does not declare (it is not shown)"
    if isinstance(column, CategoricalColumn):
        return f"{message}; declare it, or declare columns.{column.name}.other to collect such values; {SEE_CHECK}"
    return f"{message}; declare its spelling in columns.{column.name}.positive or .negative; {SEE_CHECK}"


def too_few_records(schema: Schema, lines: LineCounts, empty: Collection[str]) -> str:
    """Return the error for a table that is too short, with the columns that are `empty` in every record."""
    clauses = [f"the table must hold at least {MINIMUM_RECORDS} usable records"]
    if lines.faults and not lines.records:
        clauses.append("no line below the header is a record: has each as many fields as the header?")
    numbers = [
        column.name for column in schema.columns if column.name in empty and isinstance(column, ContinuousColumn)
    ]
    labels = [column.name for column in schema.columns if column.name in empty and column.name not in numbers]
    if numbers:
        clauses.append(
            f"no value of {', '.join(map(repr, numbers))} is a number: is there text, a unit, or a decimal comma?"
        )
    if labels:
        clauses.append(f"no record has a value of {', '.join(map(repr, labels))}")
    return "; ".join([*clauses, SEE_CHECK])
