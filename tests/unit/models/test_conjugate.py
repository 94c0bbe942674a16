"""Conjugate models: densities, gradients and information by quadrature, exact posteriors, simulation."""

import itertools

import numpy as np
import pytest
from scipy import integrate, special, stats

from dpinfer.models import (
    BetaBernoulli,
    BetaBinomial,
    DirichletCategorical,
    DirichletOnLogits,
    GammaExponential,
    GammaOnSoftplus,
    model_from_dict,
)
from dpinfer.models.base import sigmoid, softplus, softplus_inverse

MODELS = [
    GammaExponential(3.0, 2.5),
    BetaBernoulli(2.0, 5.0),
    BetaBinomial(7, 3.0, 1.5),
    DirichletCategorical((2.0, 3.0, 1.5)),
    DirichletCategorical((2.0, 3.0, 1.5), bijector="softmax"),
]
RECORDS = {"GammaExponential": [0.2, 1.7], "BetaBernoulli": [0, 1], "BetaBinomial": [0, 3, 7]}
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{type(model).__name__}-{model.n_params}")


def records_of(model):
    return np.array(RECORDS.get(type(model).__name__, [0, 1, 2]), dtype=float)


def log_likelihood(model, theta, y):
    """Log p(y | theta) from scipy and the constrained parameters, shape (...,) for theta (..., n)."""
    params = model.constrain(theta)
    if isinstance(model, GammaExponential):
        return stats.expon.logpdf(y, scale=1 / params[..., 0])
    if isinstance(model, BetaBernoulli):
        return stats.bernoulli.logpmf(int(y), params[..., 0])
    if isinstance(model, BetaBinomial):
        return stats.binom.logpmf(int(y), model.n_trials, params[..., 0])
    full = np.concatenate((params, 1 - params.sum(axis=-1, keepdims=True)), axis=-1)
    # Beyond 36 on the unconstrained scale the rest rounds to zero; no rule has weight there.
    return np.log(np.maximum(full[..., int(y)], np.finfo(float).tiny))


def log_prior(model, theta):
    """The prior's density from scipy times the numerical Jacobian of the map, at one theta (n,)."""
    n, step = theta.size, 1e-5
    columns = [(model.constrain(theta + h) - model.constrain(theta - h)) / (2 * step) for h in step * np.eye(n)]
    jacobian = np.linalg.slogdet(np.stack(columns, axis=-1))[1]
    params = model.constrain(theta)
    if isinstance(model, GammaExponential):
        return stats.gamma.logpdf(params[0], model.shape, scale=1 / model.rate) + jacobian
    if isinstance(model, DirichletCategorical):
        return stats.dirichlet.logpdf(np.append(params, 1 - params.sum()), model.concentration) + jacobian
    return stats.beta.logpdf(params[0], model.a, model.b) + jacobian


def rule(n_nodes, n):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    grid = np.array(list(itertools.product(nodes, repeat=n)))
    product = np.array(list(itertools.product(weights, repeat=n))).prod(axis=1)
    return grid, product / product.sum()


def gradient_by_differences(function, at, step=1e-5):
    return np.array([(function(at + h) - function(at - h)) / (2 * step) for h in step * np.eye(at.size)])


@every_model
def test_the_map_of_a_records_gradient(model, rng):
    """Against differences of E_q[-log p(record | theta)], by a tensor rule that the model does not use."""
    n = model.n_params
    grid, weight = rule(48, n)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    for _ in range(3):
        at = np.concatenate((rng.normal(size=n), rng.normal(size=n) - 1.0))
        matrix, offset = model.gradient_map(at[:n], at[n:], nodes, weights / weights.sum())
        assert matrix.shape == (2 * n, n)
        for y in records_of(model):
            got = matrix @ model.sufficient_statistics([y])[0] + offset
            want = gradient_by_differences(
                lambda p, y=y: -weight @ log_likelihood(model, p[:n] + softplus(p[n:]) * grid, y), at
            )
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@every_model
def test_draws_average_gradients_at_points(model, rng):
    """Over given draws: the average of point gradients; and at one draw the first n rows are the gradient in theta."""
    n = model.n_params
    loc, raw, z = rng.normal(size=n), rng.normal(size=n) - 1.0, rng.normal(size=(6, n))
    matrix, offset = model.gradient_map(loc, raw, z, np.full(6, 1 / 6))
    for y in records_of(model):
        t = model.sufficient_statistics([y])[0]
        want = np.zeros(2 * n)
        for draw in z:
            theta = loc + softplus(raw) * draw
            gradient = gradient_by_differences(lambda at, y=y: -log_likelihood(model, at, y), theta)
            want += np.concatenate((gradient, gradient * draw * sigmoid(raw))) / 6
            one, start = model.gradient_map(loc, raw, draw[None], np.ones(1))
            np.testing.assert_allclose((one @ t + start)[:n], gradient, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(matrix @ t + offset, want, rtol=1e-6, atol=1e-8)


@every_model
def test_prior_density_and_gradients(model, rng):
    n = model.n_params
    theta = rng.normal(size=(4, n))
    got = model.log_prior(theta)
    np.testing.assert_allclose(got, [log_prior(model, point) for point in theta], rtol=1e-7)
    slopes = np.array([gradient_by_differences(lambda at: float(model.log_prior(at)), point) for point in theta])
    np.testing.assert_allclose(model.log_prior_gradient(theta), slopes, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.log_prior_gradient(theta[0]), slopes[0], rtol=1e-6, atol=1e-8)
    at = np.concatenate((theta[0], theta[1] - 1.0))
    grid, weight = rule(48, n)
    want = gradient_by_differences(lambda p: weight @ model.log_prior(p[:n] + softplus(p[n:]) * grid), at)
    got = np.concatenate(model.expected_log_prior_gradient(at[:n], at[n:]))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    again = model.prior_gradient(at[:n], at[n:], nodes, weights / weights.sum())
    np.testing.assert_allclose(again, -want, rtol=1e-6, atol=1e-7)


@every_model
def test_information_is_the_variance_of_the_score(model, rng):
    """The diagonal, by the sum (or integral) over records; also for many points at once."""
    loc = rng.normal(size=(3, model.n_params))
    got = model.information(loc)
    for theta, want in zip(loc, got, strict=True):

        def squared_score(y, theta=theta):
            score = gradient_by_differences(lambda at: log_likelihood(model, at, y), theta)
            return score**2 * np.exp(log_likelihood(model, theta, y))

        if isinstance(model, GammaExponential):
            value = integrate.quad(lambda y: squared_score(y)[0], 0, np.inf)[0]
        else:
            count = model.n_trials + 1 if isinstance(model, BetaBinomial) else model.n_params + 1
            value = sum(squared_score(float(y)) for y in range(count))
        np.testing.assert_allclose(value, want, rtol=1e-5)


def test_stick_breaking_has_a_diagonal_information_and_softmax_has_not():
    """Off-diagonal products of scores, expected over records."""
    for bijector, size in (("stick_breaking", 0.0), ("softmax", 0.05)):
        model = DirichletCategorical((2.0, 3.0, 1.5), bijector=bijector)
        theta = np.array([0.3, -0.4])
        cross = 0.0
        for y in range(3):
            score = gradient_by_differences(lambda at, y=y: log_likelihood(model, at, y), theta)  # noqa: B023
            cross += score[0] * score[1] * np.exp(log_likelihood(model, theta, y))
        assert abs(cross) == pytest.approx(0.0, abs=1e-9) if size == 0.0 else abs(cross) > size


@every_model
def test_maps_round_trip(model, rng):
    theta = 2.0 * rng.normal(size=(7, 2, model.n_params))
    params = model.constrain(theta)
    assert params.shape == theta.shape
    np.testing.assert_allclose(model.unconstrain(params), theta, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.constrain(theta[0, 0]), params[0, 0], rtol=1e-15)
    if isinstance(model, DirichletCategorical):
        assert np.all(params.sum(axis=-1) < 1.0)
    assert np.all(np.isfinite(model.constrain(np.full(model.n_params, 700.0))))
    assert np.all(np.isfinite(model.constrain(np.full(model.n_params, -700.0))))


def test_the_two_maps_of_probabilities():
    theta = np.array([0.4, -1.1])
    sticks, softmax = DirichletCategorical(), DirichletCategorical(bijector="softmax")
    np.testing.assert_allclose(softmax.constrain(theta), special.softmax([0.4, -1.1, 0.0])[:2])
    first = special.expit(0.4)
    np.testing.assert_allclose(sticks.constrain(theta), [first, (1 - first) * special.expit(-1.1)])
    np.testing.assert_allclose(sticks.constrain(sticks.default_start()[0]), [1 / 3, 1 / 3])
    np.testing.assert_allclose(softmax.constrain(softmax.default_start()[0]), [1 / 3, 1 / 3])


@every_model
def test_plain_data(model):
    assert model_from_dict(model.to_dict()) == model
    assert len(model.names) == model.n_params == len(set(model.names))
    assert all(part.shape == (model.n_params,) for part in model.default_start())


@every_model
def test_posterior_is_prior_times_likelihood(model, rng):
    """Its log density differs from log prior + log likelihood by a constant: on 5 points of theta."""
    truth = model.sample_prior(1, rng)[0]
    X = model.simulate(truth, 40, rng)
    posterior = model.posterior(X)
    theta = rng.normal(size=(5, model.n_params))
    joint = model.log_prior(theta) + sum(log_likelihood(model, theta, y) for y in X)
    difference = posterior.log_density(theta) - joint
    np.testing.assert_allclose(difference, difference[0], rtol=1e-9)
    total = model.sufficient_statistics(X).sum(axis=0)
    assert model.posterior_from_total(total, 40) == posterior
    assert model.posterior(X[:, None]) == posterior


@every_model
def test_marginals_of_the_posterior(model, rng):
    """Means, standard deviations and quantiles on both spaces against 400,000 draws (5 standard errors)."""
    posterior = model.posterior(model.simulate(model.sample_prior(1, rng)[0], 25, rng))
    count = 400_000
    params = posterior.sample(count, rng)
    theta = model.unconstrain(params)
    for space, draws, mean, stddev in (
        ("constrained", params, posterior.mean, posterior.stddev),
        ("unconstrained", theta, posterior.unconstrained_mean, posterior.unconstrained_stddev),
    ):
        np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5 * stddev.max() / np.sqrt(count))
        np.testing.assert_allclose(draws.std(axis=0), stddev, rtol=5 * 1.2 / np.sqrt(count))
        for probability in (0.05, 0.5, 0.9):
            share = np.mean(draws <= posterior.quantile(probability, space), axis=0)
            np.testing.assert_allclose(share, probability, atol=5 * np.sqrt(0.25 / count))
        low, high = posterior.interval(0.9, space)
        np.testing.assert_allclose(low, posterior.quantile(0.05, space))
        np.testing.assert_allclose(high, posterior.quantile(0.95, space))
    mean, stddev = model.prior_moments()
    np.testing.assert_array_equal(mean, model.prior.unconstrained_mean)
    np.testing.assert_array_equal(stddev, model.prior.unconstrained_stddev)


def test_quantiles_reach_far_tails():
    """No end of a logit's law rounds to infinity, and the two tails mirror each other."""
    law = DirichletOnLogits((0.05, 3.0))
    mirrored = DirichletOnLogits((3.0, 0.05))
    tails = np.array([1e-12, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-9])
    values = law.quantile(tails, "unconstrained")
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values[:, 0]) > 0)
    np.testing.assert_allclose(mirrored.quantile(1 - tails[1:], "unconstrained"), -values[1:], rtol=1e-6)
    assert law.quantile(0.5).shape == (1,)
    assert law.quantile(np.full((2, 3), 0.5)).shape == (2, 3, 1)


def test_gamma_moments_of_theta_against_integration():
    law = GammaOnSoftplus(2.0, 3.0)

    def moment(power):
        def integrand(theta):
            return theta**power * np.exp(law.log_density(np.array([theta])))

        return integrate.quad(integrand, -60, 30, limit=400)[0]

    assert moment(0) == pytest.approx(1.0)
    assert law.unconstrained_mean[0] == pytest.approx(moment(1), rel=1e-4)
    assert law.unconstrained_stddev[0] == pytest.approx(np.sqrt(moment(2) - moment(1) ** 2), rel=1e-3)
    assert softplus_inverse(law.quantile(0.3)) == pytest.approx(law.quantile(0.3, "unconstrained"))


@every_model
def test_simulation_follows_the_likelihood(model, rng):
    """A Kolmogorov or exact multinomial check at 1e-6; the same check rejects other parameters.

    The truth is far enough from zero: 0.7 of it is rejected with probability 1 - 1e-6.
    """
    truth = np.full(model.n_params, 1.0 / (model.n_params + 1))
    X = model.simulate(truth, 4000, 5)
    assert X.shape == (4000,)
    assert model.invalid_records(X) is None
    np.testing.assert_array_equal(X, model.simulate(truth, 4000, 5))

    def rejects(params):
        theta = model.unconstrain(params)
        if isinstance(model, GammaExponential):
            return stats.kstest(X, stats.expon(scale=1 / params[0]).cdf).pvalue < 1e-6
        count = model.n_trials + 1 if isinstance(model, BetaBinomial) else model.n_params + 1
        expected = np.exp([float(log_likelihood(model, theta, y)) for y in range(count)])
        # Hoeffding for each cell, with a union over them.
        bound = np.sqrt(np.log(2 * count / 1e-6) / (2 * 4000))
        return np.max(np.abs(np.bincount(X.astype(int), minlength=count) / 4000 - expected)) > bound

    assert not rejects(truth)
    assert rejects(0.7 * truth)


@pytest.mark.statistical
@every_model
def test_exact_posteriors_cover(model):
    """Ranks of the truth under its exact posterior are uniform: 2000 simulations, Kolmogorov at 1e-6 in total.

    Power twin: the prior in the place of the posterior, and records counted twice, are rejected.
    """
    rng = np.random.default_rng(11)
    truth = model.sample_prior(2000, rng)
    level = 1e-6 / model.n_params

    def ranks(law, params):
        if isinstance(law, GammaOnSoftplus):
            return stats.gamma.cdf(params, law.shape, scale=1 / law.rate)
        alpha = np.array(law.concentration)
        return stats.beta.cdf(params, alpha[:-1], alpha.sum() - alpha[:-1])

    right, twice = [], []
    for params in truth:
        total = model.sufficient_statistics(model.simulate(params, 30, rng)).sum(axis=0)
        right.append(ranks(model.posterior_from_total(total, 30), params))
        twice.append(ranks(model.posterior_from_total(2 * total, 60), params))
    for column in range(model.n_params):
        assert stats.kstest(np.array(right)[:, column], "uniform").pvalue > level
        assert stats.kstest(np.array(twice)[:, column], "uniform").pvalue < level


def test_what_records_must_be():
    assert GammaExponential().invalid_records(np.array([0.0, 3.5])) is None
    assert GammaExponential().invalid_records(np.array([1.0, -1e-9])) == "numbers of at least 0"
    assert BetaBernoulli().invalid_records(np.array([0.0, 0.5])) == "0 or 1"
    assert BetaBinomial(3).invalid_records(np.array([0.0, 3.0])) is None
    for bad in (4.0, -1.0, 1.5):
        assert BetaBinomial(3).invalid_records(np.array([0.0, bad])) == "integers in 0..3"
    for bad in (3.0, -1.0, 0.5):
        assert DirichletCategorical().invalid_records(np.array([0.0, bad])) == "integers in 0..2"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GammaExponential(0.0), ValueError, "shape"),
        (lambda: GammaExponential(rate="2"), TypeError, "rate"),
        (lambda: BetaBernoulli(a=-1.0), ValueError, "a must"),
        (lambda: BetaBinomial(0), ValueError, "n_trials"),
        (lambda: BetaBinomial(2.0), TypeError, "n_trials"),
        (lambda: DirichletCategorical((1.0,)), ValueError, "concentration"),
        (lambda: DirichletCategorical((1.0, 0.0)), ValueError, "concentration"),
        (lambda: DirichletCategorical((1.0,) * 34), ValueError, "at most 33"),
        (lambda: DirichletCategorical(bijector="logistic"), ValueError, "bijector"),
        (lambda: BetaBernoulli().simulate([1.5], 3, 1), ValueError, "params"),
        (lambda: DirichletCategorical().simulate([0.7, 0.7], 3, 1), ValueError, "params"),
        (lambda: GammaExponential().simulate([0.0], 3, 1), ValueError, "params"),
        (lambda: GammaExponential().posterior_from_total([1.0, 2.0], 3), ValueError, "total"),
        (lambda: GammaExponential().prior.quantile(1.0), ValueError, "probability"),
        (lambda: GammaExponential().prior.interval(1.0), ValueError, "level"),
        (lambda: GammaExponential().prior.quantile(0.5, "log"), ValueError, "space"),
        (lambda: DirichletCategorical((1.0,) * 8, "softmax").check_points(8), ValueError, "n_nodes"),
        (
            lambda: DirichletCategorical((1.0,) * 8, "softmax").expected_log_prior_gradient(np.zeros(7), np.zeros(7)),
            ValueError,
            "at most 6",
        ),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
