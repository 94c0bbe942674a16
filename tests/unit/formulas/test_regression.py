"""From a table to coefficients in the user's units."""

import copy
import html
import json
import pickle
import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import FallbackWarning, ReleaseFormatError, SchemaError
from dpinfer.formulas import design, load_regression
from dpinfer.formulas.records import UnreadRecords
from dpinfer.formulas.report import in_table_units
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 6000
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [17, 90], "unit": "years"},
            "job": {"kind": "categorical", "categories": ["a", "b", "c"]},
            "wage": {"kind": "continuous", "bounds": [0, 100], "label": "pay < tax", "unit": "€/h"},
            "visits": {"kind": "continuous", "bounds": [0, 30]},
            "rich": {"kind": "target", "positive": "yes", "negative": "no"},
        }
    }
)
BUDGET = {"schema": SCHEMA, "epsilon": 3.0, "delta": 1e-6, "n_records": N}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    age, job = rng.uniform(20, 80, N), rng.integers(3, size=N)
    effect = np.array([0.0, 6.0, -4.0])[job]
    chance = 1 / (1 + np.exp(-(age - 50) / 15 - 0.2 * effect))
    return {
        "age": age,
        "job": np.array(["a", "b", "c"])[job],
        "wage": 20 + 0.5 * age + effect + rng.normal(size=N) * 6,
        "visits": np.minimum(rng.poisson(np.exp(0.02 * age)), 30).astype(float),
        "rich": np.where(rng.random(N) < chance, "yes", "no"),
    }


@pytest.fixture(scope="module")
def linear(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits") / "linear"
    schema = folder.parent / "schema.toml"
    schema.write_text(SCHEMA.to_toml(), encoding="utf-8")
    given = BUDGET | {"schema": schema, "random_source": InsecureRNG(1), "path": folder}
    return dpi.regression("wage ~ age + C(job)", table, **given), folder


def test_a_fit_can_be_pickled_and_copied(table, linear):
    """What a formula means is code, which is made again."""
    fit, _ = linear
    few = {name: values[:5] for name, values in table.items()}
    for other in (pickle.loads(pickle.dumps(fit)), copy.deepcopy(fit)):
        assert str(other.summary()) == str(fit.summary())
        assert other.design.model == fit.design.model
        np.testing.assert_array_equal(other.predict(few), fit.predict(few))


def test_coefficients_are_in_the_units_of_the_table(table, linear):
    fit, _ = linear
    found = fit.coefficients(level=0.999)
    indicators = [(table["job"] == label).astype(float) for label in "bc"]
    exact = np.linalg.lstsq(np.column_stack([table["age"], *indicators, np.ones(N)]), table["wage"], rcond=None)[0]
    assert found.names == ("age", "job[T.b]", "job[T.c]", "intercept", "sigma")
    # False alarms: 4 intervals of 99.9% about estimates that are closer than the truth, seeds fixed.
    assert np.all((found.low[:4] <= exact) & (exact <= found.high[:4]))
    assert found["sigma"]["low"] <= 6.0 <= found["sigma"]["high"]
    assert found.sd[0] < 0.02 < 0.5
    assert np.all((found.privacy > 0) & (found.privacy < 1))
    assert found["age"]["per_sd"] == pytest.approx(found["age"]["mean"] * fit.design.columns[0].scale)


def test_the_map_of_units_gives_the_same_predictor(linear, table):
    fit, _ = linear
    theta = np.random.default_rng(0).normal(size=4)
    matrix, shift = fit.design.user_units()
    beta = matrix @ theta + shift
    records = UnreadRecords({name: column[:50] for name, column in table.items()}, fit.design)
    scaled = np.asarray(records.X) @ theta[:3] + theta[3]
    indicators = [(table["job"][:50] == label).astype(float) for label in "bc"]
    user = np.column_stack([table["age"][:50], *indicators, np.ones(50)]) @ beta
    assert np.allclose(scaled * fit.design.response_scale + fit.design.response_offset, user)
    y = np.asarray(records.y) * fit.design.response_scale + fit.design.response_offset
    assert np.allclose(y, np.clip(table["wage"][:50], 0, 100))


def test_predictions_and_effects_follow_from_the_coefficients(linear):
    fit, _ = linear
    points = {"age": [30.0, 60.0, np.nan], "job": ["a", "c", "b"]}
    mean, sd = fit.predict(points, return_std=True)
    found = fit.coefficients()
    expected = found["intercept"]["mean"] + 30 * found["age"]["mean"]
    assert mean[0] == pytest.approx(expected, abs=5 * sd[0] / np.sqrt(2000) + 1e-9)
    assert np.isnan(mean[2])
    assert np.isnan(sd[2])
    effects = fit.marginal_effects()
    assert effects.names == ("age", "job[b - a]", "job[c - a]")
    assert effects.mean == pytest.approx(found.mean[:3], abs=float(np.max(5 * found.sd[:3] / np.sqrt(2000))))
    for name in ("age", "intercept"):
        # 1e-5: between the share of one weight and that of a combination of one.
        assert fit.contrast({name: 1}).privacy[0] == pytest.approx(found[name]["privacy"], abs=1e-5)
    two = fit.contrast({"job[T.b]": 1, "job[T.c]": -1})
    assert two.mean[0] == pytest.approx(found.mean[1] - found.mean[2])
    with pytest.raises(ValueError, match="weights must be of coefficients"):
        fit.contrast({"job[T.z]": 1})
    with pytest.raises(ValueError, match="exp must be False"):
        fit.coefficients(exp=True)
    with pytest.raises(SchemaError, match="does not declare"):
        fit.predict({"age": [30.0], "job": ["zebra"]})


def test_a_fit_is_saved_loaded_and_reported(linear, tmp_path):
    fit, folder = linear
    again = load_regression(folder)
    assert str(again.summary()) == str(fit.summary())
    assert "wage ~ age + C(job)" in str(fit.summary())
    fit.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "job[T.b]" in page
    assert "NOT PRIVATE" in page
    assert "svg" not in page.partition("</style>")[2]  # nothing is promised, and no curve of it drawn
    assert "<h1>Linear regression of pay &lt; tax</h1>" in page
    told = fit.posterior.diagnostics.verdict.splitlines()
    assert told[-1] in str(fit.summary())
    assert html.escape(told[-1]) in page
    assert "The coefficients are the population" in page
    assert "(squared units of the response)" not in page
    columns, _, scaling = page.partition("<h2>Columns</h2>")[2].partition("<h2>Scaling</h2>")
    assert f"{fit.design.columns[0].scale:.4g}" in scaling
    assert columns.count("A record without a value is dropped.") == 1
    assert "<td>job</td>" in columns
    assert "<td>wage: pay &lt; tax, in €/h</td>" in columns
    assert "from 17 to 90 years" in columns
    assert "age, in years; wage: pay < tax, in €/h" in str(fit.summary())
    data = json.loads((folder / "regression.json").read_text())
    other = tmp_path / "other"
    fit.save(other)
    (other / "regression.json").write_text(json.dumps(data | {"formula": "wage ~ age"}))
    with pytest.raises(ReleaseFormatError, match="not the design of the fit"):
        load_regression(other)
    (other / "regression.json").write_text("{}")
    with pytest.raises(ReleaseFormatError, match="not the design of a regression"):
        load_regression(other)


def test_another_posterior_of_the_release_takes_the_place(linear, table):
    fit, _ = linear
    longer = dpi.noise_aware_posterior(fit.release, n_samples=30, n_warmup=10, seed=5)
    found = fit.with_posterior(longer)
    assert found.posterior is longer
    assert found.coefficients()["age"]["mean"] != fit.coefficients()["age"]["mean"]
    assert found.coefficients()["age"]["mean"] == pytest.approx(fit.coefficients()["age"]["mean"], rel=0.05)
    with pytest.raises(TypeError, match="must be a Posterior"):
        fit.with_posterior(fit)
    other = dpi.fit(dpi.models.BetaBernoulli(), np.ones(N), epsilon=1.0, delta=1e-6, n_records=N)
    with pytest.raises(ValueError, match="must be one of this fit's release"):
        fit.with_posterior(other.posterior)


def test_checks_of_the_release_are_told_in_words_of_the_table(linear):
    fit, _ = linear
    told = "The response_scale is far too large: use one within a factor of 10 of the responses' size"
    found = in_table_units(fit.design, told)
    assert found.startswith("The response's bounds are far too wide")
    assert found.endswith("declare closer bounds")


def test_draws_for_arviz_are_in_the_units_of_the_table(linear):
    pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    fit, _ = linear
    points = {"age": [30.0, np.nan, 60.0], "job": ["a", "b", "c"]}
    data = fit.to_arviz(points, n_samples=500, n_chains=4)
    found = fit.coefficients()
    assert data["posterior"]["coefficient"].values.tolist() == ["age", "job[T.b]", "job[T.c]"]
    for name, variable in (("intercept", "intercept"), ("sigma", "sigma")):
        draws = data["posterior"][variable].values
        assert draws.mean() == pytest.approx(found[name]["mean"], abs=5 * found[name]["sd"] / np.sqrt(2000))
    coef = data["posterior"]["coef"].values.reshape(2000, 3)
    assert np.allclose(coef.mean(axis=0), found.mean[:3], atol=5 * found.sd[:3].max() / np.sqrt(2000))
    y = data["posterior_predictive"]["wage"]
    assert y.dims == ("chain", "draw", "point")
    expected = fit.predict({"age": [30.0, 60.0], "job": ["a", "c"]})
    assert np.allclose(y.values.mean(axis=(0, 1)), expected, atol=5 * 6.5 / np.sqrt(2000))
    assert y.values.std() > 5.0
    assert data["constant_data"]["job"].values.tolist() == ["a", "c"]
    assert data["prior"]["coef"].values.std() > 100 * coef.std(axis=0)[0]
    assert data["prior_predictive"].attrs["formula"] == "wage ~ age + C(job)"


def test_synthetic_tables_have_the_units_and_labels_of_the_table(linear, table):
    fit, _ = linear
    points = {"age": np.linspace(20.0, 80.0, 3000), "job": np.repeat(["a", "b", "c"], 1000)}
    sets = fit.synthetic(points, n_sets=40)
    assert list(sets[0]) == ["age", "job", "wage"]
    rows = np.column_stack([points["age"], *((points["job"] == label) for label in "bc"), np.ones(3000)])
    inverse = np.linalg.inv(rows.T @ rows)
    found = np.array([np.linalg.lstsq(rows, each["wage"], rcond=None)[0] for each in sets])
    errors = np.tile(36.0 * np.diag(inverse), (40, 1))
    low, high = sets.combine(found, errors).interval(0.999)
    exact = fit.coefficients()
    assert np.all((low < exact.mean[:4]) & (exact.mean[:4] < high))
    with pytest.raises(ValueError, match="missing values"):
        fit.synthetic({"age": [np.nan], "job": ["a"]})


def test_binomial_gives_odds_ratios(table):
    fit = dpi.regression("rich ~ age + job", table, family="binomial", random_source=InsecureRNG(2), **BUDGET)
    plain, ratios = fit.coefficients(0.999), fit.coefficients(0.999, exp=True)
    assert plain["age"]["low"] <= 1 / 15 <= plain["age"]["high"]
    assert np.allclose(ratios.low, np.exp(plain.low))
    assert "odds ratios" in str(fit.summary(exp=True))
    assert set(fit.synthetic({"age": np.full(50, 50.0), "job": ["a"] * 50}, n_sets=2)[1]["rich"]) == {"yes", "no"}
    assert 0.0 < fit.predict({"age": [50], "job": ["a"]})[0] < 1.0
    effect = fit.marginal_effects({"age": [50.0], "job": ["a"]})
    chance = fit.predict({"age": [49.9, 50.1], "job": ["a", "a"]})
    assert effect["age"]["mean"] == pytest.approx((chance[1] - chance[0]) / 0.2, rel=1e-3)


def test_poisson_runs_and_rounds_nothing_away(table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        fit = dpi.regression("visits ~ age", table, family="poisson", random_source=InsecureRNG(4), **BUDGET)
    assert fit.coefficients(0.999)["age"]["high"] > 0.01
    assert fit.predict({"age": [80.0]})[0] > fit.predict({"age": [20.0]})[0]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "duckdb", "lazy"])
def test_data_frames_give_the_rows_that_a_mapping_gives(library, table):
    few = {name: column[:30].copy() for name, column in table.items()}
    few["age"][4] = np.nan
    few["job"] = few["job"].astype(object)
    few["job"][7] = None
    found = design("wage ~ age + C(job)", SCHEMA)
    expected = UnreadRecords(few, found)
    module = pytest.importorskip("polars" if library == "lazy" else library, reason="an optional data frame")
    if library == "pandas":
        frame = module.DataFrame(few)
    elif library in ("polars", "lazy"):
        frame = module.DataFrame({name: column.tolist() for name, column in few.items()}, strict=False)
        frame = frame.with_columns(module.col("age").fill_nan(None))
        frame = frame.lazy() if library == "lazy" else frame
    else:
        arrow = pytest.importorskip("pyarrow", reason="an optional data frame")
        frame = arrow.table({name: column.tolist() for name, column in few.items()})
        frame = module.sql("SELECT * FROM frame") if library == "duckdb" else frame
    records = UnreadRecords(frame, found)
    assert np.array_equal(np.asarray(records.X), np.asarray(expected.X))
    assert np.array_equal(np.asarray(records.y), np.asarray(expected.y))
    assert np.asarray(records.X).shape == (28, 3)
    with pytest.raises(SchemaError, match="must have the column 'wage'"):
        UnreadRecords(frame.drop(columns="wage") if library == "pandas" else {"age": [1.0], "job": ["a"]}, found)


def test_a_file_gives_the_same_rows(table, tmp_path):
    found = design("wage ~ age + C(job)", SCHEMA)
    few = {name: column[:30] for name, column in table.items()}
    lines = [",".join(few)] + [",".join(str(few[name][index]) for name in few) for index in range(30)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    assert np.array_equal(np.asarray(UnreadRecords(path, found).X), np.asarray(UnreadRecords(few, found).X))
    path.write_text("age,job\n")
    with pytest.raises(SchemaError, match="must be a header with each of the 5 columns"):
        UnreadRecords(path, found)


class Watched(dict):
    """A table that tells when a record is looked at."""

    def __init__(self, values):
        super().__init__(values)
        self.read = False

    def __getitem__(self, name):
        self.read = True
        return super().__getitem__(name)


def test_nothing_is_looked_at_before_the_charge(table, tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "ledger.jsonl")
    account = ledger.add_dataset("people", budget=(1.0, 1e-5))
    watched = Watched(table)
    for wrong in ({"method": "none"}, {"family": "gamma"}, {"n_records": 0}, {"prior_scale": -1.0}, {"epsilon": 0.0}):
        with pytest.raises((TypeError, ValueError)):
            dpi.regression("wage ~ age", watched, **{**BUDGET, "epsilon": 0.5, "ledger": account, **wrong})
    with pytest.raises(TypeError, match="unexpected keyword"):
        dpi.regression("wage ~ age", watched, wrong=1, **BUDGET)
    with pytest.raises(dpi.errors.BudgetExceededError):
        dpi.regression("wage ~ age", watched, ledger=account, **{**BUDGET, "epsilon": 5.0})
    assert not watched.read
    dpi.regression("wage ~ age", watched, ledger=account, **{**BUDGET, "epsilon": 0.5})
    assert watched.read
    assert account.spent(1e-5).epsilon > 0.4


def test_leaks_of_the_schema_stay_in_the_release(table):
    leaky = Schema.from_dict(SCHEMA.to_dict() | {"table": {"leaks": ["bounds were read from the private records"]}})
    fit = dpi.regression("wage ~ age", table, **{**BUDGET, "schema": leaky})
    assert "bounds were read from the private records" in str(fit.release.guarantee)


def test_a_missing_data_frame_column_and_kind_are_named():
    found = design("wage ~ age", SCHEMA)
    with pytest.raises(TypeError, match="data must be a data frame"):
        UnreadRecords(3, found)
    with pytest.raises(TypeError, match="new_data must be"):
        dpi.formulas.records.predictors("file.csv", found)
