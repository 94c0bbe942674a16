"""Rows from files and queries, a block at a time: sources for runs over more records than memory holds.

**Privacy.** A source holds no record, and reads only the names of its columns before a run. A
reader's own errors may quote a file: they are replaced by ones that do not.
"""

import importlib
import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._validate import as_record_array, check_integer, quietly
from dpinfer._values import is_listed
from dpinfer.errors import BackendUnavailableError, RecordError
from dpinfer.mechanism.sources.array_blocks import (
    ArrayBlocks,
    Block,
    MappedBlocks,
    NpyBlocks,
    NpyFile,
    PathLike,
    is_mapped,
)
from dpinfer.mechanism.sources.read_ahead import ReadAhead, announce_file
from dpinfer.mechanism.sources.row_source import RowSource

Array = npt.NDArray[Any]
T = TypeVar("T")

_BLOCK_BYTES = 2**21  # a block stays in the processor's cache between its check and its sum
_BATCH_BLOCKS = 8  # pyarrow decodes so many at once: batches as small as a block take it half as long again
_MOST_GROUP_BYTES = 2**26  # larger row groups are read in parts, which takes more time where groups are not much larger
_LEAST_ROWS, _MOST_ROWS = 1024, 2**20  # blocks of about 2 MB, between these numbers of rows: speed only
_QUERIED_ROWS = 2**15  # rows of a query's batch: speed and memory only


def rows_of_arrays(
    X: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    unit: npt.ArrayLike | None = None,
    *,
    block_rows: int | None = None,
) -> RowSource:
    """Return arrays or memory maps as a source of rows.

    A memory map in C order is read in sequence, a block ahead of its sum, and its pages are given back to the system.

    **Privacy.** Reads no records until a run does.

    Raises ValueError if the arrays differ in length.

    Parameters
    ----------
    X : (N, n_features) or (N,) array
    y : (N,) array, optional
    unit : (N,) array of integers or strings, optional
        Sorted: for a run with ``unit=``.
    block_rows : int, optional
        Rows in a block; by default about 2 MB.
    """
    named = {name: item for name, item in (("X", X), ("y", y), ("unit", unit)) if item is not None}
    arrays = tuple(
        item if isinstance(item, np.ndarray) else as_record_array(name, item) for name, item in named.items()
    )
    if is_listed(X) and arrays[0].dtype == np.float32:
        arrays = (arrays[0].astype(np.float64), *arrays[1:])
    if any(array.ndim == 0 or len(array) != len(arrays[0]) for array in arrays):
        raise ValueError("X, y and unit must be arrays with an entry for each row")
    width = arrays[0].shape[1] if arrays[0].ndim == 2 else 1
    rows = _block_rows(block_rows, width)
    mapped = any(map(is_mapped, arrays))
    blocks = ReadAhead(MappedBlocks(arrays, rows)) if mapped else ArrayBlocks(arrays, rows)
    return RowSource(blocks, width, units=unit is not None)


def rows_of_npy(X: PathLike, y: PathLike | None = None, *, block_rows: int | None = None) -> RowSource:
    """Return the rows of ``.npy`` files, which are read in sequence and not mapped: memory holds one block.

    **Privacy.** Reads the files' headers with type and shape, and no records before a run.

    Raises OSError if a file cannot be read. Raises ValueError if it holds no such array.

    Parameters
    ----------
    X : path-like
        A file of ``numpy.save``: an array (N, n_features) or (N,) in C order.
    y : path-like, optional
        An array (N,).
    block_rows : int, optional
        Rows in a block; by default about 2 MB.
    """
    features, response = NpyFile.opened("X", X), None if y is None else NpyFile.opened("y", y)
    width = features.shape[1] if len(features.shape) == 2 else 1
    if response is not None and response.shape != features.shape[:1]:
        raise ValueError("y must be a file of one number for each row of X")
    return _of_files(RowSource(ReadAhead(NpyBlocks(features, response, _block_rows(block_rows, width))), width), X)


def rows_of_csv(
    path: PathLike, features: Sequence[str], response: str | None = None, *, delimiter: str = ","
) -> RowSource:
    """Return the rows of a CSV file of numbers, read in parallel with the sums.

    For tables with categories, bounds or missing values see :class:`dpinfer.tabular.Schema`.

    **Privacy.** Reads the header, and no records until a run does.  Lines are cut at their line feeds before anything
    in them is read: there are no quotes, and a carriage return inside of a line refuses the file, as does a line with
    another number of fields or with content that is not a number.

    Raises OSError if the file cannot be read. Raises ValueError if it lacks a column. Raises BackendUnavailableError
    without pyarrow: ``pip install 'dpinfer[parquet]'``.

    Parameters
    ----------
    path : path-like
        UTF-8 with a header line.
    features, response
        As of :func:`rows_of_parquet`.
    delimiter : str
    """
    _module("pyarrow.csv", "parquet")
    chosen = Columns.of(features, response)
    with Path(path).open(encoding="utf-8", errors="replace", newline="\n") as stream:
        header = [name.strip() for name in stream.readline().removeprefix("\ufeff").strip().split(delimiter)]
    chosen.check(header, public=False)
    batches = partial(_csv_batches, os.fspath(path), chosen.names, delimiter)
    return _of_files(chosen.source(ReadAhead(batches)), path)


def rows_of_parquet(
    path: PathLike | Sequence[PathLike], features: Sequence[str], response: str | None = None, unit: str | None = None
) -> RowSource:
    """Return the rows of Parquet files of numbers, a part of a row group at a time.

    **Privacy.** Reads the files' schemas, and no records until a run does.

    Raises OSError if a file cannot be read. Raises ValueError if one lacks a column. Raises BackendUnavailableError
    without pyarrow: ``pip install 'dpinfer[parquet]'``.

    Parameters
    ----------
    path : path-like or sequence of path-like
        Each file once, be it under another name or through a link: a record that is read twice counts twice.
    features : sequence of str
        Names of the columns of X, in the model's order.
    response : str, optional
        Name of the column of y.
    unit : str, optional
        Name of the column of units, by which the rows are sorted: for a run with ``unit=``.
    """
    chosen = Columns.of(features, response, unit)
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths:
        raise ValueError("path must name at least one file, got none")
    parquet = _module("pyarrow.parquet", "parquet")
    for item in paths:
        # For an error that names the file.
        Path(item).stat()
        header = _quietly(partial(parquet.read_schema, os.fspath(item))).names
        chosen.check(header)
    batches = partial(_parquet_batches, tuple(os.fspath(item) for item in paths), chosen.names)
    return _of_files(chosen.source(ReadAhead(batches)), *paths)


def rows_of_arrow(
    batches: Callable[[], Iterable[Any]], features: Sequence[str], response: str | None = None, unit: str | None = None
) -> RowSource:
    """Return the rows of Arrow record batches or tables: of a dataset, a Flight stream, another library.

    **Privacy.** Reads no records until a run does.

    Parameters
    ----------
    batches : callable
        Returns the batches of one pass, anew for every pass: objects with ``column(name)``, such as
        ``lambda: dataset.to_batches(columns=names)``.
    features, response, unit
        As of :func:`rows_of_parquet`.
    """
    if not callable(batches):
        raise TypeError(f"batches must be callable, and return the batches of a pass, got {type(batches).__name__}")
    return Columns.of(features, response, unit).source(batches)


def rows_of_duckdb(
    database: PathLike, query: str, features: Sequence[str], response: str | None = None, unit: str | None = None
) -> RowSource:
    """Return the rows of a query to a DuckDB database, which is repeated in every pass.

    The order in which DuckDB gives the rows does not matter to a sum over all of them; a run with a checkpoint, and
    one that samples, needs an ``ORDER BY``.

    **Privacy.** Asks for the names of the columns, and for no records until a run does.

    Raises ValueError if the result lacks a column. Raises RecordError if the database or the query cannot be used.
    Raises BackendUnavailableError without duckdb: ``pip install 'dpinfer[duckdb]'``.

    Parameters
    ----------
    database : path-like
        Opened read-only.  ``":memory:"`` is an empty one, from which a query can read files.
    query : str
        A SELECT.
    features, response, unit
        As of :func:`rows_of_parquet`.
    """
    _module("pyarrow", "duckdb")
    wanted, batches = Columns.of(features, response, unit), _DuckdbBatches(os.fspath(database), query)
    wanted.check(batches.names(), public=False)
    return wanted.source(ReadAhead(batches))


@dataclass(frozen=True)
class Columns:
    """Roles of the columns of a table."""

    features: tuple[str, ...]
    response: str | None
    unit: str | None

    @classmethod
    def of(cls, features: Sequence[str], response: str | None, unit: str | None = None) -> "Columns":
        """Return the roles, if they make sense; whether the table has the columns is :meth:`check`'s."""
        if isinstance(features, str) or not features:
            raise ValueError("features must be a sequence of the names of at least one column")
        if unit is not None and response is None:
            raise ValueError("unit must be None without a response")
        return cls(tuple(features), response, unit)

    @property
    def names(self) -> tuple[str, ...]:
        """Each column once."""
        others = (name for name in (self.response, self.unit) if name is not None)
        return tuple(dict.fromkeys((*self.features, *others)))

    def check(self, header: Sequence[str], *, public: bool = True) -> None:
        """Refuse names that no column has; which, only where the header is `public`, and no record of a text file."""
        absent = [name for name in self.names if name not in header]
        if absent and not public:
            raise ValueError(f"features, response and unit must all name columns, and {', '.join(self.names)} do not")
        if absent:
            raise ValueError(f"features, response and unit must name columns, and {', '.join(absent)} is none")

    def source(self, batches: Callable[[], Iterable[Any]]) -> RowSource:
        """Return the rows of Arrow batches."""
        return RowSource(_ColumnBlocks(batches, self), len(self.features), units=self.unit is not None)


def _of_files(source: RowSource, *paths: PathLike) -> RowSource:
    """Return a source that identifies its files by device and inode, not by name."""
    stats = [Path(path).stat() for path in paths]
    source.files = frozenset((item.st_dev, item.st_ino) for item in stats)
    if len(source.files) < len(stats):
        raise ValueError("path must name each file once: two of these are one file, whose records would count twice")
    return source


def _block_rows(block_rows: int | None, width: int) -> int:
    if block_rows is not None:
        return check_integer("block_rows", block_rows, 1)
    return min(max(_BLOCK_BYTES // (8 * max(width, 1)), _LEAST_ROWS), _MOST_ROWS)


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise BackendUnavailableError(f"this source needs {package}: pip install 'dpinfer[{extra}]'") from error


def _quietly(action: Callable[[], T]) -> T:
    return quietly(action, "X cannot be read from its source (the reason is withheld: it could quote a record)")


def _items(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of a foreign iterator, without its errors' texts."""
    end = object()
    while (item := _quietly(lambda: next(items, end))) is not end:
        yield item  # type: ignore[misc]


@dataclass(frozen=True)
class _ColumnBlocks:
    """Columns of batches as rows."""

    batches: Callable[[], Iterable[Any]]
    columns: Columns

    def __call__(self) -> Iterator[Block]:
        width = len(self.columns.features)
        size = _block_rows(None, width)
        # Blocks follow each other in one place: fresh memory costs as much as filling it.
        buffers = {kind: np.empty((size, width), kind) for kind in (np.float64, np.float32)}
        for batch in _items(iter(_quietly(self.batches))):
            for start in range(0, batch.num_rows, size):
                yield _quietly(partial(self._rows, batch.slice(start, size), buffers))

    def _rows(self, batch: Any, buffers: Mapping[Any, Array]) -> Block:
        wanted = self.columns
        columns = [_numbers(batch.column(name)) for name in wanted.features]
        single = all(column.dtype == np.float32 for column in columns)
        X = buffers[np.float32 if single else np.float64][: batch.num_rows]
        for index, column in enumerate(columns):
            X[:, index] = column
        if wanted.response is None:
            return X
        response = _numbers(batch.column(wanted.response))
        return (X, response) if wanted.unit is None else (X, response, _identities(batch.column(wanted.unit)))


def _numbers(column: Any) -> Array:
    """Return an Arrow column as numbers; a null is NaN, which a run refuses."""
    if str(column.type).startswith("decimal"):
        column = column.cast("float64")
    values = _array(column)
    if values.dtype.kind not in "fiub":
        raise TypeError("a column of no numbers")
    return values


def _identities(column: Any) -> Array:
    """Return an Arrow column of integers or strings, without nulls; a run checks each by itself."""
    if column.null_count:
        raise RecordError("unit must be known of every row, and is missing in at least one")
    values = _array(column)
    if values.dtype.kind != "O":
        return values
    names = np.empty(len(values), dtype=object)
    names[:] = [item if isinstance(item, (bytes, int)) else str(item) for item in values]
    return names


def _array(column: Any) -> Array:
    return np.asarray(column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False))


def _parquet_batches(paths: Sequence[str], columns: tuple[str, ...]) -> Generator[Any, None, None]:
    parquet = _module("pyarrow.parquet", "parquet")
    rows = _BATCH_BLOCKS * _block_rows(None, len(columns))
    for path in paths:
        layout = _quietly(partial(parquet.read_metadata, path))
        # Buffered ahead by pyarrow, a file would come to be in memory as a whole.
        options = {"pre_buffer": False, "buffer_size": _buffer_size(layout, len(columns)), "metadata": layout}
        with Path(path).open("rb") as stream, parquet.ParquetFile(path, **options) as file:
            ahead = _ParquetAhead(stream, layout, columns)
            ahead.announce(2 * rows)
            for group in range(layout.num_row_groups):
                for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=list(columns)):
                    ahead.announce(batch.num_rows)
                    yield batch


def _buffer_size(layout: Any, n_columns: int) -> int:
    """Return the bytes of a column to read at once: 0 for all of a row group."""
    groups = map(layout.row_group, range(layout.num_row_groups))
    if max((group.total_byte_size for group in groups), default=0) <= _MOST_GROUP_BYTES:
        return 0
    return min(max(_MOST_GROUP_BYTES // n_columns, 2**16), 2**20)


class _ParquetAhead:
    """Position of the next rows: each column's share of its row group."""

    def __init__(self, stream: Any, layout: Any, columns: Sequence[str]) -> None:
        self._stream, self._layout, self._columns = stream, layout, columns
        self._group = self._row = 0

    def announce(self, n_rows: int) -> None:
        """Announce so many rows more."""
        while n_rows > 0 and self._group < self._layout.num_row_groups:
            group = self._layout.row_group(self._group)
            end = min(self._row + n_rows, group.num_rows)
            for column in map(group.column, range(group.num_columns)):
                if column.path_in_schema in self._columns and end > self._row:
                    start = column.dictionary_page_offset or column.data_page_offset
                    first, last = (column.total_compressed_size * row // group.num_rows for row in (self._row, end))
                    announce_file(self._stream, start + first, last - first)
            n_rows -= end - self._row
            self._row = end
            if end == group.num_rows:
                self._group, self._row = self._group + 1, 0


def _csv_batches(path: str, columns: tuple[str, ...], delimiter: str) -> Generator[Any, None, None]:
    csv, arrow = _module("pyarrow.csv", "parquet"), _module("pyarrow", "parquet")
    parse = csv.ParseOptions(delimiter=delimiter, quote_char=False, newlines_in_values=False)
    kinds = csv.ConvertOptions(include_columns=list(columns), column_types=dict.fromkeys(columns, arrow.float64()))
    with _Lines(path) as stream, csv.open_csv(stream, parse_options=parse, convert_options=kinds) as reader:
        yield from reader


class _Lines(io.BufferedReader):
    """A file whose lines end at line feeds; pyarrow would end one at each carriage return too."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path))
        self._returned = False

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        inside = self._returned and data[:1] not in (b"", b"\n")
        self._returned = data.endswith(b"\r")
        if inside or b"\r" in data.removesuffix(b"\r").replace(b"\r\n", b""):
            raise RecordError("a line must be one record, and at least one has a carriage return inside")
        return data


@dataclass(frozen=True)
class _DuckdbBatches:
    database: str
    query: str

    def names(self) -> list[str]:
        with self._connected() as connection:
            return _quietly(lambda: list(connection.sql(self.query).columns))

    def __call__(self) -> Generator[Any, None, None]:
        with self._connected() as connection:
            rows = connection.sql(self.query)
            # Older versions have the second name.
            reader = getattr(rows, "to_arrow_reader", None) or rows.fetch_arrow_reader
            yield from reader(_QUERIED_ROWS)

    def _connected(self) -> Any:
        duckdb = _module("duckdb", "duckdb")
        return _quietly(lambda: duckdb.connect(self.database, read_only=self.database != ":memory:"))
