"""``dpinfer fit`` when something fails after the budget is spent: nothing that was paid for is lost."""

import argparse
import errno
import os
from pathlib import Path

import pytest
from tests.reference.cli_fits import HEADER, SCHEMA, SECRET, arguments, call, refused, regression_arguments

import dpinfer as dpi
from dpinfer.cli import pipeline
from dpinfer.cli.arguments import POSTERIORS
from dpinfer.cli.main import build_parser
from dpinfer.mechanism import private_run


@pytest.mark.usefixtures("plain")
def test_bad_test_records_cost_the_calibration_alone(place, capsys):
    (place / "bad.csv").write_text(HEADER + f"1,1,1,{SECRET},yes\n")
    assert call(arguments(place, "--test", str(place / "bad.csv"))) == 0
    err = capsys.readouterr().err
    report = (place / "out" / "report.html").read_text()
    for text in (err, report):
        assert "No calibration on the test records was computed" in text
        assert SECRET not in text
    release = str(place / "out" / "fit.release")
    assert dpi.load_release(release).n_steps == 60
    # What it says goes on from there.
    more = ["posterior", release, "--burn-in", "0.2", "--hessian", "diagonal"]
    test = ["--test", str(place / "people.csv")]
    assert call([*more, *test, "--schema", str(place / "out" / "schema.toml")]) == 0
    assert "computed from the test labels without noise" in capsys.readouterr().out
    assert call([*more, *test]) == 2
    (place / "other.toml").write_text(SCHEMA.replace("clerk", "baker"))
    assert call([*more, *test, "--schema", str(place / "other.toml")]) == 2
    assert "--schema must be the schema of the release" in capsys.readouterr().err


@pytest.mark.usefixtures("plain")
def test_a_posterior_that_fails_falls_back_with_a_warning(place, capsys):
    """So few steps do not identify a full Hessian under flat priors, which ended the command after it had spent."""
    assert call(arguments(place, "--hessian", "full", "--prior", "weak", "--steps", "20")) == 0
    report = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert "computed instead" in report
    assert "hessian=&#x27;diagonal&#x27;" in report
    assert (
        "warning: the posterior with approximation='exact', hessian='full', prior='weak' failed"
        in capsys.readouterr().err
    )


def test_disk_that_fills_up_during_the_run(place, capsys, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dpinfer.release.files.os.fsync", full)
    err = refused(place, capsys, arguments(place), code=1)
    assert "No space left" in err
    assert "has been paid" in err


def test_a_release_that_cannot_be_saved_where_it_belongs_is_kept_elsewhere(place, capsys, monkeypatch):
    real = dpi.GradientTrace.save

    def full(self, path):
        if Path(path).parent == place / "out":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, path)

    monkeypatch.setattr(dpi.GradientTrace, "save", full)
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    err = refused(place, capsys, arguments(place), code=1)
    (kept,) = (place / "here").rglob("fit.release")
    assert "has been paid" in err
    assert f"continue with 'dpinfer posterior {kept}'" in err
    assert dpi.load_release(kept).n_steps == 60


def test_an_interrupt_does_not_keep_a_release_from_being_saved(place, capsys, monkeypatch):
    calls = []
    real = dpi.GradientTrace.save

    def interrupted_once(self, path):
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self, path)

    monkeypatch.setattr(dpi.GradientTrace, "save", interrupted_once)
    assert call(arguments(place)) == 130
    assert dpi.load_release(place / "out" / "fit.release").n_steps == 60
    assert "continue with 'dpinfer posterior" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_removed_is_told_and_ends_nothing(place, capsys, monkeypatch):
    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(private_run.RunCheckpoint, "discard", refuse)
    assert call(arguments(place, "--checkpoint", str(place / "secret"), "--approximation", "averaged")) == 0
    assert "remove it, it is SECRET" in capsys.readouterr().err
    assert (place / "out" / "report.html").exists()


@pytest.mark.parametrize(
    "error", [ValueError("what it is"), ZeroDivisionError("what it is"), MemoryError("what it is")]
)
def test_any_failure_after_spending_says_where_the_release_is(place, capsys, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(pipeline, "render", fail)
    assert call(arguments(place, "--approximation", "averaged")) == 1
    err = capsys.readouterr().err
    assert "what it is" in err
    assert f"continue with 'dpinfer posterior {place / 'out' / 'fit.release'} --out DIR'" in err
    assert (place / "out" / "posterior.csv").exists()


def choices():
    """Every value that an option of ``dpinfer fit`` offers by name, alone with the other options' defaults.

    But for families, which are those of a formula: tests/unit/formulas.
    """
    parsers = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    offered = [
        (action.option_strings[0], list(action.choices))
        for action in parsers[0].choices["fit"]._actions
        if action.choices and action.option_strings[0] != "--family"
    ]
    assert {name for name, _ in offered} == {"--recipe", "--accountant", "--approximation", "--hessian", "--prior"}
    # Its values are open: packages bring methods.
    offered.append(("--method", ["auto", "newton", "dpvi", *POSTERIORS]))
    # The PRV accountant takes ten seconds.
    slow = {"prv": pytest.mark.slow}
    return [pytest.param(name, value, marks=slow.get(value, ())) for name, values in offered for value in values]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("option", "value"), choices())
def test_every_offered_value_runs(place, capsys, option, value):
    rest = ["--hessian", "diagonal"] if (option, value) == ("--prior", "empirical") else []
    if option == "--accountant":
        rest = ["--approximation", "averaged", "--steps", "20", "--sample-rate", "1"]  # "prv" takes long for samples
    if value in ("auto", "newton") and option == "--method":
        assert call(regression_arguments(place, option, value)) == 0, capsys.readouterr().err
        assert (place / "out" / "coefficients.csv").exists()
        return
    assert call(arguments(place, option, value, *rest)) == 0, capsys.readouterr().err
    assert len(table_rows(place)) == 5
    capsys.readouterr()


def table_rows(place):
    lines = (place / "out" / "posterior.csv").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")][1:]


def test_failed_analysis_keeps_the_release(place, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise dpi.errors.NumericalError("it did not converge")

    monkeypatch.setattr(pipeline, "noise_aware_posterior", fail)
    assert call(arguments(place)) == 1
    err = capsys.readouterr().err
    assert "did not converge" in err
    assert "dpinfer posterior" in err
    assert dpi.load_release(place / "out" / "fit.release").n_steps == 60


def test_an_interrupt_of_a_regression_says_how_to_go_on(place, capsys, monkeypatch):
    """In its posterior, which takes most of the time: nothing was said, and the folder held a release."""

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpinfer.methods.method.noise_aware_posterior", interrupt)
        assert call(regression_arguments(place)) == 130
    release = place / "out" / "fit.release"
    assert f"continue with 'dpinfer posterior {release} --out DIR'" in capsys.readouterr().err
    assert call(["posterior", str(release), "--n-samples", "40", "--out", str(place / "again")]) == 0
    assert "coefficients in the units of the table" in capsys.readouterr().out
    assert (place / "again" / "report.html").exists()


def test_an_interrupt_of_a_run_with_a_checkpoint_says_that_the_same_command_goes_on(place, capsys, monkeypatch):
    real = private_run.PrivateRun.begin

    def interrupt(self, *args, **kwargs):
        real(self, *args, **kwargs)
        Path(place / "secret").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(private_run.PrivateRun, "begin", interrupt)
    assert call(regression_arguments(place, "--checkpoint", str(place / "secret"))) == 130
    assert "the same command resumes from its checkpoint" in capsys.readouterr().err


def test_interrupted_analysis_keeps_the_release(place, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "noise_aware_posterior", interrupt)
    assert call(arguments(place)) == 130
    err = capsys.readouterr().err
    assert "fit.release" in err
    assert "interrupted" in err
    assert dpi.load_release(place / "out" / "fit.release").n_steps == 60
