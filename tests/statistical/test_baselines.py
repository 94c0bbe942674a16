"""Discrete Laplace noise has its law; the samplers' posteriors are calibrated.

Every test has a false-positive rate of 1e-6 from an exact law, and a power twin: the same statistic rejects a named
wrong variant.
"""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from tests.reference.baseline_oracles import chi2_rejects

from dpinfer.lab.baselines import (
    BinomialFamily,
    CategoricalFamily,
    ExponentialFamily,
    gaussian_moments,
    gibbs_posterior,
    gibbs_ss_noisy,
)
from dpinfer.lab.baselines.gibbs.laplace_mixture import draw_noise_variance, draw_prior_noise_variance
from dpinfer.lab.baselines.gibbs.truncated_normal import truncated_normal
from dpinfer.mechanism.discrete_laplace import discrete_laplace

pytestmark = pytest.mark.statistical

ALPHA = 1e-6
EDGE = 8


def cell_counts(draws):
    return np.bincount(np.clip(draws, -EDGE, EDGE) + EDGE, minlength=2 * EDGE + 1)


def cell_probabilities(scale):
    k = np.arange(-EDGE, EDGE + 1)
    p = np.exp(-np.abs(k) / scale) * np.tanh(0.5 / scale)
    p[0] = p[-1] = np.exp(-EDGE / scale) / (1.0 + np.exp(-1.0 / scale))
    return p


@pytest.mark.parametrize("scale", [Fraction(3), Fraction(7, 3), Fraction(1, 2), Fraction(2.3)])
def test_discrete_laplace_has_its_law(scale):
    counts = cell_counts(np.array(discrete_laplace(b"s" * 32, scale, 30_000)))
    assert cell_probabilities(float(scale)).sum() == pytest.approx(1.0)
    assert not chi2_rejects(counts, cell_probabilities(float(scale)), ALPHA)
    assert chi2_rejects(counts, cell_probabilities(1.06 * float(scale)), ALPHA)


@pytest.mark.slow
def test_counting_zero_twice_is_rejected():
    draws = np.array(discrete_laplace(b"t" * 32, Fraction(3), 30_000))
    p = cell_probabilities(3.0)
    geometric = np.random.default_rng(1).geometric(1 - np.exp(-1 / 3), draws.size) - 1
    signed = geometric * np.random.default_rng(2).choice([-1, 1], draws.size)
    assert not chi2_rejects(cell_counts(draws), p, ALPHA)
    assert chi2_rejects(cell_counts(signed), p, ALPHA)


def test_fine_lattice_noise_is_laplace_and_independent_between_coordinates():
    step = 2.0**-30
    draws = np.array(discrete_laplace(b"u" * 32, Fraction(10) / Fraction(step), 20_000), dtype=np.float64) * step
    assert stats.kstest(draws, stats.laplace(scale=10.0).cdf).pvalue > ALPHA
    assert stats.kstest(1.06 * draws, stats.laplace(scale=10.0).cdf).pvalue < 1e-3
    ranks = stats.rankdata(draws)
    correlation = np.corrcoef(ranks[::2], ranks[1::2])[0, 1]
    threshold = stats.norm.isf(ALPHA / 2)
    assert abs(correlation) * np.sqrt(draws.size / 2) < threshold
    # The known wrong variant: one scalar draw shared by all coordinates.
    shared = np.repeat(ranks[::2], 2)
    assert abs(np.corrcoef(shared[::2], shared[1::2])[0, 1]) * np.sqrt(draws.size / 2) > threshold


@pytest.mark.parametrize("noise", [1e-6, 0.3, 3.0, 40.0])
def test_noise_variances_given_the_noise(noise):
    """1 / v is inverse Gaussian with mean 1 / (b r) and shape 1 / b**2."""
    b = 2.0
    v = draw_noise_variance(np.full(20_000, noise), np.array([b]), np.random.default_rng(3))
    law = stats.invgauss(1.0 / (b * noise) * b**2, scale=1.0 / b**2)
    if noise > 1e-3:  # scipy's own distribution function loses its digits beyond
        assert stats.kstest(1.0 / v, law.cdf).pvalue > ALPHA
        assert stats.kstest(1.1 / v, law.cdf).pvalue < ALPHA
    else:  # r -> 0: v / b**2 is a squared standard normal
        assert stats.kstest(v / b**2, stats.chi2(1).cdf).pvalue > ALPHA


def test_the_scale_mixture_is_laplace():
    rng = np.random.default_rng(4)
    v = draw_prior_noise_variance(np.array([3.0]), (30_000, 1), rng)[:, 0]
    noise = np.sqrt(v) * rng.standard_normal(30_000)
    assert stats.kstest(noise, stats.laplace(scale=3.0).cdf).pvalue > ALPHA
    halved = noise / np.sqrt(2.0)  # an exponential of mean b**2 in place of 2 b**2
    assert stats.kstest(halved, stats.laplace(scale=3.0).cdf).pvalue < ALPHA


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (3.0, 3.5), (-40.0, -30.0), (12.0, np.inf), (-np.inf, 0.1)])
def test_truncated_normals(low, high):
    draws = truncated_normal(np.zeros(20_000), np.ones(20_000), low, high, np.random.default_rng(5))
    assert draws.min() >= low
    assert draws.max() <= high
    assert stats.kstest(draws, stats.truncnorm(low, high).cdf).pvalue > ALPHA


def ranks(family, theta, noisy, scale, n_records):
    options = {"n_burn_in": 150, "n_samples": 300, "seed": 6}
    return np.mean(gibbs_posterior(family, noisy, laplace_scale=scale, n_records=n_records, **options) < theta, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["binomial", "categorical", "exponential"])
def test_ranks_of_the_true_parameter_are_uniform(case):
    """Simulation-based calibration with 1000 runs; the posterior that ignores the noise is rejected."""
    rng, K, n = np.random.default_rng(8), 1000, 1000
    if case == "binomial":
        family, scale = BinomialFamily(), 20.0
        theta = rng.beta(10, 10, (K, 1))
        exact = rng.binomial(n, theta).astype(float)
    elif case == "categorical":
        family, scale = CategoricalFamily(), 20.0
        theta = rng.dirichlet((5, 5, 5), K)
        exact = rng.multinomial(n, theta)[:, :2].astype(float)
    else:
        family, scale = ExponentialFamily((0.05, 3.0)), 20.0
        theta = rng.gamma(8, 0.5, (K, 1))
        x = rng.exponential(1 / theta, (K, n))
        exact = np.where((x >= 0.05) & (x <= 3.0), x, 0.0).sum(axis=1)[:, None]
    noisy = exact + rng.laplace(0, scale, exact.shape)
    aware = ranks(family, theta, noisy, scale, n)
    naive = ranks(family, theta, noisy, 1e-3, n)
    for column in range(theta.shape[1]):
        assert stats.kstest(aware[:, column], "uniform").pvalue > ALPHA
        assert stats.kstest(naive[:, column], "uniform").pvalue < ALPHA


@pytest.mark.slow
def test_regression_with_public_moments_is_calibrated_where_its_chain_mixes():
    """Ranks of 200 runs with one feature; the posterior that ignores the noise is rejected."""
    rng, K, n, scale = np.random.default_rng(9), 200, 100, 6.0
    variance = 0.5 / rng.standard_gamma(20.0, K)
    weights = 2.0 * np.sqrt(variance)[:, None] * rng.standard_normal((K, 2))
    x = np.stack((rng.standard_normal((K, n)), np.ones((K, n))), axis=2)
    y = np.einsum("kni,ki->kn", x, weights) + np.sqrt(variance)[:, None] * rng.standard_normal((K, n))
    columns = np.concatenate((x, y[:, :, None]), axis=2)
    pairs = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2))
    exact = np.stack([np.sum(columns[:, :, a] * columns[:, :, b], axis=1) for a, b in pairs], axis=1)
    noisy = exact + rng.laplace(0.0, scale, exact.shape)
    truth = np.column_stack((weights, variance))
    for b, rejected in ((scale, False), (1e-2, True)):
        draws = gibbs_ss_noisy(
            noisy,
            laplace_scale=np.full(5, b),
            n_features=1,
            n_records=n,
            feature_moments=gaussian_moments([[1.0]]),
            n_burn_in=200,
            n_samples=600,
        )
        rank = np.mean(draws < truth, axis=0)
        pvalues = np.array([stats.kstest(rank[:, column], "uniform").pvalue for column in range(3)])
        assert (pvalues.min() < ALPHA) == rejected
