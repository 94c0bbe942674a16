"""A table's header: the names of its columns, and the kinds that their types tell.

**Privacy.** Reads no value.  The names and types of columns are public.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpinfer.errors import RecordError
from dpinfer.tabular.reading import first_line_fault, is_parquet, parquet_types, read_header
from dpinfer.tabular.schema import toml_key, toml_value

_DIVIDERS = (",", ";", "\t", "|")
_NO_HEADER = "the file's first line must be a header that names every column once: "


def read_kinds(path: str | os.PathLike[str], *, delimiter: str | None = None) -> tuple[dict[str, str], str]:
    """Return the columns of a file and the delimiter; the kind that a column's type tells is empty in a CSV file.

    **Privacy.** Reads the first line of a CSV file, or the schema of a Parquet file.  Of a file without a header the
    names are its first record: for the curator's eyes only.

    Raises OSError, RecordError or BackendUnavailableError as :func:`dpinfer.tabular.read_table`.

    Parameters
    ----------
    path : path-like
    delimiter : str, optional
        Of a CSV file; by default the one of comma, semicolon, tab and bar that gives most names.
    """
    if is_parquet(path):
        types = parquet_types(Path(path))
        _check_names([name for name, _ in types])
        return {name: _kind_of(own) for name, own in types}, ","
    found = delimiter or max(_DIVIDERS, key=lambda divider: len(read_header(path, delimiter=divider)))
    fault = first_line_fault(path, delimiter=found)
    if fault is not None:
        raise RecordError(f"{_NO_HEADER}it is none, {fault.value}")
    names = read_header(path, delimiter=found)
    _check_names(names)
    return dict.fromkeys(names, ""), found


def _kind_of(own: str) -> str:
    """Return the kind of column that a type is for."""
    if re.match(r"u?int\d|halffloat|float|double|decimal", own):
        return "continuous"
    if own == "bool":
        return "binary"
    return "categorical" if re.match("(large_)?string|dictionary", own) else "ignore"


def _check_names(names: list[Any]) -> None:
    """Refuse a header that names no columns, without quoting it: it could be a record."""
    if not names:
        raise RecordError(f"{_NO_HEADER}the file is empty")
    if any(not isinstance(name, str) or not name for name in names):
        raise RecordError(f"{_NO_HEADER}one has no name, an index that a data frame wrote?")
    if len(set(names)) != len(names):
        raise RecordError(f"{_NO_HEADER}two are called alike")


def blank_schema(kinds: Mapping[str, str], delimiter: str) -> str:
    """Return the text of a schema to fill in: no reader takes it before every gap is filled from public knowledge.

    **Privacy.** Reads no records.
    """
    lines = [
        "# Fill in what is public, from a codebook or a questionnaire, never from the records.",
        "",
        "[table]",
        f"delimiter = {toml_value(delimiter)}",
    ]
    for name, kind in kinds.items():
        lines += ["", f"[columns.{toml_key(name)}]", *_GAPS[kind]]
    return "\n".join(lines) + "\n"


_GAPS = {
    "": ('kind = ""  # continuous, categorical, binary, target or ignore',),
    "continuous": ('kind = "continuous"', "bounds = []  # the lowest and the highest value that there can be"),
    "categorical": ('kind = "categorical"', "categories = []  # all that there can be, the base level first"),
    "binary": ('kind = "binary"', 'positive = "true"', 'negative = "false"'),
    "ignore": ('kind = "ignore"',),
}
