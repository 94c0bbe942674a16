"""Tables of which number of records, bounds or categories are unknown in public."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import SchemaError
from dpinfer.formulas import completion, design
from dpinfer.formulas.columns import MOST_COLUMNS, count_columns
from dpinfer.formulas.completion import _most_labels
from dpinfer.tabular import Schema, SchemaDraft
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 5000
DRAFT = SchemaDraft(
    {
        "columns": {
            "age": {"kind": "continuous", "limits": [1, 120]},
            "job": {"kind": "categorical"},
            "wage": {"kind": "continuous"},
            "unused": {"kind": "continuous"},
        }
    }
)
BUDGET = {"epsilon": 3.0, "delta": 1e-6}
EVERYTHING = ["n_records", "bounds", "categories"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    age, job = rng.uniform(20, 80, N), rng.choice(3, size=N, p=[0.6, 0.3995, 0.0005])
    wage = 20 + 0.5 * age + np.array([0.0, 6.0, -4.0])[job] + rng.normal(size=N) * 6
    return {"age": age, "job": np.array(["cook", "clerk", "astronaut"])[job], "wage": wage}


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory):
    place = tmp_path_factory.mktemp("unknown")
    ledger = dpi.PrivacyLedger.create(place / "spent.ledger").add_dataset("people", budget=(3.0, 1e-6))
    fit = dpi.regression(
        "wage ~ log(age) + C(job)",
        table,
        schema=DRAFT,
        unknown=EVERYTHING,
        ledger=ledger,
        path=place / "fit",
        **BUDGET,
    )
    return fit, ledger, place / "fit"


def test_one_guarantee_counts_everything(fitted):
    fit, ledger, folder = fitted
    assert 2.9 < fit.release.epsilon <= 3.0
    assert fit.plan.epsilon < 2.9
    assert [run.event for run in ledger.runs()] == [part.event for part in fit.release.parts]
    again = dpi.load_regression(folder)
    assert str(again.summary()) == str(fit.summary())
    assert again.design.schema.parts == fit.release.parts[:1]


def test_the_schema_has_what_was_released_for_the_columns_of_the_formula(fitted, table):
    fit, _, _ = fitted
    columns = {column.name: column for column in fit.design.schema.columns}
    assert set(columns) == {"age", "job", "wage"}
    assert columns["job"].categories == ("cook", "clerk", "other")
    low, high = columns["age"].bounds
    assert 1.0 <= low < 25.0
    assert 75.0 < high <= 120.0
    assert abs(fit.plan.n_records - N) < 200
    found = fit.coefficients(0.999)
    rows = np.column_stack([np.log(table["age"]), table["job"] == "clerk", table["job"] == "astronaut", np.ones(N)])
    exact = np.linalg.lstsq(rows, table["wage"], rcond=None)[0]
    # False alarms: 2 intervals of 99.9% about estimates that are closer than the truth.
    for name, value in (("log(age)", exact[0]), ("job[T.clerk]", exact[1])):
        assert found[name]["low"] < value < found[name]["high"]


def test_a_file_gives_the_release_that_its_columns_give(table, tmp_path):
    few = {name: column[:400] for name, column in table.items()} | {"unused": np.zeros(400)}
    path = tmp_path / "table.csv"
    path.write_text("\n".join([",".join(few), *(",".join(map(str, row)) for row in zip(*few.values(), strict=True))]))
    options = {"schema": DRAFT, "unknown": EVERYTHING, **BUDGET}
    fits = [dpi.regression("wage ~ age", data, random_source=InsecureRNG(5), **options) for data in (few, path)]
    assert fits[0].plan.n_records == fits[1].plan.n_records
    assert np.array_equal(fits[0].release.scores, fits[1].release.scores)


class Unread(dict):
    """A table that may not be looked at."""

    def __getitem__(self, name):
        raise AssertionError("looked at")


@pytest.mark.parametrize(
    ("formula", "options", "match"),
    [
        ("wage ~ wage", {}, "both sides"),
        ("wage ~ log(unused)", {}, "declare limits"),
        ("wage ~ bs(age, knots=[50])", {}, "declare limits"),
        ("wage ~ C(job, base='cook')", {}, "base level"),
        ("wage ~ age", {"unknown": ["n_records"]}, "unknown must hold 'bounds'"),
        ("wage ~ age", {"unknown": "bounds"}, "unknown must be a list"),
        ("wage ~ age", {"unknown": ["bounds"]}, "n_records must be given"),
        ("wage ~ age", {"n_records": N}, "n_records must be given"),
        ("wage ~ age", {"method": "dpvi"}, "method must be"),
        ("wage ~ age", {"checkpoint": "run"}, "checkpoint must be None"),
        ("wage ~ age", {"adjacency": "replace_one"}, "replace_one"),
        ("wage ~ age", {"unknown": None, "n_records": N}, "SchemaDraft needs unknown"),
        ("wage ~ age", {"epsilon": 5.0}, "budget"),
    ],
)
def test_all_that_is_wrong_is_refused_before_anything_is_spent(table, formula, options, match, tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(3.0, 1e-6))
    given = {"schema": DRAFT, "unknown": EVERYTHING, **BUDGET, **options}
    with pytest.raises((TypeError, ValueError), match=match):
        dpi.regression(formula, Unread(dict.fromkeys((*table, "unused"))), ledger=ledger, **given)
    assert ledger.runs() == ()


def test_a_missing_column_costs_nothing(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(3.0, 1e-6))
    with pytest.raises(SchemaError, match="must have the column 'wage'"):
        dpi.regression("wage ~ age", {"age": [1.0]}, schema=DRAFT, unknown=EVERYTHING, ledger=ledger, **BUDGET)
    assert ledger.runs() == ()


def test_labels_that_turn_out_to_be_rare_are_no_error():
    """Whatever is released makes a design: one label, tiny bounds, columns that say the same."""
    completed = Schema.from_dict(
        {
            "columns": {
                "age": {"kind": "continuous", "bounds": [119.999999, 120]},
                "job": {"kind": "categorical", "categories": ["other"], "other": "other"},
                "visits": {"kind": "continuous", "bounds": [0, 0.4]},
            }
        }
    )
    for formula in ("visits ~ job", "visits ~ age + I(age**2) + job + age:job"):
        found = design(formula, completed, family="poisson", completed=True)
        assert found.model.n_features == len(found.columns) >= 1
        with pytest.raises(ValueError, match="formula must"):
            design(formula, completed, family="poisson")


def test_released_labels_that_spell_other_columns_make_a_design():
    """A label can end like the name of an interaction: found after the labels are paid for, it must not end the fit."""
    document = {
        "columns": {
            "job": {"kind": "categorical", "categories": ["base", "a", "a]:sex[T.m", "other"], "other": "other"},
            "sex": {"kind": "categorical", "categories": ["f", "m"]},
            "wage": {"kind": "continuous", "bounds": [0, 9]},
        }
    }
    formula = "wage ~ job * sex"
    with pytest.raises(ValueError, match="two are called"):
        design(formula, Schema.from_dict(document))
    found = design(formula, Schema.from_dict(document), completed=True)
    assert len(set(found.names)) == len(found.names) == len(found.model.feature_names)
    assert {"job[T.a]:sex[T.m]", "job[T.a]:sex[T.m] (2)"} < set(found.names)
    assert design(formula, Schema.from_dict(document), completed=True).names == found.names


def test_labels_that_spell_other_columns_are_fitted(tmp_path, monkeypatch):
    released, right = [], completion.release_unknown
    monkeypatch.setattr(
        completion, "release_unknown", lambda *args, **options: released.append(options) or right(*args, **options)
    )
    rng = np.random.default_rng(5)
    job, sex = rng.choice(4, N), rng.choice(2, N)
    labels = ["a", "b", "a]:sex[T.m", "c"]
    table = {
        "job": np.array(labels)[job],
        "sex": np.array(["f", "m"])[sex],
        "wage": job + sex + rng.normal(size=N),
    }
    columns = {"job": {"kind": "categorical"}, "sex": {"kind": "categorical", "categories": ["f", "m"]}}
    draft = SchemaDraft({"columns": columns | {"wage": {"kind": "continuous", "bounds": [-5, 9]}}})
    fit = dpi.regression(
        "wage ~ job * sex", table, schema=draft, unknown=["categories"], n_records=N, path=tmp_path / "fit", **BUDGET
    )
    assert set(labels) <= set(fit.design.schema.columns[0].categories)
    asked = draft.only({"job", "sex", "wage"}, ignore=False)
    assert [options["max_labels"] for options in released] == [_most_labels("wage ~ job * sex", asked)]
    assert str(dpi.load_regression(tmp_path / "fit").summary()) == str(fit.summary())


def test_no_more_labels_are_released_than_the_formula_can_have():
    """Too many columns would be found after the labels are paid for."""
    for formula, most in (
        ("wage ~ job", 1024),
        ("wage ~ job * age", 512),
        ("wage ~ job * town", 32),
        ("wage ~ age", 2048),
    ):
        columns = {name: {"kind": "categorical"} for name in ("job", "town")}
        numbers = {name: {"kind": "continuous", "bounds": [0, 9]} for name in ("age", "wage")}
        draft = SchemaDraft({"columns": columns | numbers})
        assert _most_labels(formula, draft) == most
        made = count_columns(formula, draft.stand_in(n_labels=most))
        assert made <= MOST_COLUMNS
        assert "job" not in formula or count_columns(formula, draft.stand_in(n_labels=2 * most)) > MOST_COLUMNS
