"""The network's model: predictions against draws of the weights, scales, and what is refused."""

import numpy as np
import pytest
from tests.reference import network_oracles as oracle

from dpinfer.models import BayesianNeuralNetwork, NetworkWeights, model_from_dict
from dpinfer.models.bayesian_neural_network import output_moments


def network(n_features=3, n_hidden=6, **values):
    return BayesianNeuralNetwork(n_features, n_hidden, **values)


def test_output_moments_are_the_oracles():
    model, rng = network(), np.random.default_rng(0)
    mean, variance = rng.normal(size=model.n_params), rng.uniform(0.01, 0.5, model.n_params)
    X = rng.normal(size=(5, 3))
    got = output_moments(model, mean, variance, X)
    want = np.array([oracle.output_moments(mean, variance, x, 6) for x in X]).T
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_predictions_are_the_moments_of_drawn_networks():
    """Mean and variance over 20000 drawn weights, within five standard errors at each of four points (1e-6 each)."""
    model = network(feature_loc=(1.0, 2.0, 3.0), feature_scale=2.0, target_loc=5.0, target_scale=3.0)
    rng = np.random.default_rng(1)
    weights = NetworkWeights(model, rng.normal(size=model.n_params), rng.uniform(0.1, 0.5, model.n_params), 0.2)
    X = rng.normal(size=(4, 3))
    draws = weights.sample(20_000, seed=2)
    z = np.hstack((model.standardise_features(X), np.ones((4, 1))))
    hidden = np.einsum("nj,sjh->snh", z, draws[:, :24].reshape(-1, 4, 6)) * model.hidden_scale
    outputs = np.einsum("snh,sh->sn", np.maximum(hidden, 0), draws[:, 24:-1]) + draws[:, -1:]
    outputs = 5.0 + 3.0 * outputs * model.output_scale
    mean, variance = weights.predict(X)
    assert np.all(np.abs(outputs.mean(0) - mean) < 5 * outputs.std(0) / np.sqrt(20_000))
    spread = (outputs - outputs.mean(0)) ** 2
    error = 5 * spread.std(0) / np.sqrt(20_000)
    assert np.all(np.abs(spread.mean(0) - (variance - 9.0 * 0.2)) < error)
    # The power twin: without the variance of the activations the second moment would be off.
    assert np.any(np.abs(0.9 * spread.mean(0) - (variance - 9.0 * 0.2)) > error)


def test_certain_weights_predict_like_a_plain_network():
    model, rng = network(), np.random.default_rng(3)
    theta, X = rng.normal(size=model.n_params), rng.normal(size=(7, 3))
    mean, variance = NetworkWeights(model, theta, np.zeros(model.n_params), 0.5).predict(X)
    hidden = np.maximum(np.hstack((X, np.ones((7, 1)))) @ theta[:24].reshape(4, 6) / 2.0, 0.0)
    np.testing.assert_allclose(mean, (hidden @ theta[24:-1] + theta[-1]) / np.sqrt(7.0), rtol=1e-12)
    np.testing.assert_allclose(variance, 0.5)
    log_density = NetworkWeights(model, theta, np.zeros(model.n_params), 0.5).log_predictive_density(X, mean)
    np.testing.assert_allclose(log_density, -0.5 * np.log(np.pi))
    assert model.simulate(theta, 0.5, X, 0).shape == (7,)


def test_models_survive_plain_data():
    model = network(feature_loc=(1.0, 2.0, 3.0), target_scale=2.0, prior_precision=3.0)
    assert model_from_dict(model.to_dict()) == model
    assert len(model.names) == len(set(model.names)) == model.n_params


def test_the_prior_is_a_prior():
    model = network(prior_precision=2.0)
    theta = model.start_loc(1)
    step = 1e-5
    moved = theta.copy()
    moved[4] += step
    slope = (model.log_prior(moved) - model.log_prior(theta)) / step
    np.testing.assert_allclose(slope, model.log_prior_gradient(theta)[4], atol=1e-4)
    assert np.all(model.start_loc(1, output=0.0)[24:] == 0.0)
    assert model.default_start()[0].shape == (model.n_params,)
    np.testing.assert_allclose(model.prior_moments()[1], np.sqrt(0.5))
    loc, raw = model.expected_log_prior_gradient(theta, np.zeros(model.n_params))
    np.testing.assert_allclose(loc, -2.0 * theta)
    np.testing.assert_allclose(raw, -2.0 * np.log(2.0) * 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_features": 0}, "n_features"),
        ({"n_hidden": 5000}, "n_hidden"),
        ({"prior_precision": 0.0}, "prior_precision"),
        ({"noise_shape": 1.0}, "noise_shape"),
        ({"feature_scale": (1.0, -1.0, 1.0)}, "feature_scale must be positive"),
        ({"feature_loc": (1.0,)}, "feature_loc must have shape"),
        ({"target_scale": 0.0}, "target_scale"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        network(**values)


def test_bad_weights_are_named():
    model = network()
    with pytest.raises(ValueError, match="variance must be at least 0"):
        NetworkWeights(model, np.zeros(model.n_params), np.full(model.n_params, -1.0), 1.0)
    with pytest.raises(ValueError, match="noise_variance"):
        NetworkWeights(model, np.zeros(model.n_params), np.ones(model.n_params), 0.0)
