"""Fixtures of the tests of what leaves a run."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""
