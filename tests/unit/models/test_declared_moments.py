"""Declared moments brought in line with means: shares of categories exactly, whatever else in the nearest way."""

import numpy as np
import pytest

from dpinfer.models.whitening import indicators_of, moments_of_means, with_variances


def of_columns(*columns):
    """Second moments of independent categorical columns with these shares, and a constant."""
    means = np.concatenate((*columns, [1.0]))
    moments, first = np.outer(means, means), 0
    for shares in columns:
        own = slice(first, first + len(shares))
        moments[own, own] = np.diag(shares)
        first = own.stop
    return moments


def test_shares_of_categories_give_the_moments_of_those_shares():
    declared = of_columns(np.full(2, 0.5), np.full(5, 0.2))
    wanted = of_columns(np.array([0.7, 0.3]), np.array([0.02, 0.08, 0.1, 0.3, 0.5]))
    found = moments_of_means(declared, wanted[-1, :-1], np.full(7, 1e-6))
    assert np.all(indicators_of(declared))
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    empty = np.linalg.eigvalsh(found)[:2]
    np.testing.assert_allclose(empty, 0.0, atol=1e-12)


def test_numbers_keep_their_variance_and_move_to_their_mean():
    declared = np.diag([2.0, 3.0, 1.0])
    declared[0, 1] = declared[1, 0] = 0.5
    found = moments_of_means(declared, np.array([1.5, -1.0]), np.array([1e-9, np.sqrt(3.0)]))
    mean = np.array([1.5, -0.5])  # of the second half is believed: its noise is as large as its spread
    np.testing.assert_allclose(found[-1, :-1], mean, rtol=1e-9)
    np.testing.assert_allclose(found[:-1, :-1] - np.outer(mean, mean), declared[:-1, :-1], rtol=1e-9)


def test_noise_leaves_shares_between_zero_and_one():
    declared = of_columns(np.full(3, 1.0 / 3.0))
    found = moments_of_means(declared, np.array([-0.4, 1.3, 0.1]), np.full(3, 0.1))
    assert np.all((found[-1] > 0.0) & (found[-1] <= 1.0))
    assert np.linalg.eigvalsh(found)[0] > -1e-12


@pytest.mark.parametrize("variance", [[1.0, 4.0, 9.0], [0.1, 1.0, 20.0]])
def test_variances_are_met_and_only_the_diagonal_of_the_precision_changes(rng, variance):
    factor = rng.normal(size=(3, 3)) + 2.0 * np.eye(3)
    before = factor @ factor.T
    found = with_variances(before, np.array(variance))
    np.testing.assert_allclose(np.diag(found), variance, rtol=2e-3)
    change = np.linalg.inv(found) - np.linalg.inv(before)
    np.testing.assert_allclose(change - np.diag(np.diag(change)), 0.0, atol=1e-9)


def test_variances_that_cannot_be_leave_a_covariance():
    """Two of three indicators of one column hardly vary: then the third cannot either."""
    declared = of_columns(np.full(3, 1.0 / 3.0))
    covariance = declared[:-1, :-1] - np.full((3, 3), 1.0 / 9.0)
    found = with_variances(covariance, np.array([1e-6, 1e-6, 0.25]))
    assert np.all(np.isfinite(found))
    assert np.linalg.eigvalsh(found)[0] > -1e-12
