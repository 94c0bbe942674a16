"""Fixtures shared by the whole suite."""

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def data_dir():
    """The folder of the public data sets; tests that need it are skipped where it is absent."""
    path = Path(os.environ.get("DPINFER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("the public data sets are not here (set DPINFER_DATA to their folder)")
    return path


@pytest.fixture
def rng():
    """A generator with a fixed seed."""
    return np.random.default_rng(20240607)
