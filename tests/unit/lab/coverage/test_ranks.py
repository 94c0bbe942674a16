"""Simulation-based calibration against direct counts and SciPy's tests."""

import numpy as np
import pytest
from scipy import stats

from dpinfer.lab.coverage import run_sbc, sbc_from_cdf


def study(rng, n_draws=60, n_sims=200, n_dims=2):
    centre = rng.normal(size=(n_sims, n_dims))
    thetas = centre + rng.normal(size=centre.shape)
    return centre + rng.normal(size=(n_draws, n_sims, n_dims)), thetas


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ranks_and_scores_are_direct_counts(rng, dtype):
    samples, thetas = study(rng)
    samples = samples.astype(dtype)
    result = run_sbc(samples, thetas)
    np.testing.assert_array_equal(np.floor(61.0 * result.pit), (samples < thetas).sum(axis=0))
    wide = samples.astype(np.float64)
    np.testing.assert_allclose(result.z, (thetas - wide.mean(axis=0)) / wide.std(axis=0, ddof=1), rtol=1e-9)
    assert (result.n_sims, result.n_dims, result.n_bins) == (200, 2, 20)
    assert result.counts.sum(axis=1).tolist() == [200, 200]
    for j in range(2):
        counts = np.histogram(result.pit[:, j], bins=20, range=(0.0, 1.0))[0]
        assert result.chi2_pvalue[j] == pytest.approx(stats.chisquare(counts).pvalue)
        assert result.ks_pvalue[j] == pytest.approx(stats.kstest(result.pit[:, j], "uniform", method="exact").pvalue)
        test = stats.ttest_1samp(result.z[:, j], 0.0)
        assert result.mean_z_pvalue[j] == pytest.approx(test.pvalue)
    np.testing.assert_allclose(result.mean_z_stderr, stats.sem(result.z))
    np.testing.assert_allclose(result.sd_z, result.z.std(axis=0, ddof=1))
    assert "mean z" in repr(result)


def test_equal_draws_are_placed_at_random(rng):
    samples = rng.integers(0, 2, (20, 5000, 1)).astype(float)
    thetas = rng.integers(0, 2, (5000, 1)).astype(float)
    # A fair coin among fair coins: exchangeable, so the randomised ranks are uniform.
    kept = (samples.min(axis=0) < samples.max(axis=0))[:, 0]
    assert run_sbc(samples[:, kept], thetas[kept]).ks_pvalue[0] > 1e-6


def test_error_of_the_spread_is_its_standard_deviation(rng):
    spreads = [sbc_from_cdf(np.full(100, 0.5), z=rng.normal(size=100)) for _ in range(400)]
    observed = np.std([spread.sd_z[0] for spread in spreads])
    assert np.mean([spread.sd_z_stderr[0] for spread in spreads]) == pytest.approx(observed, rel=0.15)


def test_given_distribution_functions(rng):
    values = rng.uniform(size=(90, 3))
    result = sbc_from_cdf(values, n_bins=5)
    assert result.z is None
    assert np.all(np.isnan(result.mean_z))
    assert np.all(np.isnan(result.sd_z_stderr))
    assert result.pvalue == pytest.approx(min(1.0, 6.0 * min(result.chi2_pvalue.min(), result.ks_pvalue.min())))
    assert "nan" in repr(result)
    assert sbc_from_cdf(values[:, 0]).n_dims == 1
    assert sbc_from_cdf(values[:2]).n_bins == 2


def test_bad_arguments(rng):
    samples, thetas = study(rng)
    for bad, word in (
        (samples[:1], "at least 2 draws"),
        (np.ones_like(samples), "samples must vary"),
        (np.full_like(samples, np.nan), "samples must be finite"),
        (samples[0], "samples must have shape"),
    ):
        with pytest.raises(ValueError, match=word):
            run_sbc(bad, thetas)
    with pytest.raises(ValueError, match="thetas must have shape"):
        run_sbc(samples, thetas[:3])
    with pytest.raises(ValueError, match="at least 2 simulations"):
        run_sbc(samples[:, :1], thetas[:1])
    for bins in (1, 201):
        with pytest.raises(ValueError, match="n_bins"):
            run_sbc(samples, thetas, n_bins=bins)
    with pytest.raises(ValueError, match="seed"):
        run_sbc(samples, thetas, seed=-1)
    for bad, word in ((np.ones((2, 2, 2)), "cdf must have shape"), ([0.5, 1.5], r"cdf must lie"), ([np.nan], "finite")):
        with pytest.raises(ValueError, match=word):
            sbc_from_cdf(bad)
    with pytest.raises(ValueError, match="z must have the shape"):
        sbc_from_cdf([0.2, 0.4], z=[1.0])
