"""``dpinfer fit --formula``: every family, what is written, and what is refused before anything is spent."""

import csv

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.cli.main import main

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")
N = 1500
SCHEMA = """
[columns.age]
kind = "continuous"
bounds = [18, 80]
[columns.job]
kind = "categorical"
categories = ["clerk", "cook"]
[columns.pay]
kind = "continuous"
bounds = [0, 100]
[columns.visits]
kind = "continuous"
bounds = [0, 40]
[columns.rich]
kind = "target"
positive = "yes"
negative = "no"
"""
RESPONSES = {
    "gaussian": "pay",
    "binomial": "rich",
    "multinomial": "rich",
    "probit": "rich",
    "poisson": "visits",
    "negativebinomial": "visits",
}


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(3)
    age, job = rng.uniform(18, 80, N), rng.choice(["clerk", "cook"], N)
    pay = np.clip(10 + 0.5 * age + rng.normal(scale=5, size=N), 0, 100)
    visits, rich = rng.poisson(np.exp(0.01 * age)), np.where(pay > 35, "yes", "no")
    with (tmp_path / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "job", "pay", "visits", "rich"])
        writer.writerows(zip(age, job, pay, visits, rich, strict=True))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def fit(place, formula, *rest):
    given = ["--epsilon", "2", "--delta", "1e-6", "--n-records", str(N), "--out", str(place / "out")]
    return main(
        ["fit", str(place / "people.csv"), "--schema", str(place / "schema.toml"), *given, "--formula", formula, *rest]
    )


@pytest.mark.parametrize("family", RESPONSES)
def test_every_family_runs(place, capsys, family):
    short = ["--n-samples", "60"]
    assert fit(place, f"{RESPONSES[family]} ~ age + job", "--family", family, *short) == 0, capsys.readouterr().err
    lines = (place / "out" / "coefficients.csv").read_text().splitlines()
    assert "differentially private" in lines[0]
    names = [row[0] for row in csv.reader(lines[2:])]
    of_class = "yes:" if family == "multinomial" else ""
    assert {f"{of_class}age", f"{of_class}job[T.cook]"} <= set(names)
    assert ("sigma" in names) == (family == "gaussian")
    assert (place / "out" / "report.html").stat().st_size > 1000
    assert dpi.load_regression(place / "out").fit.release.epsilon <= 2.0


def test_draws_are_as_many_as_the_error_needs_whatever_is_asked_for(place, capsys):
    assert fit(place, "pay ~ age", "--n-samples", "30") == 0, capsys.readouterr().err
    posterior = dpi.load_regression(place / "out").posterior
    assert posterior.diagnostics.mcse.max() < 0.05
    assert main(["posterior", str(place / "out" / "fit.release"), "--n-samples", "40"]) == 0
    assert "population" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        fit(place, "pay ~ age", "--n-samples", "5")


@pytest.mark.parametrize(
    ("formula", "rest", "said"),
    [
        ("pay ~ height", [], "height"),
        ("pay ~ bs(age)", [], "bs"),
        ("pay ~ age", ["--family", "binomial"], "two categories"),
    ],
)
def test_what_is_not_public_is_refused_before_the_charge(place, capsys, formula, rest, said):
    account = dpi.PrivacyLedger.create(place / "spent").add_dataset("people", budget=(3.0, 1e-5))
    assert fit(place, formula, *rest, "--ledger", str(place / "spent"), "--dataset", "people") == 2
    assert said in capsys.readouterr().err
    assert not account.runs()


def test_survey_weights_clusters_and_strata(place, capsys):
    rng = np.random.default_rng(4)
    x, heavy = rng.uniform(-3.0, 3.0, N), rng.random(N) < 0.3
    with (place / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["y", "x", "w", "house", "region"])
        noise = np.repeat(rng.normal(scale=0.5, size=N // 3), 3)  # of a household
        y, w = np.where(heavy, 3.0, 1.0) * x + noise, np.where(heavy, 4.0, 0.5)
        region = np.array(["a", "b"])[np.arange(N) // 3 % 2]
        writer.writerows(zip(y, x, w, np.arange(N) // 3, region, strict=True))
    columns = {
        "y": 'kind = "continuous"\nbounds = [-20, 20]',
        "x": 'kind = "continuous"\nbounds = [-3, 3]',
        "w": 'kind = "continuous"\nbounds = [0, 5]\nmean = 1.55\nsd = 1.6',
        "house": 'kind = "ignore"',
        "region": 'kind = "categorical"\ncategories = ["a", "b"]',
    }
    (place / "schema.toml").write_text("\n".join(f"[columns.{name}]\n{text}" for name, text in columns.items()))
    dpi.PrivacyLedger.create(place / "spent").add_dataset("people", budget=(50.0, 1e-5))
    charged = ["--epsilon", "20", "--ledger", str(place / "spent"), "--dataset", "people", "--overwrite"]
    slopes = []
    for rest in (["--clusters", "house"], ["--clusters", "house", "--weights", "w", "--strata", "region"]):
        assert fit(place, "y ~ x", *charged, *rest) == 0, capsys.readouterr().err
        assert "cluster-robust" in capsys.readouterr().out
        slopes.append(dpi.load_regression(place / "out").coefficients()["x"]["mean"])
    # Weighted means of the slopes 3 and 1: 1.6 and 2.55; standard errors are below 0.05.
    assert slopes == pytest.approx([1.6, 2.55], abs=0.25)
    for rest, said in (
        (["--strata", "house"], "strata must be a column"),
        (["--weights", "y"], "besides the formula's"),
        (["--clusters", "nobody"], "clusters must name a column"),
        (["--formula", "y ~ (1 | x)"], "declared categories"),
        (["--weights", "w", "--test", str(place / "people.csv"), "--family", "binomial"], "--test"),
    ):
        assert fit(place, "y ~ x", *charged, *rest) == 2
        assert said in capsys.readouterr().err
    given = ["fit", str(place / "people.csv"), "--schema", str(place / "schema.toml"), "--out", str(place / "out")]
    assert main([*given, "--epsilon", "2", "--delta", "1e-6", "--weights", "w"]) == 2
    assert "need --formula" in capsys.readouterr().err
    assert len(dpi.PrivacyLedger(place / "spent").dataset("people").runs()) == 2


DRAFT = SCHEMA.replace("bounds = [18, 80]\n", "limits = [0, 120]\n").replace('categories = ["clerk", "cook"]\n', "")


def test_what_is_unknown_is_released_with_a_formula(place, capsys):
    (place / "schema.toml").write_text(DRAFT)
    dpi.PrivacyLedger.create(place / "spent.ledger").add_dataset("people", budget=(2.0, 1e-6))
    given = ["fit", str(place / "people.csv"), "--schema", str(place / "schema.toml"), "--out", str(place / "out")]
    given += ["--epsilon", "2", "--delta", "1e-6", "--family", "binomial", "--unknown", "n_records,bounds,categories"]
    charged = ["--ledger", str(place / "spent.ledger"), "--dataset", "people"]
    for formula, said in (("rich ~ log(age)", "limits"), ("rich ~ height", "height")):
        assert main([*given, *charged, "--formula", formula]) == 2
        assert said in capsys.readouterr().err
    assert main([*given, *charged, "--formula", "rich ~ age + job"]) == 0, capsys.readouterr().err
    found = dpi.load_regression(place / "out")
    assert 1.9 < found.release.epsilon <= 2.0
    assert [run.status for run in dpi.PrivacyLedger(place / "spent.ledger").dataset("people").runs()] == [
        "finished"
    ] * 2
    assert main([*given, *charged, "--overwrite", "--formula", "rich ~ age"]) == 3
