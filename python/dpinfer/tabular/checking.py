"""The effect of a schema on a file, counted for the curator before anything is spent; kinds of non-numbers.

**Privacy.** Not private: it reads records, and counts them without noise.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._sinks import shortened
from dpinfer._validate import check_type
from dpinfer._values import text_of
from dpinfer.errors import RecordError, SchemaError
from dpinfer.tabular.columns import Column, ContinuousColumn, numeric
from dpinfer.tabular.decoding import (
    MINIMUM_RECORDS,
    DecodedColumn,
    decode,
    lacking_value,
    looked_at,
    refuses_lines,
    texts_of,
    too_few_records,
    undeclared_value,
)
from dpinfer.tabular.reading import (
    MALFORMED_REFUSED,
    LineCounts,
    LineFault,
    check_header,
    first_line_fault,
    guess_delimiter,
    read_chunks,
    read_header,
)
from dpinfer.tabular.schema import Schema


class NotANumber(StrEnum):
    """Why a text is no number, for the curator."""

    MISSING_WORD = "a text that looks like a missing value"
    DECIMAL_COMMA = "a decimal comma"
    THOUSANDS = "a thousands separator"
    COMMA = "a comma before three digits, decimal or thousands"
    UNIT = "a number with a unit or a sign"
    TEXT = "text"


_MISSING_WORD = re.compile(r"|\?|--?|\.|#?n/?a|-?nan|null|none|nil|missing|unknown|#value!", re.IGNORECASE)
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_DECIMAL_COMMA = re.compile(rf"[+-]?\d*,\d+{_EXPONENT}|[+-]?\d{{1,3}}(?:[. '’_]\d{{3}})+,\d+")
# A point groups thousands only twice or more: once it is a decimal point, and a number.
_THOUSANDS = re.compile(
    r"[+-]?\d{1,3}(?:(?:,\d{3})+\.\d*|(?:,\d{3}){2,}|(?:[ '’]\d{3})+(?:\.\d*)?|(?:\.\d{3}){2,})"
    r"|[+-]?\d+(?:_\d+)+(?:\.\d*)?"
)
_COMMA = re.compile(r"[+-]?\d{1,3},\d{3}")
_NUMBER = rf"[+-]?\d+(?:[.,]\d+)*{_EXPONENT}"
_SIGN = r"[$€£¥<>≤≥=~≈±%°‰]"
_UNIT = re.compile(rf"(?:{_SIGN}{{1,2}}\s*)?{_NUMBER}\s*(?:[^\W\d_]|{_SIGN}).{{0,15}}|{_SIGN}{{1,2}}\s*{_NUMBER}")


def kind_of(text: str) -> NotANumber:
    """Return the kind of a text that ``float`` does not read, or reads as NaN, or that holds an underscore.

    Examples
    --------
    >>> [kind_of(text).name for text in ("3,14", "1,234,567", "12 mg", "n/a", "heavy")]
    ['DECIMAL_COMMA', 'THOUSANDS', 'UNIT', 'MISSING_WORD', 'TEXT']
    """
    # Spaces that do not break group thousands.
    plain = text.strip().replace("\u00a0", " ").replace("\u202f", " ").replace("\u2212", "-")
    for kind, pattern in (
        (NotANumber.MISSING_WORD, _MISSING_WORD),
        (NotANumber.COMMA, _COMMA),
        (NotANumber.DECIMAL_COMMA, _DECIMAL_COMMA),
        (NotANumber.THOUSANDS, _THOUSANDS),
        (NotANumber.UNIT, _UNIT),
    ):
        if pattern.fullmatch(plain):
            return kind
    return NotANumber.TEXT


NOTICE = (
    "NOT PRIVATE: this reads the private records and counts them without noise. For the curator's eyes only: do not "
    "publish it."
)
_DIFFERENT = 100  # distinct values that a check keeps: memory only


@dataclass
class ValueCounts:
    """How often each value occurs, of the first hundred different ones; long ones are shortened.

    **Privacy.** Holds values of records: for the curator's eyes only.
    """

    counts: Counter[str] = field(default_factory=Counter)
    complete: bool = True

    def add(self, value: str) -> None:
        """Count a value once more."""
        key = shortened(value)
        if key in self.counts or len(self.counts) < _DIFFERENT:
            self.counts[key] += 1
        else:
            self.complete = False

    def to_dict(self) -> dict[str, Any]:
        """Return the values, the most frequent first, and whether these are all."""
        return {"values": dict(self.counts.most_common()), "complete": self.complete}


@dataclass(kw_only=True)
class ColumnCheck:
    """The effect of a schema on one column; counts include all records, before any is dropped.

    **Privacy.** Counts of records without noise: for the curator's eyes only.

    Parameters
    ----------
    column : Column
    policy : {"drop", "refuse", "other"}
        Treatment of a record without a value.
    read : int
        Values that are taken: numbers, also those outside the bounds, and declared labels.
    missing : int
        Places without a value.
    below, above : int
        Numbers that are clamped to the lower and to the upper bound.
    not_numbers : Counter of NotANumber
        Texts where a number is declared, by kind; treated as missing.
    undeclared : int
        Labels in no declared category: they become the column's `other`, or refuse the table.
    refused : int
        Number of undeclared labels in complete records, in columns without an `other` category.
    looks_missing : int
        Undeclared labels that look like a missing value, such as NA.
    values : dict from str to ValueCounts
        The texts in `not_numbers` by the name of their kind, and under "undeclared" the labels.
    """

    column: Column
    policy: str
    read: int = 0
    missing: int = 0
    below: int = 0
    above: int = 0
    not_numbers: Counter[NotANumber] = field(default_factory=Counter)
    undeclared: int = 0
    refused: int = 0
    looks_missing: int = 0
    values: dict[str, ValueCounts] = field(default_factory=dict, repr=False)

    @property
    def lost(self) -> bool:
        """Whether a value is changed or lost before the fit."""
        dropped = self.missing > 0 and self.policy != "other"
        return dropped or bool(self.not_numbers or self.below or self.above or self.undeclared)

    def add(self, item: DecodedColumn, keep: npt.NDArray[np.bool_]) -> None:
        """Count a chunk of the column."""
        lacking, n_undeclared = int(np.count_nonzero(item.absent)), int(np.count_nonzero(item.unseen))
        self.read += len(item.absent) - lacking - n_undeclared
        self.missing += lacking
        if isinstance(item.column, ContinuousColumn):
            low, high = item.column.bounds
            self.below += int(np.count_nonzero(item.values < low))
            self.above += int(np.count_nonzero(item.values > high))
            self._add_not_numbers(item)
        if n_undeclared:
            self.undeclared += n_undeclared
            self.refused += int(np.count_nonzero(item.undeclared & keep))
            self._add_undeclared(item)

    def _add_not_numbers(self, item: DecodedColumn) -> None:
        # A missing number in a Parquet file has no text to describe.
        if isinstance(item.raw, np.ndarray):
            return
        for place in np.flatnonzero(item.absent).tolist():
            text = item.raw[place]
            if text is None or not text.strip() or text_of(text) in item.markers:
                continue
            kind = kind_of(text)
            self.missing -= 1
            self.not_numbers[kind] += 1
            self.values.setdefault(kind.name.lower(), ValueCounts()).add(text.strip())

    def _add_undeclared(self, item: DecodedColumn) -> None:
        texts = texts_of(item.raw)
        counts = self.values.setdefault("undeclared", ValueCounts())
        for place in np.flatnonzero(item.unseen).tolist():
            text = str(texts[place]).strip()
            self.looks_missing += kind_of(text) is NotANumber.MISSING_WORD
            counts.add(text)

    def to_dict(self, *, show_values: bool = False) -> dict[str, Any]:
        """Return the counts as plain data, with values of records only if asked."""
        result: dict[str, Any] = {
            "name": self.column.name,
            "kind": self.column.kind,
            "missing_policy": self.policy,
            "read": self.read,
            "missing": self.missing,
            "not_a_number": {kind.name.lower(): count for kind, count in self.not_numbers.items()},
            "below": self.below,
            "above": self.above,
            "undeclared": self.undeclared,
            "looks_missing": self.looks_missing,
        }
        if show_values:
            result["values"] = {name: counts.to_dict() for name, counts in self.values.items()}
        return result


@dataclass(frozen=True, kw_only=True)
class HeaderCheck:
    """A file's header beside the names that its schema declares.

    **Privacy.** `undeclared` is of the first record where a file has no header: for the curator's eyes only.

    Parameters
    ----------
    fits : bool
        Whether a fit takes it.
    n_fields : int
    fault : LineFault or None
        Why the first line holds no fields, if it does not.
    absent : tuple of str
        Declared, and not in the header.
    undeclared : tuple of str
        In the header, and not declared.
    alike : tuple of (str, str)
        An absent name, and an undeclared one that is nearly the same.
    is_header : bool
        Whether a declared name is in it, or one that differs in case, spaces and signs alone.
    delimiter : str or None
        Another delimiter than the schema's, at which the header fits the schema better.
    """

    fits: bool
    n_fields: int
    fault: LineFault | None
    absent: tuple[str, ...]
    undeclared: tuple[str, ...] = field(repr=False)
    alike: tuple[tuple[str, str], ...] = field(repr=False)
    is_header: bool
    delimiter: str | None

    def to_dict(self, *, show_values: bool = False) -> dict[str, Any]:
        """Return the results as plain data; undeclared names only of a header, or on request."""
        shown = show_values or self.is_header
        return {
            "fits": self.fits,
            "n_fields": self.n_fields,
            "fault": None if self.fault is None else self.fault.name.lower(),
            "absent": list(self.absent),
            "undeclared": list(self.undeclared) if shown else len(self.undeclared),
            "alike": [list(pair) for pair in self.alike] if shown else len(self.alike),
            "is_header": self.is_header,
            "delimiter": self.delimiter,
        }


@dataclass(frozen=True, kw_only=True)
class TableCheck:
    """The effect of a schema on a file.

    **Privacy.** Not private: exact counts of records, for the curator's eyes only.  Its repr shows none.

    Parameters
    ----------
    header : HeaderCheck
    lines : LineCounts
        The lines below the header; nothing was read where the header refuses the file.
    columns : tuple of ColumnCheck
        One entry for each column; empty if the header refuses the file.
    usable : int
        Records that reach the fit, if nothing refuses the table.
    refusals : tuple of str
        Each reason for which :func:`read_table` refuses the file: its message.
    """

    header: HeaderCheck
    lines: LineCounts
    columns: tuple[ColumnCheck, ...]
    usable: int
    refusals: tuple[str, ...]

    @property
    def dropped(self) -> int:
        """Records that are left out because they lack a value or a number."""
        return self.lines.records - self.usable

    @property
    def clean(self) -> bool:
        """Whether every record reaches the fit unchanged."""
        return not (self.refusals or self.lines.faults or self.dropped or any(item.lost for item in self.columns))

    def to_dict(self, *, show_values: bool = False) -> dict[str, Any]:
        """Return the findings as plain data, with `show_values` undeclared labels and texts that are no numbers."""
        return {
            "notice": NOTICE,
            "clean": self.clean,
            "refusals": list(self.refusals),
            "header": self.header.to_dict(show_values=show_values),
            "lines": {
                "empty": self.lines.empty,
                "no_record": {fault.name.lower(): count for fault, count in self.lines.faults.items()},
            },
            "records": self.lines.records,
            "dropped": self.dropped,
            "usable": self.usable,
            "columns": [item.to_dict(show_values=show_values) for item in self.columns],
        }

    def __repr__(self) -> str:
        return f"TableCheck({len(self.columns)} columns; exact counts of private records, not shown)"


def check_table(path: str | os.PathLike[str], schema: Schema) -> TableCheck:
    """Count the effect of a schema on a file: values that :func:`read_table` would drop, clamp, map or refuse.

    **Privacy.** Reads records and returns exact counts of them, without noise: for the curator's eyes only, before a
    private fit.  Spends nothing and writes nothing.  Bounds, categories and spellings that are changed because of these
    counts, and not from public knowledge, are themselves a release, which no guarantee covers.

    Raises RecordError if a gzip or Parquet file is damaged. Raises BackendUnavailableError if pyarrow is needed and
    absent.

    Parameters
    ----------
    path : path-like
        As for :func:`read_table`.  The file is read chunk by chunk.
    schema : Schema
    """
    check_type("schema", schema, Schema)
    names = [column.name for column in schema.columns]
    lines = LineCounts()
    try:
        check_header(path, names, delimiter=schema.delimiter, used=numeric(schema.columns))
    except (RecordError, SchemaError) as error:
        header = _header(path, schema, fits=False)
        return TableCheck(header=header, lines=lines, columns=(), usable=0, refusals=(str(error),))
    columns = {name: ColumnCheck(column=column, policy=policy) for name, column, policy in looked_at(schema)}
    usable, empty = 0, set(names)
    for chunk in read_chunks(path, names, delimiter=schema.delimiter, counts=lines):
        decoded = decode(chunk, schema)
        empty &= decoded.empty
        usable += int(np.count_nonzero(decoded.keep))
        for item in decoded.columns:
            columns[item.column.name].add(item, decoded.keep)
    checks = tuple(columns.values())
    return TableCheck(
        header=_header(path, schema, fits=True),
        lines=lines,
        columns=checks,
        usable=usable,
        refusals=_refusals(schema, lines, checks, usable, empty if lines.records else set()),
    )


def _refusals(
    schema: Schema, lines: LineCounts, columns: Sequence[ColumnCheck], usable: int, empty: set[str]
) -> tuple[str, ...]:
    """Return the reader's refusals of the file, in the reader's order."""
    refusals = [MALFORMED_REFUSED] if lines.faults and refuses_lines(schema) else []
    refusals += [
        lacking_value(item.column) for item in columns if item.policy == "refuse" and (item.missing or item.not_numbers)
    ]
    refusals += [undeclared_value(item.column) for item in columns if item.refused]
    if usable < MINIMUM_RECORDS:
        refusals.append(too_few_records(schema, lines, empty))
    return tuple(refusals)


def _header(path: str | os.PathLike[str], schema: Schema, *, fits: bool) -> HeaderCheck:
    names = [column.name for column in schema.columns]
    header = [str(name) for name in read_header(path, delimiter=schema.delimiter)]
    absent = tuple(name for name in names if name not in header)
    undeclared = tuple(name for name in header if name not in names)
    same = {_plain(name): name for name in undeclared}
    is_header = len(absent) < len(names) or any(_plain(name) in same for name in absent)
    # Of a first record, which may hold anything, nothing is alike.
    close = {name: get_close_matches(_plain(name), same, n=1, cutoff=0.8) for name in absent if is_header}
    guess = guess_delimiter(path, names, delimiter=schema.delimiter) if absent else None
    return HeaderCheck(
        fits=fits,
        n_fields=len(header),
        fault=None if header else first_line_fault(path, delimiter=schema.delimiter),
        absent=absent,
        undeclared=undeclared,
        alike=tuple((name, same[found[0]]) for name, found in close.items() if found),
        is_header=is_header,
        delimiter=None if guess is None else guess[0],
    )


def _plain(name: str) -> str:
    """Return a name without case, spaces and signs; as it is if nothing else is left."""
    return re.sub(r"[\W_]+", "", name.casefold()) or name
