"""Fixtures shared by the whole suite."""

import os
from pathlib import Path

import numpy as np
import pytest


def _whole(config):
    """Whether the suite, or a folder of it, was asked for, not files or tests by name."""
    return all(Path(argument.partition("::")[0]).is_dir() for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config):
    """The suite runs on every core; what is asked for by name runs in the process that was started."""
    return None if _whole(config) else 0


def pytest_collection_modifyitems(config, items):
    """The suite leaves slow tests to ``pytest -m slow``; what is asked for by name always runs."""
    if config.option.markexpr or config.option.keyword or not _whole(config):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


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
