"""Signatures of at most twelve arguments, bodies of at most eighty lines."""

import ast
from pathlib import Path

import dpinfer as dpi

SOURCE = Path(dpi.__file__).parent
LONGEST_SIGNATURE, LONGEST_BODY = 12, 80


def too_long(source):
    """Return name, arguments and lines (docstring apart) of every function that has too many of either."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len(named) - (bool(named) and named[0].arg in ("self", "cls"))
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
        if count > LONGEST_SIGNATURE or lines > LONGEST_BODY:
            found.append((node.name, count, lines))
    return found


def test_functions_are_short():
    files = sorted(SOURCE.rglob("*.py"))
    assert {"baselines", "mechanism", "studies"} <= {path.parent.name for path in files}
    names = {path: path.relative_to(SOURCE).as_posix() for path in files}
    found = [(names[path], *each) for path in files for each in too_long(path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_count_sees_what_it_is_for():
    arguments = ", ".join(f"a{index}" for index in range(12))
    assert too_long(f"def f(self, {arguments}, **rest):\n    '''Text.'''\n") == []
    assert too_long(f"def f({arguments[:6]}, *, {arguments[6:].strip(', ')}, b):\n    return b\n") == [("f", 13, 1)]
    body = "    x = 1\n" * 80
    assert too_long(f"def f():\n    '''Text.'''\n{body}") == []
    assert too_long(f"async def f():\n{body}    return x\n") == [("f", 0, 81)]
