"""Average marginal effects: over the sample's released moments, other points, or what the schema declares."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.formulas.sample_points import sample_points
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "x": {"kind": "continuous", "bounds": [0, 100]},
            "z": {"kind": "continuous", "bounds": [0, 100]},
            "g": {"kind": "categorical", "categories": ["a", "b"]},
            "won": {"kind": "binary", "positive": "1", "negative": "0"},
        }
    }
)
FORMULA = "won ~ x + I(x**2) + z + g"


def records(seed, size=20_000):
    """Return records whose sample lies low within the bounds, and the average slope of x over them."""
    rng = np.random.default_rng(seed)
    x = np.clip(rng.gamma(4.0, 5.0, size), 0.0, 100.0)
    z, g = np.clip(0.5 * x + rng.normal(0.0, 5.0, size), 0.0, 100.0), rng.random(size) < 0.1
    p = 1.0 / (1.0 + np.exp(2.0 - 0.001 * (x - 40.0) ** 2 - 0.02 * z - 0.8 * g))
    table = {"x": x, "z": z, "g": np.where(g, "b", "a"), "won": (rng.random(size) < p).astype(int)}
    return table, float(np.mean(p * (1.0 - p) * 0.002 * (x - 40.0)))


def fitted(table, epsilon, seed, **options):
    return dpi.regression(
        FORMULA, table, schema=SCHEMA, family="binomial", epsilon=epsilon, delta=1e-6, n_records=20_000,
        random_source=InsecureRNG(seed), **options,
    )  # fmt: skip


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_effects_are_those_over_the_sample_and_have_their_sign(epsilon):
    """Over the bounds the slope of x is positive, over the sample negative; a false alarm needs six deviations."""
    table, truth = records(1)
    fit = fitted(table, epsilon, 1)
    ours, sample = fit.marginal_effects(), fit.marginal_effects({name: table[name][:4000] for name in "xzg"})
    for name in ours.names:
        assert abs(ours[name]["mean"] - sample[name]["mean"]) < 0.5 * sample[name]["sd"] + 0.03 * abs(
            ours[name]["mean"]
        )
    assert ours["x"]["mean"] == pytest.approx(truth, abs=6.0 * ours["x"]["sd"])
    assert ours["x"]["high"] < 0.0
    uniform = np.random.default_rng(2).uniform(0.0, 100.0, 2000)
    assert fit.marginal_effects({"x": uniform, "z": uniform, "g": ["a"] * 2000})["x"]["mean"] > 0.0
    assert "the sample's released moments" in str(ours)
    assert "average over new_data" in str(sample)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 100.0])
def test_points_have_the_means_of_the_sample_as_far_as_noise_tells_them(epsilon):
    table, _ = records(3)
    values, matched = sample_points(*(lambda fit: (fit.design, fit.release))(fitted(table, epsilon, 3)))
    assert matched
    # At epsilon = 0.05 the schema's own means, 50, are far from known to be wrong.
    limit = 1.5 if epsilon >= 1.0 else 40.0
    assert abs(values["x"].mean() - table["x"].mean()) < limit
    assert abs(values["z"].mean() - table["z"].mean()) < limit
    assert all(column.min() >= 0.0 and column.max() <= 100.0 for column in values.values())


def test_a_release_without_moments_says_that_the_average_is_over_the_schema():
    table, _ = records(4)
    fit = fitted({name: column[:2000] for name, column in table.items()}, 1.0, 4, method="dpvi")
    assert "average over the schema's population" in fit.marginal_effects().remark("x")


def test_a_summary_names_what_makes_the_noise_of_units_less():
    rng = np.random.default_rng(1)
    person = np.repeat(np.arange(700), rng.integers(1, 13, 700))
    table, _ = records(5, len(person))
    schema = Schema.from_dict({"columns": SCHEMA.to_dict()["columns"] | {"p": {"kind": "ignore"}}})
    options = {"family": "binomial", "delta": 1e-6, "n_records": 700, "random_source": InsecureRNG(1)}
    for epsilon, told in ((1.0, True), (1e4, False)):
        unit = dpi.mechanism.Units("p", max_rows=15, mean_rows=6.5)
        fit = dpi.regression("won ~ z", table | {"p": person}, schema=schema, unit=unit, epsilon=epsilon, **options)
        assert ("A smaller max_rows has less noise" in str(fit.summary())) == told
