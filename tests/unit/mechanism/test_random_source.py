"""Keys are used once: not copied, not pickled, not shared with a forked process; samples are a function of the key."""

import copy
import os
import pickle

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.mechanism import OSRandomSource, _native
from dpinfer.mechanism.sums.gradients import SessionSettings
from dpinfer.testing import InsecureRNG

KEY = bytes(range(32))


@pytest.mark.parametrize("source", [OSRandomSource(), InsecureRNG(3)])
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_sources_cannot_be_duplicated(source, duplicate):
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(source)


def sessions():
    """One of every kind: each holds a key."""
    X, y, rate = np.ones((3, 1)), np.ones(3), {"sample_rate": 1.0}
    common = {"key": KEY, "n_threads": 1}
    return (
        _native.AffineSession(statistics=X, length=1, max_grad_norm=1.0, **rate, **common),
        _native.StepSession(
            features=X, response=y, likelihood="logistic", intercept=False, aligned=False, max_grad_norm=1.0,
            **rate, **common,
        ),
        _native.binary_sites(
            features=X, response=y, intercept=True, likelihood="probit", nodes=np.zeros(1), weights=np.ones(1),
            max_site_norm=1.0, **common,
        ),
        _native.NetworkSession(
            features=X, response=y, n_hidden=2, hidden_scale=1.0, output_scale=1.0, max_norm=1.0, **rate, **common
        ),
    )  # fmt: skip


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_sessions_cannot_be_duplicated(duplicate):
    for session in sessions():
        with pytest.raises(TypeError):
            duplicate(session)


def test_keys_are_fresh_and_never_shown():
    source = OSRandomSource()
    keys = {source.take_key() for _ in range(50)}
    assert len(keys) == 50
    assert {len(key) for key in keys} == {32}
    settings = SessionSettings(
        aligned=False, nodes=np.zeros(1), weights=np.ones(1), sample_rate=0.1, max_grad_norm=1.0, key=KEY, n_threads=1
    )
    assert "key" not in repr(settings)


def test_a_run_refuses_to_go_on_in_a_forked_process(monkeypatch):
    """The child of a fork has the parent's key; from the first step on, its process number differs."""
    parent = os.getpid()
    seen = []
    monkeypatch.setattr(os, "getpid", lambda: parent if len(seen) < 2 else parent + 1)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=5)
    with pytest.raises(RuntimeError, match="forked process"):
        dpi.run_dpvi(
            dpi.models.GammaExponential(),
            np.ones(20),
            plan=plan,
            n_records=20,
            random_source=InsecureRNG(1),
            progress=lambda done, total: seen.append(done),
        )
    assert seen == [1, 2]


def test_samples_are_stateless():
    """A step's sample is a function of key, step and row: asked for again, or of fewer rows, it is the same."""
    sample = _native.poisson_sample(KEY, 5, 0.3, 5000)
    _native.poisson_sample(KEY, 6, 0.3, 5000)
    np.testing.assert_array_equal(_native.poisson_sample(KEY, 5, 0.3, 5000), sample)
    for n_rows in (1, 63, 64, 1023, 1024, 1025, 4097):
        np.testing.assert_array_equal(_native.poisson_sample(KEY, 5, 0.3, n_rows), sample[sample < n_rows])
    assert not np.array_equal(_native.poisson_sample(KEY, 6, 0.3, 5000), sample)


def test_samples_grow_with_the_rate():
    """Rows are compared with one number each, so that a larger rate adds rows and takes none away."""
    small, large = (set(_native.poisson_sample(KEY, 9, rate, 3000).tolist()) for rate in (0.2, 0.25))
    assert small < large
    assert _native.poisson_sample(KEY, 9, 1.0, 10).tolist() == list(range(10))
    assert _native.poisson_sample(KEY, 9, 0.0, 10).size == 0


def test_the_effective_rate_is_a_little_below_the_rate():
    for rate in (1.0, 0.1, 1 / 3, 1e-6, 0.999999):
        session = _native.AffineSession(
            statistics=np.ones((3, 1)), length=1, sample_rate=rate, max_grad_norm=1.0, key=KEY, n_threads=1
        )
        assert rate - 2.0**-40 < session.effective_rate <= rate
