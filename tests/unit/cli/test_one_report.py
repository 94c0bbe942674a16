"""The reports of ``dpinfer demo``, ``dpinfer fit``, ``fit.report`` and ``regression.report``: one, from one place."""

import re

import numpy as np
import pytest
from tests.reference.cli_fits import arguments, call, regression_arguments

import dpinfer as dpi
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 2000
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "x1": {"kind": "continuous", "bounds": [0, 10], "label": "fixed <acidity>", "unit": "g"},
            "x2": {"kind": "categorical", "categories": ["a", "x1"], "label": "kind of wine", "missing": "refuse"},
            "x3": {"kind": "continuous", "bounds": [0, 1]},
            "y": {"kind": "continuous", "bounds": [0, 20], "label": "quality"},
        }
    }
)
HEADS = ["", "", "Mean", "Sd", "90% interval", "Records", "Privacy", "Prior"]
SECTIONS = ["Privacy guarantee", "Estimates", "Diagnostics", "The run", "Use it again"]


@pytest.fixture(scope="module")
def regression_page(tmp_path_factory):
    rng = np.random.default_rng(3)
    table = {"x1": rng.uniform(0, 10, N), "x2": rng.choice(["a", "x1"], N), "x3": rng.random(N)}
    table["y"] = np.clip(5 + table["x1"] + rng.normal(size=N), 0, 20)
    fit = dpi.regression(
        "y ~ x1 + C(x2) + x1:x3 + log1p(x1)", table, schema=SCHEMA, epsilon=1.0, delta=1e-6, n_records=N
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    fit.report(path)
    return path.read_text(encoding="utf-8")


def pages(place):
    """Return every other report."""
    assert call(arguments(place, "--approximation", "averaged")) == 0
    yield (place / "out" / "report.html").read_text(encoding="utf-8")
    assert call(regression_arguments(place, "--overwrite")) == 0
    yield (place / "out" / "report.html").read_text(encoding="utf-8")
    assert call(["posterior", str(place / "out" / "fit.release"), "--n-samples", "40", "--out", str(place / "a")]) == 0
    yield (place / "a" / "report.html").read_text(encoding="utf-8")
    assert call(["demo", "--out", str(place / "demo")]) == 0
    yield (place / "demo" / "report.html").read_text(encoding="utf-8")
    X = np.random.default_rng(0).normal(size=(N, 2))
    budget = {"epsilon": 1.0, "delta": 1e-6, "n_records": N}
    dpi.fit(dpi.models.LogisticRegression(2), X, (X[:, 0] > 0).astype(float), **budget).report(place / "fit.html")
    yield (place / "fit.html").read_text(encoding="utf-8")


def test_all_have_the_same_table_with_intervals_and_the_same_sections(place, regression_page):
    for page in (regression_page, *pages(place)):
        table = page.partition('<table class="estimates">')[2].partition("</table>")[0]
        heads = re.findall("<th>(.*?)</th>", table)
        assert [head for head in heads if head != "Reference"] == HEADS
        assert table.count('class="bars') >= 1
        assert page.count('<table class="estimates">') == 1
        found = re.findall("<h2>(.*?)</h2>", page)
        assert [name for name in found if name in SECTIONS] == SECTIONS


def test_columns_go_by_the_labels_of_the_schema(regression_page):
    table = regression_page.partition('<table class="estimates">')[2].partition("</table>")[0]
    names = re.findall('<td class="name">(.*?)</td>', table)
    assert names[:4] == [
        "fixed &lt;acidity&gt; <code>x1</code>",
        # The category is not the column of that name.
        "kind of wine[T.x1] <code>x2[T.x1]</code>",
        "log1p(fixed &lt;acidity&gt;) <code>log1p(x1)</code>",
        "fixed &lt;acidity&gt;:x3 <code>x1:x3</code>",
    ]
    assert "<h1>Linear regression of quality</h1>" in regression_page
    scaling = regression_page.partition("<h2>Scaling</h2>")[2].partition("</section>")[0]
    assert "fixed &lt;acidity&gt;" in scaling
    assert "quality (the response)" in scaling


def test_columns_do_not_repeat_a_sentence(regression_page):
    columns = regression_page.partition("<h2>Columns</h2>")[2].partition("</section>")[0]
    assert columns.count("A record without a value is dropped.") == 1
    assert columns.count("A record without a value is refused, with the file.") == 1


def test_bars_are_inside_of_their_axis_and_rows_of_other_units_have_none(regression_page):
    rows = re.findall('<td class="track">(.*?)</td>', regression_page)
    assert [bool(row) for row in rows] == [True] * 4 + [False] * 2
    for row in filter(None, rows):
        bars = re.findall(r"left:([0-9.]+)%;width:([0-9.]+)%", row)
        assert len(bars) == 2
        (left, width), (inner, narrow) = ([float(number) for number in bar] for bar in bars)
        assert 0.0 <= left <= inner
        assert inner + narrow <= left + width + 0.02 <= 100.04


def test_a_seeded_run_promises_nothing_here_either(tmp_path):
    X = np.random.default_rng(0).normal(size=(N, 2))
    budget = {"epsilon": 1.0, "delta": 1e-6, "n_records": N, "random_source": InsecureRNG(1)}
    dpi.fit(dpi.models.LogisticRegression(2), X, (X[:, 0] > 0).astype(float), **budget).report(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert 'class="guarantee none"' in page
    assert "In words:" not in page
