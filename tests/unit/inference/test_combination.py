"""Privacy shares of linear combinations."""

import numpy as np
import pytest

from dpinfer.inference.posterior.combination import _privacy_share
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.theta import DrawnTheta, IndependentTheta, VarianceParts


def drawn(data_covariance):
    location = np.array([[1.0, 1.0], [-1.0, -1.0]])
    parts = VarianceParts(np.ones(2), np.ones(2), np.zeros(2))
    return DrawnTheta(location, np.array([[1.0, 1.0]] * 2), None, parts, data_covariance)


def test_the_share_of_a_combination_counts_how_the_noise_moves_its_weights_together():
    found = drawn(np.eye(2))
    # Covariance [[2, 1], [1, 2]], of which the records leave I open: the noise moves both in the same direction.
    np.testing.assert_allclose(_privacy_share(found, np.array([[1.0, 0.0], [1.0, 1.0]])), [0.5, 2.0 / 3.0])
    assert _privacy_share(found, np.array([[1.0, -1.0]]))[0] == pytest.approx(0.0, abs=1e-12)


def test_a_posterior_that_does_not_tell_it_says_so():
    assert np.isnan(_privacy_share(drawn(None), np.array([[1.0, -1.0]]))[0])


def test_independent_weights_are_weighted_by_their_squares():
    optimum = NormalMixtures(np.array([0, 1, 2]), np.ones(2), np.zeros(2), np.array([3.0, 1.0]))
    found = IndependentTheta(optimum, np.ones(2), np.array([1.0, 1.0]), None)
    # Privacy 3 of 4 and 1 of 2: of the sum 4 of 6.
    assert _privacy_share(found, np.array([[1.0, 1.0]]))[0] == pytest.approx(4.0 / 6.0)
