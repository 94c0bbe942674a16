"""Posteriors of site traces: the noise-aware one against its linear model by brute force, the others by definition."""

import dataclasses

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference.sites.posterior import site_burn_in
from dpinfer.release.sites.trace import svec

D, STEPS = 2, 60
A = np.array([[40.0, 10.0], [10.0, 30.0]])
OPTIMUM = np.array([0.7, -0.4])


def linear_release(rng, *, sites="centred", tau=2.0, weight=0.5, rate=1.0, scale=1.0):
    """Make a trace that follows the linear model exactly: sums linear in the mean, Gaussian noise."""
    prior = np.eye(D) / scale**2
    loc, precision, sums = np.zeros((STEPS + 1, 1, D)), np.empty((STEPS + 1, 1, 3)), np.empty((STEPS, 5))
    precision[:] = svec(A)
    for t in range(STEPS):
        m = loc[t, 0]
        centred = A @ (OPTIMUM - m) + prior @ m
        linear = centred if sites == "centred" else A @ OPTIMUM
        sums[t] = rate * np.concatenate((linear, weight * svec(A - prior))) + rng.normal(0.0, tau, 5)
        loc[t + 1, 0] = m + 0.3 * np.linalg.solve(A, A @ (OPTIMUM - m) + sums[t, :2] / rate - linear)
    return dpi.SiteRelease(
        loc=loc, precision=precision, noisy_sums=sums, damping=np.full(STEPS, 0.3), floor=np.ones(STEPS + 1),
        prior_loc=np.zeros((1, D)), noise_stddev=tau, block_weight=weight, sample_rate=rate, n_records=100,
        prior_scale=scale, names=("a", "b"), sites=sites, sampling="poisson", isotropic=False, max_site_norm=1.0,
        noise_multiplier=tau,
    )  # fmt: skip


@pytest.mark.parametrize("sites", ["centred", "natural"])
def test_noise_aware_posterior_by_brute_force(rng, sites):
    """Draws of A, then of m* given A by weighted least squares over every step, then of theta, one at a time."""
    release = linear_release(rng, sites=sites)
    posterior = dpi.noise_aware_posterior(release, burn_in=20, n_samples=20_000, seed=1)
    assert posterior.burn_in == 20
    used, tau, size = STEPS - 20, 2.0, 3000
    generator = np.random.default_rng(3)
    mean_precision = release.precision_sums()[20:, 0].mean(axis=0)
    thetas = np.empty((size, D))
    for s in range(size):
        row = mean_precision + tau / 0.5 / np.sqrt(used) * generator.standard_normal(3)
        a = np.array([[row[0], row[1] / np.sqrt(2)], [row[1] / np.sqrt(2), row[2]]]) + np.eye(D)
        targets = release.linear_sums()[20:, 0]
        if sites == "centred":
            targets = targets + release.loc[20:-1, 0] @ (a - np.eye(D))
        information = np.eye(D) + used * a @ a / tau**2
        linear = a @ targets.sum(axis=0) / tau**2
        m = np.linalg.solve(information, linear)
        m = m + np.linalg.solve(np.linalg.cholesky(information).T, generator.standard_normal(D))
        thetas[s] = m + np.linalg.solve(np.linalg.cholesky(a).T, generator.standard_normal(D))
    stddev = thetas.std(axis=0)
    np.testing.assert_allclose(posterior.mean, thetas.mean(axis=0), atol=6 * stddev.max() / np.sqrt(size))
    np.testing.assert_allclose(posterior.cov, np.cov(thetas.T), atol=0.15 * stddev.max() ** 2)
    parts = posterior.decompose()
    np.testing.assert_allclose(parts.data + parts.privacy + parts.approximation, posterior.stddev**2, rtol=1e-6)


def test_the_optimum_is_covered(rng):
    """Over traces that follow the model, z-scores of the fixed point are standard normal."""
    scores = []
    for _ in range(100):
        posterior = dpi.noise_aware_posterior(linear_release(rng, tau=8.0, scale=100.0), burn_in=10, n_samples=200)
        scores.append((posterior.optimum_mean - OPTIMUM) / posterior.optimum_stddev)
    scores = np.array(scores)
    assert abs(scores.mean()) < 4.9 / np.sqrt(scores.size)
    assert scores.std() == pytest.approx(1.0, abs=0.2)


def test_subsampling_widens(rng):
    release = linear_release(rng)
    whole = dpi.noise_aware_posterior(release)
    part = dataclasses.replace(release, sample_rate=0.1, noisy_sums=0.1 * release.noisy_sums, noise_stddev=0.2)
    widened = dpi.noise_aware_posterior(part)
    assert np.all(widened.optimum_stddev > 2.0 * whole.optimum_stddev)
    assert np.all(widened.diagnostics.noise_ratio > 1.0)
    np.testing.assert_array_equal(whole.diagnostics.noise_ratio, 1.0)


def test_plug_in_posteriors_are_what_they_say(rng):
    release = linear_release(rng)
    naive = dpi.noise_aware_posterior(release, approximation="naive")
    np.testing.assert_array_equal(naive.mean, release.loc[-1, 0])
    np.testing.assert_allclose(naive.cov, np.linalg.inv(A), rtol=1e-10)
    averaged = dpi.noise_aware_posterior(release, approximation="averaged")
    np.testing.assert_allclose(averaged.mean, release.loc[31:, 0].mean(axis=0))
    draws = averaged.sample(20_000, seed=2)
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(A), atol=0.003)
    assert averaged.safe_to_publish


def test_burn_in(rng):
    release = linear_release(rng)
    assert site_burn_in(release, "auto") == 12
    assert site_burn_in(release, 0.25) == 15
    assert site_burn_in(release, 7) == 7


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"approximation": "laplace"}, "approximation"),
        ({"hessian": "full"}, "hessian"),
        ({"prior": "model"}, "prior"),
        ({"burn_in": "late"}, "burn_in"),
        ({"burn_in": 60}, "burn_in"),
        ({"burn_in": 1.0}, "burn_in"),
        ({"n_samples": 0}, "n_samples"),
        ({"n_samples": 5, "approximation": "naive"}, "n_samples"),
        ({"n_warmup": 5}, "n_warmup"),
        ({"seed": -1}, "seed"),
        ({"model": 3}, "model"),
        ({"model": dpi.models.ProbitRegression(3)}, "model"),
    ],
)
def test_argument_errors_name_the_argument(rng, changes, name):
    with pytest.raises((TypeError, ValueError), match=name):
        dpi.noise_aware_posterior(linear_release(rng), **changes)
