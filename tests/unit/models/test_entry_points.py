"""A package that brings a model: its releases are loaded without an import of it."""

import subprocess
import sys

import pytest

MODULE = """
from dpinfer.models import LogisticRegression

class HospitalRegression(LogisticRegression):
    "A model of another package."
"""
PROGRAM = """
import sys
import numpy as np
import dpinfer as dpi
from dpinfer.models import model_from_dict

spec = dict(dpi.models.LogisticRegression(2).to_dict(), kind=sys.argv[1])
assert "hospital" not in sys.modules
model = model_from_dict(spec)
print(type(model).__module__, type(model).__name__, model.n_params)
"""


@pytest.fixture
def package(tmp_path):
    (tmp_path / "hospital.py").write_text(MODULE, encoding="utf-8")
    metadata = tmp_path / "hospital-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hospital\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        "[dpinfer.models]\nHospitalRegression = hospital:HospitalRegression\nLogisticRegression = hospital:Missing\n",
        encoding="utf-8",
    )
    return tmp_path


def run(package, kind):
    source = f"import sys; sys.path.insert(0, {str(package)!r})\n{PROGRAM}"
    command = [sys.executable, "-c", source, kind]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_model_of_an_installed_package_is_found(package):
    done = run(package, "HospitalRegression")
    assert (done.stdout.split(), done.stderr) == (["hospital", "HospitalRegression", "2"], "")


def test_no_package_takes_the_place_of_the_librarys_models(package):
    assert run(package, "LogisticRegression").stdout.split()[0] == "dpinfer.models.glm"


def test_an_unknown_kind_is_refused(package):
    assert "must have a known kind" in run(package, "SurgeryRegression").stderr
