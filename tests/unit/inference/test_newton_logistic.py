"""The posterior of a private Newton run of a logistic regression: conditionals by hand, coverage, files, refusals."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.inference.newton.logistic import logistic_distribution, logistic_sampler
from dpinfer.inference.newton.target import weights_given
from dpinfer.inference.newton.trace_model import FixedSlopeTrace
from dpinfer.testing import InsecureRNG


def simulated_release(rng, *, n_records=4000, epsilon=2.0, seed=1):
    X = rng.normal(size=(n_records, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    weights = rng.normal(size=2)
    y = (rng.random(n_records) < 1.0 / (1.0 + np.exp(-X @ weights))) + 0.0
    model = dpi.models.LogisticRegression(2)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=n_records)
    return dpi.run_newton(model, X, y, plan=plan, n_records=n_records, random_source=InsecureRNG(seed)), weights


def test_weights_given_the_slope_are_those_of_the_joint_normal_law(rng):
    release, _ = simulated_release(rng)
    trace = FixedSlopeTrace.from_releases([release], [1.0])
    J = 0.2 * np.eye(2) + 0.05
    linear = trace.linearised(np.zeros(1), np.zeros((1, 3)))
    mean, precision = weights_given(J[None], linear, trace)
    prior = trace.prior_covariance[0]
    stacked = np.tile(J, (3, 1))
    noise = np.kron(np.diag(release.score_stddev**2), np.eye(2))
    covariance = stacked @ (prior + np.linalg.inv(J) / release.n_records) @ stacked.T + noise
    gain = prior @ stacked.T @ np.linalg.inv(covariance)
    np.testing.assert_allclose(mean[0], gain @ (release.scores + release.positions @ J).ravel(), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.inv(precision[0]), prior - gain @ stacked @ prior, rtol=1e-5, atol=1e-12)


@pytest.mark.statistical
def test_intervals_cover():
    """50 runs of 2 weights; false-positive rate below 1e-6 if every interval covers 0.85.

    Intervals at half the width cover 0.59, and would pass with a probability below 0.2.
    """
    rng = np.random.default_rng(4)
    pairs = [simulated_release(rng, n_records=1500, seed=index) for index in range(50)]
    sampler = logistic_sampler([release for release, _ in pairs], [1.0] * 50, n_chains=1, seed=3)
    sampler.warm_up(40)
    found = [sampler.draw(40)]
    covered = 0
    for index, (release, weights) in enumerate(pairs):
        theta, _ = logistic_distribution(release, found, slice(index, index + 1))
        low, high = theta.marginals.quantile(np.array([0.05, 0.95]))
        covered += int(np.sum((low < weights) & (weights < high)))
    least = stats.binom.ppf(1e-6, 100, 0.85)
    assert covered >= least
    assert stats.binom.sf(least - 1, 100, 0.59) < 0.2


def test_the_public_posterior_and_its_file(rng, tmp_path):
    release, weights = simulated_release(rng)
    path = tmp_path / "logistic.release"
    release.save(path)
    loaded = dpi.load_release(path)
    assert isinstance(loaded, dpi.LogisticNewtonRelease)
    np.testing.assert_array_equal(loaded.slope, release.slope)
    posterior = dpi.noise_aware_posterior(loaded, seed=2)
    assert np.all(np.abs(posterior.mean - weights) < 6.0 * posterior.stddev)
    assert np.max(posterior.diagnostics.mcse) < 0.05
    assert posterior.predict_proba(np.zeros((1, 2)))[0, 1] == pytest.approx(0.5)
    assert "Monte Carlo error" in str(posterior.summary())


def test_what_does_not_fit_is_refused(rng):
    release, _ = simulated_release(rng, n_records=200)
    with pytest.raises(ValueError, match="prior"):
        dpi.noise_aware_posterior(release, prior="weak")
    with pytest.raises(TypeError, match="LogisticRegression"):
        dpi.noise_aware_posterior(release, model=dpi.models.LinearRegression(1))
    with pytest.raises(ValueError, match="slope must have shape"):
        dataclasses.replace(release, slope=np.eye(3))
    with pytest.raises(ValueError, match="claim more noise"):
        dataclasses.replace(release, slope_stddev=1e-9)
