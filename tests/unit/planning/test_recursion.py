"""Moments of the scheduled recursion against simulations and against the stationary law."""

import numpy as np
import pytest
from scipy import stats

from dpinfer.lab import stationary
from dpinfer.planning.trace.drift import inflated_noise, window_moments


def simulate(rates, slope, noise, first, runs, rng):
    x = np.zeros(runs)
    positions, gradients = np.empty((2, rates.size, runs))
    for t, rate in enumerate(rates):
        gradient = slope * x + noise[t] * rng.normal(size=runs)
        positions[t], gradients[t] = x, gradient
        x = x - rate * gradient
    return positions[first:], gradients[first:]


@pytest.mark.statistical
def test_moments_match_simulated_runs(rng):
    steps, first, runs, slope = 120, 40, 30_000, 0.8
    rates = np.minimum(0.2, 2.0 / (np.arange(steps) + 1.0))
    noise = rng.uniform(1.0, 3.0, steps)
    moments = window_moments(rates, slope, noise, first)
    positions, gradients = simulate(rates, slope, noise, first, runs, rng)
    # The mean gradient is normal with mean 0: its sum of squares is chi-square.
    square = np.sum((gradients.mean(axis=0) / slope) ** 2)

    def accepted(variance):
        return stats.chi2.ppf(0.5e-6, runs) < square / variance < stats.chi2.isf(0.5e-6, runs)

    assert accepted(moments.gradient_mean)
    assert not accepted(np.mean(noise[first:] ** 2) / (slope**2 * (steps - first)))  # the noise alone
    spread = positions.var(axis=0)
    assert abs(spread.mean() - moments.spread) < stats.norm.isf(0.5e-6) * spread.std() / np.sqrt(runs)


def test_the_rest_of_the_start_is_the_product_of_the_contractions():
    rates = np.full(50, 0.1)
    moments = window_moments(rates, 0.5, np.ones(50), 30)
    assert moments.start == pytest.approx(np.mean(0.95 ** np.arange(30, 50)))


def test_a_long_window_has_the_stationary_spread():
    rate, slope, noise = 0.05, 0.7, 2.0
    moments = window_moments(np.full(20_000, rate), slope, np.full(20_000, noise), 1000)
    # kappa a = slope in the stationary recursion x' = x - rate (slope x + noise eta)
    variance = stationary.covariance([slope], rate, 1.0, noise)[0]
    assert moments.spread == pytest.approx(variance, rel=0.01)


def test_quiet_weights_do_not_inflate_the_noise_variance():
    rates = np.minimum(0.02, 2.0 / (np.arange(2500) + 1.0))
    options = {"n_weights": 11, "n_records": 5000, "max_grad_norm": 9.4}
    quiet = inflated_noise(rates, (1.0, 1.0), 1.0, start=1.0, **options)
    loud = inflated_noise(rates, (1.0, 1.0), 200.0, start=1.0, **options)
    assert np.max(np.abs(quiet - 1.0)) < 0.02
    assert np.max(loud) > 2.0
    assert 1.1 < loud[-1] < 2.0
