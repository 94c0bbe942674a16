"""What regressions of tables say where a call needs help."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.formulas import design
from dpinfer.inference import PosteriorRequest
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 2000
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [0, 10]},
            "wage": {"kind": "continuous", "bounds": [-10, 20]},
        }
    }
)


def fitted(**options):
    rng = np.random.default_rng(4)
    age = rng.uniform(0.0, 10.0, N)
    table = {"age": age, "wage": 1.0 + 0.8 * age + rng.normal(size=N) * 3.0}
    given = {"schema": SCHEMA, "epsilon": 1.0, "delta": 1e-6, "n_records": N, "random_source": InsecureRNG(2)}
    return dpi.regression("wage ~ age", table, **given, **options)


@pytest.fixture(scope="module")
def fit():
    return fitted()


@pytest.mark.parametrize(
    "formula", ["I(wage >= 7) ~ age", "wage >= 7 ~ age", "I(wage == 7) ~ age", "wage ~ I(age > 3)"]
)
def test_a_comparison_is_told_what_to_do_instead(formula):
    with pytest.raises(ValueError, match="kind = 'binary'"):
        design(formula, SCHEMA, family="binomial")


def test_two_fits_are_told_how_they_are_compared(fit):
    with pytest.raises(TypeError, match=r"name the terms that the smaller one does without"):
        fit.compare(fit)
    for wrong in (3, ["age", 3], None):
        with pytest.raises(TypeError, match="without must be terms or names of coefficients"):
            fit.compare(wrong)
    assert fit.compare(["age"]).wald == fit.compare("age").wald


def test_predictions_beyond_the_bounds_are_told(fit):
    with pytest.warns(UserWarning, match="new_data has points beyond the public bounds in 'age': they are clamped"):
        beyond = fit.predict({"age": [5.0, 40.0]})
    assert beyond[1] == pytest.approx(fit.predict({"age": [10.0]})[0], rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (dpi.BayesianLinearRegression, {"target_bounds": (-10.0, 20.0)}),
        (dpi.BayesianLogisticRegression, {"classes": (0, 1)}),
    ],
)
def test_estimators_tell_of_points_beyond_the_bounds(kind, options):
    rng = np.random.default_rng(5)
    X = rng.uniform(0.0, 1.0, (400, 2))
    model = kind(n_records=400, data_bounds=(0.0, 1.0), random_source=InsecureRNG(1), **options)
    model.fit(X, (X[:, 0] > 0.5).astype(float))
    with pytest.warns(UserWarning, match="X has points beyond the public bounds in '1'"):
        beyond = model.predict([[0.5, 3.0]])
    assert beyond == pytest.approx(model.predict([[0.5, 1.0]]), rel=1e-12)


@pytest.mark.parametrize(
    "kind",
    [
        dpi.BayesianLogisticRegression,
        dpi.BayesianLinearRegression,
        dpi.BayesianPoissonRegression,
        dpi.BayesianProbitRegression,
    ],
)
def test_forgotten_bounds_are_named(kind):
    needed = {"target_bounds": (0.0, 1.0)} if kind is dpi.BayesianLinearRegression else {}
    needed |= {"classes": (0, 1)} if "classes" in kind().get_params() else {}
    with pytest.raises(ValueError, match=r"data_bounds must be given: \(low, high\), or a row for each column"):
        kind(n_records=50, **needed).fit(np.zeros((50, 2)), np.tile([0, 1], 25))


def test_another_prior_of_a_release():
    """A prior far narrower than the weights pulls them to zero; the sums are the same."""
    fit = fitted(target="model")
    narrow = fit.with_posterior(dpi.noise_aware_posterior(fit.release, prior_scale=0.01))
    assert abs(narrow.coefficients()["age"]["per_sd"]) < 0.2 * abs(fit.coefficients()["age"]["per_sd"])
    same = dpi.noise_aware_posterior(fit.release, prior_scale=fit.plan.model.prior_scale)
    assert np.array_equal(same.mean, fit.posterior.mean)
    with pytest.raises(ValueError, match="prior_scale must lie in"):
        dpi.noise_aware_posterior(fit.release, prior_scale=-1.0)


def test_another_prior_is_refused_where_it_has_no_meaning_before_a_charge(tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people")
    request = PosteriorRequest(prior_scale=1.0)
    with pytest.raises(ValueError, match="give model=, the release's model with another prior"):
        dpi.fit(
            dpi.models.BetaBernoulli(),
            np.ones(50),
            epsilon=1.0,
            delta=1e-6,
            n_records=50,
            posterior=request,
            ledger=account,
        )
    assert account.runs() == ()


PLACES = {"age": {"kind": "continuous", "bounds": [0, 10]}, "wage": {"kind": "continuous", "bounds": [-10, 20]}}


@pytest.mark.parametrize("name", ["ward unit", "ward/unit", "ward*", "ward:unit", "ward|unit", "a+b", "w(x)"])
def test_groups_have_any_name_in_backticks(name):
    rng = np.random.default_rng(4)
    group = {"kind": "categorical", "categories": ["a", "b", "c"]}
    schema = Schema.from_dict({"columns": {**PLACES, name: group}})
    age, place = rng.uniform(0.0, 10.0, N), rng.choice(["a", "b", "c"], N)
    table = {"age": age, "wage": 1.0 + 0.8 * age + rng.normal(size=N), name: place}
    given = {"schema": schema, "epsilon": 5.0, "delta": 1e-6, "n_records": N, "random_source": InsecureRNG(2)}
    fit = dpi.regression(f"wage ~ age + (1 | `{name}`)", table, **given)
    assert fit.effects().names == tuple(f"{name}[{label}]" for label in "abc")
    assert abs(fit.coefficients()["age"]["mean"] - 0.8) < 0.1
    term = fit.design.formula.levels[0]
    assert fit.with_prior(term).effects().names == fit.effects().names


@pytest.mark.parametrize("name", ["ward/unit", "ward:unit", "ward*unit"])
def test_nested_groups_are_told_of_backticks(name):
    with pytest.raises(ValueError, match=r"nested groups are not there.*backticks"):
        design(f"wage ~ age + (1 | {name})", SCHEMA)


def test_a_category_with_one_declared_level():
    schema = Schema.from_dict({"columns": {**PLACES, "site": {"kind": "categorical", "categories": ["a"]}}})
    with pytest.raises(ValueError, match=r"at least two declared categories in \(1 \| site\).*declares one"):
        dpi.regression(
            "wage ~ age + (1 | site)", {"age": [1.0], "wage": [1.0], "site": ["a"]},
            schema=schema, epsilon=1.0, delta=1e-6, n_records=N,
        )  # fmt: skip
    with pytest.raises(ValueError, match="'site' declares one category"):
        design("wage ~ site", schema)
    # Beside other terms it is the constant, and gives no column.
    assert design("wage ~ age + site", schema).model.names[:2] == ("age", "intercept")
