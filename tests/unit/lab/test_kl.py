"""Divergences between Gaussians against brute force, and what is wrong with the published formulas."""

import numpy as np
import pytest

from dpinfer.lab.comparison import (
    clipped_divergence,
    divergence_bound,
    expected_divergence,
    gaussian_divergence,
)


def gaussian(d, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(d, d))
    return rng.normal(size=d), root @ root.T + 0.5 * np.eye(d)


def log_density(x, eta, precision):
    mean = np.linalg.solve(precision, eta)
    gap = x - mean
    quadratic = np.einsum("ni,ij,nj->n", gap, precision, gap)
    return 0.5 * (np.linalg.slogdet(precision)[1] - mean.size * np.log(2 * np.pi) - quadratic)


def test_the_divergence_is_the_expected_log_ratio():
    """200000 draws; five standard errors (false-positive rate 6e-7); a dropped logarithm would be noticed."""
    (eta_q, precision_q), (eta_p, precision_p) = gaussian(3, 1), gaussian(3, 2)
    # Whatever the seeds, the logarithm counts for 2: its determinants are a factor of e**4 apart.
    apart = np.linalg.slogdet(precision_q)[1] - np.linalg.slogdet(precision_p)[1]
    precision_p *= np.exp((apart - 4.0) / 3.0)
    rng = np.random.default_rng(3)
    draws = rng.multivariate_normal(np.linalg.solve(precision_q, eta_q), np.linalg.inv(precision_q), 200_000)
    ratios = log_density(draws, eta_q, precision_q) - log_density(draws, eta_p, precision_p)
    error = 5 * ratios.std() / np.sqrt(200_000)
    value = gaussian_divergence(eta_q, precision_q, eta_p, precision_p)
    assert abs(value - ratios.mean()) < error
    without_log = value - 0.5 * (np.linalg.slogdet(precision_q)[1] - np.linalg.slogdet(precision_p)[1])
    assert abs(without_log - ratios.mean()) > error


def test_a_gaussian_does_not_diverge_from_itself():
    eta, precision = gaussian(5, 4)
    assert gaussian_divergence(eta, precision, eta, precision) < 1e-12


@pytest.mark.parametrize("norm", [0.1, 1.0, 3.0, 1e6])
def test_clipping_the_exact_formula_is_the_divergence_of_the_clipped(norm):
    eta, precision = gaussian(4, 5)
    c, a = max(1, np.linalg.norm(precision) / norm), max(1, np.linalg.norm(eta) / norm)
    exact, published = clipped_divergence(eta, precision, norm)
    np.testing.assert_allclose(exact, gaussian_divergence(eta, precision, eta / a, precision / c), atol=1e-10)
    assert (abs(published - exact) < 1e-10) == (norm == 1e6)


def test_expected_divergence_of_small_noise_is_its_quadratic_form():
    """E KL = 1/2 sigma^2 tr(Fisher) to second order; here with the whole matrix by finite differences."""
    eta, precision = gaussian(2, 6)
    stddev, step = 1e-3, 1e-4
    total = 0.0
    directions = [(np.eye(2)[i], np.zeros((2, 2))) for i in range(2)]
    directions += [(np.zeros(2), np.diag(np.eye(2)[i])) for i in range(2)]
    directions.append((np.zeros(2), np.array([[0.0, 1.0], [1.0, 0.0]])))
    for vector, matrix in directions:
        moved = gaussian_divergence(eta, precision, eta + step * vector, precision + step * matrix)
        back = gaussian_divergence(eta, precision, eta - step * vector, precision - step * matrix)
        total += 0.5 * (moved + back) / step**2 * stddev**2
    result = expected_divergence(eta, precision, stddev, least_eigenvalue=1e-3, n_draws=2000, seed=1)
    assert result.shifted_share == 0.0
    assert abs(result.mean - total) < 5 * result.standard_error + 0.02 * total


def test_the_published_bound_vanishes_with_the_noise_and_is_loose():
    """At rho = the least eigenvalue, as in the paper's limit; beyond little noise a logarithm in it has no value."""
    eta, precision = np.array([3.0, -2.0]), np.array([[10.0, 4.0], [4.0, 2.0]])
    rho = float(np.linalg.eigvalsh(precision)[0])
    bounds = []
    for stddev in (1e-6, 1e-3, 0.02):
        bound, probability = divergence_bound(eta, precision, stddev, least_eigenvalue=rho, spread=4 * stddev)
        result = expected_divergence(eta, precision, stddev, least_eigenvalue=rho, always_shift=True, n_draws=500)
        assert probability > 0.9
        assert bound > 100 * result.mean
        bounds.append(bound)
    assert bounds[0] < 1e-3
    assert bounds == sorted(bounds)
    assert np.isnan(divergence_bound(eta, precision, 0.1, least_eigenvalue=rho, spread=0.4)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_divergence([0.0], [[0.0]], [0.0], [[1.0]]), "positive definite"),
        (lambda: gaussian_divergence([0.0], [[1.0]], [0.0, 1.0], np.eye(2)), "length"),
        (lambda: gaussian_divergence([0.0, 1.0], [[1.0, 2.0], [0.0, 1.0]], [0.0, 1.0], np.eye(2)), "symmetric"),
        (lambda: clipped_divergence([0.0], [[1.0]], 0.0), "max_norm"),
        (lambda: expected_divergence([0.0], [[1.0]], -1.0, least_eigenvalue=1.0), "noise_stddev"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
