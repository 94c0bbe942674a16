"""``dpinfer demo``, ``posterior`` and ``account``."""

import re
import subprocess
import sys

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.cli import demo as demo_verb
from dpinfer.cli.demo import N_RECORDS, SCHEMA_TOML, TRUE_PARAMETERS, simulate
from dpinfer.cli.main import main
from dpinfer.formulas import design
from dpinfer.release import release_from_arrays


def call(argv):
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run of the demonstration, as a user starts it."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    result = subprocess.run(
        [sys.executable, "-m", "dpinfer", "demo", "--out", str(folder)], capture_output=True, text=True, check=False
    )
    return folder, result


@pytest.mark.slow
def test_demo(demo):
    folder, result = demo
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    names = {path.name for path in folder.iterdir()}
    assert {"census.csv", "census.toml", "fit.release", "coefficients.csv", "report.html"} <= names
    release = dpi.load_release(folder / "fit.release")
    assert release.secure
    assert 0.99 < release.epsilon <= 1.0
    assert release.n_records == N_RECORDS
    assert str(folder / "report.html") in result.stdout
    inside, total = map(int, re.search(r"(\d+) of (\d+) true values", result.stdout).groups())
    assert total == len(TRUE_PARAMETERS)
    assert "* newton" in result.stdout
    # Not a test of coverage: nine independent intervals of even 80 % all miss with probability 5e-7.
    assert inside >= 1


@pytest.mark.slow
def test_posterior_of_the_demo(demo, tmp_path, capsys):
    folder, _ = demo
    argv = ["posterior", str(folder / "fit.release"), "--n-samples", "40", "--out", str(tmp_path / "out")]
    assert call(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "schooling" in out
    assert (tmp_path / "out" / "report.html").exists()


def test_posterior_of_a_trace_names_its_prior(tmp_path, capsys):
    rng = np.random.default_rng(0)
    positions = np.hstack([rng.normal(size=(400, 1)), np.full((400, 1), -1.0) + 0.1 * rng.normal(size=(400, 1))])
    release_from_arrays(positions, positions, noise_stddev=1.0, sample_rate=1.0).save(tmp_path / "x.release")
    argv = ["posterior", str(tmp_path / "x.release"), "--burn-in", "0", "--prior", "weak", "--out", str(tmp_path / "o")]
    assert call(argv) == 0
    assert "<td>Prior</td><td>weak</td>" in (tmp_path / "o" / "report.html").read_text("utf-8")
    assert call([*argv, "--prior-scale", "2"]) == 2
    assert "prior_scale must be left at its default" in capsys.readouterr().err


def test_posterior_refuses_other_files(tmp_path, capsys):
    (tmp_path / "x.release").write_bytes(b"not a release")
    assert call(["posterior", str(tmp_path / "x.release"), "--out", str(tmp_path / "out")]) == 2
    assert call(["posterior", str(tmp_path / "absent.release")]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2
    assert f"'{tmp_path / 'x.release'}' is not a readable dpinfer release" in err
    assert "not a release" not in err  # its content
    assert not (tmp_path / "out").exists()


def test_posterior_of_an_external_trace_claims_nothing(tmp_path, capsys):
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(400, 2))
    gradients = 3.0 * (positions - 0.5) + rng.normal(size=(400, 2))
    release = release_from_arrays(positions, gradients, noise_stddev=1.0, sample_rate=1.0, family="point")
    release.save(tmp_path / "x.release")
    assert call(["posterior", str(tmp_path / "x.release"), "--burn-in", "0", "--out", str(tmp_path / "out")]) == 0
    assert "No privacy guarantee" in capsys.readouterr().out
    report = (tmp_path / "out" / "report.html").read_text()
    assert "No privacy guarantee" in report
    assert "clipped gradients" not in report


def test_bad_combination_is_a_usage_error(tmp_path, capsys):
    positions = np.linspace(1, 0, 50)[:, None]
    release = release_from_arrays(positions, positions, noise_stddev=1.0, sample_rate=1.0, family="point")
    release.save(tmp_path / "x.release")
    assert call(["posterior", str(tmp_path / "x.release"), "--approximation", "laplace", "--hessian", "tied"]) == 2
    assert "hessian" in capsys.readouterr().err


def test_account_agrees_with_the_plan(capsys):
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=1000)
    argv = ["account", "--noise-multiplier", str(plan.noise_multiplier), "--sample-rate", "0.1", "--steps", "1000"]
    assert call([*argv, "--delta", "1e-5"]) == 0
    out = capsys.readouterr().out
    epsilon = float(re.search(r"epsilon <= ([0-9.]+)", out).group(1))
    assert epsilon == pytest.approx(plan.epsilon, rel=1e-4)
    assert epsilon >= plan.epsilon
    assert "1e-05" in out
    for name, text in plan.guarantee.terms()[1:]:
        assert re.search(rf"^  {re.escape(name)} +{re.escape(text)}$", out, re.MULTILINE)
    # Plain Gaussian noise of 2: mu = 1/2 and rho = 1/8 exactly, and what an attack reaches follows from mu.
    assert call(["account", "--noise-multiplier", "2", "--sample-rate", "1", "--steps", "1", "--delta", "1e-5"]) == 0
    out = capsys.readouterr().out
    assert "0.5, up to delta 1e-05" in out
    assert re.search(r"rho \(zCDP\) +0.125,", out)
    assert "at most 3.39% true positives" in out


@pytest.mark.parametrize(
    ("option", "value"),
    [("--noise-multiplier", "0"), ("--sample-rate", "2"), ("--steps", "0"), ("--delta", "0"), ("--accountant", "x")],
)
def test_account_refuses(option, value, capsys):
    argv = ["account", "--noise-multiplier", "1", "--sample-rate", "0.1", "--steps", "10", "--delta", "1e-5"]
    assert call([*argv, option, value]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert option in err


def test_no_verb_and_unknown_verb(capsys):
    assert call([]) == 2
    assert call(["conjure"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_simulated_people_follow_the_stated_model():
    text = simulate(400, 1)
    assert simulate(400, 1) == text
    assert simulate(400, 2) != text
    schema = dpi.tabular.Schema.from_toml(SCHEMA_TOML)
    assert (*schema.feature_names, "intercept") == tuple(TRUE_PARAMETERS)


@pytest.mark.statistical
def test_score_of_the_simulation_is_zero_at_the_truth(tmp_path):
    # At the true weights each score component has mean 0 and known variance; a Bonferroni bound at 1e-6 over 9.
    (tmp_path / "census.csv").write_text(simulate())
    table = dpi.tabular.read_table(tmp_path / "census.csv", dpi.tabular.Schema.from_toml(SCHEMA_TOML))
    X = np.column_stack([table.X, np.ones(len(table.X))])

    def largest(weights):
        p = 1.0 / (1.0 + np.exp(-X @ weights))
        return np.max(np.abs(X.T @ (table.y - p)) / np.sqrt((X**2).T @ (p * (1.0 - p))))

    from scipy import stats

    critical = stats.norm.isf(1e-6 / 2 / X.shape[1])
    truth = np.array(list(TRUE_PARAMETERS.values()))
    assert largest(truth) < critical
    assert largest(truth + 0.2 * (np.arange(len(truth)) == 1)) > critical


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_every_relation_and_accountant_is_accounted(capsys, accountant, adjacency):
    argv = ["account", "--noise-multiplier", "5", "--sample-rate", "1", "--steps", "10", "--delta", "1e-5"]
    assert call([*argv, "--accountant", accountant, "--adjacency", adjacency]) == 0
    assert "epsilon <= " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--method", method) for method in ("exact", "laplace", "naive", "averaged")),
        *(("--hessian", hessian) for hessian in ("auto", "diagonal", "tied")),
        *(("--prior", prior) for prior in ("auto", "weak")),
    ],
)
def test_every_offered_value_gives_a_posterior_of_a_release(tmp_path, capsys, option, value):
    rng = np.random.default_rng(0)
    positions = np.hstack([rng.normal(size=(400, 2)), np.full((400, 2), -1.0) + 0.1 * rng.normal(size=(400, 2))])
    gradients = 3.0 * (positions - 0.5) + rng.normal(size=(400, 4))
    release_from_arrays(positions, gradients, noise_stddev=1.0, sample_rate=1.0).save(tmp_path / "x.release")
    assert call(["posterior", str(tmp_path / "x.release"), "--burn-in", "0", option, value]) == 0
    assert "theta[1]" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["linear", "gamma-exponential", "beta-bernoulli", "dirichlet-categorical"])
def test_every_model_is_planned(capsys, model):
    argv = ["plan", "--model", model, "--n-records", "2000", "--epsilon", "1", "--delta", "1e-5", "--steps", "100"]
    argv += ["--sample-rate", "0.1", "--simulations", "1", *(["--n-features", "2"] if model == "linear" else [])]
    assert call(argv) == 0
    capsys.readouterr()


def test_the_truth_of_the_demonstration_is_in_the_units_of_the_table():
    """The simulation's linear predictor, from the weights of scaled columns and from the coefficients."""
    schema = dpi.tabular.Schema.from_toml(SCHEMA_TOML)
    found = demo_verb.true_coefficients(schema)
    names = design("`income` ~ .", schema, family="binomial").model.names
    assert set(found) == set(names)
    person = {"age": 60.0, "schooling": 15.0, "hours": 20.0, "region[T.overseas]": 1.0, "married[T.yes]": 1.0}
    own = found["intercept"] + sum(found[name] * value for name, value in person.items())
    scaled = {"age": 1.0, "schooling": 1.0, "hours": -1.8, "region=overseas": 1.0, "married=yes": 1.0}
    truth = TRUE_PARAMETERS["intercept"] + sum(TRUE_PARAMETERS[name] * value for name, value in scaled.items())
    assert own == pytest.approx(truth)
