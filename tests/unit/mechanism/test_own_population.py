"""The population's parameters of a model of the user's own: maximum likelihood with robust errors, bounds, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats
from tests.reference.framework_models import two_layer_network, weibull_in_jax
from tests.reference.own_models import EXAMPLES

import dpinfer as dpi
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton.joint import UnitProducts, UnitSizes
from dpinfer.mechanism.newton.own_population import OwnCurvatures, OwnScores
from dpinfer.mechanism.newton.own_rows import OwnRows
from dpinfer.release import load_release
from dpinfer.testing import InsecureRNG

N = 8000


def wrong_records(rng, size=N):
    """Counts that no negative binomial law has: a spread that grows with a feature, and a bent mean."""
    X = rng.normal(size=(size, 5))
    mean = np.exp(0.4 * X[:, 0] - 0.3 * X[:, 1] + 0.1 * X[:, 2] ** 2)
    return X, rng.poisson(mean * rng.gamma(2.0, 0.5, size) * np.where(X[:, 3] > 0.0, 1.3, 0.7)).astype(float)


def without_privacy(model, X, y):
    """Return maximum likelihood and its robust covariance (HC0), the score's derivative by differences."""
    total = lambda theta: model.scores(X, y, theta).sum(axis=0)  # noqa: E731
    found = optimize.root(total, model.parameters.prior_mean).x
    columns = [(total(found - 1e-5 * e) - total(found + 1e-5 * e)) / 2e-5 for e in np.eye(found.size)]
    scores, bread = model.scores(X, y, found), np.linalg.inv(np.array(columns))
    return found, bread @ (scores.T @ scores) @ bread.T


def run(model, X, y, *, epsilon, seed=1, **options):
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-6, n_records=len(y), target="population")
    source = InsecureRNG(seed)
    return dpi.run_newton(model, X, y, plan=plan, n_records=len(y), random_source=source, n_threads=1, **options)


def bare(model):
    given = {name: value for name, value in model.to_dict().items() if name != "kind"}
    return dpi.models.OwnModel(code=replace(model.code, sampler=None), **given)


@pytest.mark.parametrize("sampled", [True, False])
def test_with_much_budget_it_is_maximum_likelihood_with_robust_errors(rng, sampled):
    model = EXAMPLES["negative binomial"]().model
    X, y = wrong_records(rng)
    found, covariance = without_privacy(model, X, y)
    posterior = dpi.noise_aware_posterior(run(model if sampled else bare(model), X, y, epsilon=300.0))
    stddev = np.sqrt(np.diag(covariance))
    theta = posterior.distribution
    np.testing.assert_array_less(np.abs(theta.marginals.mean - found), 0.25 * stddev)
    np.testing.assert_allclose(np.sqrt(np.diag(theta.covariance)), stddev, rtol=0.08)
    assert "The parameters are the population" in posterior.diagnostics.verdict
    # The dispersion is counted before its map, and shown after it.
    assert posterior.mean[-1] == pytest.approx(np.exp(found[-1]), rel=0.05)


def test_a_regression_in_jax_is_maximum_likelihood_with_robust_errors(rng):
    pytest.importorskip("jax")
    twin = EXAMPLES["censored Weibull"]()
    X = twin.features(4000, rng)
    words = rng.integers(0, 2**64, (4000, twin.model.n_words), dtype=np.uint64)
    y = twin.model.draw_responses(twin.model.parameters.prior_mean, X, words)
    found, covariance = without_privacy(twin.model, X, y)
    theta = dpi.noise_aware_posterior(run(weibull_in_jax().model, X, y, epsilon=300.0)).distribution
    stddev = np.sqrt(np.diag(covariance))
    np.testing.assert_array_less(np.abs(theta.marginals.mean - found), 0.25 * stddev)
    np.testing.assert_allclose(np.sqrt(np.diag(theta.covariance)), stddev, rtol=0.08)


def test_a_network_in_pytorch_releases_the_population_as_its_twin_in_numpy_does():
    pytest.importorskip("torch")
    example = two_layer_network()
    X = example.features(1000, np.random.default_rng(8))
    y = (X[:, 0] > 0.3) * 1.0
    own = run(example.model, X, y, epsilon=3.0)
    twin, other = (run(example.twin, X, y, epsilon=3.0, seed=seed) for seed in (1, 2))
    apart = [np.abs(found.meat - own.meat).max() / np.abs(own.meat).max() for found in (twin, other)]
    # Differences of scores and rounding to the lattice.
    assert apart[0] < 1e-3
    assert apart[1] > 0.1


@pytest.mark.statistical
@pytest.mark.slow
def test_intervals_cover_where_the_model_is_wrong():
    """Binomial limits of false-positive rate 1e-4 around 0.9 -+ 0.04; intervals half as wide are rejected."""
    model = EXAMPLES["negative binomial"]().model
    truth, _ = without_privacy(model, *wrong_records(np.random.default_rng(3), 200_000))
    runs, inside, half = 24, 0, 0
    for seed in range(runs):
        posterior = dpi.noise_aware_posterior(
            run(model, *wrong_records(np.random.default_rng([4, seed]), 4000), epsilon=3.0, seed=seed)
        )
        low, high = model.unconstrain(posterior.interval(0.9)[0]), model.unconstrain(posterior.interval(0.9)[1])
        off = np.abs(0.5 * (low + high) - truth) / (0.5 * (high - low))
        inside += int(np.sum(off <= 1.0))
        half += int(np.sum(off <= 0.5))
    trials = runs * truth.size // 2
    low, high = stats.binom.ppf(5e-5, trials, 0.86), stats.binom.isf(5e-5, trials, 0.94)
    assert low <= inside / 2 <= high
    assert half / 2 < low


def test_curvatures_are_derivatives_of_scores(rng):
    model = EXAMPLES["censored Weibull"]().model
    X, y = model.made_up_records(50, rng)
    transform = rng.normal(size=(6, 6))
    theta = model.parameters.prior_mean + 0.1
    found = OwnCurvatures(model, theta, transform, 1.0).of_records(X, y)
    rows, columns = np.triu_indices(6)
    exact = np.zeros((50, 6, 6))
    for k, e in enumerate(np.eye(6)):
        exact[:, :, k] = (model.scores(X, y, theta - 1e-5 * e) - model.scores(X, y, theta + 1e-5 * e)) / 2e-5
    exact = transform @ exact @ transform.T
    exact = 0.5 * (exact + np.swapaxes(exact, 1, 2))[:, rows, columns]
    np.testing.assert_allclose(found, exact * np.where(rows == columns, 1.0, np.sqrt(2.0)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["scores", "products", "sizes", "curvatures", "lengths"])
def test_a_record_less_is_one_bounded_vector_less(rng, kind):
    """Whatever the code says of it: one record's gradient is 1e200, another's is not a number."""
    model = EXAMPLES["negative binomial"]().model
    X, y = model.made_up_records(40, rng)
    X[3], X[4] = 700.0, 1e300
    scores = OwnScores(model, model.parameters.prior_mean, np.eye(7), 2.0)
    curved = OwnCurvatures(model, model.parameters.prior_mean, np.eye(7), 2.0)
    edges = np.array([0.5, 1.0, 2.0])
    query = {
        "scores": scores,
        "products": UnitProducts(scores, 4.0),
        "sizes": UnitSizes(scores, 1.0, edges),
        "curvatures": curved,
        "lengths": UnitSizes(curved, 1.0, edges),
    }[kind]

    def integers(X, y):
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        query.add(total, OwnRows.without_draws(X, y))
        return np.array(total.integers), total.lattice_step

    whole, step = integers(X, y)
    for row in (0, 3, 4, 39):
        rest, _ = integers(np.delete(X, row, axis=0), np.delete(y, row))
        alone, _ = integers(X[row : row + 1], y[row : row + 1])
        assert np.array_equal(whole - rest, alone)
        assert np.linalg.norm(alone * step) <= query.max_norm


def test_a_release_is_read_again_and_needs_no_code(rng, tmp_path):
    model = EXAMPLES["ordinal"]().model
    X, y = model.made_up_records(2000, rng)
    release = run(model, X, y, epsilon=2.0)
    release.save(tmp_path / "own.release")
    again = load_release(tmp_path / "own.release")
    assert type(again).__name__ == "OwnPopulationRelease"
    assert "population's parameters" in repr(again)
    first, second = (dpi.noise_aware_posterior(item) for item in (release, again))
    np.testing.assert_array_equal(first.interval(0.9), second.interval(0.9))
    with pytest.raises(ValueError, match="n_samples"):
        dpi.noise_aware_posterior(release, n_samples=2)
    with pytest.raises(ValueError, match="prior must be one of"):
        dpi.noise_aware_posterior(release, prior="weak")
    with pytest.raises(ValueError, match="more noise"):
        release.replace(bread_stddev=0.5 * release.bread_stddev)


def test_fit_takes_it_where_it_costs_little_and_where_nothing_centres_scores():
    model = EXAMPLES["ordinal"]().model
    public = {"epsilon": 3.0, "delta": 1e-6}
    assert dpi.plan_fit(model, n_records=50_000, **public).mechanism.target == "population"
    assert dpi.plan_fit(model, n_records=50_000, target="model", **public).mechanism.target == "model"
    assert dpi.plan_fit(model, n_records=100, **public).mechanism.target == "model"
    assert dpi.plan_fit(bare(model), n_records=50_000, **public).mechanism.target == "population"
    assert dpi.plan_fit(bare(model), n_records=50_000, target="model", **public).mechanism.target == "model"
