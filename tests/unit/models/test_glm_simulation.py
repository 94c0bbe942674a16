"""Simulation from the generalised linear models, and the exact posterior of linear regression."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from dpinfer.models import (
    LinearRegression,
    LogisticRegression,
    NormalInverseGamma,
    PoissonRegression,
    ProbitRegression,
)

ALPHA = 1e-6


def test_prior_draws(rng):
    """Kolmogorov at 1e-6; a prior wider by 1.1 is rejected."""
    draws = LogisticRegression(2, prior_scale=1.5, fit_intercept=True).sample_prior(20_000, rng)
    assert draws.shape == (20_000, 3)
    assert stats.kstest(draws.ravel(), stats.norm(scale=1.5).cdf).pvalue > ALPHA
    assert stats.kstest(1.1 * draws.ravel(), stats.norm(scale=1.5).cdf).pvalue < ALPHA
    model = LinearRegression(2, prior_scale=0.5, variance_shape=4.0, variance_rate=3.0)
    draws = model.sample_prior(20_000, rng)
    assert stats.kstest(draws[:, -1], stats.invgamma(4.0, scale=3.0).cdf).pvalue > ALPHA
    standard = (draws[:, :-1] / (0.5 * np.sqrt(draws[:, -1:]))).ravel()
    assert stats.kstest(standard, "norm").pvalue > ALPHA
    assert stats.kstest(1.1 * standard, "norm").pvalue < ALPHA


def test_features(rng):
    model = LogisticRegression(3)
    X = model.simulate_features(20_000, rng, [1.0, 4.0, 0.0])
    assert stats.kstest(X[:, 1] / 2.0, "norm").pvalue > ALPHA
    assert not X[:, 2].any()
    assert model.simulate_features(5, 1).shape == (5, 3)
    np.testing.assert_array_equal(model.simulate_features(5, 1), model.simulate_features(5, 1, 1.0))
    with pytest.raises(ValueError, match="second_moments"):
        model.simulate_features(5, 1, [1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="n_records"):
        model.simulate_features(-1, 1)


@pytest.mark.parametrize("kind", [LogisticRegression, ProbitRegression])
def test_binary_responses(kind):
    """Hoeffding at 1e-6 on the share of ones at one point; the other link's probability is rejected."""
    model = kind(1)
    y = model.simulate([1.3], np.ones((20_000, 1)), 2)
    assert set(np.unique(y)) == {0.0, 1.0}
    bound = np.sqrt(np.log(2 / ALPHA) / (2 * y.size))
    p, other = special.expit(1.3), special.ndtr(1.3)
    if kind is ProbitRegression:
        p, other = other, p
    assert abs(y.mean() - p) < bound < abs(y.mean() - other)


def test_counts_and_real_responses():
    model = PoissonRegression(1, fit_intercept=True)
    y = model.simulate([0.5, 0.2], np.ones((20_000, 1)), 2)
    low, high = stats.poisson.ppf([ALPHA / 2, 1 - ALPHA / 2], 20_000 * np.exp(0.7))
    assert low <= y.sum() <= high
    with pytest.raises(ValueError, match="linear predictor"):
        model.simulate([50.0, 0.0], np.ones((1, 1)), 2)
    linear = LinearRegression(1)
    y = linear.simulate([2.0, 0.25], np.full((20_000, 1), 3.0), 2)
    assert stats.kstest((y - 6.0) / 0.5, "norm").pvalue > ALPHA
    assert stats.kstest((y - 6.0) / 0.55, "norm").pvalue < ALPHA
    with pytest.raises(ValueError, match="params"):
        linear.simulate([2.0, -1.0], np.ones((3, 1)), 2)


def test_linear_posterior_against_integration(rng):
    """Marginal means and standard deviations from the joint density on a grid, with one weight."""
    model = LinearRegression(1, prior_scale=1.5, variance_shape=3.0, variance_rate=0.7)
    X, y = rng.normal(size=(12, 1)), rng.normal(size=12) + 0.5
    posterior = model.exact_posterior(X, y)

    w = np.linspace(posterior.mean[0] - 4, posterior.mean[0] + 4, 801)
    variance = np.exp(np.linspace(-4, 4, 601))
    a, b = w[None, ::8], variance[::4, None]
    log_density = stats.norm.logpdf(a, scale=1.5 * np.sqrt(b)) + stats.invgamma.logpdf(b, 3.0, scale=0.7)
    log_density += stats.norm.logpdf(y[:, None, None], X[:, :, None] * a, np.sqrt(b)).sum(axis=0)
    values = np.exp(log_density)

    def moment(of):
        inner = integrate.simpson(values * of(w[None, ::8], variance[::4, None]), x=w[::8], axis=1)
        return integrate.simpson(inner * variance[::4], x=np.log(variance[::4]))

    total = moment(lambda a, b: 1.0)
    for index, of in enumerate((lambda a, b: a + 0 * b, lambda a, b: b + 0 * a)):
        mean = moment(of) / total
        square = moment(lambda a, b, of=of: of(a, b) ** 2) / total
        assert posterior.mean[index] == pytest.approx(mean, rel=1e-4)
        assert posterior.stddev[index] == pytest.approx(np.sqrt(square - mean**2), rel=1e-3)


def test_linear_posterior_draws_and_quantiles(rng):
    model = LinearRegression(2, fit_intercept=True)
    X = model.simulate_features(60, rng)
    posterior = model.exact_posterior(X, model.simulate(model.sample_prior(1, rng)[0], X, rng))
    count = 200_000
    draws = posterior.sample(count, rng)
    assert draws.shape == (count, 4)
    np.testing.assert_allclose(draws.mean(axis=0), posterior.mean, atol=5 * posterior.stddev.max() / np.sqrt(count))
    np.testing.assert_allclose(draws.std(axis=0), posterior.stddev, rtol=0.02)
    low, high = posterior.interval(0.8)
    share = np.mean((draws > low) & (draws < high), axis=0)
    np.testing.assert_allclose(share, 0.8, atol=5 * np.sqrt(0.16 / count))
    covariance = np.linalg.inv(posterior.precision) * posterior.rate / (posterior.shape - 1.0)
    tolerance = 8 * np.max(np.diag(covariance)) / np.sqrt(count)
    assert tolerance < np.max(np.abs(covariance - np.diag(np.diag(covariance))))  # or it would not see them
    np.testing.assert_allclose(np.cov(draws[:, :3].T), covariance, atol=tolerance)
    assert posterior.quantile(0.5).shape == (4,)


def test_tails_of_a_weight_are_those_of_students_t(rng):
    """With few degrees of freedom, where the number of them shows: shares of 400,000 draws, 5 standard errors."""
    law = NormalInverseGamma([1.0, -2.0], [[2.0, 0.5], [0.5, 1.0]], 1.5, 0.8)
    draws = law.sample(400_000, rng)
    for probability in (0.01, 0.3, 0.99):
        share = np.mean(draws < law.quantile(probability), axis=0)
        np.testing.assert_allclose(share, probability, atol=5 * np.sqrt(probability * (1 - probability) / 400_000))


@pytest.mark.statistical
def test_linear_posteriors_cover():
    """Ranks of the truth are uniform over 1500 simulations (Kolmogorov, 1e-6 over three coordinates).

    Power twin: the same ranks for a model whose prior scale is wrong by a factor 2 are rejected.
    """
    rng = np.random.default_rng(3)
    model, wrong = LinearRegression(1, fit_intercept=True), LinearRegression(1, fit_intercept=True, prior_scale=1.0)
    right, twin = [], []
    truth = model.sample_prior(1500, rng)
    for params in truth:
        X = model.simulate_features(4, rng)
        y = model.simulate(params, X, rng)
        for fitted, laws in ((model, right), (wrong, twin)):
            law = fitted.exact_posterior(X, y)
            spread = np.sqrt(np.diag(np.linalg.inv(law.precision)) * law.rate / law.shape)
            laws.append([*law.loc, *spread, law.shape, law.rate])

    def pvalues(laws):
        laws = np.array(laws)
        shape, rate = laws[:, 4], laws[:, 5]
        ranks = [stats.t.cdf((truth[:, j] - laws[:, j]) / laws[:, 2 + j], 2 * shape) for j in range(2)]
        ranks.append(stats.invgamma.cdf(truth[:, 2], shape, scale=rate))
        return [stats.kstest(rank, "uniform").pvalue for rank in ranks]

    assert min(pvalues(right)) > ALPHA / 3
    assert min(pvalues(twin)) < ALPHA / 3


def test_moments_that_do_not_exist_are_infinite():
    law = NormalInverseGamma(np.zeros(2), np.eye(2), 0.8, 1.0)
    assert np.isinf(law.mean[-1])
    assert np.all(np.isinf(law.stddev))
    with pytest.raises(ValueError, match="precision"):
        NormalInverseGamma(np.zeros(2), np.eye(3), 2.0, 1.0)
    with pytest.raises(ValueError, match="positive definite"):
        NormalInverseGamma(np.zeros(2), -np.eye(2), 2.0, 1.0)
    with pytest.raises(ValueError, match="probability"):
        law.quantile(0.0)
