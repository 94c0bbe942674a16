"""Fixtures shared by the whole suite."""

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config):
    """The whole suite, or a folder of it, runs on every core; named files and tests in the process that was started."""
    named = [argument for argument in config.args if not Path(argument.partition("::")[0]).is_dir()]
    return 0 if named else None


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
