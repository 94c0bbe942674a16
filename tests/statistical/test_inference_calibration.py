"""Calibration of the noise-aware posterior: ranks of the truth are uniform; those of the naive posterior are not.

Each test's false-positive rate is 1e-6, from the exact Kolmogorov-Smirnov distribution at a fixed seed.
"""

import numpy as np
import pytest
from scipy import stats
from tests.reference import inference_oracles as oracle

from dpinfer.inference import TracePrior, noise_aware_posterior
from dpinfer.models.base import softplus
from dpinfer.release import release_from_arrays

pytestmark = pytest.mark.statistical

RATE = 0.1
TAU = 2.0
STEPS = 250
RUNS = 300


@pytest.fixture(scope="module")
def simulations():
    """Truth from the prior, traces from the recursion: RUNS coordinates that are RUNS independent simulations."""
    rng = np.random.default_rng(20240229)
    optimum = rng.normal(0.3, 1.0, RUNS)
    raw = rng.normal(30.0, 5.0, RUNS)
    learning_rate = np.full(RUNS, 0.02)
    x, g, final = oracle.simulate(
        rng,
        steps=STEPS,
        hessian=softplus(raw),
        optimum=optimum,
        noise_stddev=np.full(RUNS, TAU),
        sample_rate=RATE,
        learning_rate=learning_rate,
        start=np.zeros(RUNS),
    )
    return x, g, final, optimum, raw, rng


def ranks(posterior, truth):
    marginals = posterior.distribution.marginals
    return np.array([float(marginals.cdf(index, truth[index : index + 1])[0]) for index in range(truth.size)])


def statistic(values):
    return stats.kstest(values, "uniform").statistic


def test_the_optimum_is_calibrated_and_the_naive_posterior_is_not(simulations):
    x, g, final, optimum, _, rng = simulations
    prior = TracePrior(optimum_loc=0.3, optimum_scale=1.0, raw_hessian_loc=30.0, raw_hessian_scale=5.0)
    release = oracle.point_release(x, g, TAU, RATE)
    critical = oracle.ks_critical(RUNS, 1e-6)
    assert (
        statistic(ranks(noise_aware_posterior(release, burn_in=0, prior=prior, extra_noise=False), optimum)) < critical
    )
    # Power twin: noise taken for half of what it is, as if beta had been divided out only once.
    wrong = oracle.point_release(x, g, 0.5 * TAU, RATE)
    assert statistic(ranks(noise_aware_posterior(wrong, burn_in=0, prior=prior, extra_noise=False), optimum)) > critical

    # theta | optimum ~ N(optimum, s^2): the naive posterior N(last iterate, s^2) misses the privacy noise.
    s = 0.05
    theta = optimum + s * rng.standard_normal(RUNS)
    u = np.full((STEPS, RUNS), np.log(np.expm1(s)))
    params = np.concatenate([x, u + 1e-9 * rng.standard_normal(u.shape)], axis=1)
    gradients = np.concatenate([g, 1e-3 * rng.standard_normal(u.shape)], axis=1)
    tau = np.concatenate([np.full(RUNS, TAU), np.full(RUNS, 1e-3)])
    full = release_from_arrays(
        params,
        gradients,
        noise_stddev=tau,
        sample_rate=RATE,
        final_params=np.concatenate([final, np.full(RUNS, np.log(np.expm1(s)))]),
    )
    naive = noise_aware_posterior(full, approximation="naive")
    aware = noise_aware_posterior(
        full,
        burn_in=0,
        extra_noise=False,
        prior=TracePrior(
            np.concatenate([np.full(RUNS, 0.3), np.full(RUNS, np.log(np.expm1(s)))]),
            np.concatenate([np.ones(RUNS), np.full(RUNS, 1e-6)]),
            30.0,
            5.0,
        ),
    )
    assert statistic(ranks(aware, theta)) < critical
    assert statistic(ranks(naive, theta)) > critical


def test_the_weak_prior_is_nearly_calibrated(simulations):
    """Frequentist check: the weak prior knows nothing of how the truth was drawn, so a margin of 0.06 is allowed."""
    x, g, _, optimum, _, _ = simulations
    posterior = noise_aware_posterior(oracle.point_release(x, g, TAU, RATE), burn_in=0)
    assert statistic(ranks(posterior, optimum)) < oracle.ks_critical(RUNS, 1e-6) + 0.06


def test_the_hessian_is_calibrated(simulations):
    x, g, _, _, raw, _ = simulations
    prior = TracePrior(optimum_loc=0.3, optimum_scale=1.0, raw_hessian_loc=30.0, raw_hessian_scale=5.0)
    posterior = noise_aware_posterior(oracle.point_release(x, g, TAU, RATE), burn_in=0, prior=prior)
    standard = (softplus(raw) - posterior.hessian_mean) / posterior.hessian_stddev
    # The posterior of the slope is close to normal here; sums of squares of standardised errors are chi-square.
    low, high = stats.chi2.ppf([5e-7, 1.0 - 5e-7], RUNS)
    assert low < np.sum(standard**2) < high
    narrow = (softplus(raw) - posterior.hessian_mean) / (0.5 * posterior.hessian_stddev)
    assert not low < np.sum(narrow**2) < high
