"""Checks of a trace: their false-positive rate, their power against named faults, and what they say."""

import math

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.diagnostics import check_trace
from dpinfer.release import release_from_arrays

KAPPA, TAU = 0.1, 3.0
RUNS, STEPS, K = 250, 640, 4


def traces(rng, *, noise=TAU, contraction=0.1, bend=0.0, start=0.0, steps=STEPS, columns=RUNS * K):
    """Return positions and gradients (steps, columns) of independent coordinates with slope 10."""
    slope = KAPPA * 100.0
    rate = contraction / slope
    sd = math.sqrt(rate**2 * noise**2 / (1.0 - (1.0 - contraction) ** 2))
    x = rng.normal(size=columns) * sd + start * sd
    positions, gradients = np.empty((2, steps, columns))
    for t in range(steps):
        pull = sd * np.tanh(bend * x / sd) / bend if bend else x
        g = slope * pull + noise * rng.normal(size=columns)
        positions[t], gradients[t] = x, g
        x = x - rate * g
    return positions, gradients


def checks(positions, gradients, tau=TAU, **options):
    for run in range(positions.shape[1] // K):
        own = slice(run * K, (run + 1) * K)
        release = release_from_arrays(
            np.ascontiguousarray(positions[:, own]),
            np.ascontiguousarray(gradients[:, own]),
            noise_stddev=tau,
            sample_rate=KAPPA,
            family="point",
        )
        yield check_trace(release, burn_in=0, n_threads=1, **options)


@pytest.mark.statistical
@pytest.mark.parametrize("contraction", [0.5, 0.02, 1e-4])
def test_a_good_trace_is_found_fault_with_at_most_as_often_as_it_says(rng, contraction):
    # At the rate 0.1 each of the three tests of four coordinates has 0.1 / 12; the verdicts are binomial, at most 0.1.
    found = sum(not check.sound for check in checks(*traces(rng, contraction=contraction), false_positive_rate=0.1))
    assert found <= stats.binom.isf(1e-6 / 3, RUNS, 0.1)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("fault", "field"),
    [
        ({"noise": 1.15 * TAU}, "noisier"),
        ({"noise": 0.85 * TAU}, "quieter"),
        ({"bend": 0.1, "contraction": 0.05, "start": 120.0}, "bent"),
        ({"start": 25.0, "contraction": 0.005}, "travelling"),
    ],
)
def test_faults_are_found(rng, fault, field):
    # The power twin: with the same settings the named property must show in nearly every trace.
    found = [bool(np.any(getattr(check, field))) for check in checks(*traces(rng, columns=40 * K, **fault))]
    assert np.mean(found) > 0.9


def test_the_effective_sample_size_is_that_of_the_recursion(rng):
    positions, gradients = traces(rng, contraction=0.2, steps=20_000, columns=K)
    (check,) = checks(positions, gradients)
    # (1 - q) / (1 + q) of the steps with q = 0.8
    np.testing.assert_allclose(check.effective_sample_size, 20_000 / 9.0, rtol=0.25)


def test_the_verdict_names_what_is_wrong(rng):
    positions, gradients = traces(rng, columns=K)
    gradients[:, 2] = 100.0 * KAPPA * positions[:, 2] + 2.0 * (gradients[:, 2] - 100.0 * KAPPA * positions[:, 2])
    (check,) = checks(positions, gradients)
    assert not check.sound
    assert "1 of 4 coordinates have gradients noisier than the privacy noise (theta[2])" in check.verdict
    (good,) = checks(*traces(rng, columns=K))
    assert good.verdict.startswith(f"The trace fits its model: over {STEPS} steps and 4 coordinates")
    assert "Effective sample size" in good.verdict
    assert "theta[3]" in str(good)


def test_the_posterior_carries_the_verdict(rng):
    release = release_from_arrays(*traces(rng, columns=K), noise_stddev=TAU, sample_rate=KAPPA, family="point")
    for hessian in ("diagonal", "full"):
        posterior = dpi.noise_aware_posterior(release, hessian=hessian)
        assert posterior.diagnostics.verdict.startswith("The trace fits its model")
        assert posterior.diagnostics.verdict in str(posterior.summary())
    assert dpi.noise_aware_posterior(release, approximation="averaged").diagnostics.verdict == ""


def test_fisher_scaled_releases_are_checked_in_their_own_units():
    rng = np.random.default_rng(2)
    plan = dpi.plan_privacy(target_epsilon=0.1, target_delta=1e-5, sample_rate=0.1, n_steps=800)
    release = dpi.run_dpvi(
        dpi.models.GammaExponential(),
        rng.exponential(0.3, 4000),
        plan=plan,
        n_records=4000,
        n_threads=1,
        random_source=dpi.testing.InsecureRNG(1),
    )
    check = check_trace(release, burn_in=0.35)
    assert check.names == ("loc[rate]",)
    assert check.noise_ratio[0] == pytest.approx(1.0, abs=0.1)


def test_bad_arguments(rng):
    with pytest.raises(TypeError, match="release must be a GradientTrace"):
        check_trace(3)
    release = release_from_arrays(
        *traces(rng, columns=1, steps=50), noise_stddev=TAU, sample_rate=KAPPA, family="point"
    )
    with pytest.raises(ValueError, match="false_positive_rate must lie"):
        check_trace(release, false_positive_rate=0.0)
