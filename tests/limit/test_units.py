"""What a formula or a schema shifts or scales is undone: predictions are the columns times the coefficients."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpinfer as dpi
from dpinfer.formulas import design
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

TERMS = (
    "x", "z", "g", "h", "g:h", "g:x", "x:z", "I(x**2)", "poly(x, 2)", "bs(z, df=5)", "center(z)", "scale(x)",
    "bs(z, df=5, include_intercept=True)", 'C(g, base="b")', "log(x)", "offset(z)",
)  # fmt: skip
N = 2000


def schema_of(low, width, unit):
    """Return a schema whose columns are as far from zero, and as wide, as these say."""
    ends = sorted((unit * low, unit * (low + width)))
    columns = {
        "x": {"kind": "continuous", "bounds": [1, 10]},
        "z": {"kind": "continuous", "bounds": ends},
        "g": {"kind": "categorical", "categories": ["a", "b", "c"]},
        "h": {"kind": "categorical", "categories": ["u", "v"]},
        "y": {"kind": "continuous", "bounds": ends},
        "won": {"kind": "binary", "positive": "1", "negative": "0"},
        "k": {"kind": "continuous", "bounds": [0, 30], "mean": 2, "sd": 2},
    }
    return Schema.from_dict({"columns": columns})


def values_of(schema, rng, size=50):
    """Return decoded columns."""
    bounds = {column.name: column.bounds for column in schema.columns if hasattr(column, "bounds")}
    drawn = {name: rng.uniform(*ends, size) for name, ends in bounds.items()}
    return drawn | {"g": rng.integers(3, size=size).astype(float), "h": rng.integers(2, size=size).astype(float)}


@settings(max_examples=150, deadline=None)
@given(
    terms=st.sets(st.sampled_from(TERMS), min_size=1, max_size=4),
    constant=st.sampled_from(["0 + ", "", "1 + "]),
    response=st.sampled_from([("y", "gaussian"), ("won", "binomial"), ("k", "poisson"), ("k", "negativebinomial")]),
    place=st.tuples(st.floats(-100, 100), st.floats(0.5, 50), st.sampled_from([1e-9, 1.0, -1.0, 1e9])),
    seed=st.integers(0, 1000),
)
def test_predictors_are_columns_times_coefficients(terms, constant, response, place, seed):
    """The property holds for every design that is not refused, whatever its columns are made of."""
    name, family = response
    schema = schema_of(*place)
    try:
        made = design(f"{name} ~ {constant}{' + '.join(sorted(terms))}", schema, family=family)
    except ValueError:
        return
    rng = np.random.default_rng(seed)
    values = values_of(schema, rng)
    (matrix, shift), total = made.user_units(), len(made.names) + made.formula.intercept
    weights = rng.normal(size=total)
    rows = made.encode(values)[:, : len(made.names)]
    inner = np.column_stack((rows, np.ones(len(rows))))[:, :total] @ weights
    columns = [column.evaluate(values) for column in made.columns] + [np.ones(len(rows))] * made.formula.intercept
    outer = np.column_stack(columns) @ (matrix @ weights + shift)
    added = made.offset_values(values)
    if family == "gaussian":
        predicted, right = made.response_units(inner, values), outer + added
    else:
        predicted = inner + (made.encode(values)[:, -1] if made.offsets else 0.0)
        right = outer + added
    size = np.abs(np.column_stack(columns)) @ (np.abs(matrix) @ np.abs(weights) + np.abs(shift))
    np.testing.assert_allclose(predicted, right, rtol=0, atol=1e-9 * np.max(size + np.abs(added)))


TABLE = {
    "x": np.random.default_rng(1).uniform(1, 10, N),
    "g": np.random.default_rng(2).choice(["a", "b", "c"], N),
    "h": np.random.default_rng(3).choice(["u", "v"], N),
}
MEAN = 1.0 + 0.5 * TABLE["x"] + (TABLE["g"] == "b")
TABLE["y"] = MEAN + np.random.default_rng(4).normal(size=N)
TABLE["z"] = 1000.0 + np.random.default_rng(5).uniform(0, 10, N)
TABLE["w"] = np.random.default_rng(6).integers(1, 4, N).astype(float)


@pytest.mark.parametrize("top", [6, 12, 40])
@pytest.mark.parametrize(
    "right", ["0 + x", "x - 1", "0 + g", "0 + g + x", "0 + g:h", "0 + g + z", "0 + z", "0 + g:x", "0 + h + g:h"]
)
@pytest.mark.parametrize("weights", [None, "w"])
def test_a_regression_without_an_intercept_is_least_squares(right, top, weights):
    """Whatever the middle of the response's bounds is.  Widths of weighted ones are those of test_random_tables.py."""
    from tests.limit.tables import Table, compare

    columns = {
        "x": {"kind": "continuous", "bounds": [1, 10]},
        "z": {"kind": "continuous", "bounds": [1000, 1010]},
        "g": {"kind": "categorical", "categories": ["a", "b", "c"]},
        "h": {"kind": "categorical", "categories": ["u", "v"]},
        "y": {"kind": "continuous", "bounds": [-5, top]},
        "w": {"kind": "continuous", "bounds": [1, 3], "mean": 2, "sd": 0.8},
    }
    y = np.clip(TABLE["y"], -5, top)
    options = {} if weights is None else {"weights": "w"}
    table = Table(f"y ~ {right}", "gaussian", columns, TABLE | {"y": y}, y, options)
    fit = table.fit()
    off = [str(row) for row in compare(table, fit) if row.distance > 0.1 or (weights is None and not row.close)]
    assert not off
    # Predictions are the columns times the coefficients, and comparisons are with zero, not with the bounds' middle.
    few = {name: values[:20] for name, values in TABLE.items()}
    points = dict(zip(fit.design.predictor_columns, (few[name] for name in fit.design.predictor_columns), strict=True))
    oracle = table.ordinary()
    right_mean, spread = oracle.matrix[:20] @ oracle.estimate, np.sqrt(oracle.covariance().diagonal())
    error = np.abs(oracle.matrix[:20]) @ spread
    inside = right_mean < top - 4.0 * error  # a mean near the bound is one of draws that are cut off there
    assert np.all(np.abs(fit.predict(points) - right_mean)[inside] <= 0.1 * error[inside])
    assert np.all(fit.predict(points) <= top)
    name = fit.design.names[0]
    place = oracle.names.index(name)
    wald = (oracle.estimate[place] / spread[place]) ** 2
    assert fit.compare(name).wald == pytest.approx(wald, rel=0.3, abs=0.1)


def test_a_comparison_of_cell_means_is_that_of_the_same_model_with_an_intercept():
    """The Bayes factor for equal means does not depend on the coding: an intercept's prior is no prior of levels."""
    columns = {
        "g": {"kind": "categorical", "categories": ["a", "b", "c"]},
        "y": {"kind": "continuous", "bounds": [-30, 30]},
    }
    given = {"schema": Schema.from_dict({"columns": columns}), "epsilon": 1e6, "delta": 1e-6, "n_records": N}
    given["random_source"] = InsecureRNG(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = dpi.regression("y ~ 0 + g", TABLE, **given)
    found = fit.compare("g")
    mean, sd = fit.posterior.mean[:3], fit.design.response_scale
    sigma = float(np.sqrt(fit.posterior.mean[3]))
    cov = fit.posterior.cov[:3, :3]
    # Savage and Dickey for normal laws, by hand: the prior is 10 sigma in units of the response's scale.
    prior = np.eye(3) * (10.0 * sigma) ** 2

    def log_normal(covariance, at):
        return -0.5 * (at @ np.linalg.solve(covariance, at) + np.linalg.slogdet(2.0 * np.pi * covariance)[1])

    right = log_normal(prior, np.zeros(3)) - log_normal(cov, mean)
    assert sd == pytest.approx(60 / np.sqrt(12))
    assert found.log_bayes_factor == pytest.approx(right, rel=0.02)
