"""The R package, where R is found: its tests, vignettes and pages, and 50 releases read in R alone, bit by bit."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.reference.release_certificates import honest_release

import dpinfer

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "r" / "dpinfer"
FILES = Path(__file__).parents[1] / "golden" / "files"
NEEDED = ("generics", "jsonlite", "nlme", "reticulate", "testthat")
# Every number of a release, with its place, in hexadecimal digits: integers and doubles alike.
DUMP = """
library(dpinfer)
dump <- function(place, value) {
  if (is.list(value)) {
    keys <- if (is.null(names(value))) seq_along(value) - 1 else names(value)
    for (k in seq_along(value)) dump(paste0(place, "/", keys[k]), value[[k]])
  } else if (is.numeric(value)) {
    at <- if (length(value) == 1) place else paste0(place, "/", seq_along(value) - 1)
    if (length(value)) cat(paste(at, sprintf("%a", as.double(value))), sep = "\\n")
    cat("\\n")
  }
}
for (path in commandArgs(TRUE)) {
  found <- read_release(path)
  dump(paste0(basename(path), "/header"), found$header)
  # In the order of C, as Python lists them.
  for (name in names(found$arrays)) {
    own <- found$arrays[[name]]
    flat <- if (is.null(dim(own))) own else as.vector(aperm(own))
    dump(paste0(basename(path), "/", name), as.list(flat))
  }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a library of R with the package, or say why there is none."""
    if shutil.which("Rscript") is None:
        pytest.skip("R is not installed")
    query = f"cat(all(sapply(c({', '.join(map(repr, NEEDED))}), requireNamespace, quietly = TRUE)))"
    if subprocess.run(["Rscript", "-e", query], capture_output=True, text=True).stdout != "TRUE":
        pytest.skip(f"R lacks one of the packages {', '.join(NEEDED)}")
    folder = tmp_path_factory.mktemp("library")
    command = ["R", "CMD", "INSTALL", "--no-docs", "-l", str(folder), str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def environment(library):
    python = Path(dpinfer.__file__).parents[1]
    return os.environ | {"R_LIBS": str(library), "RETICULATE_PYTHON": sys.executable, "PYTHONPATH": str(python)}


def numbers(place, value):
    """Return the lines that DUMP prints of a value of JSON, or of an array."""
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in numbers(f"{place}/{key}", item)]
    if isinstance(value, (list, np.ndarray)):
        items = value.ravel().tolist() if isinstance(value, np.ndarray) else value
        return [line for key, item in enumerate(items) for line in numbers(f"{place}/{key}", item)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [(place, float(value))]
    return []


def test_fifty_releases_are_read_to_the_bit(library, tmp_path):
    rng = np.random.default_rng(34)
    paths = sorted(FILES.glob("*.release"))
    for number in range(50 - len(paths)):
        paths.append(tmp_path / f"made-{number}.release")
        honest_release(rng, number).save(paths[-1])
    expected = []
    for path in paths:
        with np.load(path) as members:
            expected += numbers(f"{path.name}/header", json.loads(members["release.json"])["release"])
            for name in members.files:
                if name != "release.json":
                    expected += numbers(f"{path.name}/{name.removesuffix('.npy')}", members[name])
    script = tmp_path / "dump.R"
    script.write_text(DUMP, encoding="utf-8")
    # Python is out of reach of this process: the reader needs none.
    told = environment(library) | {"RETICULATE_PYTHON": "/nowhere", "PATH": "/usr/bin:/bin"}
    command = [shutil.which("Rscript"), str(script), *map(str, paths)]
    done = subprocess.run(command, env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines() if line]
    found = [(place, float.fromhex(text)) for place, text in lines]
    assert len(paths) == 50
    assert len(found) > 1000
    assert sorted(found) == sorted(expected)


def test_the_package_passes_its_tests(library):
    pytest.importorskip("formulaic")
    folder = str(PACKAGE / "tests" / "testthat")
    script = f"testthat::test_dir({folder!r}, package='dpinfer', load_package='installed', reporter='summary')"
    done = subprocess.run(["Rscript", "-e", script], env=environment(library), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    # One of the suggested packages may be missing; nothing else is left out.
    reasons = [line for line in done.stdout.splitlines() if "Reason:" in line]
    assert [line for line in reasons if not line.endswith(" cannot be loaded")] == []


@pytest.mark.parametrize("name", ["ten-tasks", "survey-and-mixed-models"])
def test_the_code_of_a_vignette_runs(library, tmp_path, name):
    pytest.importorskip("formulaic")
    query = "cat(requireNamespace('knitr', quietly = TRUE))"
    if subprocess.run(["Rscript", "-e", query], capture_output=True, text=True).stdout != "TRUE":
        pytest.skip("R lacks knitr")
    page = tmp_path / "page.md"
    script = f"knitr::knit({str(PACKAGE / 'vignettes' / f'{name}.Rmd')!r}, {str(page)!r}, quiet = TRUE)"
    command = ["Rscript", "-e", script]
    done = subprocess.run(command, env=environment(library), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^## \d+\. ", text, re.MULTILINE)) == 10
    assert "-differentially private with respect to" in text
    # Chunks that show a refusal are marked; elsewhere knitting stops at an error, and nothing else warns.
    assert "Warning" not in text
    source = (PACKAGE / "vignettes" / f"{name}.Rmd").read_text(encoding="utf-8")
    assert len(re.findall("^#> Error", text, re.MULTILINE)) == source.count("error = TRUE")


@pytest.mark.parametrize("page", ["README.md", "docs/r.md"])
def test_the_blocks_of_a_page_run_as_they_stand(library, tmp_path, page):
    pytest.importorskip("formulaic")
    blocks = re.findall(r"^```r\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    if page == "README.md":
        # The table of the README is the reader's: here the one of the page.
        (table,) = re.findall(r"^set\.seed.*?(?=^schema)", (ROOT / "docs/r.md").read_text(), re.MULTILINE | re.DOTALL)
        blocks.insert(0, table)
    script = tmp_path / "page.R"
    script.write_text("options(warn = 2)\n" + "\n".join(blocks), encoding="utf-8")
    command = ["Rscript", str(script)]
    done = subprocess.run(command, env=environment(library), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "-differentially private with respect to" in done.stdout


@pytest.mark.slow
def test_the_check_of_r_finds_nothing(library, tmp_path):
    subprocess.run(["R", "CMD", "build", str(PACKAGE)], env=environment(library), cwd=tmp_path, check=True)
    (built,) = tmp_path.glob("dpinfer_*.tar.gz")
    told = environment(library) | {"_R_CHECK_FORCE_SUGGESTS_": "false"}
    command = ["R", "CMD", "check", "--no-manual", built.name]
    done = subprocess.run(command, env=told, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert not re.search(r"^Status:.*(ERROR|WARNING)", done.stdout, re.MULTILINE), done.stdout[-3000:]
