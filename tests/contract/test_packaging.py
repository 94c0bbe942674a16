"""Wheels: one for each Python that is promised, and none that needs the processor it was built on."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

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


@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="needs cmake and ninja")
def test_a_build_compiles_nothing_again_where_pip_has_moved_pybind11(tmp_path):
    pybind11 = pytest.importorskip("pybind11")
    # pip unpacks what a build requires into a folder of a new name each time.
    commands = []
    for folder in ("first", "second"):
        moved = shutil.copytree(Path(pybind11.get_cmake_dir()).parents[1], tmp_path / folder / "pybind11")
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
             f"-Dpybind11_DIR={moved / 'share' / 'cmake' / 'pybind11'}"],
            check=True, capture_output=True,
        )  # fmt: skip
        commands.append((tmp_path / "build" / "compile_commands.json").read_text(encoding="utf-8"))
        shutil.rmtree(moved)
    assert commands[0] == commands[1]
    assert "bindings" in commands[0]
    headers = list((tmp_path / "build" / "pybind11").rglob("*.h"))
    assert any(header.name == "pybind11.h" for header in headers)


def test_the_version_has_its_section_in_the_changelog():
    version = re.search(r'"([\d.]+)"', (ROOT / "python" / "dpinfer" / "_version.py").read_text(encoding="utf-8"))[1]
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert sections[1].startswith(f"{version} (2")
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'version: "{version}"\n' in (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")


def test_the_conda_recipe_asks_for_what_the_package_does():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8").replace("matplotlib-base", "matplotlib")
    for needed in PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]:
        assert f"- {needed.replace('>=', ' >=')}\n" in recipe
