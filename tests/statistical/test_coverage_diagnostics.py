"""Coverage diagnostics on a conjugate model whose posterior is known: exact ones pass, named wrong ones are rejected.

Each test's false-positive rate is 1e-6 at a fixed seed: the p-values are exact (or, combined over dependent repeats,
conservative), so the bound is on the p-value itself.
"""

import numpy as np
import pytest

from dpinfer.lab.coverage import check_tarp, run_sbc, run_tarp, tarp_from_shares
from dpinfer.lab.coverage.uniformity import combine_dependent_pvalues

pytestmark = pytest.mark.statistical

RATE = 1e-6
SIMS = 2000
DRAWS = 250


@pytest.fixture(scope="module")
def model():
    """A normal mean in three dimensions with prior N(0, I): posterior mean, its covariance factor, truths and noise."""
    rng = np.random.default_rng(20230206)
    factor = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.3, 0.2, 2.0]])
    covariance = factor @ factor.T
    thetas = rng.normal(size=(SIMS, 3))
    data = thetas + rng.normal(size=(SIMS, 3)) @ factor.T
    gain = np.linalg.inv(np.eye(3) + covariance)
    mean = data @ gain.T
    posterior = np.linalg.cholesky(np.eye(3) - gain)
    noise = rng.normal(size=(DRAWS, SIMS, 3)) @ posterior.T
    return mean, noise, thetas


@pytest.mark.parametrize("references", ["centred", "uniform"])
def test_the_exact_posterior_passes_and_a_narrow_one_does_not(model, references):
    mean, noise, thetas = model
    exact = run_tarp(mean + noise, thetas, references=references)
    assert check_tarp(exact, RATE).passed
    assert abs(exact.excess_rmse) < 3.0 * exact.rmse_floor_stddev
    narrow = run_tarp(mean + noise / 1.3, thetas, references=references)
    assert not check_tarp(narrow, RATE).passed
    assert narrow.excess_rmse > 5.0 * narrow.rmse_floor_stddev


def test_a_lost_correlation_is_seen_jointly_only():
    rng = np.random.default_rng(5)
    factor = np.array([[1.0, 0.0], [0.9, np.sqrt(0.19)]])
    centre = rng.normal(size=(SIMS, 2))
    thetas = centre + rng.normal(size=(SIMS, 2)) @ factor.T
    noise = rng.normal(size=(DRAWS, SIMS, 2))
    # Reference points all around average the sign of a correlation out; from one corner it shows.
    corner = (centre + 3.0)[None]
    assert check_tarp(run_tarp(centre + noise @ factor.T, thetas, references=corner), RATE).passed
    # Power twin for the joint test: every marginal is exact, the correlation is gone.
    lost = run_tarp(centre + noise, thetas, references=corner)
    assert lost.ks_pvalue < RATE
    assert lost.marginal_ks_pvalue.min() > RATE


def test_few_draws_are_exact_too(model):
    mean, noise, thetas = model
    result = run_tarp(mean + noise[:5], thetas)
    assert check_tarp(result, RATE).passed
    # Power twin: the same shares taken for exact probabilities, as a test of the raw f_i does.
    raw = tarp_from_shares(result.shares, result.marginal_shares)
    assert raw.ks_pvalue < RATE


def test_a_shifted_mean_is_seen_by_the_scores(model):
    mean, noise, thetas = model
    exact = run_sbc(mean + noise, thetas)
    assert exact.pvalue > RATE
    assert np.all(np.abs(exact.sd_z - 1.0) < 5.0 * exact.sd_z_stderr)
    spread = noise.std(axis=(0, 1))
    # By 11 standard errors of the mean z-score.
    shifted = run_sbc(mean + noise + 0.25 * spread, thetas)
    assert shifted.mean_z_pvalue.max() < RATE
    assert np.all(np.abs(shifted.mean_z + 0.25) < 5.0 * shifted.mean_z_stderr)
    # Reference points placed symmetrically do not see that shift: the reason to run both.
    assert check_tarp(run_tarp(mean + noise + 0.25 * spread, thetas), RATE).passed
    narrow = run_sbc(mean + noise / 1.3, thetas)
    assert narrow.chi2_pvalue.max() < RATE
    assert np.all(np.abs(narrow.sd_z - 1.3) < 5.0 * narrow.sd_z_stderr)


@pytest.mark.slow
def test_combined_pvalues_are_valid_for_repeats_that_share_runs():
    # Shares of the same run at different references are dependent; the share of combined p-values below 0.1 must not
    # exceed 0.1 by more than an exact binomial test at 1e-6 allows.
    rng = np.random.default_rng(77)
    small = []
    for _ in range(300):
        thetas = rng.normal(size=(40, 1))
        draws = rng.normal(size=(40, 40, 1))
        small.append(run_tarp(draws, thetas, n_repeats=6, seed=int(rng.integers(1 << 30))).ks_pvalue < 0.1)
    assert sum(small) <= 62  # binomial(300, 0.1): P(> 62) < 1e-6
    # Power twin: the smallest p-value instead of twice the median.
    pvalues = rng.uniform(size=(6, 300))
    assert np.sum(pvalues.min(axis=0) < 0.1) > 62
    assert np.sum(combine_dependent_pvalues(pvalues) < 0.1) <= 62
