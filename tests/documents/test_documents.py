"""Documents are true to the repository: lines that can be read, links and sections that exist, snippets that run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
FOLDERS = ("python", "cpp", "tests", "bench")
SUFFIXES = (".py", ".pyi", ".cpp", ".hpp")
SOURCES = sorted(
    path
    for name in FOLDERS
    for path in (ROOT / name).rglob("*")
    if path.suffix in SUFFIXES and path != Path(__file__).resolve()
)
PACKAGES = sorted(path.name for path in (ROOT / "python" / "dpinfer").iterdir() if (path / "__init__.py").exists())
CODE = ("python", "cpp", "tests", "bench", "docs", "examples", *PACKAGES)
# What they tell is of the past.
HISTORY = ("CHANGELOG.md",)
LONGEST_LINE = 160
# In code: docs/derivations/name.md, "Section" (the section is optional, and may be on the next line of a comment).
NAMED_DOCUMENT = re.compile(r"\b(docs/[\w/-]+\.md)(?:[,:]?\s*(?:#|//)?\s*\"([^\"\n]+)\")?")


def headings(path: Path) -> set[str]:
    """Return the headings of a document, and what its list items are called in bold."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE) + re.findall(r"\*\*([^*]+?)[.:]?\*\*", text)
    return {" ".join(item.replace("`", "").rstrip(".:").split()) for item in found}


def anchors(path: Path) -> set[str]:
    """Return the anchors that a document's headings make."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def too_long(text: str) -> list[int]:
    """Return the numbers of the lines over the limit; tables and pictures may be longer."""
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if len(line) > LONGEST_LINE and not line.lstrip().startswith(("|", "!["))]


def broken_links(path: Path, text: str) -> list[str]:
    """Return the links to files or sections of the repository that are not there."""
    broken = []
    for target in re.findall(r"\]\(([\w./:#-]{2,})\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    return broken


def unknown_names(text: str) -> list[str]:
    """Return the documents and sections that code names and that are not there."""
    unknown = []
    for name, section in NAMED_DOCUMENT.findall(text):
        place = ROOT / name
        if not place.exists() or (
            section and " ".join(section.replace("`", "").rstrip(".,:").split()) not in headings(place)
        ):
            unknown.append(f"{name} {section}".strip())
    return unknown


def dead_paths(text: str) -> list[str]:
    """Return what inline code names of the repository's files, or of the package's, and is not there."""
    dead = []
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        for path in re.findall(rf"(?<![\w/.:])((?:{'|'.join(CODE)})/[\w./{{}},*-]*)", code):
            place = ROOT / "python" / "dpinfer" if path.split("/")[0] in PACKAGES else ROOT
            names = re.match(r"(.*)\{(.*)\}(.*)", path)
            found = [names[1] + part + names[3] for part in names[2].split(",")] if names else [path]
            dead += [name for name in found if not list(place.glob(name.rstrip(".,").rstrip("/")))]
    return dead


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name not in HISTORY], ids=lambda path: path.name)
def test_a_document_names_files_that_are_there(path: Path) -> None:
    assert dead_paths(path.read_text(encoding="utf-8")) == []


def test_the_picture_of_the_packages_is_that_of_their_imports() -> None:
    command = [sys.executable, str(ROOT / "docs" / "images" / "architecture.py"), "--check"]
    done = subprocess.run(command, check=False, timeout=120)
    assert done.returncode == 0, "an import changed the picture: run python docs/images/architecture.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_can_be_read_and_its_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert too_long(text) == []
    assert broken_links(path, text) == []


def test_code_names_documents_and_sections_that_exist() -> None:
    named = {path: unknown_names(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {str(path.relative_to(ROOT)): names for path, names in named.items() if names} == {}


def test_the_checks_see_faults(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n", encoding="utf-8")
    assert too_long("x" * (LONGEST_LINE + 1)) == [1]
    assert too_long("| " + "x" * LONGEST_LINE) == []
    assert broken_links(page, "[a](gone.md) [b](#a-title) [c](#another) [d](page.md#a-title)") == [
        "gone.md",
        "#another",
    ]
    assert dead_paths("see `bench/gone.py` and `cpp/lab/{tarp,gone}.cpp`") == ["bench/gone.py", "cpp/lab/gone.cpp"]
    assert dead_paths("see `inference/gone.py`, `tests/boundary/test_imports.py::test` and a/bench/b.py") == [
        "inference/gone.py"
    ]
    assert unknown_names("see " + "docs/gone.md") == ["docs/gone.md"]
    assert unknown_names("docs/derivations/ledger" + '.md, "No such section"') != []


def test_the_first_screen_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert snippets
    space: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), space)
    assert (tmp_path / "study.release").exists()
