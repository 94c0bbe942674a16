"""Chunks of raw columns from CSV, gzipped CSV and Parquet files, each record read by itself.

**Privacy.** Reads records.  What is read of one record depends on no other: a CSV file is cut at its line feeds before
anything in it is interpreted, so that no quote, byte or length of one line reaches another line.  Messages name the
file and columns that the schema declares, and nothing that came out of the file: not a value, a row number or a header
(a file without a header would show a record there).  An error of the standard library is not chained to ours, because
its text and its attributes quote the offending bytes.
"""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer.errors import BackendUnavailableError, RecordError, SchemaError

__all__ = ["RawColumn", "check_header", "read_chunks"]

CHUNK_ROWS = 65_536
LONGEST_LINE = 2**20

# None stands for a value that cannot be read.
RawColumn = Sequence[str | None] | npt.NDArray[np.float64]
T = TypeVar("T")

# Possessive: a line of quotes costs no more than any other.
_QUOTED = re.compile(r'"((?:[^"]++|"")*+)"')


def read_chunks(
    path: str | os.PathLike[str], names: Sequence[str] | None, *, delimiter: str, refuse_malformed: bool = False
) -> Iterator[dict[str, RawColumn]]:
    """Yield the file's records chunk by chunk as columns of strings (or of floats, from Parquet).

    Parameters
    ----------
    path : path-like
        A ``.parquet`` file, a CSV file, or a gzipped CSV file (``.gz``).
    names : sequence of str or None
        The columns the file must have, no more and no fewer, in any order; None takes whatever is there.
    delimiter : str
    refuse_malformed : bool
        Whether a line that is no record refuses the file; otherwise it is left out.

    Raises
    ------
    OSError
        If the file is missing or cannot be read.
    RecordError
        If it is not a table, or a line is no record and `refuse_malformed` is set.
    SchemaError
        If its columns are not `names`.
    BackendUnavailableError
        If it is a Parquet file and pyarrow is not installed.

    Notes
    -----
    A line ends at a line feed, and a carriage return before it belongs to the end.  It is a record if it is UTF-8 of at
    most 1 MiB without NUL or other carriage returns, has as many fields as the header, and quotes whole fields only
    (a quote inside is doubled).  An empty line is nothing.
    """
    chunks = _chunks(path, delimiter, refuse_malformed)
    with closing(chunks):
        header = list(next(chunks))
        if names is None:
            names = header
        _check_header(header, names)
        for chunk in chunks:
            yield {name: chunk[header.index(name)] for name in names}


def check_header(path: str | os.PathLike[str], names: Sequence[str] | None, *, delimiter: str) -> None:
    """Raise unless the file's header is what :func:`read_chunks` takes; no line but the first is looked at.

    **Privacy.** The header of a table is public.  Of a file without one, it looks at the first record, and refuses it
    whatever it holds.

    Parameters
    ----------
    path, names, delimiter
        As in :func:`read_chunks`.

    Raises
    ------
    OSError, RecordError, SchemaError, BackendUnavailableError
        As :func:`read_chunks`.
    """
    chunks = _chunks(path, delimiter, refuse_malformed=False)
    with closing(chunks):
        header = list(next(chunks))
        _check_header(header, header if names is None else names)


def _chunks(path: str | os.PathLike[str], delimiter: str, refuse_malformed: bool) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns."""
    source = Path(path)
    if source.suffix == ".parquet":
        return _parquet_chunks(source)
    return _csv_chunks(source, delimiter, refuse_malformed)


def _check_header(header: Sequence[Any], names: Sequence[str]) -> None:
    if not header or any(not isinstance(name, str) or not name for name in header):
        raise RecordError("the file's first line must be a header that names every column")
    if len(set(header)) != len(header):
        raise RecordError("the file's header names two columns alike")
    absent = [name for name in names if name not in header]
    if absent:
        raise SchemaError(
            f"the file's header lacks {', '.join(map(repr, absent))}, which the schema declares "
            f"(the file has {len(header)} columns, the schema {len(names)})"
        )
    extra = len(header) - len(names)
    if extra:
        raise SchemaError(
            f"the file has {extra} column{'s' * (extra > 1)} that the schema does not declare; "
            "declare each, with kind = 'ignore' if it is not to be used"
        )


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


def _csv_chunks(path: Path, delimiter: str, refuse_malformed: bool) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as stream:
        lines = _lines(stream)
        first = _guarded(lambda: next(lines, b""))
        header = _fields(None if first is None else first.removeprefix(b"\xef\xbb\xbf"), delimiter)
        yield [] if header is None else [name.strip() for name in header]
        width = 0 if header is None else len(header)
        while chunk := _guarded(lambda: list(islice(lines, CHUNK_ROWS))):
            rows = [row for line in chunk if (row := _fields(line, delimiter)) != []]
            records = [row for row in rows if row is not None and len(row) == width]
            if refuse_malformed and len(records) < len(rows):
                raise RecordError(
                    "at least one line is no record, which the policy 'refuse' refuses: it has another number of "
                    "fields than the header, a quote inside a field or one that is not closed on its line, is not "
                    "UTF-8, or is longer than 1 MiB"
                )
            if records:
                yield list(zip(*records, strict=True))


def _lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the lines without their line feeds; None for one that is too long."""
    while line := stream.readline(LONGEST_LINE + 1):
        if line.endswith(b"\n") or len(line) <= LONGEST_LINE:
            yield line.removesuffix(b"\n")
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(LONGEST_LINE)
        yield None


def _fields(line: bytes | None, delimiter: str) -> list[str] | None:
    """Return the fields of one line: none of an empty line, None where it is malformed."""
    if line is None:
        return None
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in text or "\r" in text:
        return None
    if delimiter == " ":
        # Columns of a file that is aligned with spaces have any number of them in between.
        text = text.strip(" ")
    if not text:
        return []
    if '"' in text:
        return _quoted_fields(text, delimiter)
    return text.split(delimiter) if delimiter != " " else [field for field in text.split(" ") if field]


def _quoted_fields(text: str, delimiter: str) -> list[str] | None:
    fields, at = [], 0
    while True:
        while text.startswith(" ", at):
            at += 1
        if text.startswith('"', at):
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                return None
            fields.append(quoted[1].replace('""', '"'))
            at = quoted.end()
            while delimiter != " " and text.startswith(" ", at):
                at += 1
            if at < len(text) and text[at] != delimiter:
                return None
        else:
            end = text.find(delimiter, at)
            end = len(text) if end < 0 else end
            if '"' in text[at:end]:
                return None
            fields.append(text[at:end])
            at = end
        if at >= len(text):
            return fields
        at += 1


def _parquet_chunks(path: Path) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns; numbers stay numbers."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BackendUnavailableError("reading a Parquet file needs pyarrow: pip install 'dpinfer[parquet]'") from error
    # pyarrow reports a damaged file as an OSError too.
    errors = (pyarrow.ArrowException, pyarrow.ArrowInvalid, OSError, ValueError)
    with path.open("rb") as stream:
        table = _guarded(lambda: pyarrow.parquet.ParquetFile(stream), errors)
        yield _guarded(lambda: list(table.schema_arrow.names), errors)
        batches = iter(table.iter_batches(batch_size=CHUNK_ROWS))
        while (batch := _guarded(lambda: next(batches, None), errors)) is not None:
            if batch.num_rows:
                yield _guarded(partial(_parquet_columns, batch, pyarrow.types), errors)


def _parquet_columns(batch: Any, types: Any) -> list[RawColumn]:
    return [_parquet_column(column, types) for column in batch.columns]


def _parquet_column(column: Any, types: Any) -> RawColumn:
    if types.is_floating(column.type) or types.is_integer(column.type):
        # Nulls become NaN, the mark of a missing number.
        return np.asarray(column.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    try:
        values = column.to_pylist()
    except (ValueError, ArithmeticError):
        # One value that Python cannot hold (a text that is not UTF-8, a date beyond its calendar) is missing by itself.
        values = [_value(item) for item in column]
    return tuple(None if value is None else str(value) for value in values)


def _value(item: Any) -> Any:
    try:
        return item.as_py()
    except (ValueError, ArithmeticError):
        return None
