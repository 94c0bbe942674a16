"""The noise has the standard deviation that is accounted for, and records are sampled independently at the rate.

Every test has a false-positive rate of 1e-6 from an exact law, and a power twin: the same statistic rejects a named
wrong variant.
"""

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG

pytestmark = pytest.mark.statistical

ALPHA = 1e-6
SIGMA, NORM = 2.5, 3.0


def noise_only(n_steps, n_features=500):
    """Noisy sums over one row that is never sampled, in units of the claimed standard deviation."""
    session = _native.StepSession(
        features=np.zeros((1, n_features)),
        response=np.zeros(1),
        likelihood="logistic",
        intercept=False,
        aligned=False,
        sample_rate=1e-12,
        max_grad_norm=NORM,
        key=InsecureRNG(5).take_key(),
        n_threads=1,
    )
    session.set_quadrature(np.zeros(n_features), np.zeros(n_features), np.zeros(1), np.ones(1), np.empty(0))
    session.set_scales(np.ones(2 * n_features), np.zeros(2 * n_features))
    return np.concatenate([session.noisy_sum(step, SIGMA) for step in range(n_steps)]) / (SIGMA * NORM)


def variance_rejects(z):
    """Whether the exact chi-square interval for the variance excludes 1."""
    statistic = float(z @ z)
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], z.size)
    return not low <= statistic <= high


def shape_rejects(z):
    return stats.kstest(z, "norm").pvalue < ALPHA


def test_noise_has_the_claimed_standard_deviation():
    assert not variance_rejects(noise_only(100))


@pytest.mark.parametrize("factor", [1.06, 0.94, NORM, 1 / np.sqrt(2)])
def test_the_variance_test_rejects_wrong_noise(factor):
    assert variance_rejects(factor * noise_only(100))


def test_noise_is_normal():
    assert not shape_rejects(noise_only(100))


def test_the_shape_test_rejects_laplace_and_a_wrong_scale():
    z = noise_only(100)
    assert shape_rejects(stats.laplace.ppf(stats.norm.cdf(z), scale=np.sqrt(0.5)))
    assert shape_rejects(1.06 * z)


def test_noise_is_fresh_at_every_step_and_coordinate():
    """Correlations between steps and between neighbouring coordinates are those of independent draws."""
    z = noise_only(200).reshape(200, -1)
    threshold = stats.norm.ppf(1 - ALPHA / 4)
    for a, b in ((z[:-1], z[1:]), (z[:, :-1], z[:, 1:]), (z[:, :500], z[:, 500:])):
        assert abs(np.sum(a * b)) / np.sqrt(a.size) < threshold
    reused = np.repeat(z[::2], 2, axis=0)
    assert abs(np.sum(reused[:-1] * reused[1:])) / np.sqrt(reused[1:].size) > threshold


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.9])
def test_each_record_is_sampled_at_the_rate(rate):
    """Inclusion is Binomial for single rows and for all of them; the batch size has the binomial variance."""
    key, n_rows, n_steps = InsecureRNG(9).take_key(), 3000, 400
    counts = np.zeros(n_rows, dtype=np.int64)
    sizes = np.zeros(n_steps, dtype=np.int64)
    for step in range(n_steps):
        rows = _native.poisson_sample(key, step, rate, n_rows)
        assert np.all(np.diff(rows) > 0)
        counts[rows] += 1
        sizes[step] = rows.size

    def binomial_rejects(total, trials, probability):
        low, high = stats.binom.ppf([ALPHA / 2, 1 - ALPHA / 2], trials, probability)
        return not low <= total <= high

    assert not binomial_rejects(sizes.sum(), n_rows * n_steps, rate)
    assert binomial_rejects(sizes.sum(), n_rows * n_steps, min(rate * 1.06, 0.999)) or rate < 0.01
    assert not any(binomial_rejects(counts[row], n_steps, rate) for row in range(0, n_rows, 100))
    # Shuffled batches have no variance in size; independent sampling has N kappa (1 - kappa).
    dispersion = np.sum((sizes - n_rows * rate) ** 2) / (n_rows * rate * (1 - rate))
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], n_steps)
    assert low <= dispersion <= high
    assert not low <= 0.0 <= high


def test_successive_samples_are_independent():
    """The number of records in two successive batches is Binomial(N, kappa**2); a reused mask gives kappa."""
    key, n_rows, rate = InsecureRNG(10).take_key(), 200_000, 0.2
    first, second = (_native.poisson_sample(key, step, rate, n_rows) for step in (0, 1))
    low, high = stats.binom.ppf([ALPHA / 2, 1 - ALPHA / 2], n_rows, rate**2)
    assert low <= np.intersect1d(first, second).size <= high
    assert not low <= np.intersect1d(first, first).size <= high


def test_released_noise_matches_the_recorded_standard_deviation():
    """End to end: at a data set of zeros the released gradients are tau times a standard normal plus a known term."""
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.2, n_steps=300)
    model = dpi.models.LogisticRegression(n_features=20)
    release = dpi.run_dpvi(
        model,
        np.zeros((10, 20)),
        np.zeros(10),
        plan=plan,
        n_records=10,
        max_grad_norm=4.0,
        grad_scale=(2.0, 30.0),
        learning_rate=0.0,
        random_source=InsecureRNG(3),
    )
    assert np.ptp(release.params, axis=0).max() == 0.0
    centred = release.noisy_gradients - release.noisy_gradients.mean(axis=0)
    z = centred / release.noise_stddev
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], 299 * 40)
    assert low <= np.sum(z**2) <= high
    assert not low <= np.sum((z * np.sqrt(np.repeat([2.0, 30.0], 20))) ** 2) <= high
