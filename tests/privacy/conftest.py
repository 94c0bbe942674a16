"""Fixtures of the tests of what leaves a run: they compare sums and charges, and no posterior."""

import pytest

from dpinfer.inference.newton import convergence


@pytest.fixture(autouse=True)
def brief_posteriors(monkeypatch):
    """Fits of a few dozen records take seconds where their posteriors are sampled well."""
    brief = convergence.ChainLengths(chains=2, warm_up=10, kept=10, most=10)
    monkeypatch.setattr(convergence.ChainLengths, "of", classmethod(lambda cls, d: brief))
