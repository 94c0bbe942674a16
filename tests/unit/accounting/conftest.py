"""A ledger and an account with a budget of (1, 1e-5)."""

import os
import tempfile
from pathlib import Path

import pytest
from tests.reference.ledger_runs import DELTA

import dpinfer as dpi
from dpinfer.accounting import accountant


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory where there is one: every entry is flushed to the disk three times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def forgetful():
    """The accountants' answers are kept: a test that puts another accountant in must neither find nor leave any."""
    accountant._certify.cache_clear()
    yield
    accountant._certify.cache_clear()


@pytest.fixture
def ledger(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger")


@pytest.fixture
def account(ledger):
    return ledger.add_dataset("census", budget=(1.0, DELTA))
