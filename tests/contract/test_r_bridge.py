"""What R asks of Python, without R: every answer is data, no error passes, and names are R's."""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import RecordError
from dpinfer.formulas.design import design

CANARY = "Zyx5551234"


@pytest.fixture(scope="module")
def bridge():
    folder = str(Path(__file__).parents[2] / "r" / "dpinfer" / "inst" / "python")
    sys.path.insert(0, folder)
    try:
        import dpinfer_bridge
    finally:
        sys.path.remove(folder)
    return dpinfer_bridge


@pytest.mark.parametrize(
    ("error", "kind", "shown"),
    [
        (KeyboardInterrupt(CANARY), "interrupted", False),
        (RuntimeError(CANARY), "failure", False),
        (MemoryError(CANARY), "failure", False),
        (KeyError(CANARY), "failure", False),
        (OSError(2, CANARY), "file", True),
        (ValueError("epsilon must be positive"), "argument", True),
        (RecordError("column 'x' lacks a value"), "record", True),
    ],
)
def test_no_error_passes_to_r(bridge, monkeypatch, error, kind, shown):
    """R would keep the traceback of one that does, and its frames hold the records."""

    def fail():
        error.add_note("the run stays charged")
        raise error

    monkeypatch.setitem(bridge.CALLS, "fail", fail)
    told, made = bridge.answer("fail", None, "{}")
    found = json.loads(told)
    assert (found["kind"], found["value"], made) == (kind, None, None)
    assert shown or CANARY not in told
    if kind in ("interrupted", "argument", "record"):
        assert found["message"].endswith("the run stays charged")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("y ~ x + g", ["(Intercept)", "x", "gb", "gc: d"]),
        ("y ~ I(x ** 2) + x", ["(Intercept)", "I(x^2)", "x"]),
        ("y ~ C(g):x + g + x", ["(Intercept)", "gb", "gc: d", "x", "factor(g)b:x", "factor(g)c: d:x"]),
        ("y ~ t + `a name` - 1", ["tFALSE", "tTRUE", "`a name`"]),
        ("y ~ poly(x, 2, raw=True)", ["(Intercept)", "poly(x, 2, raw = TRUE)1", "poly(x, 2, raw = TRUE)2"]),
        ("y ~ C(g, base='b') + log(z + 1)", None),
    ],
)
def test_words_are_those_of_r(bridge, formula, expected):
    pytest.importorskip("formulaic")
    from dpinfer_words import in_words_of_r, words_of

    columns = {name: {"kind": "continuous", "bounds": [1, 10]} for name in ("y", "x", "z", "a name")}
    columns |= {"g": {"kind": "categorical", "categories": ["a", "b", "c: d"]}}
    columns |= {"t": {"kind": "binary", "positive": "true", "negative": "false"}}
    found = design(formula, dpi.tabular.Schema.from_dict({"columns": columns}))
    names = [*found.names, *(["intercept"] if found.formula.intercept else [])]
    words = words_of(found, names)
    assert sorted(words) == sorted(names)
    if expected is None:
        expected = ["(Intercept)", 'relevel(g, ref = "b")a', 'relevel(g, ref = "b")c: d', "log(z + 1)"]
    assert list(words.values()) == expected
    text = "the noise hides " + ", ".join(names)
    assert "[T." not in in_words_of_r(text, words)


def test_whole_numbers_keep_their_digits_where_they_name_a_person(bridge):
    values = np.array([2**62 + 1, -1, np.iinfo("<i8").min], "<i8")
    found = bridge.Whole(base64.b64encode(values.tobytes()).decode())
    assert found.identities() == [2**62 + 1, -1, None]
    assert np.array_equal(found.numbers(), [2.0**62, -1.0, np.nan], equal_nan=True)
