"""Chunks of raw columns from CSV, gzipped CSV and Parquet files, each record read on its own.

**Privacy.** Reads records. The values of one record depend on no other: a CSV file is cut at its line feeds before
anything in it is interpreted, so that no quote, byte or length of one line reaches another line.  Messages name the
file and columns that the schema declares, and nothing that came out of the file: not a value, a row number or a header
(a file without a header would show a record there).  An error of the standard library is not chained to ours, because
its text and its attributes quote the offending bytes.
"""

import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._sinks import toml_string
from dpinfer._types import refuse_column_types
from dpinfer._values import identity_of, text_of
from dpinfer.errors import BackendUnavailableError, RecordError, SchemaError

CHUNK_ROWS = 65_536  # memory only
CHUNK_BYTES = 2**24  # memory only
LONGEST_LINE = 2**20  # bytes; longer lines are no record
MALFORMED_REFUSED = (
    "at least one line is no record, which the policy 'refuse' refuses: it has another number of fields than the "
    "header, a quote inside a field or one that is not closed on its line, is not UTF-8, or is longer than 1 MiB"
)
_BATCH_VALUES = 2**22  # Parquet: values of one batch; memory
_LISTED = 12  # names of an error
_DELIMITERS = (",", ";", "\t", "|", " ", ":")

# None marks an unreadable value.
RawColumn = Sequence[str | None] | npt.NDArray[np.float64]
T = TypeVar("T")

_QUOTED = re.compile(r'"((?:[^"]++|"")*+)"')  # Possessive: a line of quotes costs no more than any other


class LineFault(StrEnum):
    """Why a line of a CSV file is no record."""

    FEWER_FIELDS = "fewer fields than the header"
    MORE_FIELDS = "more fields than the header"
    QUOTE = "a quote inside a field, or one that is not closed on its line"
    ENCODING = "not UTF-8"
    CONTROL = "a NUL or a carriage return inside"
    TOO_LONG = "longer than 1 MiB"


@dataclass
class LineCounts:
    """Counts of the lines below the header; rows of a Parquet file are records.

    **Privacy.** Counts of records without noise: for the curator's eyes only.
    """

    records: int = 0
    empty: int = 0
    faults: Counter[LineFault] = field(default_factory=Counter)


def read_chunks(
    path: str | os.PathLike[str],  # a ``.parquet`` file, a CSV file, or a gzipped CSV file (``.gz``)
    # the columns the file must have, no more and no fewer, in any order; None accepts any columns
    names: Sequence[str] | None,
    *,
    delimiter: str,
    refuse_malformed: bool = False,  # whether a line that is no record refuses the file; otherwise it is left out
    counts: LineCounts | None = None,  # counts the lines as they are read
    unit: str = "",  # the column that names the owner of each row, if there is one: its whole numbers keep all digits
) -> Iterator[dict[str, RawColumn]]:
    """Yield the file's records chunk by chunk as columns of strings (or of floats, from Parquet).

    Raises OSError if the file is missing or cannot be read. Raises RecordError if it is not a table, or a line is no
    record and `refuse_malformed` is set. Raises SchemaError if its columns are not `names`. Raises
    BackendUnavailableError if it is a Parquet file and pyarrow is not installed.

    A line ends at a line feed, and a carriage return before it belongs to the end.  It is a record if it is UTF-8 of at
    most 1 MiB without NUL or other carriage returns, has as many fields as the header, and quotes whole fields only
    (a quote inside is doubled).  An empty line is nothing.  A chunk has at most 65 536 records, and ends with the line
    that makes it 16 MiB.
    """
    chunks = _chunks(path, delimiter, refuse_malformed, LineCounts() if counts is None else counts, unit)
    with closing(chunks):
        header = list(next(chunks))
        if names is None:
            names = header
        _check_header(path, header, names, delimiter)
        for chunk in chunks:
            yield {name: chunk[header.index(name)] for name in names}


def check_header(
    path: str | os.PathLike[str],
    names: Sequence[str] | None,
    *,
    delimiter: str,
    used: Mapping[str, bool] | None = None,  # for each column that is used, whether it must hold numbers
) -> None:
    """Raise unless :func:`read_chunks` accepts the file's header, and a Parquet file's types; reads only these.

    **Privacy.** The header of a table is public.  A file whose first line lacks a declared name is refused with one
    text for any content of that line: it may be the first record of a file without a header.

    Raises OSError, RecordError, SchemaError or BackendUnavailableError as :func:`read_chunks`.
    """
    header = read_header(path, delimiter=delimiter)
    _check_header(path, header, header if names is None else names, delimiter)
    if used and is_parquet(path):
        refuse_column_types("the file", parquet_types(Path(path)), used)


def read_header(path: str | os.PathLike[str], *, delimiter: str) -> list[Any]:
    """Return the names in the file's header unchanged; none if the first line cannot be a header.

    **Privacy.** For a file without a header, it returns the first record: for the curator's eyes only, until
    :func:`check_header` has found the names to be the schema's.

    Raises OSError, RecordError or BackendUnavailableError as :func:`read_chunks`, except for the header's content.
    """
    chunks = _chunks(path, delimiter, False, LineCounts())
    with closing(chunks):
        return list(next(chunks))


def first_line_fault(path: str | os.PathLike[str], *, delimiter: str) -> LineFault | None:
    """Return why the first line of a CSV file holds no fields, if it does not.

    **Privacy.** As :func:`read_header`, which raises the same OSError or RecordError.
    """
    fields = [] if is_parquet(path) else _fields(_first_line(Path(path)), delimiter)
    return fields if isinstance(fields, LineFault) else None


def guess_delimiter(
    path: str | os.PathLike[str], names: Sequence[str], *, delimiter: str
) -> tuple[str, tuple[str, ...]] | None:
    """Return a delimiter that fits the header better than the given one, with the resulting names, or None.

    More of the names is better; among equals, the right number of fields.

    **Privacy.** As :func:`read_header`, which raises the same OSError or RecordError.
    """
    if is_parquet(path):
        return None
    line = _first_line(Path(path))

    def found(divider: str) -> tuple[str, ...]:
        header = _header_names(line, divider)
        return tuple(name for name in names if name in header)

    def fit(divider: str) -> tuple[int, bool]:
        return len(found(divider)), len(_header_names(line, divider)) == len(names)

    best = max(_DELIMITERS, key=fit)
    return (best, found(best)) if fit(best) > fit(delimiter) else None


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Return whether the file's name is that of a Parquet file."""
    return Path(path).suffix == ".parquet"


def _chunks(
    path: str | os.PathLike[str], delimiter: str, refuse_malformed: bool, counts: LineCounts, unit: str = ""
) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns."""
    if is_parquet(path):
        return _parquet_chunks(Path(path), counts, unit)
    return _csv_chunks(Path(path), delimiter, refuse_malformed, counts)


def _check_header(path: str | os.PathLike[str], header: Sequence[Any], names: Sequence[str], delimiter: str) -> None:
    problem = _header_problem(header, names)
    if problem is None:
        return
    # A first line with all names is a header; the message reveals nothing of another one, which may be a record.
    guess = guess_delimiter(path, names, delimiter=delimiter)
    if guess is not None and len(guess[1]) == len(names):
        raise SchemaError(
            f"the file's header is separated by {guess[0]!r}, not by {delimiter!r}: declare "
            f"delimiter = {toml_string(guess[0])} in the schema's [table]"
        )
    written = _written_otherwise(path, names)
    if written:
        raise RecordError(f"the file must be a CSV file in UTF-8 whose lines end with line feeds, and {written}")
    raise problem


def _written_otherwise(path: str | os.PathLike[str], names: Sequence[str]) -> str:
    """Return how a file that begins with these names is written, if that hides them; empty for any other content."""
    if is_parquet(path):
        return ""
    with _opened(Path(path)) as stream:
        start = _guarded(lambda: stream.read(LONGEST_LINE))
    kinds = []
    line, end, after = start.partition(b"\r")
    if end and b"\n" not in line and after[:1] != b"\n":
        kinds.append(("its lines end with carriage returns: save it again with other line ends", line))
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if start.startswith(mark):
            line = re.split(r"[\r\n]", start[2:].decode(encoding, "ignore"), maxsplit=1)[0].encode(errors="ignore")
            kinds.append(('it is in UTF-16 ("Unicode text" of spreadsheets): save it as "CSV UTF-8"', line))
    for told, line in kinds:
        if any(set(names) <= set(_header_names(line, delimiter)) for delimiter in _DELIMITERS):
            return told
    return ""


def _header_problem(header: Sequence[Any], names: Sequence[str]) -> RecordError | SchemaError | None:
    if any(name not in header for name in names):
        listed = ", ".join(map(repr, names[:_LISTED])) + ", ..." * (len(names) > _LISTED)
        return SchemaError(
            f"the file's first line must be a header with each of the {len(names)} columns that the schema declares "
            f"({listed}), and is not: 'dpinfer check' shows the curator the missing names"
        )
    if not header or any(not isinstance(name, str) or not name for name in header):
        return RecordError("the file's first line must be a header that names every column")
    if len(set(header)) != len(header):
        return RecordError("the file's header names two columns alike")
    extra = len(header) - len(names)
    if extra:
        return SchemaError(
            f"the file has {extra} column{'s' * (extra > 1)} that the schema does not declare; "
            "declare each, with kind = 'ignore' if it is not to be used"
        )
    return None


def _guarded(action: Callable[[], T], errors: tuple[type[Exception], ...] = ()) -> T:
    """Return ``action()``; turn an error whose text may quote the file into one that does not."""
    try:
        return action()
    except (gzip.BadGzipFile, EOFError, zlib.error):
        problem = "the file is not a complete gzip file"
    except errors:
        problem = "the file is not a readable Parquet table"
    # Raised outside the handler: otherwise the original error would travel along as __context__.
    raise RecordError(problem)


def _csv_chunks(path: Path, delimiter: str, refuse_malformed: bool, counts: LineCounts) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns."""
    with _opened(path) as stream:
        lines = _lines(stream)
        header = _header_names(_guarded(lambda: next(lines, b"")), delimiter)
        yield header
        width = len(header)
        while chunk := _guarded(lambda: _some(lines)):
            records = []
            if (columns := _columns(chunk, delimiter, width)) is not None:
                counts.records += len(chunk)
                yield columns
                continue
            for line in chunk:
                row = _fields(line, delimiter)
                if isinstance(row, LineFault):
                    counts.faults[row] += 1
                elif not row:
                    counts.empty += 1
                elif len(row) != width:
                    counts.faults[LineFault.FEWER_FIELDS if len(row) < width else LineFault.MORE_FIELDS] += 1
                else:
                    records.append(row)
            counts.records += len(records)
            if refuse_malformed and counts.faults:
                raise RecordError(MALFORMED_REFUSED)
            if records:
                yield list(zip(*records, strict=True))


def _opened(path: Path) -> Any:
    return io.BufferedReader(gzip.open(path), CHUNK_ROWS) if path.suffix == ".gz" else path.open("rb")


def _first_line(path: Path) -> bytes | None:
    with _opened(path) as stream:
        lines = _lines(stream)
        return _guarded(lambda: next(lines, b""))


def _header_names(line: bytes | None, delimiter: str) -> list[str]:
    """Return the names in a first line; none if it is not a line of fields."""
    fields = _fields(None if line is None else line.removeprefix(b"\xef\xbb\xbf"), delimiter)
    return [] if isinstance(fields, LineFault) else [name.strip() for name in fields]


def _some(lines: Iterator[bytes | None]) -> list[bytes | None]:
    """Return the next lines, as many as one chunk takes."""
    taken, size = [], 0
    for line in islice(lines, CHUNK_ROWS):
        taken.append(line)
        size += len(line or b"")
        if size >= CHUNK_BYTES:
            break
    return taken


def _lines(stream: io.BufferedReader) -> Iterator[bytes | None]:
    """Yield the lines without their line feeds; None for one that is too long."""
    left, long = b"", False
    while block := stream.read1(io.DEFAULT_BUFFER_SIZE):
        *lines, left = (left + block).split(b"\n")
        for line in lines:
            yield None if long or len(line) > LONGEST_LINE else line
            long = False
        if len(left) > LONGEST_LINE:
            left, long = b"", True
    if left or long:
        yield None if long else left


def _columns(chunk: list[bytes | None], delimiter: str, width: int) -> list[list[str]] | None:
    """Return what :func:`_fields` finds in all lines, by column; None unless all are records without quotes."""
    try:
        text = b"\n".join([b"" if line is None else line for line in [*chunk, b""]]).decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.replace("\r\n", "\n")
    if delimiter == " " or width == 1 or any(mark in text for mark in '"\0\r'):
        return None
    if set(map(methodcaller("count", delimiter), text.split("\n")[:-1])) != {width - 1}:
        return None
    fields = text.replace("\n", delimiter).split(delimiter)
    return [fields[index:-1:width] for index in range(width)]


def _fields(line: bytes | None, delimiter: str) -> list[str] | LineFault:
    """Return the fields of one line: none for an empty line, the fault for a malformed one."""
    if line is None:
        return LineFault.TOO_LONG
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return LineFault.ENCODING
    if "\0" in text or "\r" in text:
        return LineFault.CONTROL
    if delimiter == " ":
        # Files aligned with spaces have any number of spaces between columns.
        text = text.strip(" ")
    if not text:
        return []
    if '"' in text:
        return _quoted_fields(text, delimiter)
    return text.split(delimiter) if delimiter != " " else [field for field in text.split(" ") if field]


def _quoted_fields(text: str, delimiter: str) -> list[str] | LineFault:
    fields, at = [], 0
    while True:
        while text.startswith(" ", at):
            at += 1
        if text.startswith('"', at):
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                return LineFault.QUOTE
            fields.append(quoted[1].replace('""', '"'))
            at = quoted.end()
            while delimiter != " " and text.startswith(" ", at):
                at += 1
            if at < len(text) and text[at] != delimiter:
                return LineFault.QUOTE
        else:
            end = text.find(delimiter, at)
            end = len(text) if end < 0 else end
            if '"' in text[at:end]:
                return LineFault.QUOTE
            fields.append(text[at:end])
            at = end
        if at >= len(text):
            return fields
        at += 1


@contextmanager
def _parquet_table(path: Path) -> Iterator[tuple[Any, tuple[type[Exception], ...], Any]]:
    """Open a file; give the table, the errors of a damaged one, and the library."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BackendUnavailableError("reading a Parquet file needs pyarrow: pip install 'dpinfer[parquet]'") from error
    # pyarrow reports a damaged file as an OSError too.
    errors = (pyarrow.ArrowException, pyarrow.ArrowInvalid, OSError, ValueError)
    with path.open("rb") as stream:
        yield _guarded(lambda: pyarrow.parquet.ParquetFile(stream), errors), errors, pyarrow


def parquet_types(path: Path) -> list[tuple[str, str]]:
    """Return name and type of each column."""
    with _parquet_table(path) as (table, errors, _):
        return _guarded(lambda: [(field.name, str(field.type)) for field in table.schema_arrow], errors)


def _parquet_chunks(path: Path, counts: LineCounts, unit: str) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns; numbers stay numbers."""
    with _parquet_table(path) as (table, errors, pyarrow):
        header = _guarded(lambda: list(table.schema_arrow.names), errors)
        yield header
        size = max(1, min(CHUNK_ROWS, _BATCH_VALUES // max(1, len(header))))
        batches = iter(table.iter_batches(batch_size=size))
        while (batch := _guarded(lambda: next(batches, None), errors)) is not None:
            counts.records += batch.num_rows
            if batch.num_rows:
                yield _guarded(partial(_parquet_columns, batch, pyarrow.types, unit), errors)


def _parquet_columns(batch: Any, types: Any, unit: str) -> list[RawColumn]:
    return [
        _parquet_column(column, types, identity_of if name == unit else text_of)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]


def _parquet_column(column: Any, types: Any, spelled: Callable[[Any], str | None]) -> RawColumn:
    if spelled is text_of and (types.is_floating(column.type) or types.is_integer(column.type)):
        # Nulls become NaN, the mark of a missing number.
        return np.asarray(column.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    try:
        values = column.to_pylist()
    except (ValueError, ArithmeticError):
        # One value that Python cannot hold (a text that is not UTF-8, a date beyond its calendar) is missing by itself.
        values = [_value(item) for item in column]
    return tuple(map(spelled, values))


def _value(item: Any) -> Any:
    try:
        return item.as_py()
    except (ValueError, ArithmeticError):
        return None
