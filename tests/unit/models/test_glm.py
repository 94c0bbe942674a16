"""Priors, bijectors and predictions of the generalised linear models against direct computation."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from dpinfer.models import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
    model_from_dict,
)
from dpinfer.models.base import log_sigmoid, sigmoid, softplus, softplus_inverse

MODELS = [
    LogisticRegression(3, prior_scale=1.5, fit_intercept=True),
    ProbitRegression(2, feature_names=("age", "dose")),
    PoissonRegression(2, prior_scale=0.5),
    LinearRegression(2, fit_intercept=True, variance_shape=3.0, variance_rate=2.0),
]


def numerical_gradient(function, at, step=1e-5):
    result = np.empty_like(at)
    for index in range(at.size):
        shift = np.zeros_like(at)
        shift[index] = step
        result[index] = (function(at + shift) - function(at - shift)) / (2 * step)
    return result


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_log_prior_gradient(model, rng):
    theta = rng.normal(size=model.n_params)
    np.testing.assert_allclose(
        model.log_prior_gradient(theta),
        numerical_gradient(lambda t: float(model.log_prior(t)), theta),
        rtol=1e-6,
        atol=1e-8,
    )


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_expected_log_prior_gradient(model, rng):
    """Against the numerical gradient of E_q[log prior], by product quadrature one coordinate at a time."""
    n = model.n_params
    loc, raw = rng.normal(size=n), rng.normal(size=n) - 1.0
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()

    def expected(params):
        mean, scale = params[:n], softplus(params[n:])
        grids = np.meshgrid(*[mean[j] + scale[j] * nodes for j in (range(n) if n <= 2 else (n - 1,))], indexing="ij")
        if n <= 2:
            points = np.stack([grid.ravel() for grid in grids], axis=-1)
            weight = np.multiply.outer(weights, weights).ravel() if n == 2 else weights
            return float(weight @ model.log_prior(points))
        # The prior is quadratic in the weights given the last parameter: +-scale reproduces E exactly.
        total = 0.0
        for node, weight in zip(grids[0], weights, strict=True):
            base = np.append(mean[:-1], node)
            value = float(model.log_prior(base))
            for j in range(n - 1):
                up, down = base.copy(), base.copy()
                up[j] += scale[j]
                down[j] -= scale[j]
                value += 0.5 * float(model.log_prior(up) + model.log_prior(down)) - float(model.log_prior(base))
            total += weight * value
        return total

    got = np.concatenate(model.expected_log_prior_gradient(loc, raw))
    want = numerical_gradient(expected, np.concatenate((loc, raw)))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_log_prior_is_a_density():
    model = LogisticRegression(1, prior_scale=0.7)
    assert integrate.quad(lambda x: np.exp(model.log_prior(np.array([x]))), -9, 9)[0] == pytest.approx(1.0)
    linear = LinearRegression(1, variance_shape=4.0, variance_rate=2.0)
    total, _ = integrate.dblquad(
        lambda w, rho: np.exp(linear.log_prior(np.array([w, rho]))), -12, 30, lambda rho: -60, lambda rho: 60
    )
    assert total == pytest.approx(1.0, rel=1e-4)
    variance = 0.8
    rho = softplus_inverse(variance)
    want = (
        stats.norm.logpdf(0.3, scale=2.0 * np.sqrt(variance))
        + stats.invgamma.logpdf(variance, 4.0, scale=2.0)
        + np.log(sigmoid(rho))
    )
    assert float(linear.log_prior(np.array([0.3, rho]))) == pytest.approx(want)


def test_dispersion_moments_against_quadrature():
    model = LinearRegression(1)

    def expectation(function, loc, raw):
        scale = float(softplus(raw))
        return integrate.quad(
            lambda z: stats.norm.pdf(z) * function(loc + scale * z), -10, 10, epsabs=1e-13, epsrel=1e-12
        )[0]

    loc, raw, step = -1.0, -1.2, 1e-5
    moments = model.dispersion_moments(loc, raw)
    inverse, logarithm = lambda rho: 1 / softplus(rho), lambda rho: np.log(softplus(rho))
    assert moments.precision == pytest.approx(expectation(inverse, loc, raw), rel=1e-9)
    assert moments.log_variance == pytest.approx(expectation(logarithm, loc, raw), rel=1e-9)
    for name, function in (("precision", inverse), ("log_variance", logarithm)):
        slope = (expectation(function, loc + step, raw) - expectation(function, loc - step, raw)) / (2 * step)
        assert getattr(moments, f"{name}_loc") == pytest.approx(slope, rel=1e-6)
        slope = (expectation(function, loc, raw + step) - expectation(function, loc, raw - step)) / (2 * step)
        assert getattr(moments, f"{name}_raw_scale") == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_round_trips(model, rng):
    assert model_from_dict(model.to_dict()) == model
    theta = rng.normal(size=(5, model.n_params)) - 1.0
    np.testing.assert_allclose(model.unconstrain(model.constrain(theta)), theta, rtol=1e-12)
    assert len(model.names) == model.n_params == len(set(model.names))
    assert all(part.shape == (model.n_params,) for part in model.default_start())


def test_log_likelihoods_and_predictions(rng):
    X = rng.normal(size=(6, 2))
    theta = rng.normal(size=3)
    eta = X @ theta[:2] + theta[2]
    y = np.array([0.0, 1, 1, 0, 1, 0])
    logistic = LogisticRegression(2, fit_intercept=True)
    np.testing.assert_allclose(logistic.predict_mean(theta, X), special.expit(eta))
    np.testing.assert_allclose(logistic.log_likelihood(theta, X, y), stats.bernoulli.logpmf(y, special.expit(eta)))
    probit = ProbitRegression(2, fit_intercept=True)
    np.testing.assert_allclose(probit.log_likelihood(theta, X, y), stats.bernoulli.logpmf(y, stats.norm.cdf(eta)))
    np.testing.assert_allclose(probit.predict_mean(theta, X), stats.norm.cdf(eta))
    poisson = PoissonRegression(2, fit_intercept=True)
    np.testing.assert_allclose(poisson.log_likelihood(theta, X, 2 * y), stats.poisson.logpmf(2 * y, np.exp(eta)))
    linear = LinearRegression(2, fit_intercept=True)
    full = np.append(theta, 0.4)
    np.testing.assert_allclose(
        linear.log_likelihood(full, X, y), stats.norm.logpdf(y, eta, np.sqrt(softplus(0.4))), rtol=1e-12
    )
    many = rng.normal(size=(4, 3))
    assert logistic.predict_mean(many, X).shape == (4, 6)


def test_bijectors_are_stable():
    x = np.array([-800.0, -40.0, -1.0, 0.0, 1.0, 40.0, 800.0])
    assert np.all(np.isfinite(softplus(x)))
    np.testing.assert_allclose(softplus_inverse(softplus(x[1:])), x[1:], rtol=1e-9)
    np.testing.assert_allclose(sigmoid(x), special.expit(x))
    np.testing.assert_allclose(log_sigmoid(x), -np.logaddexp(0, -x))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_features": 0}, ValueError, "n_features"),
        ({"n_features": 2.0}, TypeError, "n_features"),
        ({"n_features": 2, "prior_scale": 0.0}, ValueError, "prior_scale"),
        ({"n_features": 2, "prior_scale": "1"}, TypeError, "prior_scale"),
        ({"n_features": 2, "fit_intercept": 1}, TypeError, "fit_intercept"),
        ({"n_features": 2, "feature_names": "ab"}, TypeError, "feature_names"),
        ({"n_features": 2, "feature_names": ("a",)}, ValueError, "feature_names"),
        ({"n_features": 2, "feature_names": ("a", "a")}, ValueError, "feature_names"),
        ({"n_features": 2, "feature_names": ("a", "intercept")}, ValueError, "feature_names"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LogisticRegression(**arguments)


def test_unknown_specifications():
    with pytest.raises(ValueError, match="known kind"):
        model_from_dict({"kind": "os.system", "n_features": 2})
    with pytest.raises(ValueError, match="does not describe"):
        model_from_dict({"kind": "LogisticRegression", "columns": 2})
