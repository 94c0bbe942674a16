"""The size of the library: lines of core and laboratory, and files that a reader of one fit opens."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A second fit, as a first one also imports: private Newton for the population's coefficients, up to its posterior.
FIT = """
import sys
from pathlib import Path
import numpy as np
import dpinfer as dpi

package, entered = Path(dpi.__file__).parent, set()

def enter(frame, event, argument):
    path = Path(frame.f_code.co_filename)
    if event == "call" and package in path.parents:
        entered.add(path)

rng = np.random.default_rng(1)
X = rng.normal(size=(2000, 3))
y = X @ [0.5, 0.0, -1.0] + rng.normal(size=2000)
linear, logistic = dpi.models.LinearRegression(3), dpi.models.LogisticRegression(3)
for arguments in (linear, X, y, {"response_scale": 1.5}), (logistic, X, 0.0 + (y > 0.0), {}):
    for profile in (None, enter):
        entered.clear()
        sys.setprofile(profile)
        dpi.fit(*arguments[:3], epsilon=1.0, delta=1e-5, n_records=2000, **arguments[3])
        sys.setprofile(None)
    print(len(entered))
"""


def lines(*patterns: str) -> int:
    """Return the number of lines of tracked files, without tests."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith("cpp/tests/")]
    return sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in names)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lines are those of a checkout")
def test_the_core_and_the_laboratory_are_no_larger_than_agreed():
    sources = ("*.py", "*.cpp", "*.hpp", "*.cu", "*.cuh")
    everything = lines(*(f"{top}/{end}" for top in ("python/dpinfer", "cpp") for end in sources))
    laboratory = lines(*(f"{top}/{end}" for top in ("python/dpinfer/lab", "cpp/lab") for end in sources))
    assert laboratory <= 17_000
    assert everything - laboratory <= 70_000


def test_a_fit_enters_no_more_files_than_agreed():
    found = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    assert max(map(int, found.stdout.split())) <= 45
