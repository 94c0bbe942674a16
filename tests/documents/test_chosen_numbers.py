"""Chosen numbers are fields of a `tuning.py`; other numbers at the top of a module say what they follow from."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "dpinfer"
FOLDERS = (
    *("mechanism", "inference", "planning", "fitting", "models", "recipes", "methods"),
    *("auditing", "tables", "tabular"),
)
SOURCES = sorted(p for name in FOLDERS for p in (PACKAGE / name).rglob("*.py") if p.name != "tuning.py")
TUNINGS = sorted(PACKAGE.rglob("tuning.py"))
# What a comment names, by class: a number that was chosen has none of them, and goes to a `tuning.py`.
CLASSES = {
    "formula": r"formula|\w\.md\b|same page|Notes|docstring|sqrt|exp\(|e\*\*|degree|normal law|\(\D*\d{4}\b|as in",
    "format": r"bytes|characters|\bbits|generator|stream|format|marks|flag|lattice|indices",
    "tolerance": r"rounding|double|overflow|finite|division|precision|digit|error|grid|nodes|iterations|steps at most"
    r"|negligible|tolerance|floating|smooth|guard|wide\b",
    "memory and time": r"memory|\b[MG]i?B\b|cache|time\b|seconds|speed|at once|draws|made-up|simulated|threads?",
    "seed": r"seed|date\b|any number|arbitrary",
}
SCRIPTS = r"Scope|Responses|Warnings|People|Models|Curved|Recipe|Simulated|bench/\w+/\w+\.py|by hand|not tuned"
RANGE = r"(?<![\w.])-?[\d.e-]+(?: \d{3})*(?:%)? to (?:-?[\d.e-]+|all)|a million to a billion"


def constants(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each module constant that is written with numbers, and its comment."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        values = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if not names or not numbers or not all(name.lstrip("_").isupper() for name in names):
            continue
        yield ", ".join(names), comment(lines, node)


def comment(lines: list[str], node: ast.stmt) -> str:
    """Return the comment beside a statement, and those directly above it."""
    above = node.lineno - 2
    while above >= 0 and lines[above].strip().startswith("#"):
        above -= 1
    beside = re.findall(r"#.*", lines[(node.end_lineno or node.lineno) - 1])
    return " ".join([*(line.strip() for line in lines[above + 1 : node.lineno - 1]), *beside])


def fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield each field of the classes, and its comment: its own, or the last one that begins with its name."""
    lines = text.splitlines()
    for each in ast.parse(text).body:
        for node in each.body if isinstance(each, ast.ClassDef) else []:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, own = node.target.id, comment(lines, node)
                shared = [
                    match[0]
                    for match in re.finditer(r"(?:^ +#.*\n)+", text, re.MULTILINE)
                    if name in re.findall(r"\w+", match[0].partition(":")[0])
                ]
                yield f"{each.name}.{name}", own or " ".join("".join(shared[-1:]).split())


def unexplained(text: str) -> list[str]:
    """Return the constants whose comment names no class."""
    known = "|".join(CLASSES.values())
    return [name for name, said in constants(text) if not re.search(known, said)]


def unfounded(text: str) -> list[str]:
    """Return the fields without a range or without a script."""
    return [
        name
        for name, said in fields(text)
        if not re.search(SCRIPTS, said.replace(" # ", " ")) or not re.search(RANGE, said.replace(" # ", " "))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_number_at_the_top_of_a_module_says_what_it_follows_from(path: Path) -> None:
    assert unexplained(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", TUNINGS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_chosen_number_has_a_range_and_a_script(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(fields(text))
    assert unfounded(text) == []


def test_the_checks_see_faults() -> None:
    assert unexplained("_SHARE = 0.3  # of the budget\n") == ["_SHARE"]
    assert unexplained("_SHARE = 0.3\n") == ["_SHARE"]
    assert unexplained("# Chosen by hand.\n_LOW, _HIGH = 0.1, 0.9\n") == ["_LOW, _HIGH"]
    assert unexplained("_BLOCK = 4096  # rows at once\n_TINY = 1e-300  # avoids division by zero\n") == []
    written = "class Tuning:\n    # a, b: shares; 0.1 to 0.5; Scope\n    a: float = 0.2\n    b: float = 0.3\n"
    assert unfounded(written) == []
    assert unfounded(written + "    c: float = 0.3\n    d: float = 1.0  # a share; 0 to 1\n") == [
        "Tuning.c",
        "Tuning.d",
    ]
    assert unfounded(written + "    e: float = 1.0  # a share; Scope\n") == ["Tuning.e"]
