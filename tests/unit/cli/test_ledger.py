"""``dpinfer ledger``, and ``dpinfer fit --ledger``."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, charge_run
from dpinfer.cli import pipeline, trace
from dpinfer.cli.main import main
from dpinfer.tabular import table

SECRET = "Zx77-SECRET-Qw"
SCHEMA = """\
[columns.age]
kind = "continuous"
bounds = [0, 100]
[columns.rich]
kind = "target"
positive = "yes"
negative = "no"
"""


def call(*argv):
    try:
        return main([str(item) for item in argv])
    except SystemExit as error:
        return error.code


@pytest.fixture
def place(tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    lines = [f"{age:.4f},{'yes' if age > 50 else 'no'}\n" for age in rng.uniform(0, 100, 200)]
    (tmp_path / "people.csv").write_text("age,rich\n" + "".join(lines))
    (tmp_path / "bad.csv").write_text("age,rich\n" + "".join(lines) + f"10,{SECRET}\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    monkeypatch.setattr(pipeline, "draw_all", lambda *args, **kwargs: {})
    assert call("ledger", tmp_path / "spent", "--add", "people", "--epsilon", "1.2") == 0
    return tmp_path


def fit(place, out, *more, file="people.csv", dataset="people"):
    return call(
        "fit", place / file, "--schema", place / "schema.toml", "--out", place / out, "--epsilon", 1, "--delta", 1e-5,
        "--steps", 60, "--sample-rate", 0.5, "--burn-in", 0.2, "--threads", 1, "--n-records", 200,
        "--method", "dpvi",
        "--ledger", place / "spent", "--dataset", dataset, *more,
    )  # fmt: skip


def test_fit_is_charged_shown_and_refused_when_the_budget_is_used_up(place, capsys):
    capsys.readouterr()
    assert fit(place, "out") == 0
    assert "charged to the data set &#x27;people&#x27;" in (place / "out" / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert fit(place, "again") == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "budget refused: the run would bring data set 'people'" in err
    assert not (place / "again").exists()
    assert call("ledger", place / "spent") == 0
    out = capsys.readouterr().out
    assert "data set 'people' (add/remove, delta = 1e-05)" in out
    assert "finished" in out
    assert "dpvi" in out
    assert "1 run, together epsilon <= 0.99" in out
    assert "budget epsilon = 1.2, remaining 0.2" in out
    assert call("ledger", place / "spent", "--check", place / "out" / "fit.release") == 0
    assert "counts the release, as entry 2" in capsys.readouterr().out


def test_the_budget_is_looked_at_before_the_records(place, capsys):
    with charge_run(
        dpi.PrivacyLedger(place / "spent").dataset("people"), GaussianEvent(4.5), adjacency="add_remove",
        mechanism="other", secure=True, delta=1e-5,
    ) as charge:  # fmt: skip
        charge.begin()
    assert fit(place, "out", file="bad.csv") == 3
    assert SECRET not in "".join(capsys.readouterr())


def test_what_the_header_and_the_schema_show_is_refused_uncharged(place, capsys):
    (place / "semicolons.csv").write_text((place / "people.csv").read_text().replace(",", ";"))
    capsys.readouterr()
    assert fit(place, "out", file="semicolons.csv") == 2
    assert 'declare delimiter = ";"' in capsys.readouterr().err
    (place / "names.csv").write_text((place / "people.csv").read_text().replace("rich", "wealth"))
    assert fit(place, "out", file="names.csv") == 2
    (place / "schema.toml").unlink()
    assert fit(place, "out") == 2
    assert statuses(place) == []


def statuses(place):
    return [item.status for item in dpi.PrivacyLedger(place / "spent").dataset("people").runs()]


def test_a_refusal_that_depends_on_records_stays_charged(place, capsys):
    assert fit(place, "out", file="bad.csv") == 2
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "charge of the run stands" in err
    assert "--refund-refused" in err
    assert statuses(place) == ["started"]
    assert not (place / "out").exists()
    # What the refusal told is not to be had again for nothing.
    assert fit(place, "out") == 3


def test_a_refusal_is_refunded_when_asked_with_a_warning(place, capsys):
    assert fit(place, "out", "--refund-refused", file="bad.csv") == 2
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "warning: refund_refused takes back the charge" in err
    assert "charge of the run stands" not in err
    assert statuses(place) == ["cancelled"]
    assert fit(place, "out") == 0


def test_the_records_are_read_when_the_charge_is_on_the_disk(place, monkeypatch):
    seen = []
    real = table.read_table

    def watched(*arguments):
        seen.append(statuses(place))
        return real(*arguments)

    monkeypatch.setattr(table, "read_table", watched)
    assert fit(place, "out") == 0
    assert seen == [["started"]]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--max-grad-norm", "1e31"], "--max-grad-norm"),
        (["--prior-scale", "1e200"], "--prior-scale"),
        (["--threads", "5000"], "--threads"),
        (["--refund-refused", "--dataset", "cencus"], "dataset"),
    ],
)
def test_public_arguments_are_refused_uncharged(place, capsys, more, words):
    before = (place / "spent").read_bytes()
    assert fit(place, "out", *more) == 2
    assert (place / "spent").read_bytes() == before
    assert not (place / "out").exists()
    assert words in capsys.readouterr().err


def test_what_is_read_from_records_needs_no_ledger(place, capsys):
    argv = ["fit", place / "people.csv", "--out", place / "out", "--epsilon", 1, "--delta", 1e-5]
    charged = ["--ledger", place / "spent", "--dataset", "people"]
    assert call(*argv, *charged, "--schema", place / "schema.toml") == 2
    assert call(*argv, *charged, "--bounds-from-data", "--target", "rich", "--n-records", 200) == 2
    assert capsys.readouterr().err.count("--ledger needs --schema and --n-records") == 2
    assert call(*argv, "--schema", place / "schema.toml", "--refund-refused") == 2
    assert "--refund-refused needs --ledger" in capsys.readouterr().err


def test_two_fits_into_one_folder_at_once(place, capsys, monkeypatch):
    """The second is refused before it spends; the first is not disturbed."""
    codes = []
    real = trace.run_dpvi

    def and_another(*args, **kwargs):
        codes.append(fit(place, "out", "--overwrite", dataset="others"))
        return real(*args, **kwargs)

    account = dpi.PrivacyLedger(place / "spent").add_dataset("others")
    monkeypatch.setattr(trace, "run_dpvi", and_another)
    assert fit(place, "out") == 0
    assert codes == [2]
    assert "in use by another dpinfer command" in capsys.readouterr().err
    assert account.runs() == ()
    assert (place / "out" / "fit.release").exists()
    assert not list((place / "out").glob(".*"))


def test_arguments(place, capsys):
    capsys.readouterr()
    for more, message in (
        (["--add", "people"], "name must be new"),
        (["--epsilon", "1"], "--epsilon needs --add"),
        (["--add", "x", "--filter"], "--filter needs"),
        (["--add", "x", "--epsilon", "-1"], "--epsilon"),
        (["--add", "x", "--check", "y"], "not allowed with"),
    ):
        assert call("ledger", place / "spent", *more) == 2
        assert message in capsys.readouterr().err
    assert call("ledger", place / "absent") == 2
    assert "No such file" in capsys.readouterr().err
    assert call("ledger", place / "people.csv") == 2
    assert "is not a privacy ledger" in capsys.readouterr().err
    assert fit(place, "out", dataset="cencus") == 2
    assert "'people'" in capsys.readouterr().err
    assert fit(place, "out", "--adjacency", "zero_out") == 2
    argv = ["fit", place / "people.csv", "--schema", place / "schema.toml", "--out", place / "out"]
    assert call(*argv, "--epsilon", 1, "--delta", 1e-5, "--ledger", place / "spent") == 2
    assert "together" in capsys.readouterr().err


def test_a_filter(place, capsys):
    assert call("ledger", place / "spent", "--add", "chosen", "--epsilon", 1, "--filter") == 0
    assert "budget of a filter epsilon = 1, remaining 1" in capsys.readouterr().out
    assert dpi.PrivacyLedger(place / "spent").dataset("chosen").composition == "filter"


def test_other_releases_are_told_apart(place, capsys):
    trace = np.arange(12.0).reshape(6, 2)
    dpi.release_from_arrays(trace, trace, noise_stddev=1.0, sample_rate=0.5).save(place / "external")
    assert call("ledger", place / "spent", "--check", place / "external") == 1
    assert "was not charged" in capsys.readouterr().out
    old = (place / "spent").read_bytes()
    assert fit(place, "out") == 0
    (place / "spent").write_bytes(old)
    capsys.readouterr()
    assert call("ledger", place / "spent", "--check", place / "out" / "fit.release") == 1
    assert "older copy" in capsys.readouterr().out


def test_an_empty_ledger_and_one_without_budgets(tmp_path, capsys):
    dpi.PrivacyLedger.create(tmp_path / "spent")
    assert call("ledger", tmp_path / "spent") == 0
    assert "no data set yet" in capsys.readouterr().out
    assert call("ledger", tmp_path / "spent", "--add", "a", "--adjacency", "zero_out") == 0
    assert capsys.readouterr().out == (
        "data set 'a' (zero/out, delta = 1e-05)\n  0 runs, together epsilon <= 0\n  no budget\n"
    )


def test_a_busy_ledger_is_a_failure_and_not_a_usage_error(place, capsys, monkeypatch):
    from dpinfer.accounting import _ledger_file as storage

    monkeypatch.setattr(storage, "_LOCK_SECONDS", 0.05)
    with storage.EntryFile(place / "spent").appending():
        assert call("ledger", place / "spent", "--add", "x") == 1
    assert "locked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said", "statuses"),
    [
        ("cli.trace.run_dpvi", "nothing was charged", []),
        ("mechanism.trace.dpvi.load_source", "the ledger says cancelled", ["cancelled"]),
        ("mechanism.trace.dpvi._Gradients.query", "the ledger's charge stands", ["started"]),
    ],
)
def test_an_interrupt_says_what_the_ledger_says(name, said, statuses, place, capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"dpinfer.{name}", interrupt)
    assert fit(place, "out") == 130
    assert said in capsys.readouterr().err
    account = dpi.PrivacyLedger(place / "spent").dataset("people")
    assert [run.status for run in account.runs()] == statuses


def test_an_interrupted_fit_goes_on_from_its_checkpoint_for_one_charge(place, capsys, monkeypatch):
    def interrupt(done, total):
        if done == 30:
            raise KeyboardInterrupt

    real = trace.run_dpvi
    secret = place / "fit.checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(trace, "run_dpvi", lambda *args, **kwargs: real(*args, **{**kwargs, "progress": interrupt}))
        assert fit(place, "out", "--checkpoint", secret) == 130
    assert secret.exists()
    # A changed file is refused, and the run waits for the right one.
    (place / "other.csv").write_text((place / "people.csv").read_text().replace("yes", "no", 1))
    assert fit(place, "out", "--checkpoint", secret, file="other.csv") == 2
    assert "must be those of the interrupted run" in capsys.readouterr().err
    assert fit(place, "out", "--checkpoint", secret, "--max-grad-norm", "3") == 2
    assert "differs in max_grad_norm" in capsys.readouterr().err
    assert fit(place, "out", "--checkpoint", secret) == 0
    assert not secret.exists()
    assert dpi.load_release(place / "out" / "fit.release").n_steps == 60
    assert [item.status for item in dpi.PrivacyLedger(place / "spent").dataset("people").runs()] == ["finished"]


def test_a_release_that_cannot_be_saved_is_not_lost(place, capsys, monkeypatch):
    secret = place / "fit.checkpoint"

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dpi.GradientTrace, "save", full)
        assert fit(place, "out", "--checkpoint", secret) == 1
    assert "the same command gives the same result again" in capsys.readouterr().err
    assert fit(place, "out", "--checkpoint", secret) == 0
    assert not secret.exists()
    assert len(dpi.PrivacyLedger(place / "spent").dataset("people").runs()) == 1
