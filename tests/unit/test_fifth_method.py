"""A fifth method, of another package: whatever fits a model finds it in the table, and nothing else knows it."""

from pathlib import Path

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.auditing import audit
from dpinfer.cli.main import main
from dpinfer.lab.replays import replay_audit
from dpinfer.lab.replays.calls import fit_scenarios
from dpinfer.models import BetaBernoulli, LogisticRegression

FOLDER = Path(__file__).parents[1] / "plugins"
N = 4000
BUDGET = {"epsilon": 4.0, "delta": 1e-6}
RNG = np.random.default_rng(7)
X = RNG.uniform(-1.0, 1.0, (N, 2))
Y = (RNG.random(N) < 1.0 / (1.0 + np.exp(-2.0 * X[:, 0]))).astype(float)
SCHEMA = {
    "columns": {
        "a": {"kind": "continuous", "bounds": [-1.0, 1.0]},
        "b": {"kind": "continuous", "bounds": [-1.0, 1.0]},
        "bought": {"kind": "target", "negative": "0", "positive": "1"},
    }
}


@pytest.fixture(autouse=True)
def hospital(monkeypatch):
    """Install the package: its folder of metadata is on the path, as pip would put it."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def account(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("wards", budget=(9.0, 1e-5))


@pytest.fixture
def table(tmp_path):
    lines = [f"{a},{b},{y:.0f}" for (a, b), y in zip(X, Y, strict=True)]
    path = tmp_path / "records.csv"
    path.write_text("\n".join(["a,b,bought", *lines, ""]))
    return path


def check(release, epsilon=2.0):
    assert release.settings["method_of"] == {"name": "thrift", "package": "hospital 1.0"}
    assert release.epsilon == pytest.approx(epsilon, rel=0.02)
    assert release.leaks == ()


def test_fit_with_a_ledger(account, tmp_path):
    fit = dpi.fit(
        LogisticRegression(2), X, Y, **BUDGET, n_records=N, method="thrift", ledger=account, path=tmp_path / "fit"
    )
    check(fit.release)
    assert account.spent(1e-6).epsilon == pytest.approx(2.0, rel=0.02)
    assert fit.posterior.mean[0] == pytest.approx(2.0, abs=0.5)
    assert dpi.load_fit(tmp_path / "fit").plan.method == "thrift"
    fit.report(tmp_path / "report.html")
    assert "at half of the budget" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_unknown():
    fit = dpi.fit(LogisticRegression(2), X, Y, **BUDGET, method="thrift", unknown=["n_records"])
    assert fit.plan.method == "thrift"
    assert fit.release.n_records == pytest.approx(N, abs=300)
    assert 2.0 < fit.release.epsilon < 4.0


@pytest.mark.parametrize("kind", [dpi.BayesianLogisticRegression, dpi.BayesianProbitRegression])
def test_estimators(kind, account):
    model = kind(**BUDGET, n_records=N, classes=(0, 1), data_bounds=(-1.0, 1.0), method="thrift", ledger=account)
    check(model.fit(X, Y).release_)
    assert model.coef_[0, 0] > 0.5


def test_formulas(table, account):
    schema = dpi.tabular.Schema.from_dict(SCHEMA)
    fit = dpi.regression(
        "bought ~ a + b",
        table,
        family="binomial",
        schema=schema,
        **BUDGET,
        n_records=N,
        method="thrift",
        ledger=account,
    )
    check(fit.release)
    assert fit.plan.method == "thrift"


def test_the_command_line(table, tmp_path, capsys):
    (tmp_path / "schema.toml").write_text(dpi.tabular.Schema.from_dict(SCHEMA).to_toml())
    given = ["--schema", str(tmp_path / "schema.toml"), "--n-records", str(N), "--epsilon", "4", "--delta", "1e-6"]
    assert main(["fit", str(table), *given, "--method", "thrift", "--out", str(tmp_path / "out")]) == 0
    check(dpi.load_release(tmp_path / "out" / "fit.release"))
    assert "thrift" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["fit", str(table), *given, "--method", "thirft", "--out", str(tmp_path / "other")])
    assert "entry point of dpinfer.methods" in capsys.readouterr().err


def test_replay():
    result = replay_audit(tuple(fit_scenarios(["thrift", "halves"])))
    assert result.passed, str(result)
    names = {check.scenario for check in result.checks}
    assert {"fit, thrift", "fit, halves"} <= names
    assert any(name.startswith("thrift: ") for name in names)


def test_audit():
    found = audit(1000, methods=["thrift"], random_source=dpi.testing.InsecureRNG(3))
    assert found.passed
    assert any(check.name.startswith("thrift, ") for check in found.checks)


def test_a_release_of_its_own_kind_is_saved_read_and_asked(tmp_path):
    x = np.repeat([1.0, 0.0], [140, 60])
    fit = dpi.fit(BetaBernoulli(), x, epsilon=1.0, delta=1e-6, n_records=200, method="halves")
    fit.release.save(tmp_path / "own.release")
    read = dpi.load_release(tmp_path / "own.release")
    assert type(read).__name__ == "HalvesRelease"
    assert type(read) is not dpi.StatisticRelease
    found = dpi.noise_aware_posterior(read)
    np.testing.assert_array_equal(found.mean, fit.posterior.mean)
    with pytest.raises(ValueError, match="hessian must be left"):
        dpi.noise_aware_posterior(read, hessian="full")


def test_without_its_package_the_file_is_refused(tmp_path, monkeypatch):
    x = np.repeat([1.0, 0.0], [140, 60])
    fit = dpi.fit(BetaBernoulli(), x, epsilon=1.0, delta=1e-6, n_records=200, method="halves")
    fit.release.save(tmp_path / "own.release")
    monkeypatch.undo()
    with pytest.raises(dpi.errors.ReleaseFormatError, match="another kind of file"):
        dpi.load_release(tmp_path / "own.release")
