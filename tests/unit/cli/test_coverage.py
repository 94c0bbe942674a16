"""``dpinfer coverage``."""

import json
import sys
import types

import pytest
from tests.reference.analytic_study import AnalyticStudy

import dpinfer as dpi
from dpinfer.cli.main import main
from dpinfer.lab.studies import CoverageResult


def call(argv):
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


@pytest.fixture
def studies(monkeypatch):
    """The analytic study in the place of the real ones."""
    found = {"study": AnalyticStudy(name="beta-bernoulli")}
    module = types.ModuleType("dpinfer.lab.studies.recipes")
    module.find = lambda name: found["study"]
    monkeypatch.setitem(sys.modules, "dpinfer.lab.studies.recipes", module)
    return found


def test_table_and_files(studies, tmp_path, capsys):
    out = tmp_path / "a" / "out"
    argv = ["coverage", "beta-bernoulli", "--runs", "40", "--epsilon", "0.5", "--seed", "4", "--out", str(out)]
    assert call([*argv, "--threads", "1"]) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    assert "CoverageResult: beta-bernoulli, method exact, epsilon 0.5, 40 runs" in text
    names = {path.name for path in out.iterdir()}
    assert names == {"coverage.json", "coverage.npz", "coverage.png", "ranks.png", "rank-histogram.png", "z-scores.png"}
    assert all(str(out / name) in text for name in names)
    loaded = CoverageResult.load(out / "coverage.npz")
    assert json.loads((out / "coverage.json").read_text()) == loaded.to_dict()
    assert (out / "coverage.png").read_bytes().startswith(b"\x89PNG")
    direct = dpi.coverage_study(studies["study"], n_runs=40, epsilon=0.5, seed=4)
    assert direct.to_dict() | {"seconds": 0} == loaded.to_dict() | {"seconds": 0}


def test_without_draws_there_is_no_coverage_curve(studies, tmp_path):
    assert call(["coverage", "beta-bernoulli", "--runs", "20", "--method", "no-draws", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "coverage.png").exists()
    assert (tmp_path / "ranks.png").exists()


def test_interrupt_and_resume(studies, tmp_path, capsys):
    argv = [
        "coverage",
        "beta-bernoulli",
        "--runs",
        "120",
        "--resume",
        str(tmp_path / "r"),
        "--out",
        str(tmp_path / "o"),
    ]
    studies["study"] = AnalyticStudy(name="beta-bernoulli", fail_at=110, error=KeyboardInterrupt)
    assert call(argv) == 130
    assert capsys.readouterr().err == "dpinfer: interrupted\n"
    assert not (tmp_path / "o").exists()
    assert len(list((tmp_path / "r").glob("runs-*.npz"))) == 2
    # What is computed again is only the last chunk.
    log = tmp_path / "log"
    log.mkdir()
    studies["study"] = AnalyticStudy(name="beta-bernoulli", log=str(log))
    assert call(argv) == 0
    assert [path.name for path in log.iterdir()] == ["100-120"]


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (["--method", "other"], "method must be one that this study knows"),
        (["--runs", "1"], "--runs: must be a whole number of at least 2"),
        (["--epsilon", "0"], "--epsilon: must be a number in (0, inf)"),
        (["--threads", "0"], "--threads: must be a whole number"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_bad_arguments(studies, extra, text, capsys):
    assert call(["coverage", "beta-bernoulli", "--runs", "10", *extra]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) == 1


def test_unknown_study(capsys):
    assert call(["coverage", "beta"]) == 2
    assert "gamma-exponential" in capsys.readouterr().err


def test_folders_that_cannot_be_used(studies, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert call(["coverage", "beta-bernoulli", "--runs", "5", "--out", str(tmp_path / "file")]) == 2
    assert call(["coverage", "beta-bernoulli", "--runs", "5", "--resume", str(tmp_path / "file")]) == 2
    assert call(["coverage", "beta-bernoulli", "--runs", "5", "--resume", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert call(["coverage", "beta-bernoulli", "--runs", "5", "--seed", "1", "--resume", str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert "one of this study" in err
    assert "differs in seed" in err
