"""Wheels: one for each Python that is promised, and none that needs the processor it was built on."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NATIVE = re.compile(r"(-march|-mtune|-mcpu)\b|/arch:")


def test_every_python_that_is_named_has_a_wheel():
    named = re.findall(r":: Python :: (3)\.(\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert PROJECT["tool"]["cibuildwheel"]["build"] == [f"cp{major}{minor}-*" for major, minor in named]
    assert PROJECT["project"]["requires-python"] == ">=" + ".".join(named[0])


def test_no_build_depends_on_the_processor_that_it_runs_on():
    files = [ROOT / "CMakeLists.txt", ROOT / "CMakePresets.json", *(ROOT / "cpp").rglob("CMakeLists.txt")]
    assert len(files) > 5
    assert [path.name for path in files if NATIVE.search(path.read_text(encoding="utf-8"))] == []
    assert NATIVE.search("target_compile_options(kernels PRIVATE -O3 -march=native)")
