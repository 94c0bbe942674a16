"""``dpinfer fit``: what it writes, and what it refuses before it spends."""

import errno
import functools
import html
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.reference.cli_fits import HEADER, SCHEMA, SECRET, arguments, call, refused, regression_arguments, rows

import dpinfer as dpi
from dpinfer.cli import trace
from dpinfer.cli.main import main


class Links(HTMLParser):
    """Collects everything a page would load, and its text."""

    def __init__(self):
        super().__init__()
        self.loads, self.text, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_data(self, data):
        self.text.append(data)


def test_the_default_is_what_a_plan_chooses(place, capsys):
    """Without a formula it is a logistic regression on all columns, in their units, and no published trace.

    The coefficients are the population's: nothing has to be seen of the sizes of scores of binary responses.
    """
    assert call(regression_arguments(place, "--test", str(place / "people.csv"))) == 0
    out, err = capsys.readouterr()
    assert "* newton" in out
    assert err == ""
    release = dpi.load_release(place / "out" / "fit.release")
    assert isinstance(release, dpi.release.PopulationRelease)
    assert release.secure
    assert release.epsilon <= 1.0
    assert release.guarantee in out
    assert "computed from the test labels without noise" in out
    found = dpi.load_regression(place / "out")
    assert found.design.family == "binomial"
    assert found.design.names == ("age", "level", "job[T.<b>cook</b>]")
    table = (place / "out" / "coefficients.csv").read_text()
    assert table.startswith(f"# {release.guarantee}")
    assert [line.split(",")[0] for line in table.splitlines()[2:]] == [
        '"age"', '"level"', '"job[T.<b>cook</b>]"', '"intercept"',
    ]  # fmt: skip
    assert dpi.tabular.Schema.load(place / "out" / "schema.toml") == dpi.tabular.Schema.load(place / "schema.toml")
    page = Links()
    page.feed((place / "out" / "report.html").read_text(encoding="utf-8"))
    text = "".join(page.text)
    assert "noisy sums over the records" in text
    assert "does not cover" in text
    assert all(link.startswith("data:") for link in page.loads)
    assert not page.tags & {"script", "link", "b", "iframe"}


def test_a_saved_release_is_analysed_again_in_the_units_of_the_table(place, capsys):
    """Its verb answered in scaled units, and did not take another prior."""
    assert call(regression_arguments(place)) == 0
    capsys.readouterr()
    release = str(place / "out" / "fit.release")
    assert call(["posterior", release, "--n-samples", "40", "--out", str(place / "again")]) == 0
    first, second = ((place / name / "coefficients.csv").read_text() for name in ("out", "again"))
    assert first == second
    assert "coefficients in the units of the table" in capsys.readouterr().out
    assert call(["posterior", release, "--n-samples", "40", "--prior-scale", "0.01"]) == 0
    said = capsys.readouterr().out
    assert "the prior dominates" in said
    assert call(["posterior", release, "--n-samples", "40", "--test", str(place / "people.csv")]) == 0
    assert "computed from the test labels without noise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--shares-budget", "0.1"), "--shares-budget belongs to --method dpvi"),
        (("--recipe", "tied"), "--recipe belongs to --method dpvi"),
        (("--max-grad-norm", "2"), "--max-grad-norm belongs to --method dpvi"),
        (("--steps", "20"), "--steps belongs to --method dpvi"),
        (("--sample-rate", "0.5"), "--sample-rate belongs to --method dpvi"),
        (("--accountant", "rdp"), "--accountant belongs to --method dpvi"),
        (("--hessian", "full"), "hessian must be left at its default"),
        (("--burn-in", "5"), "burn_in must be left at its default"),
        (("--formula", "rich ~ age", "--recipe", "tied"), "--recipe belongs to --method dpvi"),
    ],
)
@pytest.mark.parametrize("method", ["auto", "newton"])
def test_settings_of_a_trace_are_refused_elsewhere_unspent(place, capsys, undrawn, options, word, method):
    assert word in refused(place, capsys, regression_arguments(place, "--method", method, *options))


def test_what_is_read_from_the_records_is_told_without_a_formula(place, capsys):
    lines = [line.split(",", 1)[1] for line in (place / "people.csv").read_text().splitlines(keepends=True)]
    (place / "few.csv").write_text("".join(lines))
    given = ["--bounds-from-data", "--target", "rich"]
    assert call(regression_arguments(place, *given, schema=False, file="few.csv", n_records=False)) == 0
    out, err = capsys.readouterr()
    release = dpi.load_release(place / "out" / "fit.release")
    assert release.epsilon == float("inf")
    report = (place / "out" / "report.html").read_text()
    marks = ("bounds and categories were read from the private records", "number of records was read from the private")
    for text in (out, report, release.guarantee):
        assert all(mark in text for mark in marks)
    assert "NOT PRIVATE" in out
    assert err.count("dpinfer: warning:") == 2
    assert 'class="guarantee none"' in report


def test_what_is_unknown_is_released_without_a_formula(place, capsys):
    text = SCHEMA.replace("bounds = [0, 100]\n", "").replace('categories = ["clerk", "<b>cook</b>"]\n', "")
    (place / "schema.toml").write_text(text)
    given = ["--unknown", "n_records,bounds,categories", "--epsilon", "4"]
    assert call(regression_arguments(place, *given, n_records=False)) == 0, capsys.readouterr().err
    release = dpi.load_release(place / "out" / "fit.release")
    assert 3.9 < release.epsilon <= 4.0
    assert release.other_parts


def test_fit_writes_a_release_a_table_pictures_and_a_report(place, capsys):
    assert call(arguments(place, "--test", str(place / "people.csv"))) == 0
    out, err = capsys.readouterr()
    assert err == ""
    release = dpi.load_release(place / "out" / "fit.release")
    assert release.secure
    assert 0.99 < release.epsilon <= 1.0
    assert release.n_records == 300
    assert release.names == ("age", "level", "job=clerk", "job=<b>cook</b>", "intercept")
    # All categories have a feature: age uniform, level uniform on [0, 1], one-hot 1, intercept 1.
    assert release.max_grad_norm == pytest.approx(np.sqrt(1.0 + 1.0 / 3.0 + 1.0 + 1.0))
    assert release.guarantee in out
    assert "job=clerk" in out
    table = (place / "out" / "posterior.csv").read_text().splitlines()
    assert table[0] == f"# {release.guarantee}"
    assert table[1] == "parameter,mean,stddev,low,high,privacy_share,prior_share"
    assert len(table) == 7
    for name in ("trace.png", "calibration.png"):
        assert (place / "out" / name).read_bytes().startswith(b"\x89PNG")
    assert not list((place / "out").glob(".*"))
    page = Links()
    page.feed((place / "out" / "report.html").read_text(encoding="utf-8"))
    text = "".join(page.text)
    assert all(link.startswith("data:image/png;base64,") for link in page.loads)
    assert not page.tags & {"script", "link", "b", "iframe"}
    assert "job=<b>cook</b>" in text
    assert release.guarantee in text
    for name, said in release.guarantee.terms():
        assert name in text
        assert said in text
        assert said in " ".join(out.split()) or name == "epsilon"
    assert text.count("Attacks by somebody who knows everything") == 1
    assert "does not cover" in text
    assert "private records" not in text


def test_no_record_in_anything_that_is_written_or_said(place, capsys):
    assert call(arguments(place)) == 0
    said = "".join(capsys.readouterr())
    files = list((place / "out").iterdir())
    assert len(files) >= 5
    first = rows()[0].split(",")[1]
    for content in [said.encode(), *(path.read_bytes() for path in files)]:
        assert SECRET.encode() not in content
        assert first.encode() not in content


BAD_HEADERS = {
    "no header": "".join(rows(5)),
    "missing column": f"id,age,level,job\n{SECRET},1,1,clerk\n",
    "extra column": f"id,age,level,job,rich,{SECRET}\n1,1,1,clerk,yes,2\n",
    "empty": "",
    "open quote": '"' + HEADER + "".join(rows(5)),
}
BAD_FILES = {
    "unknown category": HEADER + f"1,1,1,{SECRET},yes\n" + "".join(rows()),
    "unknown label": HEADER + f"1,1,1,clerk,{SECRET}\n" + "".join(rows()),
    "ragged rows": HEADER + f"{SECRET},1\n" * 5,
    "zero rows": HEADER,
    "one row": HEADER + rows(1)[0],
    "not text": (HEADER + SECRET).encode() + b"\xff,1,1,clerk,yes\n",
}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_records_are_refused_before_anything_is_drawn(place, capsys, case):
    body = BAD_FILES[case]
    (place / "bad.csv").write_bytes(body if isinstance(body, bytes) else body.encode())
    refused(place, capsys, arguments(place, file="bad.csv"))
    with pytest.raises(AssertionError, match="drew"):
        trace.run_dpvi(
            dpi.models.GammaExponential(),
            np.ones(3),
            plan=dpi.plan_privacy(target_epsilon=1, target_delta=1e-5, sample_rate=0.5, n_steps=2),
            n_records=3,
        )


@pytest.mark.usefixtures("unspent")
@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_header_is_public_and_checked_before_anything_is_spent(place, capsys, case):
    (place / "bad.csv").write_text(BAD_HEADERS[case])
    assert "header" in refused(place, capsys, arguments(place, file="bad.csv")).replace("the file has", "header")
    refused(place, capsys, arguments(place, "--test", str(place / "bad.csv")))


@pytest.mark.usefixtures("unspent")
def test_bad_gzip_and_missing_files(place, capsys):
    (place / "people.csv.gz").write_text(SECRET * 3)
    assert "gzip" in refused(place, capsys, arguments(place, file="people.csv.gz"))
    assert "absent.csv" in refused(place, capsys, arguments(place, file="absent.csv"))
    assert "No such file" in refused(place, capsys, arguments(place, "--test", str(place / "absent")))
    (place / "schema.toml").unlink()
    assert "schema.toml" in refused(place, capsys, arguments(place))


@pytest.mark.usefixtures("unspent")
def test_bad_schema(place, capsys):
    (place / "schema.toml").write_text(SCHEMA.replace("bounds = [0, 100]", "bound = [0, 100]"))
    err = refused(place, capsys, arguments(place))
    assert "columns.age.bound" in err
    assert "did you mean 'bounds'" in err
    (place / "schema.toml").write_text(SCHEMA.replace('kind = "target"', 'kind = "binary"'))
    assert "target" in refused(place, capsys, arguments(place))


@pytest.mark.usefixtures("unspent")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--epsilon", "0"),
        ("--epsilon", "-1"),
        ("--epsilon", "nan"),
        ("--epsilon", "inf"),
        ("--epsilon", "one"),
        ("--delta", "0"),
        ("--delta", "1"),
        ("--sample-rate", "0"),
        ("--sample-rate", "1.01"),
        ("--steps", "0"),
        ("--steps", "1.5"),
        ("--n-records", "1"),
        ("--max-grad-norm", "0"),
        ("--prior-scale", "-1"),
        ("--burn-in", "1.5"),
        ("--burn-in", "soon"),
        ("--level", "1"),
        ("--method", "magic"),
        ("--target", "age"),
        ("--threads", "0"),
    ],
)
def test_bad_arguments_are_refused(place, capsys, option, value):
    err = refused(place, capsys, arguments(place, option, value))
    assert option in err


@pytest.mark.usefixtures("unspent")
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--approximation", "laplace", "--hessian", "tied"], "hessian"),
        (["--approximation", "averaged", "--hessian", "tied"], "hessian"),
        (["--hessian", "full", "--prior", "empirical"], "prior"),
        (["--recipe", "tied", "--hessian", "tied", "--prior", "empirical"], "prior"),
        (["--burn-in", "59"], "burn_in"),
        (["--burn-in", "1000"], "burn_in"),
        (["--burn-in", "0.99"], "burn_in"),
        (["--steps", "1"], "burn_in"),
        (["--prior-scale", "1e-6"], "prior_scale must be at least"),
        (["--max-grad-norm", "1e-9"], "diverge"),
        (["--bounds-from-data"], "not both"),
    ],
)
def test_combinations_that_would_fail_later_are_refused_before_anything_is_spent(place, capsys, more, words):
    assert words in refused(place, capsys, arguments(place, *more))


@pytest.mark.usefixtures("unspent")
def test_budget_that_cannot_be_met(place, capsys):
    err = refused(place, capsys, arguments(place, "--epsilon", "1e-9", "--steps", "1000000"), code=3)
    assert "budget" in err


@pytest.mark.usefixtures("unspent")
def test_without_a_schema_it_refuses(place, capsys):
    assert "--bounds-from-data" in refused(place, capsys, arguments(place, schema=False))
    both = arguments(place, "--bounds-from-data", "--target", "rich")
    assert "not both" in refused(place, capsys, both)
    assert "--target" in refused(place, capsys, arguments(place, "--bounds-from-data", schema=False))


@pytest.mark.usefixtures("plain")
def test_bounds_from_data_and_count_from_data_warn_everywhere(place, capsys):
    lines = [line.split(",", 1)[1] for line in (place / "people.csv").read_text().splitlines(keepends=True)]
    (place / "few.csv").write_text("".join(lines))
    argv = arguments(place, "--bounds-from-data", "--target", "rich", schema=False, file="few.csv", n_records=False)
    assert call(argv) == 0
    out, err = capsys.readouterr()
    report = (place / "out" / "report.html").read_text()
    release = dpi.load_release(place / "out" / "fit.release")
    assert release.epsilon == float("inf")
    marks = ("bounds and categories were read from the private records", "number of records was read from the private")
    assert call(["posterior", str(place / "out" / "fit.release"), "--approximation", "averaged"]) == 0
    written = [(place / "out" / name).read_text() for name in ("report.html", "posterior.csv", "schema.toml")]
    for text in (out, capsys.readouterr().out, *written, release.guarantee, repr(release)):
        assert all(mark in text for mark in marks)
        assert "NOT PRIVATE" in text
        assert "this holds" not in text
    assert 'class="guarantee none"' in report
    # The schema that was drafted from the records keeps its mark; a public number of records needs none.
    again = arguments(
        place, "--schema", str(place / "out" / "schema.toml"), "--approximation", "averaged", file="few.csv"
    )
    assert call([*again, "--overwrite"]) == 0
    assert dpi.load_release(place / "out" / "fit.release").leaks == (marks[0],)
    capsys.readouterr()
    for text in ("bounds and categories of the columns were read", "number of records was read"):
        assert text in err
        assert text in report
    assert "<h2>Warnings</h2>" in report


@pytest.mark.usefixtures("unspent")
def test_full_disk_is_noticed_before_anything_is_spent(place, capsys, monkeypatch):
    def full(folder, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dpinfer.cli.output._try_to_write", full)
    assert "No space left" in refused(place, capsys, arguments(place))


@pytest.mark.forks
def test_file_size_limit_is_noticed_before_anything_is_spent(place):
    resource = pytest.importorskip("resource", reason="file-size limits need POSIX")
    result = subprocess.run(
        [sys.executable, "-m", "dpinfer", *arguments(place)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)),
    )
    assert result.returncode == 2
    assert "File too large" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (place / "out").exists()


@pytest.mark.usefixtures("unspent")
def test_output_that_is_not_a_folder(place, capsys):
    (place / "plain").write_text("")
    refused(place, capsys, [*arguments(place), "--out", str(place / "plain")])
    refused(place, capsys, [*arguments(place), "--out", str(place / "plain" / "deeper")])


@pytest.mark.usefixtures("plain")
def test_a_release_is_not_overwritten_unasked(place, capsys):
    assert call(arguments(place)) == 0
    before = (place / "out" / "fit.release").read_bytes()
    capsys.readouterr()
    assert call(arguments(place)) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (place / "out" / "fit.release").read_bytes() == before
    assert call(arguments(place, "--overwrite")) == 0
    assert (place / "out" / "fit.release").read_bytes() != before


def test_interrupt_in_the_middle(place, capsys, monkeypatch):
    def interrupt(done, total):
        if done == total // 2:
            raise KeyboardInterrupt

    real = trace.run_dpvi
    monkeypatch.setattr(trace, "run_dpvi", lambda *args, **kwargs: real(*args, **{**kwargs, "progress": interrupt}))
    assert "interrupted" in refused(place, capsys, arguments(place), code=130)


@pytest.mark.forks
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_real_interrupt(place):
    process = subprocess.Popen(
        [sys.executable, "-m", "dpinfer", *arguments(place, "--steps", "400000", "--max-grad-norm", "2")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has SIGINT ignored, and children inherit that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 30
    # The folder appears when everything is checked and the run begins.
    while not (place / "out").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines() == ["dpinfer: interrupted"]
    assert not (place / "out").exists()


def test_unforeseen_error_does_not_show_its_text(place, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError(f"could not convert {SECRET}")

    monkeypatch.setattr(trace, "run_dpvi", fail)
    assert "ValueError" in refused(place, capsys, arguments(place), code=1)
    assert call(["--traceback", *arguments(place)]) == 1
    assert "could not convert" in capsys.readouterr().err


def test_an_error_of_the_system_without_a_file_is_told_in_the_system_s_words(place, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.EIO, SECRET)

    monkeypatch.setattr(trace, "run_dpvi", fail)
    assert os.strerror(errno.EIO) in refused(place, capsys, arguments(place), code=1)


@pytest.mark.usefixtures("plain")
def test_insecure_release_is_marked_in_the_report(place, monkeypatch):
    source = functools.partial(dpi.testing.InsecureRNG, 3)
    real = trace.run_dpvi
    monkeypatch.setattr(trace, "run_dpvi", lambda *args, **kwargs: real(*args, **{**kwargs, "random_source": source()}))
    assert call(arguments(place)) == 0
    report = (place / "out" / "report.html").read_text()
    assert "NOT PRIVATE" in report
    assert re.search(r'class="guarantee none"', report)


@pytest.mark.usefixtures("plain")
def test_shares_are_counted_within_the_budget(place, capsys):
    ledger = dpi.PrivacyLedger.create(place / "spent.ledger")
    account = ledger.add_dataset("people", budget=(1.0, 1e-5))
    charged = ["--ledger", str(place / "spent.ledger"), "--dataset", "people"]
    assert main(arguments(place, "--shares-budget", "0.1", *charged)) == 0
    said = capsys.readouterr().out
    release = dpi.load_release(place / "out" / "fit.release")
    assert release.model_spec["feature_moments_known"] is True
    known = dpi.tabular.Schema.load(place / "out" / "schema.toml")
    assert known.shares_known
    np.testing.assert_allclose(release.model_spec["feature_moments"], known.feature_moments)
    # What is saved holds the counts' shares: it states what both cost, and so does everything made from it.
    assert release.epsilon == pytest.approx(account.spent().epsilon, rel=1e-9)
    assert 0.99 < release.epsilon <= 1.0
    assert [part.name for part in release.parts] == ["shares of the categories", "gradient trace"]
    assert [run.mechanism for run in account.runs()] == ["release_shares", "dpvi"]
    joint = "the whole trace together with shares of the categories"
    assert joint in release.guarantee
    for name in ("report.html", "posterior.csv", "schema.toml"):
        assert str(release.guarantee) in html.unescape((place / "out" / name).read_text(encoding="utf-8")), name
    assert release.guarantee in said
    assert main(["posterior", str(place / "out" / "fit.release"), "--approximation", "averaged"]) == 0
    assert release.guarantee in capsys.readouterr().out
    # Whoever fits again with the shares says so too.
    again = arguments(place, "--schema", str(place / "out" / "schema.toml"), "--out", str(place / "again"))
    assert main([*again, "--approximation", "averaged"]) == 0
    capsys.readouterr()
    second = dpi.load_release(place / "again" / "fit.release")
    assert second.parts[:-1] == release.parts[:-1]
    assert second.epsilon > 1.0 >= release.epsilon
    # The budget is spent; and without the option nothing is said of shares.
    assert main(arguments(place, "--shares-budget", "0.1", *charged, "--overwrite")) != 0
    capsys.readouterr()
    assert main(arguments(place, "--overwrite", "--approximation", "averaged")) == 0
    assert "together with shares" not in capsys.readouterr().out
    assert len(dpi.load_release(place / "out" / "fit.release").parts) == 1


def test_shares_and_a_checkpoint_exclude_each_other(place, capsys):
    assert main(arguments(place, "--shares-budget", "0.1", "--checkpoint", str(place / "c"))) == 2
    assert "not both" in capsys.readouterr().err
    assert not (place / "out").exists()


def test_schema_file_is_kept_with_the_results(place):
    assert call(arguments(place, "--approximation", "averaged")) == 0
    kept = dpi.tabular.Schema.load(place / "out" / "schema.toml")
    assert kept == dpi.tabular.Schema.load(place / "schema.toml")
    assert not (place / "out" / "gradients-clear.png").exists()


def test_module_entry_point():
    result = subprocess.run([sys.executable, "-m", "dpinfer", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"dpinfer {dpi.__version__}"
    assert Path(dpi.__file__).exists()
