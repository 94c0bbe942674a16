"""Every public way to a regression gives the ordinary fit at a budget without noise, with what follows from it."""

import csv
import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import dpinfer as dpi
from dpinfer.cli.main import main
from dpinfer.mechanism import Units
from dpinfer.models import from_gradient
from dpinfer.testing import InsecureRNG
from tests.limit.oracles import ordinary
from tests.limit.tables import WIDTH, WITHIN, Table, compare

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 3000
rng = np.random.default_rng(51)
DATA = {
    "x": rng.uniform(0.0, 10.0, N),
    "z": 100.0 + 5.0 * rng.normal(size=N),
    "g": rng.choice(["a", "b", "c"], N, p=[0.6, 0.3, 0.1]),
    "h": rng.choice(["u", "v"], N),
    "c": np.array([f"c{k}" for k in rng.integers(600, size=N)]),
    "s": rng.choice(["north", "south"], N),
    "w": rng.integers(0, 4, N).astype(float),
    "t": rng.uniform(1.0, 3.0, N),
}
DATA["z"] = np.clip(DATA["z"], 80.0, 120.0)
ETA = 0.2 * (DATA["x"] - 5.0) + 0.5 * (DATA["g"] == "b") - 0.4 * (DATA["h"] == "v") + 0.03 * (DATA["z"] - 100.0)
SHARED = np.random.default_rng(1).normal(size=600)[[int(name[1:]) for name in DATA["c"]]]
RESPONSES = {
    "gaussian": np.clip(3.0 + ETA + 0.5 * SHARED + rng.standard_t(5.0, N), -10.0, 30.0),
    "binomial": (rng.random(N) < 1.0 / (1.0 + np.exp(-ETA))).astype(float),
    "poisson": np.minimum(rng.poisson(np.exp(ETA)), 60).astype(float),
}
RESPONSES["probit"] = RESPONSES["binomial"]
RESPONSES["negativebinomial"] = np.minimum(rng.poisson(np.exp(ETA) * rng.gamma(2.0, 0.5, N)), 60).astype(float)
COLUMNS = {
    "x": {"kind": "continuous", "bounds": [0, 10]},
    "z": {"kind": "continuous", "bounds": [80, 120]},
    "g": {"kind": "categorical", "categories": ["a", "b", "c"]},
    "h": {"kind": "categorical", "categories": ["u", "v"]},
    "c": {"kind": "ignore"},
    "s": {"kind": "categorical", "categories": ["north", "south"]},
    "w": {"kind": "continuous", "bounds": [0, 4], "mean": 1.5, "sd": 1.1},
    "t": {"kind": "continuous", "bounds": [1, 3]},
}
OUTCOMES = {
    "gaussian": {"kind": "continuous", "bounds": [-10, 30]},
    "binomial": {"kind": "binary", "positive": "yes", "negative": "no"},
    "poisson": {"kind": "continuous", "bounds": [0, 60]},
}
OUTCOMES |= {"probit": OUTCOMES["binomial"], "negativebinomial": OUTCOMES["poisson"]}
FORMULAS = (
    "y ~ x + g + h", "y ~ x * g", "y ~ g * h", "y ~ x + z", "y ~ poly(x, 2, raw=True) + h", "y ~ x + I(x**2)",
    "y ~ 0 + g", "y ~ 0 + g + x", "y ~ 0 + g:h", "y ~ log(1 + x) + g", "y ~ g:x + g",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def table_of(formula, family, **options):
    y = RESPONSES[family]
    shown = np.where(y > 0.0, "yes", "no") if family in ("binomial", "probit") else y
    return Table(formula, family, COLUMNS | {"y": OUTCOMES[family]}, DATA | {"y": shown}, y, options)


def off(rows):
    return [str(row) for row in rows if not row.close]


@pytest.mark.parametrize("epsilon", [1e4, 1e6])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "probit"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas(formula, family, epsilon):
    table = table_of(formula, family)
    assert not off(compare(table, table.fit(epsilon)))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize(
    "options",
    [
        {"weights": "w"},
        {"clusters": "c"},
        {"strata": "s"},
        {"weights": "w", "strata": "s"},
        {"unit": Units("c", max_rows=20, mean_rows=5.0)},
    ],
    ids=["weights", "clusters", "strata", "weights and strata", "unit"],
)
def test_samples(family, options):
    table = table_of("y ~ x + g", family, **options)
    persons = {"n_records": 600} if "unit" in options else {}
    assert not off(compare(table, table.fit(**persons)))


BOUNDED = "the model's target shortens records of rare levels, at any budget: they are up to 2.1 times as wide"


@pytest.mark.parametrize(
    "family", ["binomial", pytest.param("poisson", marks=pytest.mark.xfail(reason="0.33 standard errors")), "probit"]
)
def test_target_of_the_model(family):
    """Its widths are the model's own, but for a level of a tenth of the records."""
    table = table_of("y ~ x + g + h", family)
    rows = compare(table, table.fit(target="model"), robust=False)
    wrong = [row for row in rows if not row.close]
    assert [row.name for row in wrong] == ["g[T.c]"], f"right now: take the exception away ({BOUNDED}): {off(rows)}"
    assert wrong[0].distance < 0.25
    assert 1.0 < wrong[0].width < 2.5


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_what_follows_from_a_fit(family):
    """Predictions, contrasts, effects and comparisons beside statsmodels."""
    table = table_of("y ~ x + g", family)
    fit, oracle = table.fit(), table.ordinary()
    place = {name: k for k, name in enumerate(oracle.names)}
    points = {"x": [1.0, 5.0, 9.0], "g": ["a", "b", "c"]}
    rows = np.zeros((3, 4))
    rows[:, place["intercept"]], rows[:, place["x"]] = 1.0, points["x"]
    rows[1, place["g[T.b]"]] = rows[2, place["g[T.c]"]] = 1.0
    eta, cov = rows @ oracle.estimate, oracle.covariance()
    error = np.sqrt(np.einsum("ij,jk,ik->i", rows, cov, rows))
    mean, slope = (eta, 1.0) if family == "gaussian" else (1 / (1 + np.exp(-eta)), 1 / (2 + 2 * np.cosh(eta)))
    found, sd = fit.predict(points, return_std=True)
    assert np.all(np.abs(found - mean) < (WITHIN + 0.03) * error * slope)
    np.testing.assert_allclose(sd, error * slope, rtol=WIDTH + 0.05)
    contrast = fit.contrast({"g[T.b]": 1.0, "g[T.c]": -1.0})
    row = np.zeros(4)
    row[place["g[T.b]"]], row[place["g[T.c]"]] = 1.0, -1.0
    right = np.sqrt(row @ cov @ row)
    assert abs(contrast.mean[0] - row @ oracle.estimate) < WITHIN * right
    assert contrast.sd[0] == pytest.approx(right, rel=WIDTH)
    both = [place["g[T.b]"], place["g[T.c]"]]
    wald = oracle.estimate[both] @ np.linalg.solve(cov[np.ix_(both, both)], oracle.estimate[both])
    assert fit.compare("g").wald == pytest.approx(wald, rel=0.1)
    effects = fit.marginal_effects({name: values for name, values in DATA.items() if name in ("x", "g")})
    inner = oracle.matrix @ oracle.estimate
    at = np.ones(N) if family == "gaussian" else 1 / (2 + 2 * np.cosh(inner))
    assert effects["x"]["mean"] == pytest.approx(oracle.estimate[place["x"]] * at.mean(), rel=0.02)


def test_arrays_and_estimators():
    X = np.column_stack((DATA["x"], DATA["z"]))
    frame = {"x": DATA["x"], "z": DATA["z"]}
    right = {family: ordinary("y ~ x + z", frame, RESPONSES[family], family) for family in ("gaussian", "binomial")}
    given = {"epsilon": 1e6, "n_records": N, "data_bounds": [(0, 10), (80, 120)], "random_source": InsecureRNG(1)}
    linear = dpi.BayesianLinearRegression(**given, target_bounds=(-10, 30)).fit(X, RESPONSES["gaussian"])
    # Its prior is one of columns in their own units, and of an intercept at their zero.
    logistic = dpi.BayesianLogisticRegression(**given, prior_scale=10.0, classes=[0.0, 1.0]).fit(
        X, RESPONSES["binomial"]
    )
    for family, model in (("gaussian", linear), ("binomial", logistic)):
        fit, error = right[family], np.sqrt(right[family].covariance().diagonal())
        found = np.append(model.intercept_, np.ravel(model.coef_))
        assert np.all(np.abs(found - fit.estimate) < WITHIN * error), family
    # Columns that are scaled by hand.
    Z = (X - [5.0, 100.0]) / [3.0, 10.0]
    for family, model in (
        ("gaussian", dpi.models.LinearRegression(2, fit_intercept=True)),
        ("binomial", dpi.models.LogisticRegression(2, fit_intercept=True)),
    ):
        scale = {"response_scale": 2.0} if family == "gaussian" else {}
        y = RESPONSES[family]
        result = dpi.fit(
            model,
            Z,
            y,
            epsilon=1e6,
            delta=1e-6,
            n_records=N,
            random_source=InsecureRNG(1),
            target="population",
            **scale,
        )
        columns = {"a": Z[:, 0], "b": Z[:, 1]}
        fit = ordinary("y ~ a + b", columns, y, family)
        error = np.sqrt(fit.covariance().diagonal())[[1, 2, 0]]
        assert np.all(np.abs(result.posterior.mean[:3] - fit.estimate[[1, 2, 0]]) < WITHIN * error), family
        np.testing.assert_allclose(result.posterior.stddev[:3], error, rtol=WIDTH)


def test_command_line(tmp_path):
    table = table_of("y ~ 0 + g + x", "gaussian")
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "g", "y"])
        writer.writerows(zip(DATA["x"], DATA["g"], RESPONSES["gaussian"], strict=True))
    columns = {name: table.columns[name] for name in ("x", "g", "y")}
    (tmp_path / "schema.toml").write_text(dpi.tabular.Schema.from_dict({"columns": columns}).to_toml())
    given = ["--epsilon", "1e6", "--delta", "1e-6", "--n-records", str(N), "--out", str(tmp_path / "out")]
    assert not main(
        [
            "fit",
            str(tmp_path / "data.csv"),
            "--schema",
            str(tmp_path / "schema.toml"),
            *given,
            "--formula",
            table.formula,
        ]
    )
    assert not off(compare(table, dpi.formulas.load_regression(tmp_path / "out")))


def test_families_as_code():
    """Multinomial, negative binomial, an offset, and a model of one's own."""
    table = table_of("y ~ x + offset(log(t))", "poisson")
    assert not off(compare(table, table.fit()))
    X, y = DATA["x"], RESPONSES["negativebinomial"]
    right = sm.NegativeBinomial(y, sm.add_constant(X)).fit(disp=0, cov_type="HC0")
    found = table_of("y ~ x", "negativebinomial").fit().coefficients()
    assert abs(found["x"]["mean"] - right.params[1]) < WITHIN * right.bse[1]
    assert found["x"]["sd"] == pytest.approx(right.bse[1], rel=WIDTH)
    three = np.where(ETA + rng.logistic(size=N) > 0.8, "high", np.where(rng.random(N) < 0.5, "low", "mid"))
    columns = COLUMNS | {"y": {"kind": "categorical", "categories": ["low", "mid", "high"]}}
    many = Table("y ~ x", "multinomial", columns, DATA | {"y": three}, np.zeros(N)).fit().coefficients()
    codes = pd.Categorical(three, categories=["low", "mid", "high"]).codes
    own = sm.MNLogit(codes, sm.add_constant(X)).fit(disp=0, cov_type="HC0")
    for k, label in enumerate(("mid", "high")):
        assert abs(many[f"{label}:x"]["mean"] - own.params[1, k]) < WITHIN * own.bse[1, k]
        assert many[f"{label}:x"]["sd"] == pytest.approx(own.bse[1, k], rel=WIDTH)


def test_a_model_of_ones_own():
    X, y = (DATA["x"] - 5.0)[:, None] / 3.0, RESPONSES["binomial"]

    def rate(params, X):
        return 1.0 / (1.0 + np.exp(-params[0] - X[:, 0] * params[1]))

    def gradient(params, X, y):
        return (y - rate(params, X))[:, None] * np.column_stack((np.ones(len(X)), X))

    def log_likelihood(params, X, y):
        return np.log(np.where(y > 0.0, rate(params, X), 1.0 - rate(params, X)))

    def sampler(params, X, u):
        return (u[:, 0] < rate(params, X)).astype(float)

    model = from_gradient(gradient, 2, n_features=1, log_likelihood=log_likelihood, sampler=sampler, response="binary")
    fit = dpi.fit(model, X, y, epsilon=1e6, delta=1e-6, n_records=N, random_source=InsecureRNG(1))
    right = sm.GLM(y, sm.add_constant(X), family=sm.families.Binomial()).fit(cov_type="HC0")
    assert np.all(np.abs(fit.posterior.mean - right.params) < WITHIN * right.bse)
    np.testing.assert_allclose(fit.posterior.stddev, right.bse, rtol=WIDTH)


def test_the_oracle_is_statsmodels():
    """HC0, clusters without a correction, weights."""
    table = table_of("y ~ x + g", "binomial")
    oracle = table.ordinary()
    model = sm.GLM(RESPONSES["binomial"], oracle.matrix, family=sm.families.Binomial())
    np.testing.assert_allclose(oracle.covariance(), model.fit(cov_type="HC0").cov_params(), rtol=2e-3, atol=1e-8)
    groups = np.unique(DATA["c"], return_inverse=True)[1]
    clustered = model.fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False})
    own = table_of("y ~ x + g", "binomial", clusters="c").ordinary().covariance()
    np.testing.assert_allclose(own, clustered.cov_params(), rtol=2e-3, atol=1e-8)
    weighed = sm.WLS(RESPONSES["gaussian"], oracle.matrix, weights=DATA["w"]).fit(cov_type="HC0")
    own = table_of("y ~ x + g", "gaussian", weights="w").ordinary().covariance()
    np.testing.assert_allclose(own, weighed.cov_params(), rtol=2e-3, atol=1e-8)
