"""Escaping of names that users choose: one function for each kind of output that can interpret text.

Names of columns, categories, targets and data sets come from files of others.  They could move the cursor of a terminal
or reorder a line, start a formula in a picture, run one in a spreadsheet, or be markup in a page.
"""

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence

_LONGEST_LABEL = 60  # characters that fit in a column of a report or a legend
_FORMULA = "=+-@|%＝＋－＠"  # First characters of spreadsheet formulas, also in the full width of East Asian keyboards
_TAKEN = ("chain", "draw", "sample")  # names of dimensions and coordinates of the containers that ArviZ makes


def printable(text: object) -> str:
    """Return `text` on one line, with invisible characters written as escapes.

    Those are controls (an escape sequence begins with one), marks that change the direction of writing, line and
    paragraph separators, and halves of surrogate pairs.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in str(text)
    )


def terminal_text(text: str) -> str:
    """Return lines for a terminal: the line feeds stay, every line is :func:`printable`."""
    return "\n".join(printable(line) for line in text.split("\n"))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as indented lines for the terminal, each column as wide as its widest cell."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
    ]


def shortened(text: str, length: int = _LONGEST_LABEL) -> str:
    """Return `text`, or its beginning and an ellipsis where it is longer than `length`."""
    return text if len(text) <= length else text[: length - 1] + "…"


def picture_label(text: object) -> str:
    """Return a label that matplotlib shows literally: no formula between dollars, no hidden legend entry."""
    label = shortened(printable(text)).replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label


def csv_cell(text: object) -> str:
    """Return a cell of text that no spreadsheet computes: a text that looks like a formula gets a leading quote."""
    cell = printable(text)
    return f"'{cell}" if cell.lstrip().startswith(tuple(_FORMULA)) else cell


def html_text(text: object) -> str:
    """Return text without markup, for the content of an element or a quoted attribute."""
    return html.escape(terminal_text(str(text)), quote=True)


def toml_string(text: str) -> str:
    """Return a TOML basic string that reads back as `text` and shows every character."""
    # JSON strings are TOML basic strings except for characters that TOML, or an editor, does not show.
    return "".join(
        character if character.isprintable() else _toml_escape(character)
        for character in json.dumps(text, ensure_ascii=False)
    )


def _toml_escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def variable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return distinct names for variables of ArviZ's containers and the files that they are saved to.

    A slash would make a group, and some names are taken by dimensions.
    """
    made: list[str] = []
    for name in names:
        # netCDF compares names in normal form and wants no space at the end.
        base = unicodedata.normalize("NFC", printable(name)).replace("/", "∕").strip() or "parameter"
        base = f"{base}_" if base in _TAKEN or re.fullmatch(r"\.+", base) else base
        chosen, count = base, 1
        while chosen in made:
            count += 1
            chosen = f"{base}_{count}"
        made.append(chosen)
    return tuple(made)
