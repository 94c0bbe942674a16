"""What models expect of their records, against simulation, finite differences and closed forms."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special, stats

import dpinfer as dpi
from dpinfer.models import dispersion_clipping, expected_gradients, prior_predictive_norm
from dpinfer.models.base import sigmoid, softplus, softplus_inverse

N_RECORDS = 200_000
# Two-sided false-positive rate 1e-6 of a normal statistic.
CRITICAL = float(stats.norm.isf(0.5e-6))

m = dpi.models
EXACT = {
    "exponential": (m.GammaExponential(3.0, 2.0), [0.4]),
    "bernoulli": (m.BetaBernoulli(3.0, 5.0), [-0.7]),
    "binomial": (m.BetaBinomial(4, 3.0, 5.0), [0.9]),
    "sticks": (m.DirichletCategorical((2.0, 5.0, 1.0, 3.0)), [-0.8, 0.3, 0.1]),
    "softmax": (m.DirichletCategorical((2.0, 5.0, 3.0), bijector="softmax"), [0.5, -0.4]),
    "linear": (m.LinearRegression(2, fit_intercept=True, feature_scale=(0.5, 2.0)), [0.7, -1.0, 0.4, -1.5]),
}
# Their information takes the linear predictor to be symmetric and independent of each feature: exact without weights,
# and a few per cent off with small ones.
APPROXIMATE = {
    "logistic": (m.LogisticRegression(2, fit_intercept=True, feature_scale=(0.5, 1.5)), [0.4, -0.1, 0.1]),
    "probit": (m.ProbitRegression(2, fit_intercept=True, feature_scale=(0.5, 1.5)), [0.4, -0.1, 0.1]),
    "poisson": (m.PoissonRegression(2, fit_intercept=True, feature_scale=(0.5, 1.5)), [0.2, -0.05, -0.02]),
}
EVERY = EXACT | APPROXIMATE
every_model = pytest.mark.parametrize(("model", "loc"), EVERY.values(), ids=EVERY)


def own_records(model, loc, rng, size=N_RECORDS):
    """Records in the form that `record_derivatives` takes, drawn by the model's own `simulate`."""
    params = model.constrain(np.array(loc))
    if isinstance(model, m.GeneralizedLinearModel):
        features = model.simulate_features(size, rng, np.square(model.feature_scale))
        response = model.simulate(params, features, rng)
        design = np.column_stack((features, np.ones(size))) if model.fit_intercept else features
        return design, response
    return model.sufficient_statistics(model.simulate(params, size, rng))


def log_likelihood(model, records, theta):
    """log p(record | theta) up to a term without theta, written out for each conjugate family."""
    theta = np.asarray(theta)
    if isinstance(model, m.GeneralizedLinearModel):
        return model.log_likelihood(theta, records[0][:, : model.n_features], records[1])
    if isinstance(model, m.GammaExponential):
        rate = np.log1p(np.exp(theta[0]))
        return np.log(rate) - rate * records[:, 0]
    if isinstance(model, m.DirichletCategorical):
        if model.bijector == "softmax":
            weights = np.append(np.exp(theta), 1.0)
            p = weights / weights.sum()
        else:
            sticks = np.append(special.expit(theta), 1.0)
            p = sticks * np.append(1.0, np.cumprod(1.0 - sticks[:-1]))
        return np.column_stack((records, 1.0 - records.sum(axis=1))) @ np.log(p)
    p = special.expit(theta[0])
    return records[:, 0] * np.log(p) + (model.trials - records[:, 0]) * np.log1p(-p)


@pytest.mark.parametrize(("model", "loc"), EXACT.values(), ids=EXACT)
def test_information_is_the_variance_of_the_score(model, loc, rng):
    loc = np.array(loc)
    score, _ = model.record_derivatives(own_records(model, loc, rng), loc)
    square = score**2
    error = (square.mean(axis=0) - model.information(loc)) / (square.std(axis=0) / np.sqrt(N_RECORDS))
    assert np.all(np.abs(error) < CRITICAL)
    mean = score.mean(axis=0) / (score.std(axis=0) / np.sqrt(N_RECORDS))
    assert np.all(np.abs(mean) < CRITICAL)


@pytest.mark.parametrize(("model", "loc"), APPROXIMATE.values(), ids=APPROXIMATE)
def test_information_of_other_likelihoods_is_near_the_variance_of_the_score(model, loc, rng):
    loc = np.array(loc)
    score, second = model.record_derivatives(own_records(model, loc, rng), loc)
    np.testing.assert_allclose(model.information(loc), np.mean(score**2, axis=0), rtol=0.06)
    np.testing.assert_allclose(model.information(loc), np.mean(second, axis=0), rtol=0.06)


@every_model
def test_information_is_the_same_in_a_batch(model, loc):
    rows = np.array(loc) + np.linspace(-0.5, 0.5, 5)[:, None]
    want = np.stack([model.information(row) for row in rows])
    np.testing.assert_allclose(model.information(rows), want, rtol=1e-13)


@every_model
def test_record_derivatives_are_those_of_the_log_likelihood(model, loc, rng):
    loc = np.array(loc)
    records = own_records(model, loc, rng, 50)
    first, second = model.record_derivatives(records, loc)
    centre = log_likelihood(model, records, loc)
    for j in range(loc.size):
        ends = []
        for step in (1e-5, 1e-3):
            high, low = loc.copy(), loc.copy()
            high[j] += step
            low[j] -= step
            ends.append((log_likelihood(model, records, high), log_likelihood(model, records, low)))
        (high1, low1), (high2, low2) = ends
        np.testing.assert_allclose(first[:, j], -(high1 - low1) / 2e-5, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(second[:, j], -(high2 + low2 - 2.0 * centre) / 1e-6, rtol=2e-5, atol=2e-6)


@every_model
def test_reference_records_represent_the_model(model, loc, rng):
    loc = np.array(loc)
    records, weights = model.reference_records(loc, 2**14, rng)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights.min() >= 0.0
    if isinstance(model, m.GeneralizedLinearModel):
        design, response = records
        error = np.sqrt(np.var(design**2, axis=0) / 2**14) + 1e-12
        assert np.all(np.abs(weights @ design**2 - model.second_moments) < CRITICAL * error)
        score, _ = model.record_derivatives(records, loc)
        assert np.all(np.abs(weights @ score) < CRITICAL * score.std(axis=0) / 2.0**7)
        assert response.shape == (2**14,)
        return
    params = model.constrain(loc)
    if isinstance(model, m.GammaExponential):
        # The mean of the quantiles at the middles of 2048 cells falls short of 1 by log(2) / (2 * 2048).
        shortfall = np.log(2.0) / 4096.0
        assert weights @ records[:, 0] == pytest.approx((1.0 - shortfall) / params[0], rel=2e-6)
    elif isinstance(model, m.DirichletCategorical):
        np.testing.assert_allclose(weights @ records, params, rtol=1e-12)
    else:
        assert weights @ records[:, 0] == pytest.approx(model.trials * params[0], rel=1e-12)


TINY = 1e-9  # the raw_scale gradients then do not take part in clipping


def distance_from_exponential(theta):
    """a = rate (1 - slope) / slope: 1 where rate = softplus(theta) is exp(theta), 0 where it is theta."""
    return np.log1p(np.exp(theta)) * np.exp(-theta)


@pytest.mark.parametrize("theta", [-6.0, 0.4, 3.0])
@pytest.mark.parametrize("norm", [1.5, 2.0, 3.0])
def test_clipping_of_exponential_waiting_times_in_closed_form(theta, norm):
    """v = e - 1 with e ~ Exp(1) at every rate, clipped at C > 1 on one side only.

    E[v - clip(v)] = exp(-(C + 1)), dE[clip(v)] / dlog(rate) = E[e; e < C + 1] = 1 - (C + 2) exp(-(C + 1)).  The slope
    is that of clip(v) / sqrt(I) at the iterate, so that the bias moves with 1 / sqrt(I) = rate / slope, whose
    derivative is 1 - a: nothing for small rates, where softplus is exp.
    """
    a = distance_from_exponential(theta)
    got = expected_gradients(m.GammaExponential(), np.array([theta]), max_grad_norm=norm, raw_ratio=TINY)
    tail = np.exp(-(norm + 1.0))
    # 2048 quantiles: the last cells miss about half a cell of the tail.
    assert got.clipped_share == pytest.approx(tail, abs=1.0 / 2048)
    assert got.clip_bias[0] == pytest.approx(tail, abs=3e-4)
    assert got.clip_slope[0] == pytest.approx(1.0 - (norm + 2.0) * tail - (1.0 - a) * tail, abs=3e-3)
    assert got.information_slope[0] == pytest.approx(2.0 * (a - 1.0), abs=4e-3)
    assert got.bend[0, 0] == pytest.approx(3.0 * a - 2.0, abs=4e-3)


def test_raw_gradients_take_part_in_clipping():
    """With rho = 1/2 and small rates (a = 1) the gradient is (e - 1, e / 2): its norm decides for both parts."""
    norm = 2.0
    got = expected_gradients(m.GammaExponential(), np.array([-8.0]), max_grad_norm=norm, raw_ratio=0.5)
    levels = (np.arange(400_000) + 0.5) / 400_000
    e = -np.log1p(-levels)
    v = np.stack((e - 1.0, 0.5 * e))
    lost = np.mean(v * (1.0 - np.minimum(1.0, norm / np.linalg.norm(v, axis=0))), axis=1)
    np.testing.assert_allclose(got.clip_bias, lost, rtol=5e-3)
    assert got.clip_bias[1] > 0.01


@every_model
def test_without_clipping_there_is_nothing_to_correct(model, loc):
    got = expected_gradients(model, np.array(loc), max_grad_norm=1e9, raw_ratio=0.3, size=4096)
    assert got.clipped_share == 0.0
    np.testing.assert_array_equal(got.clip_bias, np.zeros(2 * model.n_params))
    np.testing.assert_allclose(got.clip_slope, np.ones(model.n_params), rtol=1e-12)


def test_bend_of_the_categorical_model_in_closed_form():
    """Softmax: the third cumulants of the indicators, kappa_kjj = p_k (delta_kj (1 - 2 p_j) - p_j (1 - 2 p_j))."""
    model = m.DirichletCategorical((2.0, 5.0, 3.0), bijector="softmax")
    loc = np.array([0.5, -0.4])
    p = model.constrain(loc)
    third = np.empty((2, 2))
    for k in range(2):
        for j in range(2):
            third[k, j] = p[j] * (float(k == j) - p[k]) * (1.0 - 2.0 * p[j])
    information = p * (1.0 - p)
    got = expected_gradients(model, loc, max_grad_norm=1e9, raw_ratio=0.3)
    np.testing.assert_allclose(got.bend, third / np.sqrt(information)[:, None] / information, atol=4e-3)
    np.testing.assert_allclose(got.information_slope, (1.0 - 2.0 * p) / np.sqrt(information), atol=4e-3)


def test_linear_regression_is_pivotal():
    model = m.LinearRegression(3, fit_intercept=True, feature_scale=(0.5, 1.0, 2.0))
    size = 2**15
    first = np.array([0.0, 0.0, 0.0, 0.0, -3.6])
    second = np.array([1.0, -0.7, 0.1, 0.4, -3.2])
    one, two = (expected_gradients(model, at, max_grad_norm=5.0, raw_ratio=0.2, size=size) for at in (first, second))
    assert model.pivotal
    assert 0.005 < one.clipped_share < 0.2
    error = CRITICAL / np.sqrt(size)
    assert one.clipped_share == pytest.approx(two.clipped_share, abs=error * np.sqrt(one.clipped_share))
    np.testing.assert_allclose(one.clip_bias, two.clip_bias, atol=error)
    np.testing.assert_allclose(one.clip_slope, two.clip_slope, atol=0.5 * error)
    np.testing.assert_allclose(one.bend, two.bend, atol=2.0 * error)
    # Power: without the division by the information the same numbers differ.
    assert not np.allclose(model.information(first), model.information(second), rtol=0.2)


def test_another_model_is_not_pivotal():
    """The power twin: at two rates of a Bernoulli record the same comparison fails."""
    model = m.BetaBernoulli()
    one, two = (expected_gradients(model, np.array([at]), max_grad_norm=1.2, raw_ratio=0.2) for at in (0.2, 1.5))
    assert abs(one.clip_bias[0] - two.clip_bias[0]) > CRITICAL * 2.0**-7.5


@pytest.mark.parametrize("raw_ratio", [TINY, 0.2, 1.0])
@pytest.mark.parametrize("quantile", [0.9, 0.985])
def test_prior_predictive_norm_of_exponential_waiting_times(quantile, raw_ratio):
    """The norm grows with e, and with a, which falls with the rate: its 99% quantile belongs to the prior's 1%."""
    model = m.GammaExponential(3.0, 2.0)
    e = -np.log1p(-quantile)
    rate = stats.gamma.ppf(0.01, 3.0, scale=0.5)
    a = rate * np.exp(-rate) / -np.expm1(-rate)
    want = np.hypot(e - 1.0, raw_ratio * (1.0 + a * (e - 1.0)))
    # 2048 quantiles: a cell is worth 1 / (2048 (1 - quantile)) of e.
    assert prior_predictive_norm(model, quantile, raw_ratio) == pytest.approx(want, rel=0.03)


def test_prior_predictive_norm_is_public_and_deterministic():
    model = m.LogisticRegression(2)
    want = prior_predictive_norm(model, 0.985, 0.2)
    prior_predictive_norm.cache_clear()
    np.random.seed(5)  # noqa: NPY002 -- the global generator must not matter
    assert prior_predictive_norm(m.LogisticRegression(2), 0.985, 0.2) == want
    assert prior_predictive_norm(model, 0.5, 0.2) < want < prior_predictive_norm(model, 0.985, 2.0)


@dataclass(frozen=True)
class Uninformed:
    """Hashable, and nothing else that a model has."""

    n_params: int = 1


def test_a_model_without_information_is_refused():
    with pytest.raises(TypeError, match="expected information"):
        expected_gradients(Uninformed(), np.zeros(1), max_grad_norm=1.0, raw_ratio=0.2)
    with pytest.raises(TypeError, match="expected information"):
        prior_predictive_norm(Uninformed(), 0.9, 0.2)
    with pytest.raises(TypeError, match="expected information"):
        m.GeneralizedLinearModel(2).information(np.zeros(2))


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, float("nan")])
def test_quantile_must_lie_between_0_and_1(quantile):
    with pytest.raises(ValueError, match="quantile"):
        prior_predictive_norm(m.GammaExponential(), quantile, 0.2)


@pytest.mark.parametrize("norm", [2.0, 3.5])
def test_clipping_of_a_noise_variance_against_quadrature(norm):
    """One standard normal feature: v = (-x z sqrt(r), (1 - r z^2) / sqrt 2, rho x^2, rho (second derivative / I))."""
    model, ratio = m.LinearRegression(1, fit_intercept=False), 0.2
    table = dispersion_clipping(model, norm, ratio)
    grid = np.linspace(-7.0, 7.0, 1401)
    weight = np.exp(-0.5 * grid**2)
    weight /= weight.sum()
    x, z, both = grid[:, None], grid[None, :], weight[:, None] * weight[None, :]
    rho = float(model.prior_moments()[0][1])
    for index in (5, 25, 35, 47):
        r = table.ratios[index]
        variance = float(softplus(rho)) / r
        at = float(softplus_inverse(variance))
        slope = float(sigmoid(at))
        share = variance * (1.0 - slope) / slope  # of the bend of softplus
        second = 2.0 * (0.5 * (share - 1.0) * (1.0 - r * z**2) + 0.5 * r * z**2)
        own = (1.0 - r * z**2) / np.sqrt(2.0)
        size = np.sqrt(r * x**2 * z**2 + own**2 + ratio**2 * (x**4 + second**2))
        cut = np.minimum(1.0, norm / size)
        assert table.excess[index] == pytest.approx(np.sqrt(2.0) * np.sum(both * (cut - 1.0) * own), abs=0.004)
        spread = np.sum(both * (cut * own) ** 2) - np.sum(both * cut * own) ** 2
        assert table.variance[index] == pytest.approx(spread / r**2, abs=0.04)  # 4 standard errors of the table
    # The tangent touches the clipped mean, and inverts it.
    slope, offset, spread = table.linearised(np.array([0.8]))
    level = 1.0 - 0.8 + np.interp(0.8, table.ratios, table.excess)
    assert slope[0] * 0.2 + offset[0] == pytest.approx(level, abs=1e-12)
    assert table.ratio_at(np.array([level]))[0] == pytest.approx(0.8, abs=1e-12)
    assert 0.3 < slope[0] < 1.0 < spread[0]


def test_without_clipping_nothing_widens():
    model = m.LinearRegression(2)
    table = dispersion_clipping(model, 1e6, 0.2)
    np.testing.assert_array_equal(table.excess, 0.0)
    np.testing.assert_allclose(table.variance, 1.0, rtol=1e-9)
    got = expected_gradients(model, model.prior_moments()[0], max_grad_norm=1e6, raw_ratio=0.2)
    np.testing.assert_allclose(got.clip_spread, 1.0, rtol=1e-9)
    clipped = expected_gradients(model, model.prior_moments()[0], max_grad_norm=3.0, raw_ratio=0.2)
    assert np.all(clipped.clip_spread > 1.01)
    # Residuals come in pairs: what symmetry makes zero is zero, up to rounding.
    np.testing.assert_allclose(clipped.clip_bias[:2], 0.0, atol=1e-12)
    half = expected_gradients(model, model.prior_moments()[0], max_grad_norm=3.0, raw_ratio=0.2, dispersion_ratio=0.25)
    assert half.clipped_share < 0.5 * clipped.clipped_share
