"""Posteriors whose likelihood the model simulates: the emulator and its draws, the ratio of slopes, whole traces."""

import numpy as np
import pytest
from scipy import stats
from tests.reference.own_models import zero_inflated

import dpinfer as dpi
from dpinfer.inference.simulated import posterior as simulated
from dpinfer.inference.simulated.emulator import Prior, ratio_draws, simulated_draws
from dpinfer.inference.simulated.posterior import AlignedScore, NewtonScore
from dpinfer.mechanism.newton.own_rows import CentredScores, OwnRows
from dpinfer.testing import InsecureRNG

SLOPE = np.array([[2.0, 0.6], [0.6, 1.0]])


class LinearScore:
    """A mean score that is linear in the truth: its posterior is normal."""

    n_records = 400
    noise = np.diag([0.01, 0.02])
    observed = np.array([0.4, -0.1])

    def expected(self, truth):
        return SLOPE @ truth, SLOPE

    def ratios(self, truth, size, rng):
        return np.tile(np.eye(2), (size, 1, 1))


class BentScore:
    """One parameter, of which a bent function is seen."""

    n_records = 100
    noise = np.array([[0.3]])
    observed = np.array([0.5])

    def expected(self, truth):
        return truth + 0.3 * truth**2, np.eye(1)

    def ratios(self, truth, size, rng):
        return np.ones((size, 1, 1))


def test_draws_of_a_linear_score_are_those_of_the_normal_posterior():
    prior, score = Prior(np.array([0.1, -0.2]), np.array([0.5, 1.0])), LinearScore()
    draws, error = simulated_draws(score, prior, 2000, np.random.default_rng(1))
    assert error < 1e-3
    weighted = np.linalg.solve(SLOPE / 400 + score.noise, SLOPE).T
    covariance = np.linalg.inv(weighted @ SLOPE + np.diag(prior.scale**-2.0))
    mean = covariance @ (weighted @ score.observed + prior.mean / prior.scale**2)
    white = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T)
    # Independent standard normal numbers, if the draws are right: each check is wrong with probability below 1e-5.
    assert np.all(np.abs(white.mean(axis=1)) * np.sqrt(2000) < 4.5)
    assert np.all(np.abs(np.sum(white**2, axis=1) - 2000) < 4.5 * np.sqrt(2.0 * 2000))
    # The power twin: a tenth of the noise more is found out.
    other = np.linalg.inv(weighted @ SLOPE / 1.21 + np.diag(prior.scale**-2.0))
    twin = np.linalg.solve(np.linalg.cholesky(other), (draws - mean).T)
    assert np.any(np.abs(np.sum(twin**2, axis=1) - 2000) > 4.5 * np.sqrt(2.0 * 2000))


def test_draws_of_a_bent_score_are_those_of_a_grid():
    score, prior = BentScore(), Prior(np.zeros(1), np.ones(1))
    draws, error = simulated_draws(score, prior, 2000, np.random.default_rng(2))
    assert error < 1e-3
    grid = np.linspace(-5.0, 5.0, 4001)
    density = np.exp(-0.5 * (0.5 - grid - 0.3 * grid**2) ** 2 / 0.31 - 0.5 * grid**2)
    distribution = np.cumsum(density) / density.sum()
    apart = np.abs(np.interp(np.sort(draws[:, 0]), grid, distribution) - (np.arange(2000) + 0.5) / 2000)
    assert np.max(apart) < 2.5 / np.sqrt(2000)  # Kolmogorov: probability 1e-5
    # The power twin: the normal approximation at the mode.
    top, step = int(np.argmax(density)), grid[1] - grid[0]
    curvature = -np.diff(np.log(density[top - 1 : top + 2]), 2)[0] / step**2
    normal = np.sort(grid[top] + np.random.default_rng(3).standard_normal(2000) / np.sqrt(curvature))
    assert np.max(np.abs(np.interp(normal, grid, distribution) - (np.arange(2000) + 0.5) / 2000)) > 2.5 / np.sqrt(2000)


def test_the_ratio_of_slopes_is_followed_as_far_as_noise_allows():
    rng = np.random.default_rng(4)
    turned = np.array([[1.4, 0.5], [0.5, 0.9]])
    simulated = np.diag([2.0, 0.5])
    root = np.sqrt(simulated)
    drawn = ratio_draws(root @ turned @ root, simulated, 1e-3, 200, rng)
    np.testing.assert_allclose(drawn.mean(axis=0) @ simulated, root @ turned @ root, atol=0.02)
    hidden = ratio_draws(root @ turned @ root, simulated, 30.0, 4000, rng)
    np.testing.assert_allclose(hidden.mean(axis=0), np.eye(2), atol=0.05)
    np.testing.assert_allclose(hidden[:, 0, 0].std(), 0.25, rtol=0.2)


@pytest.fixture(scope="module")
def trace():
    model = zero_inflated().model
    rng = np.random.default_rng(5)
    X = rng.standard_normal((500, 1))
    truth = np.array([0.5, -1.0])
    y = model.draw_responses(truth, X, rng.integers(0, 2**64, (500, 1), dtype=np.uint64))
    plan = dpi.plan_privacy(target_epsilon=3.0, target_delta=1e-5, sample_rate=1.0, n_steps=120)
    public = {"plan": plan, "n_records": 500, "n_threads": 1, "random_source": InsecureRNG(6)}
    return model, truth, dpi.run_dpvi(model, X, y, guide="full_rank", **public)


def test_what_is_expected_at_the_truth_is_near_what_was_observed(trace):
    model, truth, release = trace
    score = AlignedScore(model, release, 24, np.random.default_rng(7))
    assert score._weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(score._weights @ score._chosen, release.positions[24:].mean(axis=0), rtol=1e-9)

    def distance(at):
        mean, own = score.expected(at)
        missed = score.observed - mean
        return missed @ np.linalg.solve(own / 500 + score.noise, missed)

    # Chi squared with 2 degrees of freedom, at 1e-6; the distance from the wrong parameters is about 80.
    most = stats.chi2.isf(1e-6, 2)
    assert distance(truth) < most < distance(truth + np.array([0.0, 1.5]))


def test_a_trace_has_a_posterior_that_is_not_normal(trace, monkeypatch):
    """4000 draws of a normal have skewness 0 +- 0.04.  Over 40 data sets the larger one has a logarithm of -0.5 +- 0.4.

    So three errors of a normal's tell them apart but for 1% of the normals and 3e-5 of these posteriors.
    """
    model, truth, release = trace
    monkeypatch.setattr(simulated, "_ROWS", 3000)
    posterior = dpi.noise_aware_posterior(release, approximation="simulated", model=model, n_samples=200)
    assert (posterior.approximation, posterior.hessian, posterior.prior) == ("simulated", "none", "model")
    low, high = posterior.quantile([0.001, 0.999], space="unconstrained")
    assert np.all((low < truth) & (truth < high))
    draws = posterior.sample(4000, seed=1, space="unconstrained")
    np.testing.assert_allclose(np.cov(draws.T), posterior.distribution.covariance, rtol=0.2)
    skewness = np.mean((draws - draws.mean(axis=0)) ** 3, axis=0) / draws.std(axis=0) ** 3
    assert np.max(np.abs(skewness)) > 0.12
    assert "simulations" in posterior.diagnostics.verdict


def test_what_cannot_be_simulated_is_refused(trace, rng):
    model, _, release = trace
    with pytest.raises(ValueError, match="needs model="):
        dpi.noise_aware_posterior(release, approximation="simulated")
    with pytest.raises(ValueError, match="defaults"):
        dpi.noise_aware_posterior(release, approximation="simulated", model=model, hessian="full")
    X = rng.normal(size=(50, 2))
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=5)
    other = dpi.run_dpvi(
        dpi.models.LogisticRegression(2), X, (X[:, 0] > 0.0) * 1.0, plan=plan, n_records=50, max_grad_norm=1.0
    )
    with pytest.raises(ValueError, match="aligned gradients"):
        dpi.noise_aware_posterior(other, approximation="simulated")


@pytest.fixture(scope="module")
def run():
    model = zero_inflated().model
    rng = np.random.default_rng(11)
    X = rng.standard_normal((500, 1))
    truth = np.array([0.5, -1.0])
    y = model.draw_responses(truth, X, rng.integers(0, 2**64, (500, 1), dtype=np.uint64))
    plan = dpi.plan_newton(model, target_epsilon=3.0, target_delta=1e-5, n_records=500)
    return (
        model,
        truth,
        dpi.run_newton(model, X, y, plan=plan, n_records=500, random_source=InsecureRNG(6), n_threads=1),
    )


def test_the_expected_score_of_a_run_is_the_mean_of_its_contributions(run):
    """Of made-up records with drawn responses, as the mechanism sums them; the twin is another truth."""
    model, truth, release = run
    score = NewtonScore(model, release, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    X = rng.standard_normal((6000, 1))
    rows = OwnRows.of(X, model.draw_responses(truth, X, rng.integers(0, 2**64, (6000, 1), dtype=np.uint64)))
    clip, weight_bound = release.score_bounds[-1] / (1.0 + release.centre_share), release.slope_bound / 1.5
    values = np.zeros((6000, 2))
    for gain, point in zip(score._gain, release.positions, strict=True):
        query = CentredScores(model, point, release.transform, clip, release.centre_share, weight_bound, 30)
        values += gain * query.contributions(rows, slice(0, 6000)) * query.score_bound
    mean, covariance = score.expected(truth)
    # Of the 6000 records and of the simulation's 1000 rows.
    error = np.sqrt(np.diag(covariance) * (1.0 / 6000 + 1.0 / 1000))
    assert np.all(np.abs(values.mean(axis=0) - mean) < 4.5 * error)
    assert np.any(np.abs(values.mean(axis=0) - score.expected(truth + np.array([-0.8, 0.8]))[0]) > 4.5 * error)
    # A row's eight draws share its weight: at most as uncertain as one draw each.
    spread = np.square(values - values.mean(axis=0)).std(axis=0) * np.sqrt(1.0 / 6000 + 1.0 / 1000)
    # With 30 other seeds -4.9 to 0.7: squares have a long tail, of which 1000 rows mostly have too little.
    assert np.all(np.abs(np.diag(covariance) - values.var(axis=0)) < 9.0 * spread)


def test_a_run_has_a_posterior_of_any_shape_too(run, monkeypatch):
    model, truth, release = run
    monkeypatch.setattr(simulated, "_MADE", 500)
    with pytest.raises(ValueError, match="needs model="):
        dpi.noise_aware_posterior(release, approximation="simulated")
    posterior = dpi.noise_aware_posterior(release, approximation="simulated", model=model, n_samples=200)
    low, high = posterior.quantile([0.001, 0.999], space="unconstrained")
    assert np.all((low < truth) & (truth < high))
    assert posterior.approximation == "simulated"
    other = dpi.noise_aware_posterior(release, n_samples=100)
    # Of the same release: nearer to each other than 3.5 of their own widths.
    means, variances = zip(
        *((m.mean, m.variance) for m in (item.distribution.marginals for item in (other, posterior))), strict=True
    )
    assert np.all(np.abs(means[0] - means[1]) < 3.5 * np.sqrt(np.sum(variances, axis=0)))
