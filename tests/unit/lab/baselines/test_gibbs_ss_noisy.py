"""Regression statistics, their sensitivities, and the Gibbs-SS-Noisy sampler."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dpinfer.errors import RecordError
from dpinfer.lab.baselines import (
    RegressionPrior,
    gaussian_moments,
    gibbs_ss_noisy,
    gibbs_ss_noisy_posterior,
    release_regression_statistics,
)
from dpinfer.lab.baselines.gibbs.regression import Chains, moments_from_release
from dpinfer.lab.baselines.gibbs.regression_indices import moment_indices, statistic_indices
from dpinfer.lab.baselines.regression_statistics import _lattice, _products
from dpinfer.testing import InsecureRNG

D, N = 3, 4000


def simulate(rng, d=D, n=N):
    variance = 0.5 / rng.standard_gamma(20.0)
    weights = 2.0 * np.sqrt(variance) * rng.standard_normal(d + 1)
    X = rng.standard_normal((n, d))
    return np.append(weights, variance), X, X @ weights[:-1] + weights[-1] + np.sqrt(variance) * rng.standard_normal(n)


def nearly_exact(X, y, **options):
    return release_regression_statistics(
        X,
        y,
        epsilon=1e7,
        n_records=len(y),
        feature_bound=9.0,
        response_bound=9.0,
        random_source=InsecureRNG(1),
        **options,
    )


def test_every_unique_entry_is_released_once(rng):
    _, X, y = simulate(rng, n=50)
    release = nearly_exact(X, y)
    columns = np.column_stack((X, np.ones(50), y))
    indices = statistic_indices(D) + moment_indices(D)
    expected = [np.prod(columns[:, list(index)], axis=1).sum() for index in indices]
    np.testing.assert_allclose(release.noisy_statistics, expected, atol=0.2)
    assert len(set(indices)) == len(indices)
    assert len(statistic_indices(10)) == 65 + 11 + 1
    assert len(moment_indices(10)) == 220 + 715
    assert release.names[0] == "x0*x0"


def test_the_sensitivity_is_the_stated_sum_and_is_reached_at_a_corner():
    bounds = np.array([1.5, 0.5, 2.0, 1.0, 3.0])  # three features, the constant, the response
    total = bounds[:3].sum()
    squares = sum(bounds[i] * bounds[j] for i, j in itertools.combinations_with_replacement(range(3), 2))
    expected = squares + total + (1.0 + total) * 3.0 + 9.0
    factors = np.array(statistic_indices(3))
    lattice = _lattice(factors, bounds, 3, False)
    assert lattice.l1_sensitivity * lattice.step == expected
    corner = next(_products(np.array([[9.0, 9.0, 9.0]]), np.array([9.0]), factors, bounds))
    assert np.abs(lattice.integers(corner)).sum() == lattice.l1_sensitivity


@pytest.mark.parametrize("indices", [statistic_indices, moment_indices])
@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_keep_to_the_sensitivity(indices, replace, rng):
    bounds = np.array([1.5, 0.5, 2.0, 1.0, 3.0])
    factors = np.array(indices(3))
    lattice = _lattice(factors, bounds, 3, replace)
    corners = np.array(list(itertools.product((-50.0, 0.0, 50.0), repeat=4)))
    records = np.concatenate((corners, rng.normal(size=(100, 4)) * 2.0))
    k = np.concatenate([lattice.integers(chunk) for chunk in _products(records[:, :3], records[:, 3], factors, bounds)])
    others = k if replace else np.zeros_like(k[:1])
    distance = max(int(np.abs(k - other).sum(axis=1).max()) for other in others)
    assert distance <= lattice.l1_sensitivity
    assert distance > 0.5 * lattice.l1_sensitivity
    half = _lattice(factors, bounds, 3, False).l1_sensitivity
    assert not replace or distance > half  # the add/remove sensitivity would be too small for replacement


def test_a_record_s_products_do_not_depend_on_the_others(rng):
    factors, bounds = np.array(moment_indices(3)), np.array([1.5, 0.5, 2.0, 1.0, 3.0])
    X, y = rng.normal(size=(5000, 3)), rng.normal(size=5000)
    whole = np.concatenate(list(_products(X, y, factors, bounds)))
    part = np.concatenate(list(_products(X[1:], y[1:], factors, bounds)))
    np.testing.assert_array_equal(whole[1:], part)


def test_the_epsilons_of_the_two_blocks_add_up():
    _, X, y = simulate(np.random.default_rng(1), n=30)
    release = release_regression_statistics(
        X, y, epsilon=0.7, n_records=30, feature_bound=1.0, response_bound=2.0, moment_share=0.3
    )
    s = len(statistic_indices(D))
    sums = _lattice(np.array(statistic_indices(D)), np.array([1.0, 1.0, 1.0, 1.0, 2.0]), D, False)
    first = sums.l1_sensitivity * sums.step / release.laplace_scale[0]
    second = len(moment_indices(D)) / release.laplace_scale[-1]
    assert first + second == pytest.approx(0.7, rel=1e-12)
    assert second == pytest.approx(0.21, rel=1e-12)
    assert release.epsilon == 0.7
    assert np.ptp(release.laplace_scale[:s]) == 0.0


def test_moments_from_a_release_are_the_empirical_ones(rng):
    _, X, y = simulate(rng)
    second, covariance = moments_from_release(nearly_exact(X, y).noisy_statistics[None], D, N)
    design = np.column_stack((X, np.ones(N)))
    np.testing.assert_allclose(second[0], design.T @ design / N, atol=1e-3)
    i, j = np.array(statistic_indices(D)[: len(covariance[0])]).T
    np.testing.assert_allclose(covariance[0], np.cov(design[:, i] * design[:, j], rowvar=False), atol=5e-3)


def test_gaussian_moments_are_those_of_simulated_features(rng):
    sigma = np.array([[1.0, 0.5], [0.5, 2.0]])
    second, covariance = gaussian_moments(sigma)
    x = np.column_stack((rng.multivariate_normal([0.0, 0.0], sigma, 400_000), np.ones(400_000)))
    np.testing.assert_allclose(x.T @ x / 400_000, second, atol=0.02)
    i, j = np.array(statistic_indices(2)[:5]).T
    np.testing.assert_allclose(np.cov(x[:, i] * x[:, j], rowvar=False), covariance, atol=0.15)


def test_the_model_of_the_statistics_has_the_published_moments(rng):
    """Draws of S under uninformative noise have the mean and covariance of simulated sufficient statistics."""
    second, covariance = gaussian_moments(np.eye(2))
    theta, variance, n, K = np.array([0.5, -1.0, 0.3]), 0.4, 60, 20_000
    chains = Chains(
        np.zeros((K, 9)),
        np.ones(9),
        np.broadcast_to(second, (K, 3, 3)),
        covariance[None],
        d=2,
        n_records=n,
        prior=RegressionPrior(),
    )
    draws = chains._draw_statistic(np.tile(theta, (K, 1)), np.full(K, variance), np.full((K, 9), 1e12), rng)
    x = np.concatenate((rng.standard_normal((K, n, 2)), np.ones((K, n, 1))), axis=2)
    y = x @ theta + np.sqrt(variance) * rng.standard_normal((K, n))
    columns = np.concatenate((x, y[:, :, None]), axis=2)
    sums = np.stack([(columns[:, :, a] * columns[:, :, b]).sum(axis=1) for a, b in statistic_indices(2)], axis=1)
    scale = sums.std(axis=0)
    np.testing.assert_allclose((draws.mean(axis=0) - sums.mean(axis=0)) / scale, 0.0, atol=0.05)
    difference = (np.cov(draws, rowvar=False) - np.cov(sums, rowvar=False)) / np.outer(scale, scale)
    assert np.abs(difference).max() < 0.06


def test_the_product_with_the_noise_is_gaussian_conditioning(rng):
    """Against the textbook formula on a draw with given variances."""
    second, covariance = gaussian_moments(np.eye(1))
    K, theta, sigma2 = 60_000, np.array([0.7, -0.2]), 0.3
    noisy = np.array([60.0, 5.0, 30.0, -8.0, 40.0])
    variance = np.array([100.0, 400.0, 50.0, 30.0, 900.0])
    build = lambda rows: Chains(  # noqa: E731
        np.tile(noisy, (rows, 1)),
        np.ones(5),
        np.broadcast_to(second, (rows, 2, 2)),
        covariance[None],
        d=1,
        n_records=50,
        prior=RegressionPrior(),
    )
    arguments = (np.tile(theta, (K, 1)), np.full(K, sigma2))
    prior = build(K)._draw_statistic(*arguments, np.full((K, 5), 1e14), rng)
    posterior = build(K)._draw_statistic(*arguments, np.tile(variance, (K, 1)), rng)
    mean, cov = prior.mean(axis=0), np.cov(prior, rowvar=False)
    gain = cov @ np.linalg.inv(cov + np.diag(variance))
    expected = mean + gain @ (noisy - mean)
    np.testing.assert_allclose(posterior.mean(axis=0), expected, atol=0.03 * prior.std(axis=0).max())
    np.testing.assert_allclose(np.cov(posterior, rowvar=False), cov - gain @ cov, atol=0.03 * np.diag(cov).max())


def test_without_noise_the_posterior_is_the_conjugate_one(rng):
    truth, X, y = simulate(rng)
    release = nearly_exact(X, y)
    draws = gibbs_ss_noisy_posterior(release, n_burn_in=200, n_samples=2000)
    design = np.column_stack((X, np.ones(N)))
    precision = design.T @ design + 0.25 * np.eye(D + 1)
    mean = np.linalg.solve(precision, design.T @ y)
    shape, rate = 20.0 + N / 2, 0.5 + 0.5 * (y @ y - mean @ precision @ mean)
    scale = np.sqrt(rate / shape * np.diag(np.linalg.inv(precision)))
    assert np.all(np.abs(draws[:, :-1].mean(axis=0) - mean) < 0.25 * scale)
    np.testing.assert_allclose(draws[:, :-1].std(axis=0), scale, rtol=0.15)
    exact = stats.invgamma(shape, scale=rate)
    assert draws[:, -1].mean() == pytest.approx(exact.mean(), abs=0.3 * exact.std())
    assert draws[:, -1].std() == pytest.approx(exact.std(), rel=0.2)
    assert np.all(np.abs(draws.mean(axis=0) - truth) < 6 * draws.std(axis=0))


def test_draws_do_not_depend_on_threads_or_on_other_chunks(rng):
    truth, X, y = simulate(rng, d=2, n=200)
    release = release_regression_statistics(X, y, epsilon=1.0, n_records=200, feature_bound=3.0, response_bound=4.0)
    noisy = np.tile(release.noisy_statistics, (60, 1))
    options = {
        "laplace_scale": release.laplace_scale,
        "n_features": 2,
        "n_records": 200,
        "n_burn_in": 3,
        "n_samples": 5,
    }
    one = gibbs_ss_noisy(noisy, n_threads=1, **options)
    np.testing.assert_array_equal(one, gibbs_ss_noisy(noisy, n_threads=3, **options))
    np.testing.assert_array_equal(one[:, :25], gibbs_ss_noisy(noisy[:25], **options))
    assert np.all(one[..., -1] > 0.0)
    assert not np.array_equal(one, gibbs_ss_noisy(noisy, seed=1, **options))
    assert gibbs_ss_noisy(noisy[0], **options).shape == (5, 4)
    assert truth.size == 4


def test_swamped_statistics_still_give_finite_draws():
    """At a tiny epsilon every matrix is far from positive definite; the projections must cope."""
    _, X, y = simulate(np.random.default_rng(4), n=100)
    release = release_regression_statistics(
        X, y, epsilon=1e-3, n_records=100, feature_bound=3.0, response_bound=4.0, random_source=InsecureRNG(3)
    )
    draws = gibbs_ss_noisy_posterior(release, n_burn_in=50, n_samples=200)
    assert np.all(np.isfinite(draws))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"feature_bound": 0.0}, "feature_bound"),
        ({"feature_bound": [1.0, 2.0]}, "feature_bound"),
        ({"response_bound": 0.0}, "response_bound"),
        ({"moment_share": 1.0}, "moment_share"),
    ],
)
def test_bad_arguments_are_named(change, name):
    arguments = {"epsilon": 1.0, "n_records": 9, "feature_bound": 1.0, "response_bound": 1.0} | change
    with pytest.raises(ValueError, match=name):
        release_regression_statistics(np.zeros((9, 3)), np.zeros(9), **arguments)


def test_bad_records_and_mismatches_are_refused():
    good = {"epsilon": 1.0, "n_records": 9, "feature_bound": 1.0, "response_bound": 1.0}
    for X, y in (
        (np.full((9, 3), np.nan), np.zeros(9)),
        (np.zeros((9, 3)), np.zeros(8)),
        (np.zeros(9), np.zeros(9)),
    ):
        with pytest.raises(RecordError):
            release_regression_statistics(X, y, **good)
    with pytest.raises(RecordError, match="n_records"):
        release_regression_statistics(np.zeros((8, 3)), np.zeros(8), adjacency="zero_out", **good)
    with pytest.raises(TypeError, match="X"):
        release_regression_statistics(np.array([["a"]]), np.zeros(1), **good)
    bare = release_regression_statistics(np.zeros((9, 3)), np.zeros(9), moment_share=0.0, **good)
    with pytest.raises(ValueError, match="feature_moments"):
        gibbs_ss_noisy_posterior(bare)
    assert gibbs_ss_noisy_posterior(
        bare, feature_moments=gaussian_moments(np.eye(3)), n_burn_in=1, n_samples=2
    ).shape == (2, 5)
    with pytest.raises(ValueError, match="noisy_statistics"):
        gibbs_ss_noisy(np.zeros((2, 4)), laplace_scale=np.ones(4), n_features=3, n_records=9)
