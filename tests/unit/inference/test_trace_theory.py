"""Theorems 2 and 3 of NA-DPVI as they are printed for a trace and for a plan, against the laboratory's functions."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import inference_oracles as oracle

import dpinfer as dpi
from dpinfer.inference.trace.theory import TraceTheory
from dpinfer.lab import stationary

KAPPA = 0.1
A, RATE, NOISE, STEPS = np.array([50.0, 20.0, 4.0]), 0.02, 3.0, 800


def equal_rates(radius=None):
    return TraceTheory(A, np.full(3, RATE), np.full(3, NOISE), KAPPA, STEPS, radius)


def test_equal_rates_have_the_theorems_own_numbers():
    told = equal_rates(0.7)
    square = stationary.mean_square_distance(A, RATE, KAPPA, NOISE, "continuous")
    assert told.distance == pytest.approx(math.sqrt(square), rel=1e-12)
    assert told.share_of_limit == pytest.approx(RATE / stationary.learning_rate_limit(A, 0.7, KAPPA, NOISE), rel=1e-12)
    assert told.stddev_bound == pytest.approx(stationary.hessian_stddev_bound(0.7, 3, STEPS, KAPPA, NOISE), rel=1e-12)
    discrete, continuous = (stationary.covariance(A, RATE, KAPPA, NOISE, time) for time in ("discrete", "continuous"))
    assert told.excess == pytest.approx(np.max(discrete / continuous) - 1.0, rel=1e-9)


def test_rates_of_their_own_have_the_recursions_distance():
    rate, noise = np.array([0.02, 0.01, 0.1]), np.array([3.0, 1.0, 0.5])
    told = TraceTheory(A, rate, noise, KAPPA, STEPS)
    square = stationary.mean_square_distance(A, rate, KAPPA, noise, "continuous")
    assert told.distance == pytest.approx(math.sqrt(square), rel=1e-12)
    assert told.share_of_limit == pytest.approx(1.0)


def test_the_text_says_above_below_and_diverging():
    assert "below it" in str(equal_rates(10.0))
    assert "above it" in str(equal_rates(0.1))
    assert "diverges" in str(TraceTheory(A, np.full(3, 1.0), np.full(3, NOISE), KAPPA, STEPS))
    assert "wanders" in str(equal_rates())


def checked(seed, scale=1.0, steps=600):
    """Return the check of a simulated trace, and its release."""
    rng = np.random.default_rng(seed)
    rate = np.array([0.02, 0.05, 0.1]) * scale
    x, g, _ = oracle.simulate(
        rng, steps=steps, hessian=A, optimum=np.zeros(3), noise_stddev=np.array([3.0, 1.0, 0.5]), learning_rate=rate
    )
    noise = np.array([3.0, 1.0, 0.5])
    release = replace(oracle.point_release(x, g, noise, KAPPA), learning_rate=rate)
    return dpi.diagnostics.check_trace(release, burn_in=0), release


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.2, 3.0))
def test_theorem_2_holds_for_every_trace(seed, scale):
    """The sum of squared distances is at most the steps times the largest: eq. A21, for any positions."""
    check, release = checked(seed, scale)
    square = np.sum((release.positions - release.positions.mean(axis=0)) ** 2, axis=0)
    error = release.noise_stddev / (KAPPA * np.sqrt(square))
    assert error.max() >= check.theory.stddev_bound * (1.0 - 1e-12)


def test_a_trace_prints_what_the_theorems_say():
    check, release = checked(3, steps=4000)
    assert check.theory.distance == pytest.approx(np.sqrt(np.mean(np.sum(release.positions**2, axis=1))), rel=0.15)
    assert check.theory.share_of_limit < 1.0
    for text in ("Theorem 3: the learning rate is", "Ornstein-Uhlenbeck", "Theorem 2: after 4000 steps"):
        assert text in str(check)
    assert dpi.diagnostics.check_trace(replace(release, learning_rate=None), burn_in=0).theory is None


def test_a_plan_prints_what_the_theorems_say():
    model = dpi.models.LogisticRegression(2)
    plan = dpi.plan_inference(
        model,
        n_records=2000,
        target_epsilon=1.0,
        target_delta=1e-5,
        recipe="plain",
        hessian="diagonal",
        n_simulations=2,
    )
    told = plan.theory
    assert told.excess == pytest.approx(np.max(1.0 / (1.0 - 0.5 / plan.mixing_time)) - 1.0, rel=1e-9)
    assert str(told) in str(plan)
    natural = dpi.plan_inference(dpi.models.GammaExponential(), n_records=2000, target_epsilon=1.0, target_delta=1e-5)
    assert natural.theory is None
    assert "Theorem" not in str(natural)
