"""A fit of a table whose names do harm, from end to end."""

import csv
import os
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.reference.hostile_names import HOSTILE

import dpinfer as dpi
from dpinfer.cli.main import main
from dpinfer.tabular import Schema

COLUMN = "$a\x1b]0;x\x07<b>\u202e="
TARGET = '"><script>$x_{\x1b[2J'
CATEGORIES = list(dict.fromkeys(name.strip() for name in HOSTILE))


@pytest.fixture
def place(tmp_path):
    columns = {
        COLUMN: {"kind": "categorical", "categories": CATEGORIES, "other": "else"},
        "=1+1": {"kind": "continuous", "bounds": [0, 1]},
        "_age$": {"kind": "continuous", "bounds": [0, 100]},
        TARGET: {"kind": "target", "positive": ["yes"], "negative": ["no"]},
    }
    schema = Schema.from_dict({"columns": columns})
    (tmp_path / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    assert Schema.load(tmp_path / "schema.toml") == schema
    rng = np.random.default_rng(3)
    rows = zip(rng.choice(["-1", "日本語", "+1+1", "b"], 200), rng.random(200), rng.uniform(0, 100, 200), strict=True)
    with (tmp_path / "people.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([*row, "yes" if row[1] > 0.5 else "no"] for row in rows)
    return tmp_path


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.sources = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.sources += [value for name, value in attrs if name == "src" or name.startswith("on")]


@pytest.mark.slow
def test_a_fit_with_names_that_do_harm(place, capsys):
    argv = [
        "fit", place / "people.csv", "--schema", place / "schema.toml", "--out", place / "out", "--epsilon", 1,
        "--delta", 1e-5, "--n-records", 200, "--steps", 60, "--sample-rate", 0.5, "--threads", 1, "--burn-in", 0.2,
        "--hessian", "diagonal", "--method", "dpvi", "--test", place / "people.csv",
    ]  # fmt: skip
    assert main([str(item) for item in argv]) == 0
    said = "".join(capsys.readouterr())
    assert all(line.isprintable() for line in said.splitlines() if "\x85" not in line)
    assert all(character == "\n" or character.isprintable() for character in said)
    out = place / "out"
    assert Schema.load(out / "schema.toml").feature_names == Schema.load(place / "schema.toml").feature_names
    for name in ("trace", "gradients-clear", "gradients-noisy", "calibration"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (out / "posterior.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(line for line in stream if not line.startswith("#")))
    assert {len(row) for row in rows} == {7}
    assert not any(row[0].startswith(("=", "+", "-", "@", "|")) for row in rows)
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.tags & {"script", "b"}
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert all(character == "\n" or character.isprintable() for character in text)
    assert "could not be drawn" not in text
    release = dpi.load_release(out / "fit.release")
    posterior = dpi.noise_aware_posterior(release, hessian="diagonal", burn_in=0.2)
    for shown in (str(posterior.summary()), repr(posterior.decompose())):
        assert all(character == "\n" or character.isprintable() for character in shown)
    pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    data = posterior.to_arviz(n_samples=2, n_chains=1)
    assert sum(variable[0, 0].size for variable in data["posterior"].data_vars.values()) == release.n_params
    assert all(label.isprintable() for label in data["posterior"]["feature"].values)


@pytest.mark.parametrize("error", [ValueError("Expected end of text"), RuntimeError("In FT2Font: $"), MemoryError()])
def test_a_picture_that_cannot_be_drawn_costs_that_picture_alone(place, capsys, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("dpinfer.plots.trace", fail)
    monkeypatch.setattr("dpinfer.plots.gradient_fit", fail)
    argv = ["fit", place / "people.csv", "--schema", place / "schema.toml", "--out", place / "out", "--epsilon", 1]
    argv += ["--delta", 1e-5, "--n-records", 200, "--steps", 20, "--sample-rate", 0.5]
    argv += ["--method", "dpvi", "--approximation", "averaged"]
    assert main([str(item) for item in argv]) == 0
    assert "The picture 'trace' could not be drawn" in capsys.readouterr().err
    names = {path.name for path in (place / "out").iterdir()}
    assert {"fit.release", "posterior.csv", "report.html"} <= names
    assert "trace.png" not in names
    assert "could not be drawn" in (place / "out" / "report.html").read_text(encoding="utf-8")


def test_errors_and_usage_are_printable(place, capsys):
    for argv in (
        ["fit", "\x1b[2J.csv", "--schema", "s", "--epsilon", "1", "--delta", "1e-5", "--out", "o"],
        ["fit", "x", "--\x1b[2J"],
        ["ledger", str(place / "\x1b[2J\u202e")],
    ):
        with pytest.raises(SystemExit) if "--\x1b[2J" in argv else pytest.MonkeyPatch.context():
            assert main(argv) == 2
        err = capsys.readouterr().err
        assert err
        assert all(character == "\n" or character.isprintable() for character in err)


def test_a_terminal_without_the_letters_of_a_name_does_not_end_a_command(place):
    ledger = dpi.PrivacyLedger.create(place / "spent")
    ledger.add_dataset("日本語 é")
    result = subprocess.run(
        [sys.executable, "-m", "dpinfer", "ledger", str(place / "spent")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"\\u65e5" in result.stdout
