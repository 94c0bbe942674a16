"""Chunks of raw columns from CSV, gzipped CSV and Parquet files, with errors that never show what is in the file.

**Privacy.** Reads records.  Messages name the file and columns that the schema declares, and nothing that came out of
the file: not a value, a row number or a header (a file without a header would show a record there).  An error of the
standard library is not chained to ours, because its text and its attributes quote the offending bytes.
"""

import csv
import gzip
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer.errors import BackendUnavailableError, RecordError, SchemaError

__all__ = ["RawColumn", "read_chunks"]

CHUNK_ROWS = 65_536

RawColumn = Sequence[str] | npt.NDArray[np.float64]
T = TypeVar("T")


def read_chunks(
    path: str | os.PathLike[str], names: Sequence[str] | None, *, delimiter: str
) -> Iterator[dict[str, RawColumn]]:
    """Yield the file's records chunk by chunk as columns of strings (or of floats, from Parquet).

    Parameters
    ----------
    path : path-like
        A ``.parquet`` file, a CSV file, or a gzipped CSV file (``.gz``).
    names : sequence of str or None
        The columns the file must have, no more and no fewer, in any order; None takes whatever is there.
    delimiter : str

    Raises
    ------
    OSError
        If the file is missing or cannot be read.
    RecordError
        If it is not a well-formed table.
    SchemaError
        If its columns are not `names`.
    BackendUnavailableError
        If it is a Parquet file and pyarrow is not installed.
    """
    source = Path(path)
    chunks = _parquet_chunks(source) if source.suffix == ".parquet" else _csv_chunks(source, delimiter)
    with closing(chunks):
        header = list(next(chunks))
        if names is None:
            names = header
        _check_header(header, names)
        for chunk in chunks:
            yield {name: chunk[header.index(name)] for name in names}


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
    except (csv.Error, UnicodeDecodeError):
        problem = "the file is not a readable CSV table in UTF-8"
    except (gzip.BadGzipFile, EOFError, zlib.error):
        problem = "the file is not a complete gzip file"
    except errors:
        problem = "the file is not a readable Parquet table"
    # Raised outside the handler: otherwise the original error would travel along as __context__.
    raise RecordError(problem)


def _csv_chunks(path: Path, delimiter: str) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, delimiter=delimiter, skipinitialspace=True)
        header = [name.strip() for name in _guarded(lambda: next(rows, []))]
        yield header
        width = len(header)
        while chunk := _guarded(lambda: list(islice(rows, CHUNK_ROWS))):
            # A blank line, such as one at the end of a file, is no record.
            lengths = set(map(len, chunk))
            if lengths - {0, width}:
                raise RecordError("every line must have as many fields as the header; at least one has not")
            filled = [row for row in chunk if row] if 0 in lengths else chunk
            if filled:
                yield list(zip(*filled, strict=True))


def _parquet_chunks(path: Path) -> Generator[Any, None, None]:
    """Yield the header, then lists of columns; numbers stay numbers."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BackendUnavailableError("reading a Parquet file needs pyarrow: pip install 'dpinfer[parquet]'") from error
    errors = (pyarrow.ArrowException, pyarrow.ArrowInvalid)
    with path.open("rb") as stream:
        table = _guarded(lambda: pyarrow.parquet.ParquetFile(stream), errors)
        yield list(table.schema_arrow.names)
        batches = iter(table.iter_batches(batch_size=CHUNK_ROWS))
        while (batch := _guarded(lambda: next(batches, None), errors)) is not None:
            if batch.num_rows:
                yield [_parquet_column(column, pyarrow.types) for column in batch.columns]


def _parquet_column(column: Any, types: Any) -> RawColumn:
    if types.is_floating(column.type) or types.is_integer(column.type):
        # Nulls become NaN, the mark of a missing number.
        return np.asarray(column.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    return tuple("" if value is None else str(value) for value in column.to_pylist())
