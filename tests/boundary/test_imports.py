"""Post-processing never loads the private side, and importing the package is cheap."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


def modules_after(statement):
    script = f"{statement}; import sys; print(chr(10).join(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_private_side_is_not_loaded():
    """By none of these, since it is not by all of them in one process."""
    parts = ("inference", "release", "models", "accounting", "diagnostics", "plots")
    loaded = modules_after(f"import dpinfer, dpinfer.{', dpinfer.'.join(parts)}; dpinfer.noise_aware_posterior")
    assert {f"dpinfer.{part}" for part in parts} <= loaded
    assert not [name for name in loaded if name.startswith("dpinfer.mechanism")]


def test_the_test_above_can_fail():
    assert "dpinfer.mechanism._native" in modules_after("import dpinfer; dpinfer.run_dpvi")


def test_the_package_imports_nothing_heavy():
    loaded = modules_after("import dpinfer")
    assert not {"scipy", "matplotlib", "emcee", "prv_accountant"} & {name.split(".")[0] for name in loaded}


@pytest.mark.parametrize(
    "statement",
    [
        "import dpinfer.models, dpinfer.inference, dpinfer.mechanism",
        "import dpinfer; dpinfer.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=10)",
    ],
)
def test_the_slowest_imports_wait_until_they_are_needed(statement):
    assert not {"scipy.stats", "scipy.signal", "matplotlib", "emcee"} & modules_after(statement)


def test_a_verb_imports_what_it_needs_alone():
    words = ["account", "--noise-multiplier", "2", "--sample-rate", "0.1", "--steps", "10", "--delta", "1e-5"]
    quiet = "contextlib.redirect_stdout(io.StringIO()).__enter__()"
    script = f"import contextlib, io, sys; said = sys.stdout; {quiet}; from dpinfer.cli.main import main; main({words})"
    script += "; sys.stdout = said"
    loaded = modules_after(script)
    assert "dpinfer.accounting.accountant" in loaded
    assert not {"dpinfer.inference", "dpinfer.mechanism", "dpinfer.plots", "dpinfer.cli.fit", "scipy"} & loaded


def test_exact_integers_are_read_in_few_places_alone():
    """Of shards and of units, which add them to the sum that gets the noise; of sites, which have added their share."""
    package = Path(__file__).parents[2] / "python" / "dpinfer"
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"integers_of_part\(|\.integers\b(?!\()", path.read_text(encoding="utf-8"))
    }
    assert readers == {
        "lab/replays/native.py",
        "lab/replays/recorder.py",
        "mechanism/newton/pass_records.py",
        "mechanism/newton/unit_parts.py",
        "mechanism/silos/work.py",
        "mechanism/sums/parts.py",
    }


LABORATORY = re.compile(r"^( *)(?:from dpinfer import [^\n]*\blab\b|(?:from|import) dpinfer\.lab\b)", re.MULTILINE)


def test_nothing_imports_the_laboratory_but_two_commands_when_they_run():
    package = Path(__file__).parents[2] / "python" / "dpinfer"
    found = {}
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        indents = {len(match) for match in LABORATORY.findall(path.read_text(encoding="utf-8"))}
        if indents and not name.startswith("lab/"):
            found[name] = min(indents)
    # None at the top of a module; in the package's own only for type checkers.
    assert found == {"__init__.py": 4, "cli/audit.py": 4, "cli/coverage.py": 4}


def test_a_fit_and_its_command_load_no_laboratory():
    script = """
import numpy as np, sys
import dpinfer as dpi
from dpinfer.cli.main import build_parser
build_parser(("fit", "demo", "plan", "audit", "posterior", "check"))
rng = np.random.default_rng(1)
X = rng.normal(size=(500, 1))
fit = dpi.fit(dpi.models.LogisticRegression(1), X, X[:, 0] > 0, epsilon=1.0, delta=1e-5, n_records=500)
fit.posterior.summary()
import dpinfer.auditing, dpinfer.diagnostics, dpinfer.estimators, dpinfer.formulas, dpinfer.planning, dpinfer.plots
"""
    loaded = modules_after(f"exec({script!r})")
    assert "dpinfer.fitting.one_call" in loaded
    assert not [name for name in loaded if name.startswith("dpinfer.lab")]


def test_every_public_name_is_there():
    import dpinfer

    for name in dpinfer.__all__:
        assert getattr(dpinfer, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        dpinfer.no_such_name  # noqa: B018
    assert set(dpinfer.__all__) <= set(dir(dpinfer))
