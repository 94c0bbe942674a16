"""Runs ask records for what they need, and do not test which kind of them they are."""

import ast
from pathlib import Path

import dpinfer
from dpinfer.mechanism import Records

PACKAGE = Path(dpinfer.__file__).parent
# Where an argument becomes records, is refused as such, or a block becomes what a kernel reads.
ALLOWED = {
    ("mechanism/records.py", "Records"),
    ("mechanism/sources/row_source.py", "Records"),
    ("mechanism/sources/shards.py", "RowSource"),
    ("mechanism/newton/contributions.py", "SparseFeatures"),
    ("mechanism/newton/pass_records.py", "SparseFeatures"),
    ("formulas/run.py", "Silos"),
}


def kinds(kind=Records):
    """Return the names of a kind of records and of all kinds below it."""
    return {kind.__name__}.union(*(kinds(below) for below in kind.__subclasses__()))


def type_tests(path):
    """Return the kinds of records that a module tests for, once for each test."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            found += [(path.relative_to(PACKAGE).as_posix(), name) for name in names & (kinds() | {"SparseFeatures"})]
    return found


def test_no_run_tests_the_type_of_its_records():
    assert {"HeldRows", "RowSource", "ShardedRows", "Silos", "CodedRows", "CudaRows"} <= kinds()
    found = [test for path in PACKAGE.rglob("*.py") for test in type_tests(path)]
    assert sorted(found) == sorted(ALLOWED)
