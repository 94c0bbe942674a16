"""``python -m bench papers``: kept runs, tables without empty cells, a page that is that of its results."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("bench.papers._command")


@pytest.fixture
def frame(papers: Any) -> Any:
    return importlib.import_module("bench.papers._frame")


def test_runs_are_kept_and_an_interrupted_one_is_run_again(frame: Any, tmp_path: Path) -> None:
    called: list[int] = []

    def one(index: int) -> dict[str, int]:
        called.append(index)
        return {"square": index**2}

    assert frame.Work(tmp_path).runs("cell", 3, one) == [{"square": 0}, {"square": 1}, {"square": 4}]
    kept = tmp_path / "cell.jsonl"
    kept.write_text(kept.read_text(encoding="utf-8") + '{"squ', encoding="utf-8")
    assert [item["square"] for item in frame.Work(tmp_path).runs("cell", 5, one)] == [0, 1, 4, 9, 16]
    assert called == [0, 1, 2, 3, 4]
    assert len(frame.Work(tmp_path, minutes=-1.0).runs("cell", 9, one)) == 5
    assert called == [0, 1, 2, 3, 4]
    assert len(frame.Work(tmp_path).runs("cell", 2, one)) == 2


def test_a_table_has_no_empty_cell(frame: Any) -> None:
    assert frame.Table(["a", "b"], [("row", ["1", "2"])]).to_dict()["rows"] == [["row", "1", "2"]]
    for cells in (["1"], ["1", ""], ["1", "2", "3"]):
        with pytest.raises(ValueError, match="row"):
            frame.Table(["a", "b"], [("row", cells)])


def test_a_mean_has_its_error(frame: Any) -> None:
    assert frame.with_error([1.0, 2.0, 3.0], 2) == "2.00 ± 0.58 (3 runs)"
    assert frame.with_error([0.5], 1, scale=1e3) == "500.0 (1 run)"
    assert frame.with_error([]) == "not run"


def test_a_quick_result_never_replaces_a_whole_one(papers: Any) -> None:
    whole, quick = ({"quick": value, "seconds": 5.0, "title": "T"} for value in (False, True))
    assert papers.merged({"t": whole}, "t", quick) == {"t": whole}
    assert papers.merged({"t": quick}, "t", whole)["t"]["quick"] is False
    again = papers.merged({"t": {**whole, "seconds": 900.0}}, "t", whole)
    assert again["t"]["seconds"] == 900.0


def test_every_script_states_its_paper_and_measures(papers: Any) -> None:
    known = importlib.import_module("bench.papers._page").PAPERS
    for name, title in papers.scripts().items():
        script = importlib.import_module(f"bench.papers.{name}")
        assert script.PAPER in known
        assert callable(script.measure)
        assert re.match(r"(Table|Figure|Theorem|Theorems) ", title), name


def test_a_script_that_fails_is_told_and_the_others_run(tmp_path: Path) -> None:
    folder = tmp_path / "bench" / "papers"
    folder.mkdir(parents=True)
    for name in ("__main__.py", "papers/_frame.py", "papers/_page.py", "papers/_command.py"):
        (folder.parent / name).write_text((ROOT / "bench" / name).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "bad.py").write_text('"""Table 1: bad."""\nPAPER = "DP-SEP"\ndef measure(work):\n    assert 1 == 2\n')
    body = (
        "from bench.papers._frame import Table, with_error\n"
        'PAPER = "NA-DPVI"\n'
        "def measure(work):\n"
        '    values = work.runs("a", work.size(4, 2), float)\n'
        '    return Table(["x"], [("mean", [with_error(values, 1)])], ["A remark."])\n'
    )
    (folder / "good.py").write_text(f'"""Table 2: good."""\n{body}')
    command = [sys.executable, "-m", "bench", "papers", "--json", "r.json", "--page", "p.md", "--out", "kept"]
    done = subprocess.run([*command, "--quick"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAILED: bad" in done.stdout
    assert "| mean | 0.5 ± 0.5 (2 runs) |" in (tmp_path / "p.md").read_text(encoding="utf-8")
    done = subprocess.run([*command, "good"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    page = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert "### Table 2: good" in page
    assert "| mean | 1.5 ± 0.6 (4 runs) |" in page
    assert "- A remark." in page


def test_the_page_is_that_of_its_results(papers: Any) -> None:
    page = importlib.import_module("bench.papers._page").page
    results = json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8")).get("papers", {})
    assert set(results) <= set(papers.scripts())
    written = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert page(results, ROOT / "bench" / "papers" / "notes") == written
