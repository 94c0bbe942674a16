"""What a width is made of: records, privacy noise and prior."""

import os
from pathlib import Path

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference.posterior.causes import PRIOR_DOMINATES, causes
from dpinfer.inference.posterior.summary import RESIDUAL_SPREAD
from dpinfer.tabular import Schema, read_table
from dpinfer.testing import InsecureRNG

N = 3000
PRIOR = 2.5


@pytest.fixture(scope="module")
def rare():
    """A logistic regression with a category that nobody has."""
    pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")
    schema = Schema.from_dict(
        {
            "columns": {
                "age": {"kind": "continuous", "bounds": [0, 10]},
                "job": {"kind": "categorical", "categories": ["a", "b", "nobody"]},
                "rich": {"kind": "target", "positive": "yes", "negative": "no"},
            }
        }
    )
    rng = np.random.default_rng(8)
    age, job = rng.uniform(0, 10, N), rng.choice(["a", "b"], N)
    rich = np.where(rng.random(N) < 1 / (1 + np.exp(-(age - 5) / 3)), "yes", "no")
    given = {"schema": schema, "epsilon": 2.0, "delta": 1e-6, "n_records": N, "random_source": InsecureRNG(4)}
    return dpi.regression("rich ~ age + C(job)", {"age": age, "job": job, "rich": rich}, family="binomial", **given)


def test_a_row_that_the_prior_has_made_says_so(rare):
    table = rare.coefficients()
    # Little is known of it: that its records are few.  In 18 draws of the noise its width was 0.64 to 1.00 of the
    # prior's, and the prior's share of the variance 0.40 to 1.00, above a half in 17.
    assert 0.6 * PRIOR < table["job[T.nobody]"]["sd"] < 1.01 * PRIOR
    assert table["job[T.nobody]"]["prior"] > 0.5
    assert table["job[T.nobody]"]["privacy"] < 0.5
    assert table.remark("job[T.nobody]").startswith(PRIOR_DOMINATES)
    for name in ("age", "job[T.b]", "intercept"):
        assert table[name]["prior"] < 0.05
        assert table.remark(name) == ""
    assert PRIOR_DOMINATES in str(rare.summary())
    index = rare.posterior.names.index("job[T.nobody]")
    assert rare.posterior.summary().flags[index] == PRIOR_DOMINATES
    assert rare.contrast({"job[T.nobody]": 1.0, "job[T.b]": -1.0}).prior[0] > 0.5


def test_the_parts_are_those_of_a_normal_model():
    """Sums of a linear regression whose covariance is known: P from the scores' noise, L of the prior."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = X @ [0.02, -0.01] + rng.normal(size=N)  # as the prior expects: one that is contradicted is widened
    model = dpi.models.LinearRegression(2, prior_scale=0.02)
    found = dpi.fit(
        model,
        X,
        y,
        epsilon=1.0,
        delta=1e-5,
        n_records=N,
        response_scale=1.0,
        method="newton",
        random_source=InsecureRNG(1),
    ).posterior
    records, privacy, prior = causes(found)
    np.testing.assert_allclose(records + privacy + prior, 1.0, rtol=1e-9)
    # In one direction S = 1 / (P + L), and S L is the prior's share.
    precision = 1.0 / (model.prior_scale**2 * found.mean[-1])
    np.testing.assert_allclose(prior[:2], found.stddev[:2] ** 2 * precision, rtol=0.02)
    assert prior[2] < 1e-3
    np.testing.assert_allclose(found.decompose().total, found.distribution.marginals.variance, rtol=1e-6)
    pair = causes(found, np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]))
    np.testing.assert_allclose(pair[:, 0], causes(found)[:, 0])
    # A wide prior makes nothing of it.
    wide = dpi.fit(
        dpi.models.LinearRegression(2, prior_scale=100.0),
        *(X, y),
        **{"epsilon": 1.0, "delta": 1e-5, "n_records": N, "response_scale": 1.0, "method": "newton"},
        random_source=InsecureRNG(1),
    ).posterior
    assert np.all(causes(wide)[2] < 1e-4)


def test_the_row_of_a_noise_variance_says_what_it_is():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 1))
    budget = {"epsilon": 1.0, "delta": 1e-5, "n_records": N, "response_scale": 1.0, "random_source": InsecureRNG(1)}
    found = dpi.fit(dpi.models.LinearRegression(1), X, X[:, 0] + rng.normal(size=N), **budget).posterior
    assert found.summary().flags == ("", RESIDUAL_SPREAD)
    logistic = dpi.fit(
        dpi.models.LogisticRegression(1),
        *(X, (X[:, 0] > 0).astype(float)),
        **{name: value for name, value in budget.items() if name != "response_scale"},
    ).posterior
    assert RESIDUAL_SPREAD not in "".join(logistic.summary().flags)


@pytest.mark.parametrize("kind", ["workclass", "education", "marital-status", "occupation", "race", "sex"])
def test_base_levels_of_the_bundled_schema_have_records(kind):
    """Contrasts with a level that nobody has are the prior's: 'Preschool' has 45 people, none above 50K."""
    root = Path(__file__).parents[3]
    file = Path(os.environ.get("DPINFER_DATA", root.parent / "shared" / "data")) / "adult.data.csv.gz"
    schema = Schema.load(root / "examples" / "adult.toml")
    base = next(column for column in schema.columns if column.name == kind).categories[0]
    assert base not in ("Preschool", "Amer-Indian-Eskimo", "Without-pay", "Armed-Forces", "Married-AF-spouse")
    if not file.exists():
        pytest.skip("the UCI files are not here (set DPINFER_DATA)")
    table = read_table(file, schema)
    own = table.X[:, schema.feature_names.index(f"{kind}={base}")] == 1.0
    assert own.mean() > 0.1
    assert 0.02 < table.y[own].mean() < 0.98
