"""Formulas with effects of persons: from the table to standard deviations, files, and what is refused."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.formulas import PersonFit, design
from dpinfer.mechanism import Units
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic")

SCHEMA = dpi.tabular.Schema.from_dict(
    {
        "columns": {
            "person": {"kind": "ignore"},
            "week": {"kind": "continuous", "bounds": [0, 10]},
            "arm": {"kind": "categorical", "categories": ["a", "b"]},
            "site": {"kind": "categorical", "categories": ["n", "s"]},
            "score": {"kind": "continuous", "bounds": [0, 12]},
            "well": {"kind": "target", "positive": "yes", "negative": "no"},
        }
    }
)
UNIT = Units("person", max_rows=6, mean_rows=3.5)
BUDGET = {"schema": SCHEMA, "epsilon": 3.0, "delta": 1e-5, "n_records": 600}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    person = rng.permutation(np.repeat(np.arange(600), rng.integers(1, 7, 600)))
    week, arm, effect = rng.uniform(0, 10, person.size), rng.integers(0, 2, 600)[person], rng.normal(size=600)[person]
    score = 5.0 + 0.2 * week + 0.5 * arm + effect + 0.7 * rng.normal(size=person.size)
    return {
        "person": person,
        "week": week,
        "arm": np.array(["a", "b"])[arm],
        "site": np.array(["n", "s"])[person % 2],
        "score": score,
        "well": np.where(score > 6.0, "yes", "no"),
    }


def test_from_a_table_to_standard_deviations_and_back_from_a_folder(table, tmp_path):
    fit = dpi.regression(
        "score ~ week + arm + (1 + week | person)",
        table,
        unit=UNIT,
        path=tmp_path / "fit",
        random_source=InsecureRNG(2),
        **BUDGET,
    )
    assert isinstance(fit, PersonFit)
    assert fit.release.n_records == 600
    coefficients, scales = fit.coefficients(), fit.scales()
    assert coefficients.names == ("week", "arm[T.b]", "intercept")
    assert scales.names == ("sd by person", "sd of week by person", "correlation by person", "sigma")
    # 600 persons: standard errors of about 0.006 and 0.04, and as much again for the noise; five of them.
    assert abs(coefficients["week"]["mean"] - 0.2) < 5.0 * coefficients["week"]["sd"]
    assert coefficients["week"]["sd"] < 0.03
    assert abs(scales["sd by person"]["mean"] - 1.0) < 5.0 * scales["sd by person"]["sd"]
    assert abs(scales["sigma"]["mean"] - 0.7) < 5.0 * scales["sigma"]["sd"]
    assert "sd of week by person" in scales.remarks  # it is zero
    assert scales["sd of week by person"]["low"] == 0.0
    assert "sd by person" not in scales.remarks
    correlation = fit.intraclass_correlation()["intraclass correlation by person"]
    assert abs(correlation["mean"] - 1.0 / 1.49) < 5.0 * correlation["sd"]
    assert fit.compare_effect().p_value > 0.05
    assert "sd by person" in str(fit.summary())
    points = {"week": [2.0, np.nan], "arm": ["a", "b"]}
    assert np.allclose(fit.predict(points), fit.predict(points, conditional=True), equal_nan=True)
    again = dpi.load_regression(tmp_path / "fit")
    assert isinstance(again, PersonFit)
    assert np.array_equal(again.scales().low, scales.low)


def test_odds_of_an_unknown_person_are_nearer_to_even(table):
    fit = dpi.regression(
        "well ~ week + (1 | person)", table, family="binomial", unit=UNIT, random_source=InsecureRNG(2), **BUDGET
    )
    assert fit.compare_effect().log_bayes_factor > 3.0
    points = {"week": [0.0, 10.0]}
    mean, own = fit.predict(points), fit.predict(points, conditional=True)
    assert np.all(np.abs(mean - 0.5) < np.abs(own - 0.5))
    theta = np.array([[0.0, 1.0, fit.design.model.from_covariance(np.array([[4.0]]))[0]]])
    draws = 1.0 / (1.0 + np.exp(-1.0 - 2.0 * np.random.default_rng(1).normal(size=400_000)))
    assert abs(fit.design.model.predict_mean(theta, [[0.0]])[0, 0] - draws.mean()) < 5e-3  # 10 errors


@pytest.mark.parametrize(
    ("formula", "family", "unit", "said"),
    [
        ("score ~ week + (1 | person)", "gaussian", None, "need the column as the one that is protected"),
        ("score ~ week + (1 | person) + (1 | site)", "gaussian", UNIT, "crossed and nested"),
        ("score ~ week + (1 | site/person)", "gaussian", UNIT, "nested groups are not there"),
        ("score ~ week + (1 | site)", "gaussian", UNIT, "effects of persons are those of the column of unit"),
        ("score ~ arm + (1 + week | person)", "gaussian", UNIT, "as a term of its own"),
        ("score ~ arm + (1 + arm | person)", "gaussian", UNIT, "as a term of its own"),
        ("score ~ week + (0 + week | person)", "gaussian", UNIT, r"\(1 \+ x \| person\)"),
        ("score ~ 0 + week + (1 | person)", "gaussian", UNIT, "must have an intercept"),
        ("score ~ week + offset(week) + (1 | person)", "gaussian", UNIT, "without offset"),
        ("well ~ week + (1 | person)", "multinomial", UNIT, "for family 'multinomial'"),
        ("score ~ week + (1 | person)", "gaussian", Units("person", max_rows=2.5), "whole number of max_rows"),
    ],
)
def test_what_is_not_there_is_refused_before_the_charge(table, formula, family, unit, said, tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("visits", budget=(10.0, 1e-3))
    with pytest.raises((ValueError, TypeError), match=said):
        dpi.regression(formula, table, family=family, unit=unit, ledger=account, **BUDGET)
    assert "charge" not in [entry.kind for entry in dpi.PrivacyLedger(tmp_path / "spent.ledger").entries()]


@pytest.mark.parametrize(("formula", "family"), [("score ~ week", "gaussian"), ("well ~ week", "binomial")])
def test_people_of_one_row_are_flagged(formula, family):
    """Their effects and the noise are one: what is released tells no standard deviation from zero."""
    rng = np.random.default_rng(4)
    week = rng.uniform(0, 10, 600)
    score = 5.0 + 0.2 * week + rng.normal(size=600)
    one = {"person": np.arange(600), "week": week, "score": score, "well": np.where(score > 6.0, "yes", "no")}
    one |= {"arm": np.full(600, "a"), "site": np.full(600, "n")}
    options = {"family": family, "unit": UNIT, "random_source": InsecureRNG(1), **BUDGET}
    fit = dpi.regression(f"{formula} + (1 | person)", one, **options)
    assert fit.scales().remarks == {"sd by person": "not told from zero"}
    assert fit.scales()["sd by person"]["low"] == 0.0


def test_a_plan_predicts_a_width():
    plan = dpi.formulas.plan_regression("score ~ week + (1 | person)", unit=UNIT, **BUDGET)
    assert 1.0 < plan.choice.chosen.predicted_width < 10.0
    with pytest.raises(ValueError, match="unit must be None"):
        dpi.formulas.plan_regression("score ~ week", unit=UNIT, **BUDGET)
    assert design("score ~ week + (1 | person)", SCHEMA, unit=UNIT).model.max_rows == 6
