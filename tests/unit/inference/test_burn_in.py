"""The first step used: what is asked for, what is found, what is left alone."""

import numpy as np
import pytest
from scipy import stats
from tests.reference import inference_oracles as oracle

from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.burn_in import choose_burn_in

RATE = 0.1


@pytest.mark.parametrize(("burn_in", "start"), [(0, 0), (0.0, 0), (0.2, 200), (0.999, 999 - 1), (37, 37), (998, 998)])
def test_shares_and_steps(rng, burn_in, start):
    x = rng.normal(size=(1000, 1))
    if burn_in == 0.999:
        with pytest.raises(ValueError, match="at least 2"):
            choose_burn_in(burn_in, x, x, np.ones(1))
        return
    found = choose_burn_in(burn_in, x, x, np.ones(1))
    assert found.start == start
    assert found.statistics.count == 1000 - start
    np.testing.assert_allclose(found.statistics.position_mean, x[start:].mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.statistics.xx, np.sum((x[start:] - x[start:].mean(axis=0)) ** 2, axis=0))


@pytest.mark.parametrize(
    ("burn_in", "error"),
    [
        ("late", ValueError),
        (1.0, ValueError),
        (-0.1, ValueError),
        (-1, ValueError),
        (999, ValueError),
        (True, TypeError),
        (None, TypeError),
        (np.nan, ValueError),
        ([0.1], TypeError),
    ],
)
def test_refusals(rng, burn_in, error):
    x = rng.normal(size=(1000, 1))
    with pytest.raises(error, match="burn_in"):
        choose_burn_in(burn_in, x, x, np.ones(1))


def stationary(rng, steps=1000, k=3, start=None):
    hessian = np.full(k, 40.0)
    x, g, _ = oracle.simulate(
        rng, steps=steps, hessian=hessian, optimum=np.zeros(k), noise_stddev=np.full(k, 2.0), start=start
    )
    return x, g, np.full(k, 2.0)


def test_auto_leaves_linear_traces_alone():
    """False-positive rate at most 0.01: exact binomial bound at 1e-6, over stationary and linearly converging runs."""
    runs, cut = 400, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        trace = stationary(rng, steps=512, start=np.full(3, 5.0) if seed % 2 else None)
        cut += choose_burn_in("auto", *trace).start > 0
    assert cut <= stats.binom.isf(1e-6, runs, tuning.TUNING.level)


@pytest.mark.parametrize("length", [300, 900, 1900])
def test_auto_finds_a_planted_nonlinear_transient(rng, length):
    x, g, tau = stationary(rng, steps=4000)
    bend = np.zeros(4000)
    bend[:length] = 6.0 * (1.0 - np.arange(length) / length)
    found = choose_burn_in("auto", x, g + bend[:, None], tau)
    # What is left of the transient must be too small to see: under a fifth of its start.
    assert 0.5 * length <= found.start <= 2000
    assert found.holds
    whole = choose_burn_in(0, x, g + bend[:, None], tau)
    assert whole.linearity_pvalue.min() < 1e-6


def test_auto_does_not_call_steady_misfit_a_transient(rng):
    """Parameters correlated in the Hessian disturb the whole trace, not its beginning."""
    hessian = np.array([[50.0, 25.0], [25.0, 40.0]])
    x = np.empty((8000, 2))
    x[0] = 0.0
    for t in range(1, 8000):
        x[t] = 0.97 * x[t - 1] + 0.2 * rng.standard_normal(2)
    g = RATE * x @ hessian + rng.standard_normal(x.shape)
    whole = choose_burn_in(0, x, g, np.ones(2))
    assert whole.linearity_pvalue.min() < 1e-6
    assert choose_burn_in("auto", x, g, np.ones(2)).start == 0


def test_auto_that_finds_nothing_says_so(rng):
    x, g, tau = stationary(rng, steps=4000)
    wave = 8.0 * np.sin(np.linspace(0.0, 3.0 * np.pi, 4000))
    wave[2000:] *= 0.3
    wave[:2000] *= 4.0
    posterior = noise_aware_posterior(oracle.point_release(x, g + wave[:, None], tau, RATE))
    assert posterior.burn_in <= 2000
    assert np.min(posterior.diagnostics.linearity_pvalue) < 1e-6
    assert any("short a burn_in" in text for text in posterior.summary().warnings)


@pytest.mark.parametrize("steps", [2, 15, 16, 17, 63, 64, 65, 127, 128, 129])
def test_auto_at_awkward_lengths(rng, steps):
    x, g, tau = stationary(rng, steps=steps)
    found = choose_burn_in("auto", x, g, tau)
    assert 0 <= found.start <= steps // 2
    assert np.all(np.isnan(found.linearity_pvalue)) == (steps < 16)


def test_tied_watches_the_locations_only(rng):
    x, g, tau = stationary(rng, steps=2000, k=2)
    bend = np.zeros((2000, 2))
    bend[:500, 1] = 10.0
    assert choose_burn_in("auto", x, g + bend, tau).start > 0
    assert choose_burn_in("auto", x, g + bend, tau, watched=1).start == 0
