"""What the declared bounds exclude is in no interval: residuals' spread, means, rates, and no weight at all."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpinfer as dpi
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")


def fitted(formula, data, columns, n_records, epsilon, seed=1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dpi.regression(
            formula,
            data,
            schema=Schema.from_dict({"columns": columns}),
            epsilon=epsilon,
            delta=1e-6,
            n_records=n_records,
            random_source=InsecureRNG(seed),
            **options,
        )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    n=st.sampled_from([1, 2, 8, 40, 400]),
    epsilon=st.sampled_from([0.1, 1.0, 10.0]),
    place=st.tuples(st.floats(-50, 50), st.floats(0.1, 100), st.sampled_from([1e-9, 1.0, 1e9])),
    formula=st.sampled_from(["y ~ x", "y ~ 0 + x", "y ~ 0 + g", "y ~ x + g", "y ~ x + offset(z)"]),
    target=st.sampled_from(["auto", "population", "model"]),
    at_end=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_linear_regression_stays_within_its_bounds(n, epsilon, place, formula, target, at_end, seed):
    """Whatever the noise: of one record, too, and of responses that all lie at an end."""
    low, width, unit = place
    low, high = unit * low, unit * (low + width)
    rng = np.random.default_rng(seed)
    data = {"x": rng.uniform(0, 10, n), "z": rng.uniform(0, unit, n), "g": rng.choice(["a", "b"], n)}
    data["y"] = np.full(n, high) if at_end else rng.uniform(low, high, n)
    columns = {
        "x": {"kind": "continuous", "bounds": [0, 10]},
        "z": {"kind": "continuous", "bounds": [0, unit]},
        "g": {"kind": "categorical", "categories": ["a", "b"]},
        "y": {"kind": "continuous", "bounds": [low, high]},
    }
    fit = fitted(formula, data, columns, n, epsilon, seed, target=target)
    most = max(abs(low), abs(high)) if formula == "y ~ 0 + x" else 0.5 * (high - low)
    most += 0.5 * unit * ("offset" in formula)
    sigma = fit.coefficients(level=0.99)["sigma"]
    assert sigma["high"] <= most * (1.0 + 1e-9)
    assert sigma["mean"] <= most * (1.0 + 1e-9)
    points = {"x": [0.0, 5.0, 10.0], "z": [0.0, unit, unit], "g": ["a", "b", "a"]}
    mean = fit.predict(points)
    slack = 1e-9 * (high - low)
    assert np.all((low - slack <= mean) & (mean <= high + slack))
    for of in ("mean", "response"):
        interval = fit.predict(points, interval=of)
        assert np.min(interval["low"]) >= low - slack
        assert np.max(interval["high"]) <= high + slack


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_rates_of_counts_stay_within_their_bounds(epsilon):
    rng = np.random.default_rng(3)
    data = {"x": rng.uniform(0, 10, 30), "k": rng.poisson(2.0, 30).astype(float)}
    columns = {"x": {"kind": "continuous", "bounds": [0, 10]}, "k": {"kind": "continuous", "bounds": [0, 12]}}
    fit = fitted("k ~ x", data, columns, 30, epsilon, family="poisson")
    interval = fit.predict({"x": [0.0, 10.0]}, interval="mean")
    assert np.max(interval["high"]) <= 12.0
    assert np.min(interval["low"]) >= 0.0


def test_an_estimator_predicts_within_the_bounds_of_its_target():
    rng = np.random.default_rng(4)
    X, y = rng.uniform(0, 10, (20, 1)), rng.uniform(-5, 12, 20)
    given_ = {"epsilon": 0.1, "n_records": 20, "data_bounds": (0, 10), "target_bounds": (-5, 12)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dpi.BayesianLinearRegression(**given_, random_source=InsecureRNG(1)).fit(X, y)
    mean = model.predict([[0.0], [10.0]])
    assert np.all((mean >= -5) & (mean <= 12))


@pytest.mark.parametrize("epsilon", [100.0, 1e6])
def test_without_any_weight_nothing_is_known(epsilon):
    """The interval of sigma reaches over most of what the bounds allow, and rows are the prior's."""
    rng = np.random.default_rng(5)
    data = {"x": rng.uniform(1, 10, 4000), "y": rng.uniform(0, 8, 4000), "w": np.zeros(4000)}
    columns = {
        "x": {"kind": "continuous", "bounds": [1, 10]},
        "y": {"kind": "continuous", "bounds": [0, 8]},
        "w": {"kind": "continuous", "bounds": [0, 6], "mean": 3, "sd": 2.2},
    }
    fit = fitted("y ~ x", data, columns, 4000, epsilon, weights="w")
    table = fit.coefficients()
    assert table["sigma"]["low"] < 2.0
    assert table["sigma"]["high"] > 3.5
    assert "the prior dominates" in table.remark("x")
    assert "the prior dominates" in table.remark("intercept")
