"""Inputs that were once wrong at a budget without noise, and regressions that textbooks print."""

import csv
import gzip
import json
import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.testing import InsecureRNG
from tests.limit.oracles import exact
from tests.limit.tables import WIDTH, WITHIN, Table, compare, prior_in_units

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

TEXTBOOK = (
    "airbag", "bfi", "computers", "cps88-wage", "crime1", "default", "diamonds", "doctor-visits", "gpa2", "hours",
    "hsb", "islr-wage", "lending", "nlswork", "rand-visits", "resume", "rwm-docvis", "slid", "smokeban", "star",
    "trump", "twoyear", "wells",
)  # fmt: skip
# What is not right yet, and why. A table that comes right must leave the list.
RED = {"crime1": "one width is 13% too large: the passes of the run"}
LEVELS = {"g": {"kind": "categorical", "categories": ["a", "b"]}}
WON = {"won": {"kind": "binary", "positive": "1", "negative": "0"}}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", TEXTBOOK)
def test_a_textbook_regression_is_the_printed_one(name, data_dir):
    folder = data_dir / "textbook"
    if not folder.is_dir():
        pytest.skip("the textbooks' tables are not here")
    told = json.loads((folder / "tables.json").read_text())[name]
    kinds = told["schema"]["columns"]
    with gzip.open(folder / f"{name}.csv.gz", "rt") as file:
        head, *rows = csv.reader(file)
    columns = dict(zip(head, zip(*(row for row in rows if all(row)), strict=True), strict=True))
    data = {
        column: np.array(values, dtype=float if kinds[column]["kind"] == "continuous" else str)
        for column, values in columns.items()
    }
    fit = dpi.regression(
        told["formula"],
        data,
        schema=dpi.tabular.Schema.from_dict(told["schema"]),
        family=told["family"],
        epsilon=1e6,
        delta=1e-6,
        n_records=told["complete_rows"],
        random_source=InsecureRNG(1),
    )
    table, off = fit.coefficients(), []
    for place, own in enumerate(table.names):
        key = {"intercept": "Intercept"}.get(own, own if own in told["estimate"] else own.replace(" ** ", "**"))
        if key not in told["estimate"]:
            continue
        error = told["robust_se"][key]
        distance = abs(table.mean[place] - told["estimate"][key]) / error
        width = (table.high[place] - table.low[place]) / 3.2897 / error
        if distance > WITHIN or abs(width - 1.0) > WIDTH:
            off.append(f"{own}: {distance:.2f} se, width {width:.2f}")
    assert bool(off) == (name in RED), f"{off} {RED.get(name, '')}"


def interval_of(table, name):
    fit = table.fit()
    shift, precision = prior_in_units(fit)
    precision *= (fit.posterior.model.prior_scale / fit.design.prior_scale) ** 2  # the declared prior
    oracle = table.ordinary()
    order = [fit.design.model.names.index(own) for own in oracle.names]
    draws, worth = exact(oracle, table.family, table.response, shift[order], precision[np.ix_(order, order)])
    assert worth > 2000
    row = fit.coefficients()
    return row[name], row.remark(name), np.quantile(draws[:, oracle.names.index(name)], [0.05, 0.95])


@pytest.mark.parametrize("ones", [200, 360, 380, 396])
def test_a_level_of_few_events_is_the_ordinary_fit_or_the_exact_posterior(ones):
    g = np.r_[["a"] * 1600, ["b"] * 400]
    won = np.r_[np.random.default_rng(5).integers(0, 2, 1600), np.ones(ones, int), np.zeros(400 - ones, int)]
    table = Table("won ~ g", "binomial", LEVELS | WON, {"g": g, "won": won}, won.astype(float))
    (row,) = (row for row in compare(table, table.fit()) if row.name == "g[T.b]")
    assert row.close, str(row)


@pytest.mark.xfail(reason="4.9 to 6.5, unmarked: the posterior is normal where the likelihood is flat on one side")
def test_a_level_without_an_event_reaches_where_the_likelihood_is_flat():
    """400 ones of 400: the exact posterior is 5.0 to 8.4."""
    g = np.r_[["a"] * 1600, ["b"] * 400]
    won = np.r_[np.random.default_rng(5).integers(0, 2, 1600), np.ones(400, int)]
    table = Table("won ~ g", "binomial", LEVELS | WON, {"g": g, "won": won}, won.astype(float))
    found, remark, (low, high) = interval_of(table, "g[T.b]")
    assert remark or (abs(found["low"] - low) < 0.4 and abs(found["high"] - high) < 0.8), (found, low, high)


@pytest.mark.xfail(reason="0.6 posterior standard deviations from the exact posterior, unmarked")
def test_separation_is_marked_or_the_exact_posterior():
    won = np.tile([1, 1, 0, 0], 500)
    columns = {"x": {"kind": "continuous", "bounds": [0, 2]}} | WON
    data = {"x": np.tile([0.0, 0.0, 2.0, 1.0], 500), "won": won}
    found, remark, (low, high) = interval_of(Table("won ~ x", "binomial", columns, data, won.astype(float)), "x")
    assert remark or (abs(found["low"] - low) < 0.8 and abs(found["high"] - high) < 0.8), (found, low, high)


def test_few_counts_of_a_level():
    """22 events in 400 records, with and without a declared mean."""
    few = np.r_[np.random.default_rng(1).poisson(1.0, 1600), (np.arange(400) < 22).astype(int)].astype(float)
    g = np.r_[["a"] * 1600, ["b"] * 400]
    for declared in ({}, {"mean": 0.8, "sd": 1.0}):
        columns = LEVELS | {"k": {"kind": "continuous", "bounds": [0, 30], **declared}}
        for family in ("poisson", "negativebinomial"):
            table = Table("k ~ g", "poisson", columns, {"g": g, "k": few}, few)
            right = table.ordinary()
            error = np.sqrt(right.covariance().diagonal())[right.names.index("g[T.b]")]
            found = with_family(table, family).fit().coefficients()["g[T.b]"]
            away = abs(found["mean"] - right.estimate[right.names.index("g[T.b]")]) / error
            assert away < (WITHIN + 0.02 if family == "poisson" else 0.25), (family, declared, found)
            assert found["sd"] == pytest.approx(error, rel=2 * WIDTH)


def with_family(table, family):
    return Table(table.formula, family, table.columns, table.data, table.response)


@pytest.mark.xfail(reason="widths are 10% too large: a shift by the scores' weights is allowed for")
def test_weights_with_zeros():
    """0.2073171 and 3.6707317, as GLM.jl and R."""
    ten = {"x": np.tile(np.arange(1.0, 11), 400), "y": np.tile([1, 4, 6, 2, 3, 5, 6, 7, 1, 6.0], 400)}
    ten["w"] = np.tile([1, 0, 4, 0, 5, 2, 6, 4, 2, 6.0], 400)
    columns = {
        "x": {"kind": "continuous", "bounds": [1, 10]},
        "y": {"kind": "continuous", "bounds": [0, 8]},
        "w": {"kind": "continuous", "bounds": [0, 6], "mean": 3, "sd": 2.2},
    }
    table = Table("y ~ x", "gaussian", columns, ten, ten["y"], {"weights": "w"})
    assert table.ordinary().estimate == pytest.approx([3.6707317, 0.2073171], abs=1e-6)
    assert not [str(row) for row in compare(table, table.fit()) if not row.close]
