"""What docs/stability.md promises: names and their arguments, and that files of every version can be read.

python -m tests.contract.test_stability     # writes public.json anew: where the page allows the change
"""

import hashlib
import importlib
import inspect
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.release import files

STORED = Path(__file__).with_name("public.json")
FILES = Path(__file__).parents[1] / "golden" / "files"
PAGE = Path(__file__).parents[2] / "docs" / "stability.md"
PACKAGES = ("dpinfer", "dpinfer.accounting", "dpinfer.errors", "dpinfer.models", "dpinfer.release", "dpinfer.tabular")


def arguments(function):
    """Return a call's arguments in order: name, kind of argument, and default where it has one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a class of Python's own, such as an exception's
        return None
    kinds = {inspect.Parameter.KEYWORD_ONLY: "keyword", inspect.Parameter.VAR_KEYWORD: "others"}
    return [
        [
            item.name,
            kinds.get(item.kind, "positional"),
            *([] if item.default is item.empty else [default(item.default)]),
        ]
        for item in parameters
        if item.name not in ("self", "cls")
    ]


def default(value):
    """Return a default as text that is the same in every process and version of Python."""
    plain = value is None or isinstance(value, (bool, int, float, str, tuple))
    return repr(value) if plain else type(value).__name__


def described(value):
    """Return what is promised of a public name."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        members = {name: inspect.getattr_static(value, name) for name in dir(value) if not name.startswith("_")}
        own = {name: member for name, member in members.items() if _is_own(value, name)}
        calls = {name: arguments(getattr(value, name)) for name, member in own.items() if _is_call(member)}
        others = sorted(name for name, member in own.items() if not _is_call(member))
        return {"call": arguments(value), "methods": calls, "attributes": others}
    return arguments(value) if callable(value) else type(value).__name__


def _is_own(kind, name):
    return any(name in vars(base) and base.__module__.startswith("dpinfer") for base in kind.__mro__)


def _is_call(member):
    return inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))


def public():
    """Return every public name of the stable packages, described; deprecated names with the rest."""
    modules = {name: importlib.import_module(name) for name in PACKAGES}
    found = {
        name: {entry: getattr(module, entry) for entry in module.__all__} | getattr(module, "_DEPRECATED", {})
        for name, module in modules.items()
    }
    return {name: {key: described(values[key]) for key in sorted(values)} for name, values in found.items()}


def broken(promised, found):
    """Return what a caller of `promised` can no longer rely on: a name, an argument, its place, kind or default.

    What is new breaks nothing, as long as arguments that have no default come with no old function.
    """
    if isinstance(promised, dict):
        faults = []
        for name, value in promised.items():
            inner = found.get(name) if isinstance(found, dict) else None
            lost = inner is None and value is not None
            faults += [name] if lost else [f"{name}.{item}" for item in broken(value, inner)]
        return faults
    if isinstance(promised, list) and promised and isinstance(promised[0], list):
        old, new = promised, {item[0]: item for item in found or []}
        faults = [item[0] for item in old if new.get(item[0]) != item]
        known = {item[0] for item in old}
        faults += [name for name, item in new.items() if name not in known and len(item) == 2 and item[1] != "others"]
        ordered = [item[0] for item in found or [] if item[1] == "positional" and item[0] in known]
        places = [item[0] for item in old if item[1] == "positional"]
        return faults + ([] if ordered == places or faults else ["order"])
    if isinstance(promised, list) and promised and isinstance(promised[0], str):
        return [name for name in promised if name not in (found or [])]
    return [] if promised == found or promised == [] else ["kind"]


def test_what_is_promised_is_there():
    promised = json.loads(STORED.read_text(encoding="utf-8"))
    assert broken(promised, json.loads(json.dumps(public()))) == []


def test_a_renamed_argument_is_found():
    promised = json.loads(STORED.read_text(encoding="utf-8"))
    assert promised["dpinfer"]["run_newton"][0][0] == "model"
    found = json.loads(STORED.read_text(encoding="utf-8"))
    found["dpinfer"]["run_newton"][0][0] = "models"
    assert "dpinfer.run_newton.model" in broken(promised, found)
    for change, fault in (
        (lambda all_: all_["dpinfer"].pop("fit"), "dpinfer.fit"),
        (lambda all_: all_["dpinfer"]["plan_privacy"].append(["more", "keyword"]), "dpinfer.plan_privacy.more"),
        (lambda all_: all_["dpinfer"]["Release"]["methods"].pop("save"), "dpinfer.Release.methods.save"),
        (lambda all_: all_["dpinfer"]["Release"]["attributes"].remove("epsilon"), "dpinfer.Release.attributes.epsilon"),
        (lambda all_: all_["dpinfer"]["fit"].reverse(), "dpinfer.fit.order"),
    ):
        found = json.loads(STORED.read_text(encoding="utf-8"))
        change(found)
        assert fault in broken(promised, found)
    found = json.loads(STORED.read_text(encoding="utf-8"))
    found["dpinfer"]["plan_privacy"].append(["more", "keyword", "None"])
    found["dpinfer"]["something_new"] = []
    assert broken(promised, found) == []


def test_the_page_names_the_stable_packages():
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in PACKAGES if f"`{name}`" not in text] == []


def read_of(path):
    """Return what a file says, hashed: every array's bytes, and what its release claims."""
    release = dpi.load_release(path)
    arrays = {name: value for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    content = b"".join(name.encode() + np.ascontiguousarray(value).tobytes() for name, value in sorted(arrays.items()))
    return {
        "kind": type(release).__name__,
        "names": list(release.names),
        "certified_epsilon": round(release.certified_epsilon, 6),
        "delta": release.delta,
        "leaks": len(release.leaks),
        "arrays": hashlib.sha256(content).hexdigest(),
    }


@pytest.mark.parametrize("name", sorted(json.loads((FILES / "expected.json").read_text(encoding="utf-8"))))
def test_files_of_every_version_are_read(name):
    assert read_of(FILES / name) == json.loads((FILES / "expected.json").read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize(
    "name", ["people-2.release", "own-newton-2.release", "clusters-2.release", "population-2.release"]
)
def test_files_of_runs_have_a_posterior(name):
    """Some have far more noise than records: the posterior is then about the prior, and finite."""
    release = dpi.load_release(FILES / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        posterior = dpi.noise_aware_posterior(release)
    assert np.all(np.isfinite(posterior.mean))
    assert np.all(posterior.stddev > 0.0)


def test_every_format_of_this_version_has_a_file():
    found = set()
    for path in FILES.glob("*.release"):
        with zipfile.ZipFile(path) as archive:
            document = json.loads(archive.read("release.json"))
        found.add((document["format"], document["version"]))
    formats = set(files.KINDS)
    assert len(formats) >= 8
    assert found >= {(name, files.FORMAT_VERSION) for name in formats}


def test_ledgers_of_every_version_are_read():
    for path in FILES.glob("*.ledger"):
        account = dpi.PrivacyLedger(path).dataset("census")
        assert [run.status for run in account.runs()] == ["finished", "finished"]
        assert account.budget == (9.0, 1e-5)


if __name__ == "__main__":
    packages = []
    for package, names in public().items():
        lines = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in names.items()
        )
        packages.append(f" {json.dumps(package)}: {{\n{lines}\n }}")
    STORED.write_text("{\n" + ",\n".join(packages) + "\n}\n", encoding="utf-8")
