"""Families and offsets that run as models written as code, and comparisons of nested regressions."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.formulas import design, load_regression
from dpinfer.formulas.comparison import compare_without
from dpinfer.formulas.own_families import OwnRegression, poisson_quantile
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.models.adapters.checks import check_own_model
from dpinfer.models.base import softplus_inverse
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 1500
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [17, 90]},
            "job": {"kind": "categorical", "categories": ["a", "b", "c"]},
            "years": {"kind": "continuous", "bounds": [1, 50]},
            "visits": {"kind": "continuous", "bounds": [0, 60]},
            "pay": {"kind": "continuous", "bounds": [0, 100]},
            "rich": {"kind": "target", "positive": "yes", "negative": "no"},
        }
    }
)
BUDGET = {"schema": SCHEMA, "epsilon": 3.0, "delta": 1e-6, "n_records": N}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    age, job, years = rng.uniform(20, 80, N), rng.integers(3, size=N), rng.uniform(1, 20, N)
    effect = np.array([0.0, 0.5, -0.5])[job]
    mean = years * np.exp(-2.0 + 0.02 * age + effect)
    visits = rng.negative_binomial(2.0, 2.0 / (2.0 + mean))
    chance = 1 / (1 + np.exp(2.0 - 0.02 * age - effect - 0.1 * years))
    return {
        "age": age,
        "job": np.array(["a", "b", "c"])[job],
        "years": years,
        "visits": np.minimum(visits, 60).astype(float),
        "pay": 5.0 + 0.2 * age + years + 3.0 * rng.normal(size=N),
        "rich": np.where(rng.random(N) < chance, "yes", "no"),
    }


@pytest.fixture(scope="module")
def counts(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits") / "counts"
    fit = dpi.regression(
        "visits ~ age + job + offset(log(years))",
        table,
        family="negativebinomial",
        path=folder,
        random_source=InsecureRNG(1),
        **BUDGET,
    )
    return fit, folder


def test_a_negative_binomial_regression_learns_its_size(counts):
    fit, folder = counts
    found = fit.coefficients(0.999)
    assert found.names == ("age", "job[T.b]", "job[T.c]", "intercept", "size")
    # False alarms: 5 intervals of 99.9%, seeds fixed.
    for name, truth in zip(found.names, (0.02, 0.5, -0.5, -2.0, 2.0), strict=True):
        assert found[name]["low"] < truth < found[name]["high"]
    assert found["age"]["low"] > 0.0
    assert found["size"]["high"] < 4.0
    assert "rate ratios" in str(fit.summary(exp=True))
    again = load_regression(folder)
    assert str(again.summary()) == str(fit.summary())
    assert again.predict({"age": [50.0], "job": ["a"], "years": [5.0]}) == fit.predict(
        {"age": [50.0], "job": ["a"], "years": [5.0]}
    )


def test_predictions_are_proportional_to_the_exposure(counts):
    fit, _ = counts
    few, many = fit.predict({"age": [50.0, 50.0], "job": ["b", "b"], "years": [2.0, 20.0]})
    assert many == pytest.approx(10.0 * few, rel=1e-9)
    sets = fit.synthetic({"age": np.full(3000, 50.0), "job": ["b"] * 3000, "years": np.full(3000, 2.0)}, n_sets=20)
    drawn = np.array([each["visits"] for each in sets])
    assert np.all(drawn == np.rint(drawn))
    assert drawn.mean() == pytest.approx(few, rel=0.1)
    assert drawn.var() > 1.3 * drawn.mean()
    effects = fit.marginal_effects({"age": [50.0], "job": ["a"], "years": [5.0]})
    assert effects["years"]["mean"] == pytest.approx(
        fit.predict({"age": [50.0], "job": ["a"], "years": [5.0]})[0] / 5.0, rel=0.02
    )


@pytest.mark.parametrize("family", ["poisson", "binomial", "probit"])
def test_offsets_of_other_links(table, family):
    response, offset = ("visits", "log(years)") if family == "poisson" else ("rich", "I(0.1 * years)")
    fit = dpi.regression(
        f"{response} ~ age + job + offset({offset})", table, family=family, random_source=InsecureRNG(2), **BUDGET
    )
    assert isinstance(fit.design.model, OwnRegression)
    assert fit.design.names == ("age", "job[T.b]", "job[T.c]")
    found = fit.coefficients(0.999)
    if family == "binomial":
        assert found["age"]["low"] < 0.02 < found["age"]["high"]
    assert found["age"]["low"] > 0.0
    low, high = fit.predict({"age": [50.0, 50.0], "job": ["a", "a"], "years": [1.0, 20.0]})
    assert low < high


def test_an_offset_of_a_linear_regression_is_taken_from_the_response(table):
    brief = dpi.PosteriorRequest(n_samples=100, n_warmup=30)
    source = InsecureRNG(1)
    fit = dpi.regression("pay ~ age + offset(years)", table, random_source=source, posterior=brief, **BUDGET)
    found = fit.coefficients(0.999)
    assert found["age"]["low"] < 0.2 < found["age"]["high"]
    assert found["sigma"]["low"] < 3.0 < found["sigma"]["high"]
    one, other = fit.predict({"age": [50.0, 50.0], "years": [1.0, 11.0]})
    assert other - one == pytest.approx(10.0)
    points = {"age": np.full(500, 50.0), "years": np.full(500, 11.0)}
    drawn = np.array([each["pay"] for each in fit.synthetic(points, n_sets=10)])
    assert drawn.mean() == pytest.approx(other, abs=0.5)


@pytest.mark.parametrize(
    ("formula", "match"),
    [
        ("visits ~ age + offset(job)", "offset of one number"),
        ("visits ~ age + offset(poly(years, 2))", "offset of one number"),
        ("visits ~ age + offset(log(nothing))", "columns of the schema"),
        ("visits ~ age:offset(years)", "a term of its own"),
        ("visits ~ age + offset(visits)", "both sides"),
        ("visits ~ offset(years)", "at least one term"),
    ],
)
def test_offsets_that_cannot_be_had_are_refused(formula, match):
    with pytest.raises(ValueError, match=match):
        design(formula, SCHEMA, family="poisson")


@pytest.mark.parametrize("family", ["negativebinomial", "poisson", "binomial", "probit"])
def test_the_code_of_each_family_passes_the_trials_of_a_users_model(family):
    """Rows do not mix in any bit, gradients are those of the density, and draws are from it."""
    response = "visits" if family in ("negativebinomial", "poisson") else "rich"
    model = design(f"{response} ~ age + job + offset(log(years))", SCHEMA, family=family).model
    check_own_model(model)
    if family == "negativebinomial":
        params = np.array([0.1, 0.2, -0.1, 0.5, 1.7])
        X = model.made_up_features(6, np.random.default_rng(0))
        y, step = np.arange(6.0), 1e-6

        def density(at):
            mean = model.predict_mean(np.append(at[:-1], np.log(at[-1])), X)
            return stats.nbinom.logpmf(y, at[-1], at[-1] / (at[-1] + mean))

        slopes = [(density(params + step * unit) - density(params - step * unit)) / (2 * step) for unit in np.eye(5)]
        assert np.allclose(model.code.score(params, X, y), np.transpose(slopes), atol=1e-6)


def test_a_run_starts_at_the_usual_exposure_and_the_declared_mean():
    document = SCHEMA.to_dict()
    found = design("visits ~ age + offset(log(years))", SCHEMA, family="negativebinomial")
    values = {"age": np.full(3, 50.0), "years": np.array([1.0, 5.0, 25.0])}
    rows = found.encode(values)
    assert np.allclose(rows[:, -1], np.log(values["years"]) - found.offset_centre)
    assert 2.0 < found.offset_centre < 3.5
    matrix, shift = found.user_units()
    coefficients = matrix @ [0.3, -0.2] + shift
    eta = coefficients[0] * 50.0 + coefficients[1] + np.log(values["years"])
    theta = np.array([0.3, -0.2, 1.0])
    assert np.allclose(np.log(found.model.predict_mean(theta, rows)), eta)
    assert found.model.parameters.prior_mean.tolist() == [0.0, 0.0, 1.0]
    document["columns"]["visits"] |= {"mean": 0.2, "sd": 1.0}
    rare = design("visits ~ age + offset(log(years))", Schema.from_dict(document), family="negativebinomial")
    assert np.allclose(rare.model.parameters.prior_mean, [0.0, np.log(0.2), 1.0])


def test_poisson_draws_are_quantiles():
    uniform = np.random.default_rng(1).random(4000)
    for rate in (0.01, 3.0, 29.9, 31.0, 500.0):
        drawn = poisson_quantile(uniform, np.full(4000, rate))
        assert np.array_equal(drawn, stats.poisson.ppf(uniform, rate))


def normal_posterior(location, factor):
    parts = VarianceParts(*np.zeros((3, location.shape[1])))
    found = DrawnTheta(location, None, factor, parts)
    return SimpleNamespace(distribution=found, mean=found.marginals.mean, cov=found.covariance)


def stub(prior_scale, model, size):
    """Return what a comparison reads of a design whose columns are in the table's units."""
    units = np.eye(size), np.zeros(size)
    return SimpleNamespace(prior_scale=prior_scale, model=model, user_units=lambda: units)


def test_the_bayes_factor_of_a_normal_mean_is_the_exact_one():
    prior, noise, seen = 2.5, 0.3, 0.8
    precision = 1.0 / prior**2 + 1.0 / noise**2
    posterior = normal_posterior(np.array([[seen / noise**2 / precision]]), np.array([[[np.sqrt(precision)]]]))
    made = stub(prior, SimpleNamespace(names=("age",)), 1)
    found = compare_without(made, posterior, (0,))
    exact = stats.norm.logpdf(seen, 0, np.hypot(prior, noise)) - stats.norm.logpdf(seen, 0, noise)
    assert found.log_bayes_factor == pytest.approx(exact)
    assert found.stderr == 0.0
    assert found.p_value == pytest.approx(2 * stats.norm.sf(np.sqrt(found.wald)))
    assert "age" in str(found)


def test_the_bayes_factor_of_a_linear_regression_counts_the_noise_variance():
    """Against the closed form of the normal-inverse-gamma model; without the correction it would be far off."""
    rng = np.random.default_rng(4)
    model = dpi.models.LinearRegression(3, prior_scale=2.0, variance_shape=3.0, variance_rate=2.0)
    X = rng.normal(size=(40, 3))
    y = X @ [1.0, 0.3, 0.2] + rng.normal(size=40)

    def evidence(rows):
        smaller = dpi.models.LinearRegression(rows.shape[1], prior_scale=2.0, variance_shape=3.0, variance_rate=2.0)
        law = smaller.exact_posterior(rows, y)
        size = -0.5 * np.linalg.slogdet(law.precision)[1] - rows.shape[1] * np.log(2.0)
        return size - law.shape * np.log(law.rate), law

    full, law = evidence(X)
    exact = full - evidence(X[:, :1])[0]
    variance = stats.invgamma(law.shape, scale=law.rate).rvs(6000, random_state=rng)
    location = np.column_stack([np.tile(law.loc, (6000, 1)), softplus_inverse(variance)])
    factor = np.zeros((6000, 4, 4))
    factor[:, :3, :3] = np.linalg.cholesky(law.precision)[None] / np.sqrt(variance)[:, None, None]
    factor[:, 3, 3] = 1e6
    made = stub(2.0, model, 3)
    found = compare_without(made, normal_posterior(location, factor), (1, 2))
    assert 0.0 < found.stderr < 0.1
    assert abs(found.log_bayes_factor - exact) < 5.0 * found.stderr
    plain = stub(2.0, SimpleNamespace(names=("a", "b", "c")), 3)
    wrong = compare_without(plain, normal_posterior(location, factor), (1, 2))
    assert abs(wrong.log_bayes_factor - exact) > 5.0 * found.stderr


def test_terms_are_compared_by_name(counts):
    fit, _ = counts
    job, age = fit.compare("job"), fit.compare(["age"])
    assert job.without == ("job[T.b]", "job[T.c]")
    assert min(job.log_bayes_factor, age.log_bayes_factor) > 5.0
    assert max(job.p_value, age.p_value) < 1e-6
    assert "chi" not in str(job)
    with pytest.raises(ValueError, match="without must name terms"):
        fit.compare("intercept")
    with pytest.raises(ValueError, match="at least one"):
        fit.compare([])


MODES = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [17, 90]},
            "job": {"kind": "categorical", "categories": ["a", "b"]},
            "way": {"kind": "categorical", "categories": ["bike", "bus", "car"], "reference": "bus"},
            "rich": {"kind": "target", "positive": "yes", "negative": "no"},
        }
    }
)
POINTS = {"age": [30.0, 70.0], "job": ["b", "a"]}


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    rng = np.random.default_rng(6)
    age, job = rng.uniform(18, 80, 5000), rng.integers(2, size=5000)
    weights = np.exp(np.column_stack([np.zeros(5000), 0.05 * (age - 50.0), -0.3 + 0.8 * job]))
    drawn = (rng.random((5000, 1)) * weights.sum(axis=1, keepdims=True) > weights.cumsum(axis=1)).sum(axis=1)
    table = {"age": age, "job": np.array(["a", "b"])[job], "way": np.array(["bus", "car", "bike"])[drawn]}
    folder = tmp_path_factory.mktemp("fits") / "classes"
    options = {"epsilon": 3.0, "delta": 1e-6, "n_records": 5000, "random_source": InsecureRNG(1), "path": folder}
    return dpi.regression("way ~ age + job", table, schema=MODES, family="multinomial", **options), folder


def test_a_multinomial_regression_compares_each_class_with_the_base(classes):
    fit, folder = classes
    found = fit.coefficients(0.999)
    assert fit.design.classes == ("bus", "bike", "car")
    each = ("age", "job[T.b]", "intercept")
    assert found.names == tuple(f"{label}:{name}" for label in ("bike", "car") for name in each)
    # False alarms: 6 intervals of 99.9%, seeds fixed.
    for name, truth in zip(found.names, (0.0, 0.8, -0.3, 0.05, 0.0, -2.5), strict=True):
        assert found[name]["low"] < truth < found[name]["high"]
    assert found["car:age"]["low"] > 0.0 < found["bike:job[T.b]"]["low"]
    assert "odds ratios, each class against 'bus'" in str(fit.summary(exp=True))
    again = load_regression(folder)
    assert str(again.summary()) == str(fit.summary())
    assert np.array_equal(again.predict(POINTS), fit.predict(POINTS))


def test_probabilities_of_classes(classes):
    fit, _ = classes
    mean, spread = fit.predict(POINTS, return_std=True)
    weights = np.exp([[0.0, 0.5, -1.0], [0.0, -0.3, 1.0]])
    truth = weights / weights.sum(axis=1, keepdims=True)
    assert mean.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert np.all(np.abs(mean - truth) < 5.0 * spread)
    assert np.all(spread < 0.05)
    assert np.isnan(fit.predict({"age": [np.nan], "job": ["a"]})).all()
    effects = fit.marginal_effects(POINTS)
    assert effects.names[:2] == ("bus: age", "bus: job[b - a]")
    assert sum(effects[f"{label}: age"]["mean"] for label in fit.design.classes) == pytest.approx(0.0, abs=1e-12)
    both, one = fit.compare("job"), fit.compare("bike:job[T.b]")
    assert both.without == ("bike:job[T.b]", "car:job[T.b]")
    assert one.without == ("bike:job[T.b]",)
    assert max(both.p_value, one.p_value) < 1e-6
    drawn = np.concatenate([each["way"] for each in fit.synthetic({"age": [70.0] * 400, "job": ["a"] * 400}, n_sets=9)])
    shares = [np.mean(drawn == label) for label in fit.design.classes]
    assert shares == pytest.approx(mean[1], abs=0.05)


@pytest.mark.parametrize(
    ("formula", "family", "match"),
    [
        ("age ~ job", "multinomial", "response of categories"),
        ("way ~ age", "binomial", "'multinomial' takes more"),
        ("way ~ age", "poisson", "needs family='multinomial'"),
        ("way ~ job + offset(age)", "multinomial", "must not have an offset"),
    ],
)
def test_responses_that_are_not_of_the_family_are_refused(formula, family, match):
    with pytest.raises(ValueError, match=match):
        design(formula, MODES, family=family)


def test_two_classes_may_be_those_of_a_target():
    assert design("rich ~ age", MODES, family="multinomial").classes == ("no", "yes")


def test_the_classes_of_a_response_are_not_released():
    draft = dpi.tabular.SchemaDraft({"columns": {"way": {"kind": "categorical"}, "age": {"kind": "continuous"}}})
    with pytest.raises(ValueError, match="categories of the response 'way'"):
        dpi.regression(
            "way ~ age", {"way": [], "age": []}, family="multinomial", schema=draft, epsilon=1.0, delta=1e-6,
            unknown=["n_records", "bounds", "categories"],
        )  # fmt: skip
