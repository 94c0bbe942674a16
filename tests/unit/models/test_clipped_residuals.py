"""Clipped residuals centred by the model: zero mean, slope, variance, bound, and expected scores of normal features."""

import numpy as np
import pytest
from scipy import special, stats
from tests.reference.negative_binomial import NegativeBinomial

import dpinfer as dpi
from dpinfer.models.clipping import ResponseGrid
from dpinfer.models.likely_records import ExpectedResidual, NormalDesign, PredictorLaw, best_clip

LAWS = {
    "logistic": (dpi.models.LogisticRegression(2), lambda eta: stats.bernoulli(special.expit(eta))),
    "probit": (dpi.models.ProbitRegression(2), lambda eta: stats.bernoulli(special.ndtr(eta))),
    "poisson": (dpi.models.PoissonRegression(2), lambda eta: stats.poisson(np.exp(eta))),
    "negative binomial": (NegativeBinomial(2), lambda eta: stats.nbinom(3.0, 3.0 / (3.0 + np.exp(eta)))),
}
CLIPS = {"logistic": 0.6, "probit": 0.55, "poisson": 1.7, "negative binomial": 2.2}


def psi(y, mean, residual, eta):
    nodes = residual.first_node + residual.spacing * np.arange(residual.centre.size)
    return np.clip(y - mean, -residual.clip, residual.clip) - np.interp(eta, nodes, residual.centre)


@pytest.mark.parametrize("name", LAWS)
def test_moments_and_slope_are_those_of_the_law(name):
    model, law = LAWS[name]
    grid = ResponseGrid(model, 1.0 / 64.0)
    residual = grid.clipped(CLIPS[name])
    y = np.arange(3000.0)

    def mean_of_psi(truth, eta):
        return law(truth).pmf(y) @ psi(y, law(eta).mean(), residual, eta)

    for node in np.searchsorted(grid.nodes, (-3.0, -0.4, 0.0, 1.3, 3.0)):
        eta = grid.nodes[node]
        assert mean_of_psi(eta, eta) == pytest.approx(0.0, abs=1e-9)
        square = law(eta).pmf(y) @ psi(y, law(eta).mean(), residual, eta) ** 2
        assert residual.variance[node] == pytest.approx(square, rel=1e-8)
        # As E[psi | eta] = 0 at every eta, moving the truth and moving the point have opposite effects.
        step = 1e-5
        moved = (mean_of_psi(eta + step, eta) - mean_of_psi(eta - step, eta)) / (2.0 * step)
        assert residual.slope[node] == pytest.approx(moved, rel=1e-6)
        possible = law(eta).support()[1]
        reached = np.abs(psi(y[y <= possible], law(eta).mean(), residual, eta)).max()
        assert reached <= residual.bound * (1.0 + 1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_the_bound_is_reached_and_an_uncentred_residual_is_biased(name):
    model, law = LAWS[name]
    grid = ResponseGrid(model, 1.0 / 64.0)
    residual = grid.clipped(CLIPS[name])
    largest = 0.0
    for eta in grid.nodes[::16]:
        y = np.array([0.0, 1.0]) if model.response == "binary" else np.arange(20.0 + 2.0 * law(eta).mean())
        largest = max(largest, np.abs(psi(y, law(eta).mean(), residual, eta)).max())
    assert residual.bound * 0.99 < largest <= residual.bound * (1.0 + 1e-12)
    # Power twin of the test of zero means above: without the centre they are not zero.
    assert np.abs(residual.centre).max() > 0.01


def test_slopes_are_cut_off_where_asked():
    residual = ResponseGrid(dpi.models.PoissonRegression(1), 0.125).clipped(2.0)
    cut = residual.with_slope_at_most(0.5)
    assert cut.slope.max() == cut.slope_bound == 0.5 < residual.slope_bound
    np.testing.assert_array_equal(cut.slope, np.minimum(residual.slope, 0.5))
    assert residual.with_slope_at_most(1e9) is residual


def test_a_smaller_clip_is_chosen_where_noise_is_larger():
    for model in (dpi.models.LogisticRegression(1), dpi.models.PoissonRegression(1)):
        grid = ResponseGrid(model, 0.125)
        clips = [best_clip(grid, model.response, PredictorLaw(0.0, 1.0), noise, 20_000) for noise in (1e-5, 1e-1)]
        assert clips[0] > clips[1]


@pytest.mark.parametrize("name", ["logistic", "probit", "poisson"])
def test_expected_scores_and_slopes_of_normal_features_are_those_of_simulated_ones(name, rng):
    """Errors of 200 000 simulated records, at 5 standard deviations; the derivative against differences."""
    model, _ = LAWS[name]
    grid = ResponseGrid(model, 0.125)
    residual = grid.clipped(CLIPS[name])
    mean, factor = np.array([0.4, -0.2, 1.0]), np.tril(rng.normal(size=(3, 3))) / 2.0 + np.diag([1.0, 1.0, 0.0])
    factor[2] = 0.0
    design = NormalDesign(mean, factor @ factor.T)
    truth, position = np.array([0.5, -0.4, 0.2]), np.array([0.1, 0.3, -0.1])
    expected = ExpectedResidual(grid, CLIPS[name])
    score, jacobian = design.expected_score(expected, truth, position)
    z = mean + rng.normal(size=(200_000, 3)) @ factor.T
    y = model.draw_response(z @ truth, np.zeros(2), rng)
    eta = z @ position
    found = psi(y, model.inverse_link(eta), residual, eta)[:, None] * z
    error = found.std(axis=0) / np.sqrt(len(z))
    assert np.all(np.abs(found.mean(axis=0) - score) < 5.0 * error + 2e-3)
    at_zero = psi(y, model.inverse_link(eta), residual, eta).mean() * mean
    assert np.any(np.abs(at_zero - score) > 5.0 * error + 2e-3)
    for index in range(3):
        step = np.eye(3)[index] * 0.05
        above, below = (design.expected_score(expected, truth + sign * step, position)[0] for sign in (1.0, -1.0))
        np.testing.assert_allclose((above - below) / 0.1, jacobian[:, index], atol=0.02)
    slope = np.interp(eta, grid.nodes, residual.slope)
    matrix = (z * slope[:, None]).T @ z / slope.sum()
    np.testing.assert_allclose(design.expected_slope(grid, residual.slope, position), matrix, atol=0.03)


def test_responses_that_are_neither_binary_nor_counts_are_refused():
    with pytest.raises(TypeError, match="neither binary responses nor counts"):
        ResponseGrid(dpi.models.LinearRegression(1), 0.1)
