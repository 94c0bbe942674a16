"""How much there is to read: tokens, circles of imports, arguments, and files that a reader of one fit opens."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "dpinfer"
needs_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="what is tracked is known in a checkout")
# A second fit, as a first one also imports: private Newton for the population's coefficients, up to its posterior.
FIT = """
import sys
from pathlib import Path
import numpy as np
import dpinfer as dpi

package, entered = Path(dpi.__file__).parent, set()

def enter(frame, event, argument):
    path = Path(frame.f_code.co_filename)
    if event == "call" and package in path.parents:
        entered.add(path)

rng = np.random.default_rng(1)
X = rng.normal(size=(2000, 3))
y = X @ [0.5, 0.0, -1.0] + rng.normal(size=2000)
linear, logistic = dpi.models.LinearRegression(3), dpi.models.LogisticRegression(3)
for arguments in (linear, X, y, {"response_scale": 1.5}), (logistic, X, 0.0 + (y > 0.0), {}):
    for profile in (None, enter):
        entered.clear()
        sys.setprofile(profile)
        dpi.fit(*arguments[:3], epsilon=1.0, delta=1e-5, n_records=2000, **arguments[3])
        sys.setprofile(None)
    print(len(entered))
"""


LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}


def tracked(*patterns: str) -> list[Path]:
    """Return the tracked files of some patterns."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def tokens(path: Path) -> int:
    """Return the number of tokens to read in a file: neither docstrings, comments nor layout."""
    documented: set[int] = set()
    for node in ast.walk(parsed(path)):
        for item in node.body if isinstance(getattr(node, "body", None), list) else []:
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                documented |= set(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    words = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return sum(word.type not in LAYOUT and word.start[0] not in documented for word in words)


def imported(path: Path, known: dict[str, Path]) -> set[Path]:
    """Return the files that a file imports anywhere, also late, for types, and by a string that names a module."""
    names: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{item.name}" for item in node.names)]
        elif isinstance(node, ast.Import):
            names += [item.name for item in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("dpinfer."):
            names.append(node.value.split(":")[0])
    return {known[name] for name in names if name in known} - {path}


def in_circles(graph: dict[Path, set[Path]]) -> set[Path]:
    """Return the files that are reached from themselves."""
    found = set()
    for start in graph:
        seen: set[Path] = set()
        ahead = list(graph[start])
        while ahead:
            path = ahead.pop()
            if path not in seen:
                seen.add(path)
                ahead += graph[path]
        if start in seen:
            found.add(start)
    return found


def argument_counts(paths: list[Path]) -> dict[str, int]:
    """Return the number of arguments of each function that has over 10, with the fields of an ``Unpack``."""
    fields: dict[str, int] = {}
    bases: dict[str, list[str]] = {}
    functions: list[tuple[str, ast.FunctionDef]] = []
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                fields[node.name] = sum(isinstance(item, ast.AnnAssign) for item in node.body)
                bases[node.name] = [ast.unparse(base).split(".")[-1] for base in node.bases]
            elif isinstance(node, ast.FunctionDef):
                functions.append((f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}", node))

    def fields_of(name: str) -> int:
        return fields.get(name, 0) + sum(fields_of(base) for base in bases.get(name, []) if base in fields)

    counts = {}
    for name, node in functions:
        listed = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        rest = node.args.kwarg.annotation if node.args.kwarg else None
        unpacked = re.search(r"Unpack\[(\w+)\]", ast.unparse(rest)) if rest else None
        count = sum(item.arg not in ("self", "cls") for item in listed) + (fields_of(unpacked[1]) if unpacked else 0)
        if count > 10:
            counts[name] = count
    return counts


@needs_checkout
def test_the_core_and_the_laboratory_have_no_more_tokens_than_agreed():
    paths = tracked("python/dpinfer/*.py")
    laboratory = sum(tokens(path) for path in paths if PACKAGE / "lab" in path.parents)
    core = sum(tokens(path) for path in paths) - laboratory
    print(f"tokens: core {core}, laboratory {laboratory}")
    assert laboratory <= 75_000
    assert core <= 430_000


@needs_checkout
def test_imports_have_no_more_circles_than_agreed():
    known = {
        ".".join(path.with_suffix("").relative_to(PACKAGE.parent).parts): path
        for path in tracked("python/dpinfer/*.py")
        if path.name != "__init__.py"  # the face of a package names its modules, and depends on none
    }
    found = in_circles({path: imported(path, known) for path in known.values()})
    print("in circles:", *sorted(str(path.relative_to(PACKAGE)) for path in found))
    assert len(found) <= 36


@needs_checkout
def test_argument_lists_are_no_longer_than_agreed():
    counts = argument_counts([path for path in tracked("python/dpinfer/*.py") if PACKAGE / "lab" not in path.parents])
    print(
        "arguments:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    )
    assert max(counts.values()) <= 33
    assert sum(count > 12 for count in counts.values()) <= 14


def test_a_fit_enters_no_more_files_than_agreed():
    found = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    assert max(map(int, found.stdout.split())) <= 50
