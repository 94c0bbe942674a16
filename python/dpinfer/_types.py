"""Types of arrays and of columns: what no run takes is refused by its type, which is public, before a charge.

**Privacy.** Reads types and names of columns alone.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.errors import SchemaError

# Types as the libraries write them: NumPy, pandas, Polars, Arrow, DuckDB.
_MOMENT = re.compile(r"(date|time|duration|interval|period|month_day_nano)", re.IGNORECASE)
_COMPLEX = re.compile(r"complex|clongdouble", re.IGNORECASE)
_NESTED = re.compile(r"(?i:(large_|fixed_size_)?(list|array|struct|map|union|void)\b)|[A-Z][A-Z\d_ ]*(\(.*\))?\[\d*\]$")
_NUMBERS = re.compile(r"(u?int|float)\d+|half|double|float|bool(ean)?", re.IGNORECASE)


def refuse_array_type(name: str, value: Any, *, numbers: bool = True) -> None:
    """Refuse a masked array, and an array or data frame of complex or nested values; with `numbers`, also of moments.

    Raises TypeError; reads no record.
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise TypeError(
            f"{name} must not be a masked array, whose values under the mask would be used: give "
            "values.astype(float).filled(numpy.nan), where NaN is a missing value"
        )
    for column, text in column_types(value):
        problem = _problem(text, numbers=numbers)
        if problem:
            place = "" if column is None else f" in the column {column!r}"
            raise TypeError(f"{name} must not have {problem}{place}, got type {text}")


def refuse_column_types(
    argument: str,
    types: Iterable[tuple[Any, str]],
    used: Mapping[str, bool],  # for each column that is used, whether it must hold numbers
) -> None:
    """Refuse columns that no run takes: of complex or nested values, and of moments where numbers are declared.

    Raises SchemaError with the column's name; reads no record.
    """
    for column, text in types:
        problem = _problem(text, numbers=used[column]) if column in used else ""
        if problem:
            raise SchemaError(
                f"{argument} must not have {problem} in the column {column!r}, whose type is {text}: make numbers of "
                "them (days since a date, say), or labels"
            )


def is_number_type(text: str) -> bool:
    """Return whether a column of this type holds numbers, or nothing in the place of one."""
    return _NUMBERS.fullmatch(text) is not None


def is_frame(data: Any) -> bool:
    """Return whether this is a table whose columns have names and types; reads no record."""
    return any(name is not None for name, _ in column_types(data))


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return what NumPy makes of records; columns of numbers with gaps, or of several types, become floats.

    **Privacy.** Reads the records.  The type depends on the types of the columns, and not on their values.
    """
    of_pandas = type(values).__module__.startswith("pandas")
    kinds = {kind for _, kind in column_types(values)} if of_pandas else set()
    if kinds and all(map(is_number_type, kinds)) and not (len(kinds) == 1 and min(kinds).islower()):
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(values)


def column_types(data: Any) -> Iterator[tuple[Any, str]]:
    """Yield name and type of each column of a data frame, or (None, type) of an array or a series."""
    try:
        found = list(_types(data))
    except Exception:
        # A foreign object may lack any of this; its values are checked when they are read.
        found = []
    yield from found


def _types(data: Any) -> Iterator[tuple[Any, str]]:
    if type(data).__module__.startswith("narwhals"):
        data = data.to_native()
    if hasattr(data, "collect_schema"):
        yield from ((name, str(kind)) for name, kind in data.collect_schema().items())
    elif hasattr(getattr(data, "dtypes", None), "items"):
        yield from ((name, str(kind)) for name, kind in data.dtypes.items())
    elif isinstance(names := getattr(getattr(data, "schema", None), "names", None), list):
        yield from zip(names, map(str, data.schema.types), strict=True)
    elif isinstance(getattr(data, "columns", None), list) and hasattr(data, "types"):
        yield from zip(data.columns, map(str, data.types), strict=True)
    elif isinstance(dtype := getattr(data, "dtype", None), np.dtype) and dtype.names:
        yield None, "void"
    elif dtype is not None:
        yield None, str(dtype)
    elif type(data).__module__.startswith("pyarrow"):
        yield None, str(data.type)


def _problem(text: str, *, numbers: bool) -> str:
    """Return what is wrong with a type, in words; nothing where the column's values can be taken."""
    if _MOMENT.match(text):
        return "dates, times or durations" if numbers else ""
    if _COMPLEX.search(text):
        return "complex numbers"
    return "nested values" if _NESTED.match(text) else ""
