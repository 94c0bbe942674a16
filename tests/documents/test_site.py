"""The documentation site: its snippets run, page by page, and it is built without a warning."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpinfer.models import base

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DATA = re.compile(r'read_table\("([\w.-]+)"')
FOLDER = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
# Snippets for packages that need not be there, each by itself: test_worked_models.py runs them.
APART = {DOCS / "worked-models.md"}
PAGES = sorted(
    page for page in DOCS.rglob("*.md") if SNIPPET.search(page.read_text(encoding="utf-8")) and page not in APART
)


def test_pages_have_snippets() -> None:
    assert {"start.md", "choosing.md", "reading-a-report.md", "coming-from.md"} <= {page.name for page in PAGES}


NEEDED = dict.fromkeys((DOCS / "tables.md", DOCS / "unknown.md"), "formulaic") | {DOCS / "estimators.md": "sklearn"}
SLOW = {DOCS / "tutorials" / "adult.md"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in PAGES],
    ids=lambda page: str(page.relative_to(DOCS)),
)
def test_the_snippets_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib as mpl

    if page in NEEDED and find_spec(NEEDED[page]) is None:
        pytest.skip(f"needs {NEEDED[page]}")
    mpl.use("Agg")
    # A class that a snippet defines is not that of another test.
    monkeypatch.setattr(base, "_KINDS", dict(base._KINDS))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = page.read_text(encoding="utf-8")
    for name in DATA.findall(text):
        if not (FOLDER / name).exists():
            pytest.skip(f"needs {name} (DPINFER_DATA)")
        (tmp_path / name).symlink_to((FOLDER / name).resolve())
    space: dict[str, object] = {"__name__": "__main__"}
    for snippet in SNIPPET.findall(text):
        exec(compile(snippet, str(page), "exec"), space)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_is_in_the_site(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert f"\nnotebooks/{path.stem}\n" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    needed = ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "ipykernel", "formulaic")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs the extra docs: {', '.join(missing)}")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2", "-d", tmp_path / "trees"]
    command += [DOCS, tmp_path / "site"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "site" / "start.html").stat().st_size > 5000
    # Its pictures are outputs: it was run.
    assert "_images/" in (tmp_path / "site" / "notebooks" / "table.html").read_text(encoding="utf-8")
