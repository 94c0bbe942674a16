"""The mixture model: densities against plain formulas, round trips, refusals."""

import numpy as np
import pytest
from scipy import stats

from dpinfer.models import GaussianMixture, model_from_dict

COVARIANCES = [[[0.5, 0.2], [0.2, 0.4]], [[1.0, 0.0], [0.0, 2.0]]]


def test_log_likelihood_against_scipy(rng):
    model = GaussianMixture(2, 2, covariance=COVARIANCES, weights=(1.0, 3.0))
    theta = rng.normal(size=(3, 4))
    X = rng.normal(size=(5, 2))
    expected = np.zeros((3, 5))
    for j, weight in enumerate((0.25, 0.75)):
        for s in range(3):
            expected[s] += weight * stats.multivariate_normal(theta[s, 2 * j : 2 * j + 2], COVARIANCES[j]).pdf(X)
    np.testing.assert_allclose(model.log_likelihood(theta, X), np.log(expected), rtol=1e-10)
    prior = stats.norm(0.0, 1.0).logpdf(theta).sum(axis=1)
    np.testing.assert_allclose(model.log_prior(theta), prior)


def test_gradients_of_the_prior(rng):
    model = GaussianMixture(2, 2, prior_loc=(1.0, -1.0), prior_scale=0.5)
    theta = rng.normal(size=4)
    numeric = [(model.log_prior(theta + h) - model.log_prior(theta - h)) / 2e-6 for h in 1e-6 * np.eye(4)]
    np.testing.assert_allclose(model.log_prior_gradient(theta), numeric, rtol=1e-6)
    raw = rng.normal(size=4)
    loc_gradient, raw_gradient = model.expected_log_prior_gradient(theta, raw)
    np.testing.assert_allclose(loc_gradient, numeric, rtol=1e-6)

    def expected(u):
        s = np.logaddexp(0.0, u)
        return -0.5 * np.sum(s**2) / 0.25

    numeric = [(expected(raw + h) - expected(raw - h)) / 2e-6 for h in 1e-6 * np.eye(4)]
    np.testing.assert_allclose(raw_gradient, numeric, rtol=1e-6)
    np.testing.assert_array_equal(model.prior_moments()[0], [1.0, -1.0, 1.0, -1.0])
    np.testing.assert_array_equal(model.default_start()[0], [1.0, -1.0, 1.0, -1.0])


def test_simulation_has_the_models_moments():
    model = GaussianMixture(2, 2, covariance=COVARIANCES, weights=(0.2, 0.8), prior_scale=3.0)
    theta = np.array([-2.0, 0.0, 2.0, 1.0])
    X = model.simulate(theta, 200_000, 1)
    np.testing.assert_allclose(X.mean(axis=0), 0.2 * theta[:2] + 0.8 * theta[2:], atol=0.03)
    first = X[X[:, 0] < -3.0]
    assert 0.0 < first.shape[0] / X.shape[0] < 0.05
    assert model.sample_prior(5, 1).shape == (5, 4)
    assert model.sample_prior(4000, 1).std() == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize(
    "model",
    [
        GaussianMixture(3, 2),
        GaussianMixture(2, 2, covariance=COVARIANCES, weights=(1.0, 3.0), prior_loc=(0.0, 1.0), prior_scale=2.0),
        GaussianMixture(2, 2, covariance=COVARIANCES[0]),
    ],
)
def test_round_trip(model):
    again = model_from_dict(model.to_dict())
    assert again == model
    np.testing.assert_array_equal(again.covariances, model.covariances)
    np.testing.assert_allclose(np.exp(again.log_weights).sum(), 1.0)
    assert len(set(model.names)) == model.n_params


def test_isotropy():
    assert GaussianMixture(2, 3, covariance=0.5).isotropic
    assert not GaussianMixture(2, 2, covariance=COVARIANCES).isotropic


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_features": 2.0}, "n_features"),
        ({"covariance": 0.0}, "covariance"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance"),
        ({"covariance": [[1.0, 0.5], [0.0, 1.0]]}, "covariance"),
        ({"covariance": np.eye(3)}, "covariance"),
        ({"covariance": "full"}, "covariance"),
        ({"weights": (1.0,)}, "weights"),
        ({"weights": (1.0, -1.0)}, "weights"),
        ({"prior_loc": (1.0, 2.0, 3.0)}, "prior_loc"),
        ({"prior_loc": np.nan}, "prior_loc"),
        ({"prior_scale": 0.0}, "prior_scale"),
    ],
)
def test_argument_errors_name_the_argument(changes, name):
    with pytest.raises((TypeError, ValueError), match=name):
        GaussianMixture(**({"n_components": 2, "n_features": 2} | changes))
