"""Traces of other DP-SGD code as releases: recorded as docs/any-model.md says, and named for what they are."""

import numpy as np
import pytest
from tests.reference.other_traces import TRAINERS, clipped_sum, sigmoid

import dpinfer as dpi

N, TRUTH = 400, np.array([0.8, -0.5])
SETTINGS = {"norm": 1.0, "steps": 60, "learning_rate": 1.0}

pytestmark = [
    # TF-Privacy traces each step of its gradients anew: a second a step.
    pytest.mark.parametrize(
        "package", ["opacus", "jax_privacy", pytest.param("tensorflow_privacy", marks=pytest.mark.slow)]
    ),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture
def train(package):
    pytest.importorskip(package)
    rng = np.random.default_rng(4)
    X = rng.normal(size=(N, 2))
    y = (rng.random(N) < sigmoid(X @ TRUTH)) * 1.0
    return X, y, lambda **changes: TRAINERS[package](X, y, **SETTINGS | changes)


def test_a_recorder_takes_down_sums_and_their_noise(train):
    """Without noise the recorded gradients are the clipped sums at the recorded parameters, to single precision."""
    X, y, trained = train
    bare = trained(noise_multiplier=0.0, rate=1.0, steps=6)
    for params, gradient in zip(bare["params"], bare["gradients"], strict=True):
        np.testing.assert_allclose(gradient, clipped_sum(X, y, params, 1.0), rtol=1e-5, atol=1e-6 * N)
    noisy = trained(noise_multiplier=3.0, rate=1.0)
    assert noisy["stddev"] == pytest.approx(3.0)
    noise = [g - clipped_sum(X, y, w, 1.0) for w, g in zip(noisy["params"], noisy["gradients"], strict=True)]
    # Chi-square of 120 draws: beyond 30% with probability 1e-5.
    assert np.std(noise) == pytest.approx(noisy["stddev"], rel=0.3)


def test_a_trace_is_flagged_unless_its_curvature_is_given(train):
    X, _, trained = train
    trace = trained(noise_multiplier=1.0, rate=0.25)
    params, gradients = np.array(trace["params"]), np.array(trace["gradients"])
    given = {"noise_stddev": trace["stddev"], "sample_rate": 0.25, "family": "point"}
    bare = dpi.noise_aware_posterior(dpi.release_from_arrays(params, gradients, **given), burn_in=0.2)
    assert bare.diagnostics.optimum_only
    p = sigmoid(X @ TRUTH)
    curvature = np.sum(X**2 * (p * (1.0 - p))[:, None], axis=0) + 1.0
    counted = dpi.release_from_arrays(params, gradients, curvature=curvature, **given)
    posterior = dpi.noise_aware_posterior(counted, burn_in=0.2)
    assert not posterior.diagnostics.optimum_only
    assert "clipping moves the optimum" in str(posterior.summary())
    assert np.all(posterior.stddev > bare.stddev)
    assert np.all(posterior.stddev >= curvature**-0.5)
    assert np.all(np.abs(posterior.mean - TRUTH) < 5.0 * posterior.stddev)
