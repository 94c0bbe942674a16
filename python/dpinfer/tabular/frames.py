"""Data frames, relations and mappings as raw columns, looked at when a run is charged.

**Privacy.** Names and types of columns are public.  Values are read when what is returned here is called.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpinfer._types import column_types, refuse_array_type, refuse_column_types
from dpinfer._validate import check_container, known_shape
from dpinfer._values import as_identities, as_values, identity_of, number_of, text_of
from dpinfer.errors import BackendUnavailableError, RecordError, SchemaError
from dpinfer.tabular.columns import numeric
from dpinfer.tabular.reading import RawColumn, check_header, read_chunks
from dpinfer.tabular.schema import Schema

_KINDS = "a data frame (pandas, Polars, Arrow, DuckDB), a mapping of columns, or the path of a CSV or Parquet file"


def raw_records(
    data: Any,
    schema: Schema,  # declares every column of a file
    names: Sequence[str],  # columns that are used
    unit: str = "",  # the column that names the owner of each row; empty where a row is a record
) -> Callable[[], Iterator[dict[str, RawColumn]]]:
    """Return what gives the raw columns of a table, a chunk at a time, when it is called.

    Names and types of columns are checked at once.

    **Privacy.** Reads no records until then.

    Raises TypeError, OSError, RecordError, SchemaError or BackendUnavailableError if it is not a table, or has not
    these columns.
    """
    if isinstance(data, (str, os.PathLike)):
        path, declared = data, [column.name for column in schema.columns]
        used = [column for column in schema.columns if column.name in names and column.name != unit]
        check_header(path, declared, delimiter=schema.delimiter, used=numeric(used) | dict.fromkeys([unit], False))
        refuse = "refuse" in (schema.missing, *(column.missing for column in used))
        return lambda: read_chunks(path, declared, delimiter=schema.delimiter, refuse_malformed=refuse, unit=unit)
    return raw_frame("data", data, list(names), unit, used=numeric(schema.columns))


def raw_frame(
    argument: str,
    data: Any,
    names: list[str],
    unit: str = "",
    *,
    used: Mapping[str, bool] | None = None,  # for each declared column, whether it must hold numbers
) -> Callable[[], Iterator[dict[str, RawColumn]]]:
    """Return a function that returns the raw columns of a data frame; names and types are checked at once."""
    used = {name: name != unit and (used or {}).get(name, False) for name in names}
    if isinstance(data, Mapping):
        _check_names(argument, list(data), names)
        if type(data) is dict:
            # Other mappings may read records to give a column.
            _check_shapes(argument, data, names)
            for name in names:
                refuse_array_type(f"{argument}[{name!r}]", data[name], numbers=used[name])
        return lambda: _mapping_chunks(argument, data, names, unit)
    try:
        import narwhals as nw
    except ImportError as error:
        raise BackendUnavailableError("data frames need narwhals: pip install 'dpinfer[formula]'") from error
    known = list(column_types(data))
    if known and known[0][0] is not None:
        _check_names(argument, [name for name, _ in known], names)
    try:
        frame: Any = nw.from_native(data)
        present = list(frame.collect_schema().names())
    except TypeError as error:
        raise TypeError(f"{argument} must be {_KINDS}, got {type(data).__name__}") from error
    _check_names(argument, present, names)
    refuse_column_types(argument, known, used)
    return lambda: _frame_chunks(frame, names, nw, unit)


def _check_names(argument: str, present: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse a table with a name twice, or without one of `names`."""
    twice = [name for name, count in Counter(present).items() if count > 1]
    if twice:
        raise SchemaError(f"{argument} must have columns of distinct names, and two are called {str(twice[0])!r}")
    absent = [name for name in names if name not in present]
    if absent:
        said = f"{argument} must have the column {absent[0]!r}, and has not"
        if any(isinstance(name, tuple) for name in present):
            said += ": its columns have names of several levels; give each one text"
        elif absent[0] in map(str, present):
            said += ": its columns are called by numbers; of a data frame: data.columns = data.columns.astype(str)"
        raise SchemaError(said)


def _check_shapes(argument: str, data: Mapping[str, Any], names: list[str]) -> None:
    """Refuse columns with different declared shapes; no record is read."""
    for name in names:
        check_container(f"{argument}[{name!r}]", data[name])
    shapes = {name: shape for name in names if (shape := known_shape(data[name])) is not None}
    for name, shape in shapes.items():
        if len(shape) != 1:
            raise RecordError(f"{argument}[{name!r}] must be one-dimensional, got {len(shape)} dimensions")
    if len(set(shapes.values())) > 1:
        raise RecordError(f"{argument} must have columns of one dimension and of equal length")


def _mapping_chunks(
    argument: str, data: Mapping[str, Any], names: list[str], unit: str = ""
) -> Iterator[dict[str, RawColumn]]:
    columns: dict[str, RawColumn] = {
        name: (as_identities if name == unit else as_values)(f"{argument}[{name!r}]", data[name]) for name in names
    }
    if len(set(map(len, columns.values()))) > 1:
        raise RecordError(f"{argument} must have columns of one dimension and of equal length")
    yield columns


def _frame_chunks(frame: Any, names: list[str], nw: Any, unit: str = "") -> Iterator[dict[str, RawColumn]]:
    problem = None
    try:
        selected = frame.select(names)
        if isinstance(selected, nw.LazyFrame):
            selected = selected.collect()
        chunk = {
            name: _series(selected[name], nw) if name != unit else tuple(map(identity_of, selected[name].to_list()))
            for name in names
        }
    except Exception as error:
        problem = type(error).__name__
    if problem is not None:
        # Raised outside the handler: the text of the original may quote a record, and would travel along.
        raise RecordError(f"data could not be read ({problem}, whose text is withheld: it could quote a record)")
    yield chunk


def _series(series: Any, nw: Any) -> RawColumn:
    if series.dtype.is_numeric():
        # Not every library casts numbers with more digits than a float.
        with contextlib.suppress(Exception):
            values = series.cast(nw.Float64).to_numpy()
            if values.dtype.kind == "f":
                return np.asarray(values, dtype=np.float64)
        return np.array(list(map(number_of, series.to_list())), dtype=np.float64)
    return tuple(map(text_of, series.to_list()))
