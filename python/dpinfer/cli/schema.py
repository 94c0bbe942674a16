"""``dpinfer schema``: a schema from a file's header; every number, category and spelling is asked of the person."""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpinfer._sinks import printable
from dpinfer.cli.arguments import EXIT_DONE, CommandError, UsageError
from dpinfer.errors import SchemaError
from dpinfer.release.files import write_atomically
from dpinfer.tabular import SchemaDraft
from dpinfer.tabular.columns import CategoricalColumn, Column, ContinuousColumn, column_from_dict
from dpinfer.tabular.header import blank_schema, read_kinds
from dpinfer.tabular.schema import toml_text

_NOTICE = (
    "Names of columns are read from the file, and no values. Answer from a codebook or a questionnaire, never from the "
    "records: a bound or a category that is found in the records says something about them, which no guarantee covers."
)
_KINDS = ("continuous", "categorical", "binary", "target", "ignore")
# Key of the declaration and question; an empty answer leaves the key out.
_QUESTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "continuous": (
        ("bounds", "lowest and highest value that there can be (two numbers; empty if nobody knows)"),
        ("mean, sd", "mean, or mean and standard deviation, where they are public (empty if not)"),
    ),
    "categorical": (
        ("categories", "categories, separated by commas (empty if nobody knows)"),
        ("reference", "base level (empty for none of its own: a formula takes the first)"),
        ("other", "category that stands for all other values (empty: such a value stops the run)"),
    ),
    "binary": (("positive", "spellings of yes, separated by commas"), ("negative", "spellings of no")),
    "target": (("positive", "spellings of yes, separated by commas"), ("negative", "spellings of no")),
    "ignore": (),
}


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "schema",
        help="write a schema from a file's header, with what you know of its columns",
        description="Read the names of a file's columns (of a Parquet file their types, too), ask what is public about "
        "each, and write a schema. No value of a record is read. Facts that nobody knows are left out: 'dpinfer fit "
        "--unknown bounds categories' releases them first, with noise.",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a CSV file (also .gz) with a header line, or a Parquet file")
    add("--out", type=Path, default=Path("schema.toml"), metavar="SCHEMA.toml", help="default: %(default)s")
    add("--blank", action="store_true", help="ask nothing: write a file with a gap for each fact, to fill in")
    add("--delimiter", metavar="C", help="of a CSV file; by default the one that gives most names")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the header, ask, and write."""
    if args.delimiter is not None and len(args.delimiter) != 1:
        raise UsageError("--delimiter must be one character")
    if args.out.exists():
        raise UsageError("--out must be a new file, and there is one of this name")
    kinds, delimiter = read_kinds(args.file, delimiter=args.delimiter)
    _say(_NOTICE)
    if args.blank:
        text, told = blank_schema(kinds, delimiter), "Fill in its gaps: until then every command refuses it."
    else:
        document = _asked(kinds, delimiter)
        text, told = toml_text(document), _what_next(SchemaDraft(document))
    _write(args.out, text)
    _say(f"written: {args.out}. {told}")
    return EXIT_DONE


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise CommandError(f"--out could not be written: {error.strerror}") from error


def _asked(kinds: Mapping[str, str], delimiter: str) -> dict[str, Any]:
    """Return a schema's tables, as the person answers."""
    columns: dict[str, Any] = {}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        _say("")
        _say(f"{printable(name)}  ({number} of {len(kinds)})")
        columns[name] = _declared(name, kind)
    document = {"table": {"delimiter": delimiter}, "columns": columns}
    SchemaDraft(document)
    return document


def _declared(name: str, kind: str) -> dict[str, Any]:
    """Ask until the answers are a column's declaration."""
    while True:
        usual = kind or "ignore"
        chosen = _answer(f"kind: {', '.join(_KINDS)}, or its first letters (empty: {usual})") or usual
        matching = [own for own in _KINDS if own.startswith(chosen.lower())]
        if len(matching) != 1:
            _say(f"  must be one of {', '.join(_KINDS)}, or how one of them begins")
            continue
        values: dict[str, Any] = {"kind": matching[0]}
        try:
            for key, question in _QUESTIONS[matching[0]]:
                values |= dict(_given(key, _answer(f"  {question}")))
            _check(name, values)
        except SchemaError as error:
            _say(f"  {error}")
            continue
        return values


def _given(key: str, answer: str) -> Iterator[tuple[str, Any]]:
    """Yield what an answer declares."""
    if not answer:
        return
    if key == "bounds":
        yield key, _numbers(answer, 2)
    elif key == "mean, sd":
        yield from zip(("mean", "sd"), _numbers(answer, 1), strict=False)
    elif key in ("reference", "other"):
        yield key, answer
    else:
        yield key, [part.strip() for part in answer.split(",") if part.strip()]


def _numbers(answer: str, least: int) -> list[float]:
    parts = [part for part in re.split(r"[\s,;]+|\bto\b", answer) if part]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not least <= len(numbers) <= 2:
        raise SchemaError("must be two numbers, as in 0 120")
    return numbers


def _check(name: str, values: Mapping[str, Any]) -> Column:
    """Refuse a declaration that no schema takes; what nobody knows is filled in for the check."""
    filled = dict(values)
    if values["kind"] == ContinuousColumn.kind:
        filled.setdefault("bounds", [0.0, 1.0])
    if values["kind"] == CategoricalColumn.kind and "categories" not in values:
        filled["categories"] = [values["reference"]] if "reference" in values else ["a"]
    return column_from_dict(name, filled)


def _what_next(draft: SchemaDraft) -> str:
    unknown = [
        word for word, names in (("bounds", draft.unknown_bounds), ("categories", draft.unknown_categories)) if names
    ]
    if unknown:
        return f"Some facts are unknown: fit with --unknown {' '.join(unknown)}."
    return "'dpinfer check' shows the curator its effect on the file."


def _answer(question: str) -> str:
    sys.stdout.write(f"{question}: ")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise CommandError("the answers ended before the last column: nothing was written (--blank asks nothing)")
    return line.strip()


def _say(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
