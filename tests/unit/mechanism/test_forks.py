"""A fork inside a private run: the parent goes on, the child, which has the parent's key, draws nothing."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import CheckpointError
from dpinfer.lab.baselines import NetworkVISettings, run_network_vi
from dpinfer.mechanism import run_network_dp_sep
from dpinfer.mechanism.sums import gradients, sites
from dpinfer.testing import InsecureRNG


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


pytestmark = [
    pytest.mark.forks,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

N, STEPS, FORK_AFTER = 30, 6, 2
NETWORK = dpi.models.BayesianNeuralNetwork(2, 3)


def dpvi(X, y, **options):
    return dpi.run_dpvi(dpi.models.ProbitRegression(2), X, (y > 0) + 0.0, max_grad_norm=1.0, **options).noisy_gradients


def dp_sep(X, y, **options):
    return dpi.run_dp_sep(dpi.models.ProbitRegression(2), X, (y > 0) + 0.0, **options).noisy_sums


def network_dp_sep(X, y, **options):
    return run_network_dp_sep(NETWORK, X, y, n_replicas=0, **options).noisy_sums


def network_vi(X, y, **options):
    settings = NetworkVISettings(1e-2, 10.0, 1.0, 0.1)
    return run_network_vi(NETWORK, X, y, settings=settings, max_grad_norm=1.0, **options).loc


MECHANISMS = (dpvi, dp_sep, network_dp_sep, network_vi)


def run(mechanism, **options):
    rng = np.random.default_rng(0)
    plan = dpi.PrivacyPlan(
        noise_multiplier=2.0, epsilon=5.0, delta=1e-5, sample_rate=0.5, n_steps=STEPS, adjacency="add_remove",
        accountant="pld",
    )  # fmt: skip
    X, y = rng.normal(size=(N, 2)), rng.normal(size=N)
    return mechanism(X, y, plan=plan, n_records=N, n_threads=1, random_source=InsecureRNG(1), **options)


class Watched:
    """A compiled session that notes every sum that is drawn from it."""

    def __init__(self, session, draws):
        self._session, self._draws = session, draws

    def __getattr__(self, name):
        if name.endswith("_sum"):
            self._draws.append(name)
        return getattr(self._session, name)


@pytest.fixture
def draws(monkeypatch):
    """Names of the sums drawn, by whichever mechanism."""
    drawn = []
    for module in (gradients, sites):
        native = module._native
        kinds = {name: getattr(native, name) for name in dir(native)}
        for name in ("StepSession", "AffineSession", "NetworkSession", "binary_sites", "mixture_sites"):
            kinds[name] = lambda kind=kinds[name], **options: Watched(kind(**options), drawn)
        monkeypatch.setattr(module, "_native", SimpleNamespace(**kinds))
    return drawn


def forked(mechanism, draws, in_parent=lambda: None, **options):
    """Fork after some steps; return the parent's result, and what the child reports: its error and its draws."""
    reader, writer = os.pipe()
    child = None
    reported = b""

    def fork(done, total):
        nonlocal child, reported
        if done != FORK_AFTER or child is not None:
            return
        child = os.fork()
        if child == 0:
            # A child that hangs reports nothing, and that fails.
            signal.alarm(30)
            draws.clear()
            return
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            reported = pipe.read()
        os.waitpid(child, 0)
        in_parent()

    try:
        result = run(mechanism, progress=fork, **options)
        told = "no error"
    except RuntimeError as error:
        told = str(error)
    finally:
        if child == 0:
            os.write(writer, f"{told}|{len(draws)}".encode())
            os._exit(0)
    error, n_drawn = reported.decode().split("|")
    return result, error, int(n_drawn)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_child_is_refused_and_the_parent_goes_on(mechanism, draws):
    undisturbed = run(mechanism)
    assert len(draws) == STEPS
    result, error, drawn = forked(mechanism, draws)
    assert "forked process" in error
    assert drawn == 0
    np.testing.assert_array_equal(result, undisturbed)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_run_that_does_not_look_would_draw_twice(mechanism, draws, monkeypatch):
    """The power twin: where process numbers are all the same, the child goes on with the parent's key."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    _, error, drawn = forked(mechanism, draws)
    assert error == "no error"
    assert drawn == STEPS - FORK_AFTER


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_the_child_does_not_give_the_checkpoint_away(mechanism, draws, tmp_path):
    """What the child leaves behind is not its own: the file stays the parent's until the parent is done."""
    path = tmp_path / "run.checkpoint"

    def taken():
        with pytest.raises(CheckpointError, match="in use"):
            run(mechanism, checkpoint=path)

    _, error, _ = forked(mechanism, draws, taken, checkpoint=path)
    assert "forked process" in error
    assert not list(tmp_path.iterdir())
