"""``dpinfer check``: the effect of a schema on a file, for the curator's eyes only."""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpinfer._sinks import aligned, printable, shortened, terminal_text
from dpinfer.cli.arguments import EXIT_DONE, EXIT_FAILED
from dpinfer.tabular import ColumnCheck, HeaderCheck, Schema, TableCheck, check_table
from dpinfer.tabular.checking import NOTICE
from dpinfer.tabular.columns import CategoricalColumn, ContinuousColumn
from dpinfer.tabular.decoding import SEE_CHECK

_FROM_PUBLIC_KNOWLEDGE = (
    "Change a bound, a category or a spelling only if the new one is public knowledge: a value taken from the "
    "records is itself a release, which no guarantee covers."
)
_SHOWN = 10  # values of a kind in the output


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "check",
        help="effect of a schema on a file, for the curator's eyes only",
        description="Count, without noise, the values of a file that 'dpinfer fit' would drop, clamp, map to 'other' "
        "or refuse: for the curator's eyes only, not to be published. Spends nothing and writes nothing. Exits "
        "with 0 if every record reaches the fit unchanged, with 1 if values are lost or refused.",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="the private records, with a header line")
    add(
        "--schema", type=Path, required=True, metavar="SCHEMA.toml", help="public bounds and categories of every column"
    )
    add(
        "--show-values",
        action="store_true",
        help="show values of records: undeclared labels, and texts in numeric columns",
    )
    add("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count and print."""
    schema = Schema.load(args.schema)
    result = check_table(args.file, schema)
    if args.json:
        text = json.dumps(result.to_dict(show_values=args.show_values), indent=1)
    else:
        text = "\n".join(_lines(result, schema, show_values=args.show_values))
    sys.stdout.write(terminal_text(text) + "\n")
    return EXIT_DONE if result.clean else EXIT_FAILED


def _lines(result: TableCheck, schema: Schema, *, show_values: bool) -> Iterator[str]:
    """Yield the report line by line; the first is its heading."""
    yield NOTICE
    yield ""
    if not result.header.fits:
        yield from _header(result.header, schema, show_values=show_values)
    else:
        yield from aligned([_HEADS, *map(_row, result.columns)])
        yield ""
        for item in result.columns:
            yield from _findings(item, show_values=show_values)
        yield from _totals(result)
    yield from textwrap.wrap(_verdict(result), 100)
    yield from (f"  - {refusal.removesuffix(f'; {SEE_CHECK}')}" for refusal in result.refusals)
    if not result.clean:
        yield from ("", *textwrap.wrap(_FROM_PUBLIC_KNOWLEDGE, 100))


def _header(header: HeaderCheck, schema: Schema, *, show_values: bool) -> Iterator[str]:
    yield f"header: {header.n_fields} {'name' if header.n_fields == 1 else 'names'}, separated by {schema.delimiter!r}"
    if header.fault is not None:
        yield f"  the first line is no header: {header.fault.value}"
    if header.is_header and "" in header.undeclared:
        yield "  a column without a name: an index that a data frame wrote?"
    if header.delimiter is not None:
        yield f"  separated by {header.delimiter!r} it fits the schema better: is this the delimiter?"
    if header.absent:
        yield f"  declared, and not in the file: {_names(header.absent)}"
    if header.undeclared and (header.is_header or show_values):
        yield f"  in the file, and not declared: {_names(header.undeclared)}"
    elif header.undeclared:
        yield f"  {len(header.undeclared)} not declared: is this a header, or the first record? (--show-values shows "
        "it)"
    for name, close in header.alike:
        yield f"  {name!r} is declared: the file has {close!r}"
    yield ""


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(repr(shortened(name)) for name in names)


_HEADS = ("column", "kind", "read", "missing", "no number", "below", "above", "undeclared")


def _row(item: ColumnCheck) -> tuple[str, ...]:
    number = isinstance(item.column, ContinuousColumn)
    counted = item.column.kind != "ignore"
    counts = (
        item.read,
        item.missing,
        item.not_numbers.total() if number else "-",
        item.below if number else "-",
        item.above if number else "-",
        item.undeclared if counted and not number else "-",
    )
    return (shortened(item.column.name), item.column.kind, *map(str, counts))


def _findings(item: ColumnCheck, *, show_values: bool) -> Iterator[str]:
    """Yield the values of a column that a fit would change, and their treatment."""
    column = item.column
    lines = [f"{item.missing} missing values: {_POLICIES[item.policy]}"] if item.missing else []
    for kind, count in item.not_numbers.most_common():
        shown = _values(item, kind.name.lower()) if show_values else ""
        lines.append(f"{count} with {kind.value}, which is not a number: {_POLICIES[item.policy]}{shown}")
    if isinstance(column, ContinuousColumn):
        low, high = column.bounds
        lines += [f"{item.below} below {low:g}: clamped to it"] if item.below else []
        lines += [f"{item.above} above {high:g}: clamped to it"] if item.above else []
    if item.undeclared:
        other = column.other if isinstance(column, CategoricalColumn) else None
        becomes = _REFUSED if other is None else f"counted as {other!r}"
        distinct = item.values["undeclared"]
        number = f"{len(distinct.counts)}{'' if distinct.complete else ' and more'} different"
        shown = _values(item, "undeclared") if show_values else ""
        lines.append(f"{item.undeclared} with an undeclared label ({number}): {becomes}{shown}")
        if item.looks_missing:
            lines.append(f"  {item.looks_missing} of them look like a missing value, such as NA: see missing_values")
    if lines:
        yield printable(shortened(column.name))
        yield from (f"  {text}" for text in lines)
        yield ""


_REFUSED = "the file is refused, unless the record is dropped anyway"
_POLICIES = {
    "drop": "the record is dropped",
    "refuse": "the file is refused",
    "other": "counted as the column's `other`",
}


def _values(item: ColumnCheck, name: str) -> str:
    counts = item.values[name].counts.most_common(_SHOWN)
    more = len(item.values[name].counts) > len(counts) or not item.values[name].complete
    listed = ", ".join(f"{value!r} ({count})" for value, count in counts)
    return f"\n    {listed}{', ...' if more else ''}"


def _totals(result: TableCheck) -> Iterator[str]:
    lines, records = result.lines, result.lines.records
    rows = [("lines that are no record", f"{lines.faults.total()}")]
    rows += [(f"  {fault.value}", str(count)) for fault, count in lines.faults.most_common()]
    rows += [("records", str(records))]
    share = f" ({result.dropped / records:.1%})" if records else ""
    rows += [("  dropped: a value or a number is missing", f"{result.dropped}{share}")]
    rows += [("  usable, were the file not refused" if result.refusals else "  usable", str(result.usable))]
    yield from aligned(rows)
    yield ""


def _verdict(result: TableCheck) -> str:
    if result.clean:
        return "Nothing is lost: every record reaches the fit unchanged."
    if not result.refusals:
        return "The file can be fitted, without the values listed above."
    when = "" if result.header.fits else ", before a charge"
    return f"'dpinfer fit' refuses the file{when}:"
