"""Linear combinations of parameters: against draws, and against the parameters themselves; their privacy shares."""

from types import SimpleNamespace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference.posterior.causes import causes
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.monte_carlo import combine
from dpinfer.inference.posterior.theta import DrawnTheta, IndependentTheta, VarianceParts
from dpinfer.testing import InsecureRNG

LEVELS = np.array([0.05, 0.5, 0.95])


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    y = (rng.random(1000) < 1.0 / (1.0 + np.exp(-X[:, 0]))).astype(float)
    model = dpi.models.LogisticRegression(2, fit_intercept=True)
    budget = {"epsilon": 1.0, "delta": 1e-5, "n_records": 1000}
    return dpi.fit(model, X, y, random_source=InsecureRNG(1), **budget).posterior


def test_a_parameter_is_a_combination(posterior):
    found = combine(posterior, np.eye(3), LEVELS)
    error = posterior.monte_carlo_error(LEVELS)
    np.testing.assert_allclose(found.quantiles, posterior.quantile(LEVELS), rtol=1e-9)
    np.testing.assert_allclose(found.mcse, error.mean, rtol=1e-9)


def test_combinations_have_the_quantiles_of_draws(posterior):
    rows = np.array([[1.0, -1.0, 0.0], [0.3, 2.0, -1.0]])
    found = combine(posterior, rows, LEVELS)
    draws = posterior.sample(100_000, seed=2, space="unconstrained") @ rows.T
    # Shares of draws below a quantile; five of their standard errors: 1 in 10**6, six times.
    shares = np.mean(draws[None] < found.quantiles[:, None], axis=1)
    allowed = 5.0 * np.sqrt(LEVELS * (1.0 - LEVELS) / 100_000)[:, None]
    assert np.all(np.abs(shares - LEVELS[:, None]) < allowed)
    # The power twin: independent parameters give other quantiles, since these are correlated.
    spread = np.sqrt(np.square(rows) @ posterior.stddev**2)
    wrong = rows @ posterior.mean + np.array([-1.6449, 0.0, 1.6449])[:, None] * spread
    wrong_shares = np.mean(draws[None] < wrong[:, None], axis=1)
    assert np.any(np.abs(wrong_shares - LEVELS[:, None]) > 2.0 * allowed)
    assert np.all(found.mcse < 0.2 * draws.std(axis=0))


def test_a_posterior_without_a_chain_is_drawn_from():
    posterior = dpi.fit(
        dpi.models.BetaBernoulli(),
        np.arange(400) % 2,
        epsilon=1.0,
        delta=1e-5,
        n_records=400,
        random_source=InsecureRNG(2),
    ).posterior
    found = combine(posterior, np.array([[2.0]]), LEVELS)
    expected = 2.0 * np.log(posterior.quantile(LEVELS) / (1.0 - posterior.quantile(LEVELS)))
    np.testing.assert_allclose(found.quantiles, expected, atol=0.05 * (expected[2] - expected[0])[0])


def privacy_share(found, rows):
    """The noise's share where no prior is known."""
    return causes(SimpleNamespace(distribution=found, model=None, n_params=rows.shape[1]), rows)[1]


def drawn(data_covariance):
    location = np.array([[1.0, 1.0], [-1.0, -1.0]])
    parts = VarianceParts(np.ones(2), np.ones(2), np.zeros(2))
    return DrawnTheta(location, np.array([[1.0, 1.0]] * 2), None, parts, data_covariance)


def test_the_share_of_a_combination_counts_how_the_noise_moves_its_weights_together():
    found = drawn(np.eye(2))
    # Covariance [[2, 1], [1, 2]], of which the records leave I open: the noise moves both in the same direction.
    np.testing.assert_allclose(privacy_share(found, np.array([[1.0, 0.0], [1.0, 1.0]])), [0.5, 2.0 / 3.0])
    assert privacy_share(found, np.array([[1.0, -1.0]]))[0] == pytest.approx(0.0, abs=1e-12)


def test_a_posterior_that_does_not_tell_it_says_so():
    assert np.isnan(privacy_share(drawn(None), np.array([[1.0, -1.0]]))[0])


def test_independent_weights_are_weighted_by_their_squares():
    optimum = NormalMixtures(np.array([0, 1, 2]), np.ones(2), np.zeros(2), np.array([3.0, 1.0]))
    found = IndependentTheta(optimum, np.ones(2), np.array([1.0, 1.0]), None)
    # Privacy 3 of 4 and 1 of 2: of the sum 4 of 6.
    assert privacy_share(found, np.array([[1.0, 1.0]]))[0] == pytest.approx(4.0 / 6.0)
