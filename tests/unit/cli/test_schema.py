"""``dpinfer schema``: a schema from the names of columns and the person's answers; no value is read."""

import gzip
import io
import tomllib

import numpy as np
import pytest
from tests.reference.cli_fits import call

from dpinfer.errors import SchemaError
from dpinfer.tabular import Schema, SchemaDraft
from dpinfer.tabular.header import read_kinds

HEADER = "age;job;rich;name of it"
ANSWERS = "co\n17 90\n\ncat\nclerk, cook\ncook\nother\nt\nyes, y\nno\ni\n"
CANARY = "Zyx5551234"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(f"{HEADER}\n33;{CANARY};yes;{CANARY}\n")
    return path


def ask(monkeypatch, table, answers, *more):
    """Return the exit code, with these answers on standard input, and the path of the schema."""
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    out = table.with_name("made.toml")
    return call(["schema", str(table), "--out", str(out), *more]), out


def test_the_answers_are_the_schema(table, monkeypatch, capsys):
    code, out = ask(monkeypatch, table, ANSWERS)
    assert code == 0
    expected = {
        "table": {"delimiter": ";"},
        "columns": {
            "age": {"kind": "continuous", "bounds": [17, 90]},
            "job": {
                "kind": "categorical",
                "categories": ["clerk", "cook", "other"],
                "reference": "cook",
                "other": "other",
            },
            "rich": {"kind": "target", "positive": ["yes", "y"], "negative": ["no"]},
            "name of it": {"kind": "ignore"},
        },
    }
    assert Schema.load(out) == Schema.from_dict(expected)
    said = capsys.readouterr().out
    assert said.startswith("Names of columns are read from the file, and no values.")
    assert CANARY not in said + out.read_text()


def test_a_mistake_is_asked_again(table, monkeypatch, capsys):
    answers = "c\nnone of them\ncontinuous\nninety\nco\n90 17\n\nco\n17 to 90\n40\nk\ni\nb\nyes\nyes\nb\nyes\nno\ni\n"
    code, out = ask(monkeypatch, table, answers)
    assert code == 0
    assert Schema.load(out).columns[0].mean == 40
    said = capsys.readouterr().out
    for part in ("must be one of continuous", "must be two numbers", "columns.age.bounds", "must not share a value"):
        assert part in said


def test_what_nobody_knows_is_a_draft(table, monkeypatch, capsys):
    code, out = ask(monkeypatch, table, "co\n\n\nca\n\n\n\ni\ni\n")
    assert code == 0
    draft = SchemaDraft.load(out)
    assert (draft.unknown_bounds, draft.unknown_categories) == (("age",), ("job",))
    assert "--unknown bounds categories" in capsys.readouterr().out


@pytest.mark.parametrize("answers", ["", "co\n17 90\n", "i\ni\ni\ni\n"])
def test_answers_that_end_early_or_name_no_feature_write_nothing(table, monkeypatch, answers, capsys):
    code, out = ask(monkeypatch, table, answers)
    assert code in (1, 2)
    assert not out.exists()
    assert capsys.readouterr().err.startswith("dpinfer: error: ")


def test_a_file_is_not_replaced(table, monkeypatch, capsys):
    table.with_name("made.toml").write_text("kept")
    code, out = ask(monkeypatch, table, ANSWERS)
    assert (code, out.read_text()) == (2, "kept")
    assert "--out must be a new file" in capsys.readouterr().err


def test_a_blank_schema_is_refused_until_it_is_filled(table, monkeypatch):
    code, out = ask(monkeypatch, table, "", "--blank")
    assert code == 0
    with pytest.raises(SchemaError, match=r"columns\.age\.kind must be one of"):
        Schema.load(out)
    text = out.read_text()
    for name in ("age", "job", "rich", '"name of it"'):
        assert f"[columns.{name}]" in text
    filled = text.replace('kind = ""', 'kind = "ignore"').replace('"ignore"', '"continuous"\nbounds = [0, 1]', 1)
    assert Schema.from_toml(filled).feature_names == ("age",)


def test_types_of_a_parquet_file_are_kinds(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    columns = {
        "number": pa.array([1.5, None]),
        "whole": pa.array([1, 2], pa.uint8()),
        "text": pa.array(["a", CANARY]),
        "code": pa.array(["a", CANARY]).dictionary_encode(),
        "truth": pa.array([True, False]),
        "day": pa.array(np.array(["2020-01-01", "2020-01-02"], "datetime64[D]")),
        "list": pa.array([[1], [2]]),
    }
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table(columns), path)
    kinds, _ = read_kinds(path)
    assert list(kinds.values()) == [*["continuous"] * 2, *["categorical"] * 2, "binary", "ignore", "ignore"]
    code, out = ask(monkeypatch, path, "", "--blank")
    assert code == 0
    assert CANARY not in out.read_text()
    columns = tomllib.loads(out.read_text())["columns"]
    for name, gap in (("number", "bounds"), ("text", "categories")):
        with pytest.raises(SchemaError, match=rf"columns\.{name}\.{gap}"):
            Schema.from_dict({"columns": {name: columns[name]}})
    assert Schema.from_dict({"columns": {"truth": columns["truth"]}}).feature_names == ("truth=true",)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_that_gives_most_names_is_found(tmp_path, delimiter):
    path = tmp_path / "people.csv.gz"
    path.write_bytes(gzip.compress(delimiter.join(["a", "b: x", "c"]).encode() + b"\n\xff\xfe not text \x00"))
    assert read_kinds(path) == ({"a": "", "b: x": "", "c": ""}, delimiter)
    assert list(read_kinds(path, delimiter="?")[0]) == [delimiter.join(["a", "b: x", "c"])]


def test_the_output_depends_on_the_names_alone(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(5)
    found = set()
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "people.csv"
        path.write_bytes(f"{HEADER}\n".encode() + rng.bytes(int(rng.integers(0, 300))))
        for more in ((), ("--blank",)):
            code, out = ask(monkeypatch, path, ANSWERS, *more)
            assert code == 0
            found.add((more, out.read_text(), capsys.readouterr().out.replace(str(folder), "")))
            out.unlink()
    assert len(found) == 2


@pytest.mark.parametrize("content", ["", "\n1,2\n", f"{CANARY},{CANARY}\n", f"{CANARY},,b\n", f'"{CANARY}\n'])
def test_a_first_line_that_is_no_header_is_not_quoted(tmp_path, monkeypatch, capsys, content):
    path = tmp_path / "people.csv"
    path.write_text(content)
    code, out = ask(monkeypatch, path, ANSWERS)
    told = capsys.readouterr()
    assert code == 2
    assert not out.exists()
    assert "first line must be a header" in told.err
    assert CANARY not in told.err + told.out


def test_names_are_printed_without_control_characters(tmp_path, monkeypatch, capsys):
    path = tmp_path / "people.csv"
    path.write_text('a\x1b[2J,"b ""quoted"""\n')
    code, out = ask(monkeypatch, path, "co\n0 1\n\ni\n")
    assert code == 0
    assert "\x1b" not in capsys.readouterr().out
    assert Schema.load(out).feature_names == ("a\x1b[2J",)
