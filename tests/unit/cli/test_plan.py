"""``dpinfer plan``."""

import json

import pytest

import dpinfer as dpi
from dpinfer.cli.main import main

QUICK = ["--sample-rate", "0.1", "--steps", "1000"]


def test_prints_a_table(capsys):
    assert main(["plan", "--n-records", "5000", "--epsilon", "0.3", "--model", "beta-bernoulli", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "recipe 'tied', 5000 records" in out
    assert "wider by a factor 1.0" in out


def test_prints_json(capsys):
    arguments = ["plan", "--n-records", "5000", "--epsilon", "0.3", "--model", "linear", "--n-features", "2"]
    assert main([*arguments, *QUICK, "--curvature", "10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["parameters"]] == ["coef[0]", "coef[1]", "intercept", "noise_variance"]


def test_writes_a_grid_and_a_picture(tmp_path, capsys):
    arguments = ["plan", "--n-records", "900", "--epsilon", "0.3", "--model", "beta-bernoulli", *QUICK]
    assert main([*arguments, "--out", str(tmp_path / "plan")]) == 0
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {"plan.json", "widening.txt", "widening.png"}
    assert "2700" in (tmp_path / "plan" / "widening.txt").read_text()


def test_reads_a_pilot(tmp_path, capsys):
    path = tmp_path / "pilot.csv"
    path.write_text("\n".join(f"{i % 3},{i % 5}" for i in range(60)))
    arguments = ["plan", "--n-records", "3000", "--epsilon", "1", "--n-features", "2", "--pilot", str(path)]
    assert main([*arguments, *QUICK, "--steps", "400", "--hessian", "diagonal", "--simulations", "1"]) == 0
    assert "recipe 'plain'" in capsys.readouterr().out
    path.write_text("a,b\n1,2\n")
    assert main([*arguments, *QUICK]) == 2
    assert "must hold comma-separated numbers" in capsys.readouterr().err
    path.unlink()
    assert main([*arguments, *QUICK]) == 2
    err = capsys.readouterr().err
    assert f"cannot open {str(path)!r}: No such file or directory" in err
    assert "withheld" not in err


def test_takes_the_features_of_a_schema(tmp_path, capsys):
    path = tmp_path / "schema.toml"
    path.write_text('[columns.a]\nkind = "categorical"\ncategories = ["x", "y"]\n')
    arguments = ["plan", "--n-records", "3000", "--epsilon", "1", "--schema", str(path), *QUICK, "--steps", "400"]
    assert main([*arguments, "--hessian", "diagonal", "--simulations", "1"]) == 0
    assert "a=y" in capsys.readouterr().out
    assert main([*arguments, "--n-features", "3"]) == 2
    assert "replaces --n-features" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "method"), [("logistic", "newton"), ("beta-bernoulli", "statistic")])
def test_the_plan_is_of_the_method_that_a_fit_runs(model, method, capsys):
    arguments = ["plan", "--n-records", "5000", "--epsilon", "1", "--model", model]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own = {
        "logistic": dpi.models.LogisticRegression(10, fit_intercept=True, prior_scale=2.5),
        "beta-bernoulli": dpi.models.BetaBernoulli(),
    }[model]
    assert found == json.loads(json.dumps(dpi.plan_fit(own, epsilon=1.0, delta=1e-5, n_records=5000).to_dict()))
    assert found["method"] == method
    assert main(arguments) == 0
    assert f"`dpinfer fit` runs {method!r}" in capsys.readouterr().out
    assert main([*arguments, "--method", method, "--steps", "9"]) == 2
    assert "--steps belongs to --method dpvi" in capsys.readouterr().err


def test_refusals(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--n-records", "0", "--epsilon", "1"])
    assert stop.value.code == 2
