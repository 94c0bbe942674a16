"""The posterior of a private Newton run: gradients, conditionals and a whole posterior against oracles; coverage."""

import dataclasses

import numpy as np
import pytest
from scipy import special, stats
from tests.reference.newton_density import log_density, moments_of
from tests.reference.newton_quadrature import moments_of_posterior

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, NonPrivateEvent
from dpinfer.errors import NumericalError, ReleaseFormatError
from dpinfer.inference import _native
from dpinfer.inference.newton.conflict import prior_conflict
from dpinfer.inference.newton.matrices import FactoredMoments, cholesky_factors, inverses
from dpinfer.inference.newton.matrix_prior import FLATTEST, POWER, FlattenedWishart, MatrixState
from dpinfer.inference.newton.monte_carlo import monte_carlo_error
from dpinfer.inference.newton.posterior import newton_distribution, newton_sampler
from dpinfer.inference.newton.scale_law import ScaleLaw
from dpinfer.inference.newton.target import LeapfrogPath, MomentRelease, MomentsTarget, draw_optimum, weights_given
from dpinfer.inference.newton.trace_model import TraceModel, WeakScalePrior
from dpinfer.models.huber import chi_mean, chi_second_moment, chi_slope, huber_slope, huber_variance, mallows_mean
from dpinfer.models.whitening import shrink_moments
from dpinfer.testing import InsecureRNG


def simulated_release(rng, p, *, epsilon=1.0, n_records=2000, seed=1, intercept=False, correlation=0.0):
    distance = np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    X = rng.normal(size=(n_records, p)) @ np.linalg.cholesky(np.power(correlation, distance)).T
    weights = rng.normal(size=p + intercept)
    y = X @ weights[:p] + weights[p:].sum() + 0.5 * rng.normal(size=n_records)
    model = dpi.models.LinearRegression(p, fit_intercept=intercept)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=n_records)
    release = dpi.run_newton(
        model, X, y, plan=plan, n_records=n_records, response_scale=1.5, random_source=InsecureRNG(seed)
    )
    return release, np.append(weights, 0.25)


def trace_of(release, chains):
    loc = np.full(chains, np.log(release.response_spread) - 1.0)
    return TraceModel.from_releases([release] * chains, [2.0] * chains, WeakScalePrior(loc, 2.0))


def random_states(rng, size, d, flattened):
    """Factors near the identity, directions and logits."""
    factor = np.tril(0.3 * rng.normal(size=(size, d, d)) + np.eye(d))
    return MatrixState.of(factor, rng.normal(size=(size, flattened, d)), rng.normal(size=(size, flattened)))


@pytest.mark.parametrize(("p", "flattened", "declared"), [(4, 2, True), (2, 1, False), (1, 0, True)])
def test_density_and_gradient_of_the_moments_are_those_of_the_oracle(rng, p, flattened, declared):
    release, _ = simulated_release(rng, p, epsilon=0.3, intercept=p > 1)
    trace, size = trace_of(release, 3), 3
    released = MomentRelease.from_releases([release] * size)
    if not declared:
        released = dataclasses.replace(released, diagonal=None, diagonal_stddev=None)
    target, d = MomentsTarget(released, trace), trace.n_coef
    state = random_states(rng, size, d, flattened)
    hyper = (target.prior.concentrations, np.stack((-np.log(target.prior.locations[0]), target.prior.locations[1])))
    np.testing.assert_allclose(
        state.moments[1], moments_of(state.factor[1], state.direction[1], state.logit[1]), atol=1e-12
    )
    linear = trace.linearised(np.log([0.4, 0.5, 0.6]), trace.excess(state.moments, 0.3 * rng.normal(size=(3, d))))

    def oracle(chain, point):
        given = {name: getattr(released, name) for name in ("noisy", "stddev", "to_declared", "diagonal")}
        given = {name: None if array is None else array[chain] for name, array in given.items()}
        given["diagonal_stddev"] = released.diagonal_stddev[chain] if declared else None
        scores = {
            "measured": linear.deviation[chain] + linear.mean_score[chain],
            "positions": trace.positions[chain],
            "precision": linear.precision[chain],
            "sampling": linear.sampling[chain],
            "prior_covariance": linear.prior_variance[chain] * trace.prior_covariance[chain],
        }
        one = MatrixState(point[None], d)
        return log_density((one.factor[0], one.direction[0], one.logit[0]), hyper, given, scores)

    value, gradient = target.density(state, linear)
    other = MatrixState(state.points + 0.05 * rng.normal(size=state.points.shape), d)
    moved, _ = target.density(other, linear)
    for chain in range(size):
        expected = oracle(chain, other.points[chain]) - oracle(chain, state.points[chain])
        assert moved[chain] - value[chain] == pytest.approx(expected, rel=1e-7, abs=1e-7)
        numeric = np.empty_like(gradient[chain])
        for index in range(numeric.size):
            step = 1e-5 * np.eye(numeric.size)[index]
            ends = [oracle(chain, state.points[chain] + sign * step) for sign in (1.0, -1.0)]
            numeric[index] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(numeric, gradient[chain], atol=1e-5 * np.abs(gradient[chain]).max())


def test_leapfrog_steps_are_reversible_keep_the_energy_and_refuse_a_singular_start(rng):
    release, _ = simulated_release(rng, 3, epsilon=0.3)
    trace = trace_of(release, 2)
    target = MomentsTarget(MomentRelease.from_releases([release] * 2), trace)
    state = random_states(rng, 2, 3, 2)
    linear = trace.linearised(np.log([0.4, 0.5]), trace.excess(state.moments, np.zeros((2, 3))))
    momentum, scale = rng.normal(size=state.points.shape), rng.uniform(1.0, 4.0, size=state.points.shape)
    changes = []
    for refined in (1, 10):
        path = LeapfrogPath(momentum, np.full(2, 1e-3 / refined), scale, 5 * refined)
        end, change = target.leapfrog(state, linear, path)
        changes.append(np.abs(change))
    assert np.all(changes[1] < 0.02 * changes[0])  # an error of second order
    before, after = (target.density(at, linear)[0] for at in (state, end))
    assert np.all(np.abs(after - before) > 10.0 * changes[1])
    singular = MatrixState.of(np.zeros((2, 3, 3)), state.direction, state.logit)
    assert np.all(np.isneginf(target.leapfrog(singular, linear, path)[1]))
    assert np.all(np.isneginf(target.density(singular, linear)[0]))


def prior_states(rng, size, d, flattened):
    """Draws from the prior of the second moments."""
    prior = FlattenedWishart(d)
    # The grid's weights hold the constant of each Wishart density; what is left is the prior of its concentration.
    grid = prior.concentrations[0]
    freedom = rng.choice(grid, size=size, p=grid**-1.5 / np.sum(grid**-1.5))
    bartlett = np.tril(rng.normal(size=(size, d, d)), -1)
    bartlett[:, np.arange(d), np.arange(d)] = np.sqrt(rng.chisquare(freedom[:, None] - np.arange(d)))
    location = rng.choice(-np.log(prior.locations[0]), size=size, p=prior.locations[1])
    logit = rng.logistic(loc=location[:, None], size=(size, flattened))
    return MatrixState.of(bartlett, rng.normal(size=(size, flattened, d)), logit)


def test_the_prior_knows_matrices_near_the_identity_of_many_weights():
    """The eigenvalues of a Wishart matrix of nu degrees lie about (1 +- sqrt(d / nu))**2: within a third for these."""
    for d in (11, 100, 300):
        state = MatrixState.of(np.eye(d)[None], np.ones((1, 1, d)), np.full((1, 1), 8.0))
        assert float(FlattenedWishart(d).concentration(state)[0]) > 9.0 * d


def test_steps_on_the_flattening_leave_the_prior_as_it_is_and_some_of_them_the_moments():
    """Without data the law of logits and of F's shape stays: 6 means of 4000 within 5 standard errors, below 1e-5.

    Without the change of |F| in a regrouping's acceptance all three move by more than 30 standard errors.
    """
    rng, size, d = np.random.default_rng(4), 4000, 3
    state = prior_states(rng, size, d, 2)
    nothing, one, flat = np.zeros(0), np.ones(size), np.tile(np.eye(d), (size, 1, 1))
    prior = FlattenedWishart(d)
    settings = np.array([POWER, FLATTEST, 0.9, 0.4, 0.2])
    kernel = _native.NewtonMoments(
        flat, 1e-18 * one, flat, nothing, nothing, nothing, settings, prior.concentrations, prior.locations, 0
    )
    scores = (
        *(np.full((size, 1), 1e-18), np.zeros((size, 1, d)), np.zeros((size, 1, d)), 1e-18 * one),
        *(np.zeros((size, d)), np.zeros((size, d)), one, one),
    )

    def stepped(points, follows, regroups):
        numbers = rng.normal(size=(size, 2 * (follows + regroups), d + 4))
        numbers[..., -3:] = rng.uniform(size=numbers[..., -3:].shape)
        still = (points, np.zeros_like(points), 0.0 * one, np.ones_like(points), numbers, one)
        return MatrixState(kernel.step(*still, 1, follows, scores)[0], d)

    def shape(state):
        F = state.factor
        free = np.linalg.slogdet(F)[1] - 0.5 * d * np.log(np.einsum("bij,bij->b", F, F))
        return np.stack([free, *np.sort(state.logit, axis=1).T])

    regrouped = stepped(state.points, 0, 12)
    np.testing.assert_allclose(regrouped.moments, state.moments, rtol=1e-7, atol=1e-9 * np.abs(state.moments).max())
    assert np.mean(np.any(regrouped.logit != state.logit, axis=1)) > 0.9
    after = stepped(regrouped.points, 4, 8)
    assert np.mean(np.any(np.abs(after.moments / regrouped.moments - 1.0) > 1e-3, axis=(1, 2))) > 0.9
    for moved in (regrouped, after):
        change = shape(moved) - shape(state)
        assert np.all(np.abs(change.mean(axis=1)) < 5.0 * change.std(axis=1) / np.sqrt(size))


def test_the_law_of_the_noise_variance_is_that_of_quadrature(rng):
    """Distribution function and integral of log sigma, against a fine grid far out; and what it draws."""
    release, _ = simulated_release(rng, 3, epsilon=0.5)
    size = 4
    trace = trace_of(release, size)
    moments = FactoredMoments.of(np.tile(shrink_moments(release.moments[-1], 0.02, 4.0).matrix, (size, 1, 1)))
    optimum = np.asarray(trace.positions[:, -1]) + 0.01 * rng.normal(size=(size, 3))
    held = trace.excess(moments.matrix, optimum) * 1.2
    reference = np.log(0.5) + np.array([-0.5, 0.0, 0.2, 0.6])
    law = ScaleLaw.given(trace, moments, optimum, held, reference)
    fine = np.linspace(-2.0, 0.5, 20001)[:, None] + np.zeros(size)
    products = trace.products(moments.matrix, optimum)
    values = trace.log_scale_prior.log_density(fine) + trace.log_scales(fine, products.excess)
    values += trace.log_scores(products, fine, products.excess, held)
    for index in range(size):
        prior = trace.prior_variance(fine)[:, index]
        sampling = trace.sampling(np.sqrt(np.exp(2.0 * fine) + held[:, -1]))[:, index]
        covariance = prior[:, None, None] * trace.prior_covariance[index]
        covariance = covariance + sampling[:, None, None] * np.linalg.inv(moments.matrix[index])
        solved = np.linalg.solve(covariance, np.tile(optimum[index][:, None], (len(fine), 1, 1)))[..., 0]
        values[:, index] -= 0.5 * (np.linalg.slogdet(covariance)[1] + solved @ optimum[index])
    weight = np.exp(values - values.max(axis=0))
    share = np.cumsum(weight, axis=0) / weight.sum(axis=0)
    mean = np.sum(fine * weight, axis=0) / weight.sum(axis=0)
    spread = np.sqrt(np.sum(np.square(fine - mean) * weight, axis=0) / weight.sum(axis=0))
    drawn = np.stack([law.draw(rng) for _ in range(4000)])
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5.0 * spread / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.06)
    middle = law.nodes + 0.5 * (law.nodes[1] - law.nodes[0])
    for index in range(size):
        expected = np.interp(middle[:, index], fine[:, index], share[:, index])
        np.testing.assert_allclose(law.cumulated[:, index], expected, atol=5e-3)


def test_the_kernel_refuses_arrays_of_another_type_or_shape(rng):
    square, one = np.tile(np.eye(2), (3, 1, 1)), np.ones(3)
    nothing, prior = np.zeros(0), np.array([3.0, 0.003, 0.9, 0.4, 0.2])
    grid = np.array([[4.0, 5.0], [0.5, 0.5]])
    good = (square, one, square, nothing, nothing, nothing, prior, grid, grid, 0)
    scores = (
        np.ones((3, 1)),
        np.zeros((3, 1, 2)),
        np.zeros((3, 1, 2)),
        one,
        *[np.zeros((3, 2))] * 2,
        one,
        one,
    )
    points = np.tile(np.eye(2).ravel(), (3, 1))
    kernel = _native.NewtonMoments(*good)
    assert np.all(np.isfinite(kernel.density(points, scores)[0]))
    for index, wrong in (
        (0, square[:, :1]),
        (1, one[:2]),
        (2, square[:2]),
        (3, square),
        (6, prior[:4]),
        (7, grid[:1]),
        (9, -1),
    ):
        with pytest.raises((TypeError, ValueError)):
            _native.NewtonMoments(*good[:index], wrong, *good[index + 1 :])
    with pytest.raises(TypeError):
        _native.NewtonMoments(square.astype(np.float32), *good[1:])
    for at in (points[:2], points[:, :3], points.astype(np.float32), points[:, :, None]):
        with pytest.raises((TypeError, ValueError)):
            kernel.density(at, scores)
    for given in (scores[:7], (scores[0][:, 0], *scores[1:]), (*scores[:7], np.ones(2))):
        with pytest.raises((TypeError, ValueError)):
            kernel.density(points, given)
    with pytest.raises(ValueError, match="leaps"):
        kernel.leapfrog(points, points, one, points, 0, scores)
    steps = (points, points, one, points, np.zeros((3, 4, 6)), one)
    assert kernel.step(*steps, 1, 1, scores)[0].shape == points.shape
    for index, wrong in ((0, points[:2]), (1, points[:, :2]), (2, one[:1]), (4, np.zeros((3, 3, 6))), (5, one[:2])):
        with pytest.raises((TypeError, ValueError)):
            kernel.step(*steps[:index], wrong, *steps[index + 1 :], 1, 1, scores)
    for counts in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match=r"leaps|follows"):
            kernel.step(*steps, *counts, scores)


def test_weights_given_the_rest_are_those_of_the_joint_normal_law(rng):
    release, _ = simulated_release(rng, 3)
    trace = trace_of(release, 1)
    moments = MomentRelease.from_releases([release]).shrunken[0].matrix[None]
    linear = trace.linearised(np.log([0.5]), trace.excess(moments, trace.positions[:, -1]))
    mean, precision = weights_given(moments, linear, trace)
    M, prior = moments[0], linear.prior_variance[0] * trace.prior_covariance[0]
    # Joint covariance of (u, y_1, ..., y_T) with y_t = M (u* - u_t) + noise, conditioned by hand.
    steps, d = trace.positions.shape[1:]
    zero = prior + linear.sampling[0] * np.linalg.inv(M)
    stacked = np.tile(M, (steps, 1))
    covariance = stacked @ zero @ stacked.T + np.kron(np.diag(1.0 / linear.precision[0]), np.eye(d))
    measured = (linear.deviation[0] + linear.mean_score[0]) + trace.positions[0] @ M
    gain = prior @ stacked.T @ np.linalg.inv(covariance)
    np.testing.assert_allclose(mean[0], gain @ measured.ravel(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(np.linalg.inv(precision[0]), prior - gain @ stacked @ prior, rtol=1e-6, atol=1e-9)


def test_the_optimum_is_drawn_from_its_conditional_law():
    """4000 draws; each of 3 means and 9 covariances within 5 standard errors: false-positive rate below 1e-5.

    A draw that left out the sampling error of u* would have far less variance here, and is rejected.
    """
    release, _ = simulated_release(np.random.default_rng(8), 3, n_records=200)
    size = 4000
    trace = trace_of(release, size)
    moments = np.tile(MomentRelease.from_releases([release]).shrunken[0].matrix, (size, 1, 1))
    linear = trace.linearised(np.full(size, np.log(0.5)), np.zeros(trace.positions.shape[:2]))
    one = np.ones(size)
    linear = dataclasses.replace(linear, sampling=0.5 * one, prior_variance=0.5 * one, total=3.0 * one)
    drawn = draw_optimum(FactoredMoments.of(moments), linear, trace, np.random.default_rng(1))
    M, prior = moments[0], linear.prior_variance[0] * trace.prior_covariance[0]
    before = np.linalg.inv(prior + linear.sampling[0] * np.linalg.inv(M))
    covariance = np.linalg.inv(before + linear.total[0] * M @ M)
    mean = covariance @ (linear.total[0] * M @ (linear.mean_score[0] + M @ linear.mean_position[0]))
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5.0 * np.sqrt(np.diag(covariance) / size))
    spread = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / size)
    assert np.all(np.abs(np.cov(drawn.T) - covariance) < 5.0 * spread)
    without = np.linalg.inv(np.linalg.inv(prior) + linear.total[0] * M @ M)
    assert np.any(np.abs(np.cov(drawn.T) - without) > 10.0 * spread)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_one_weight_against_quadrature(epsilon):
    """The sampler's means within 5 Monte Carlo errors, standard deviations within 8%, of a grid over three unknowns."""
    release, _ = simulated_release(np.random.default_rng(3), 1, epsilon=epsilon, n_records=1500)
    sampler, _ = newton_sampler([release], [2.0], n_chains=32, seed=2)
    sampler.warm_up(50)
    draws = sampler.draw(60)
    # Errors of the model are taken at excesses that differ between chains: the oracle takes those of their middle.
    known = np.exp(np.median(np.log(sampler.known_excess), axis=0))
    W = float(release.transforms[-1][0, 0])
    centre = (
        np.log(max(float(release.moments[-1][0, 0]), 0.2)), float(draws.mean.mean()), float(draws.log_scale.mean())
    )  # fmt: skip
    location, variance = draws.mean[..., 0] * W, W**2 / draws.precision[..., 0, 0]
    stddev = np.sqrt(variance.mean() + location.var())
    reach = (6.0 * float(release.moment_stddev[-1]), 6.0 * stddev / W, 5.0 * float(draws.log_scale.std()))
    weight, eta, outside = moments_of_posterior(release, 2.0, centre, reach, known)
    assert outside < 0.01
    error = monte_carlo_error(
        np.stack((location, draws.log_scale), axis=2), np.stack((variance, 1e-12 + 0.0 * variance), axis=2)
    )
    assert abs(location.mean() - weight[0]) < 5.0 * stddev / np.sqrt(error.equivalent_draws[0]) + 0.03 * stddev
    assert stddev == pytest.approx(weight[1], rel=0.08)
    assert abs(draws.log_scale.mean() - eta[0]) < (5.0 / np.sqrt(error.equivalent_draws[1]) + 0.03) * eta[1]
    assert draws.log_scale.std() == pytest.approx(eta[1], rel=0.1)


def coverage(releases, truths, seed):
    sampler, trace = newton_sampler(releases, [2.0] * len(releases), n_chains=1, seed=seed)
    sampler.warm_up(40)
    found = [sampler.draw(40)]
    ends = [
        newton_distribution(release, found, trace, slice(index, index + 1))[0].marginals.quantile(
            np.array([0.05, 0.95])
        )
        for index, release in enumerate(releases)
    ]
    low, high = np.array(ends)[:, 0], np.array(ends)[:, 1]
    return (low < truths) & (truths < high)


@pytest.mark.statistical
def test_intervals_cover():
    """40 runs, 2 weights and the noise variance each; false-positive rate below 1e-6 if every interval covers 0.85.

    Intervals at half the width would be rejected with power above 0.99: they cover 0.59.
    """
    rng = np.random.default_rng(11)
    pairs = [simulated_release(rng, 2, n_records=1000, seed=index, correlation=0.7) for index in range(40)]
    truths = np.array([truth for _, truth in pairs])
    truths[:, -1] = np.log(np.expm1(truths[:, -1]))
    covered = coverage([release for release, _ in pairs], truths, 5).sum()
    least = stats.binom.ppf(1e-6, 120, 0.85)
    assert covered >= least
    assert stats.binom.sf(least - 1, 120, 0.59) < 0.2


def test_the_public_posterior(rng):
    release, truth = simulated_release(rng, 2, intercept=True)
    posterior = dpi.noise_aware_posterior(release, seed=3)
    assert posterior.names == ("coef[0]", "coef[1]", "intercept", "noise_variance")
    assert np.all(np.abs(posterior.mean - truth) < 6.0 * posterior.stddev)
    assert np.max(posterior.diagnostics.mcse) < 0.05
    assert np.min(posterior.diagnostics.equivalent_draws) > 100
    text = str(posterior.summary())
    assert "Prior of the noise variance: weak, 90% of it between" in text
    assert "Monte Carlo error" in text
    parts = posterior.decompose()
    assert np.all((parts.data > 0.0) & (parts.privacy >= 0.0))
    np.testing.assert_allclose(parts.total, posterior.distribution.marginals.variance, rtol=1e-6)
    again = dpi.noise_aware_posterior(release, seed=3)
    np.testing.assert_array_equal(again.mean, posterior.mean)


def test_the_models_own_prior_of_the_noise_variance_enters_and_is_named(rng):
    release, _ = simulated_release(rng, 1, n_records=300, epsilon=0.3)
    weak, own = (
        dpi.noise_aware_posterior(release, prior=prior, n_samples=60, n_warmup=60, check_convergence=False)
        for prior in ("weak", "model")
    )
    # The default InvGamma(20, 0.5) has mean 0.026; the variance is 0.25.
    assert own.mean[-1] < 0.9 * weak.mean[-1]
    assert "the model's inverse gamma" in str(own.summary())


def verdict_of(*, size=0.5, declared=1.0, feature=1.0, quadratic=0.0, wild=0.0, twin=None, unit=0.0):
    """Two weights of `size` prior standard deviations, with one thing wrong; scores in units, if any."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, 2))
    if twin is not None:
        X[:, 1] = X[:, 0] + twin * X[:, 1]
    mean = X @ [2.0 * size, -2.0 * size]
    errors = rng.normal(size=4000) * np.where(rng.random(4000) < wild, 60.0, 1.0)
    y = mean + quadratic * mean**2 + errors
    y = unit * np.rint(y / unit) if unit else y
    model = dpi.models.LinearRegression(2)
    plan = dpi.plan_newton(model, target_epsilon=3.0, target_delta=1e-5, n_records=4000)
    release = dpi.run_newton(
        model, feature * X, y, plan=plan, n_records=4000, response_scale=declared * float(np.std(mean)) + declared,
        random_source=InsecureRNG(1),
    )  # fmt: skip
    posterior = dpi.noise_aware_posterior(release, n_samples=30, n_warmup=40)
    return posterior.diagnostics, str(posterior.summary())


def test_a_release_that_fits_is_said_to():
    for declared in (0.1, 1.0, 10.0):
        found, text = verdict_of(declared=declared)
        assert found.warnings == ""
        assert found.n_unresolved == 0
        assert "The release fits its model" in text


def test_scores_in_few_whole_numbers_are_no_wrong_scale():
    """More than a third of them are zero, as marks at the middle of their range are."""
    assert "scale" not in verdict_of(unit=1.8)[0].warnings
    assert "scale" in verdict_of(unit=1.8, declared=2000.0)[0].warnings


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("prior", {"size": 10.0}, "larger than their prior expects"),
        ("scale", {"declared": 2000.0}, "response_scale is far too large"),
        ("scale", {"declared": 1.0 / 300.0}, "response_scale is far too small"),
        ("features", {"feature": 5.0}, "larger than declared"),
        ("tails", {"wild": 0.15}, "much farther out"),
        ("fit", {"quadratic": 1.5}, "contradict each other"),
    ],
)
def test_what_does_not_fit_is_named(name, wrong, words):
    found, text = verdict_of(**wrong)
    assert name in found.warnings.split(", ")
    assert "The release does not fit its model" in text
    assert words in text


def test_small_features_are_no_misfit_but_their_large_weights_are():
    assert verdict_of(size=0.1, feature=0.1)[0].warnings == ""
    assert verdict_of(size=3.0, feature=0.1)[0].warnings == "prior"


def test_directions_that_are_not_told_from_zero_are_counted():
    found, text = verdict_of(twin=1e-3)
    assert found.n_unresolved == 1
    assert "1 of 2 directions of the features are not told from zero" in text
    assert "fits its model" not in text


def test_the_p_value_of_a_prior_conflict_is_uniform_where_the_weights_are_known():
    """400 draws from the prior; Kolmogorov-Smirnov with a false-positive rate of 1e-6, and half the prior's scale."""
    rng = np.random.default_rng(5)
    weights = 2.0 * rng.normal(size=(400, 3))
    for scale, least, most in ((2.0, 1e-6, 1.0), (1.0, 0.0, 1e-6)):
        pvalues = [prior_conflict(w[None], np.zeros((1, 3, 3)), np.array([scale**2])) for w in weights]
        assert least <= stats.kstest(pvalues, "uniform").pvalue <= most


def test_a_wrong_number_of_records_is_no_misfit_of_the_scale_scores(rng):
    """The shares of the octaves tell the ratio, at little noise; where they do not, 10% are granted."""
    release, _ = simulated_release(rng, 2)
    octaves = release.counts.size
    for factor, noise, least, most in ((0.9, 1e-4, 0.0, 1e-3), (0.9, 1.0, 0.5, 9.0), (0.6, 1.0, 20.0, np.inf)):
        known = dataclasses.replace(
            release,
            counts=np.full(octaves, (0.9 if noise < 0.1 else 1.0) / octaves),
            counts_stddev=noise,
            event=NonPrivateEvent(),
            certified_epsilon=np.inf,
        )
        trace = trace_of(known, 1)
        moments, optimum, log_scale = np.eye(2)[None], trace.positions[:, 0], np.log([0.5])
        weight = trace.mean_weight[:, None]
        spread = np.sqrt(0.25 + trace.excess(moments, optimum) / weight)
        expected = weight * (chi_mean(trace.scale_units / spread) - trace.scale_centre[:, None])
        wrong = dataclasses.replace(trace, scale_scores=factor * expected, scale_stddev=np.full_like(expected, 1e-3))
        assert least <= wrong.misfit(moments, optimum, log_scale)[0, 1] <= most


def test_every_second_chain_begins_without_the_directions_that_are_not_told_from_zero(rng):
    for correlation, flat in ((0.0, False), (1.0 - 1e-7, True)):
        release, _ = simulated_release(rng, 3, epsilon=3.0, n_records=4000, correlation=correlation)
        sampler, _ = newton_sampler([release], [2.0], n_chains=4, seed=1)
        values = np.linalg.eigvalsh(sampler._chains.state.moments)[:, 0]
        assert (np.max(values[1::2]) < 0.7 * np.min(values[::2])) == flat
        assert np.all(values > 0.0)


def test_of_thinned_chains_every_third_step_is_kept(rng):
    release, _ = simulated_release(rng, 2)
    every, third = (newton_sampler([release], [2.0], n_chains=2, seed=1)[0].draw(6 // thin, thin) for thin in (1, 3))
    np.testing.assert_array_equal(third.mean, every.mean[2::3])
    np.testing.assert_allclose(third.acceptance, every.acceptance)


def test_a_direction_that_declared_categories_leave_empty_keeps_its_prior(rng):
    """Indicators of all categories beside a constant: the weights' prior has a standard deviation of 1 along it."""
    kinds = rng.choice(3, size=4000, p=[0.5, 0.3, 0.2])
    X = (kinds[:, None] == np.arange(3)) + 0.0
    mean = np.append(np.full(3, 1.0 / 3.0), 1.0)
    moments = np.diag(mean)
    moments[-1] = moments[:, -1] = mean
    model = dpi.models.LinearRegression(3, prior_scale=2.0, fit_intercept=True, feature_moments=moments)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=4000)
    y = X @ [1.0, 0.0, -1.0] + 0.5 * rng.normal(size=4000)
    release = dpi.run_newton(model, X, y, plan=plan, n_records=4000, response_scale=1.0, random_source=InsecureRNG(4))
    empty = np.array([1.0, 1.0, 1.0, -1.0]) / 2.0
    assert np.linalg.norm(release.transforms[0] @ empty) > 30.0
    drawn = dpi.noise_aware_posterior(release, n_samples=60, n_warmup=60).sample(2000, seed=0)[:, :4]
    assert (drawn @ empty).std() > 0.8
    assert (drawn @ [1.0, -1.0, 0.0, 0.0]).std() < 0.2


def test_what_does_not_fit_is_refused(rng):
    release, _ = simulated_release(rng, 1, n_records=300)
    with pytest.raises(ValueError, match="prior"):
        dpi.noise_aware_posterior(release, prior="empirical")
    with pytest.raises(ValueError, match="hessian"):
        dpi.noise_aware_posterior(release, hessian="full")
    with pytest.raises(TypeError, match="LinearRegression"):
        dpi.noise_aware_posterior(release, model=dpi.models.LogisticRegression(2))
    with pytest.raises(ValueError, match="2 parameters"):
        dpi.noise_aware_posterior(release, model=dpi.models.LinearRegression(3))
    with pytest.raises(NumericalError, match="Monte Carlo error"):
        dpi.noise_aware_posterior(release, n_samples=20, n_warmup=10, fallback=False)
    said = str(dpi.noise_aware_posterior(release, n_samples=20, n_warmup=10).summary())
    assert "more than 5%, ask for more n_samples" in said


def test_a_release_survives_its_file(rng, tmp_path):
    release, _ = simulated_release(rng, 2)
    path = tmp_path / "newton.release"
    release.save(path)
    loaded = dpi.load_release(path)
    assert isinstance(loaded, dpi.NewtonRelease)
    for item in dataclasses.fields(release):
        ours, theirs = getattr(release, item.name), getattr(loaded, item.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        elif item.name not in ("model_spec", "settings"):
            assert ours == theirs, item.name
    assert dpi.models.model_from_dict(loaded.model_spec) == dpi.models.LinearRegression(2)
    assert not loaded.secure
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ReleaseFormatError):
        dpi.load_release(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clips": np.zeros(9)}, "clips must be positive"),
        ({"scores": np.zeros((3, 2))}, "scores must have shape"),
        ({"names": ("a", "a", "b")}, "distinct"),
        ({"n_measured": 0}, "n_measured"),
        ({"scale_centre": 1.0}, "scale_centre"),
        ({"certified_epsilon": -1.0}, "certified_epsilon"),
        ({"event": GaussianEvent(1.0)}, "composition of 14 Gaussian sums"),
        ({"counts_stddev": 1e-3}, "claim more noise"),
    ],
)
def test_a_malformed_release_is_refused(rng, change, message):
    release, _ = simulated_release(rng, 2, n_records=100)
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(release, **change)


def test_closed_forms_of_the_bounded_scores():
    r = special.ndtri((np.arange(200_000) + 0.5) / 200_000)
    for bound in (0.1, 0.7, 1.6, 4.0):
        psi, chi = np.clip(r, -bound, bound), np.minimum(np.abs(r) / bound, 1.0)
        assert huber_slope(bound) == pytest.approx(np.mean(np.abs(r) < bound), abs=1e-4)
        assert huber_variance(bound) == pytest.approx(np.mean(psi**2), rel=1e-4)
        assert chi_mean(bound) == pytest.approx(np.mean(chi), rel=1e-4)
        assert chi_second_moment(bound) == pytest.approx(np.mean(chi**2), rel=1e-4)
        grown = np.mean(np.minimum(1.001 * np.abs(r) / bound, 1.0)) - np.mean(
            np.minimum(0.999 * np.abs(r) / bound, 1.0)
        )
        assert chi_slope(bound) == pytest.approx(grown / 0.002, rel=1e-2)


def test_mean_of_the_weights_of_normal_features():
    for d, bound in ((1, 1.14), (3, 2.0), (57, 8.6)):
        squares = np.square(np.random.default_rng(d).normal(size=(100_000, d))).sum(axis=1)
        simulated = np.minimum(1.0, bound**2 / squares)
        assert mallows_mean(d, bound) == pytest.approx(simulated.mean(), abs=5.0 * simulated.std() / 316.0 + 1e-4)


def test_shrinkage_keeps_what_is_resolved_and_drops_what_is_not(rng):
    truth = np.diag([4.0, 1.0, 1.0, 1.0])
    sharp = shrink_moments(truth, 1e-6, 7.0)
    np.testing.assert_allclose(np.sort(sharp.eigenvalues), np.diag(truth)[::-1], atol=0.01)
    noise = np.triu(rng.normal(size=(4, 4)))
    vague = shrink_moments(np.eye(4) + 5.0 * (noise + noise.T), 10.0, 4.0)
    assert not vague.resolved.all()
    assert np.linalg.eigvalsh(vague.matrix)[0] > 0.0
    whitened = sharp.whitening @ truth @ sharp.whitening.T
    np.testing.assert_allclose(whitened, np.eye(4), atol=0.05)


def test_one_singular_matrix_leaves_the_others_alone(rng):
    good = rng.normal(size=(3, 4, 4)) + 3.0 * np.eye(4)
    stack = np.concatenate((good, np.zeros((1, 4, 4))))
    found = inverses(stack)
    np.testing.assert_allclose(found[:3], np.linalg.inv(good))
    assert np.isnan(found[3]).all()
    positive = good @ np.swapaxes(good, 1, 2)
    flat = np.outer([1.0, 2.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0])
    flat[2, 2] = -1e-17
    factors = cholesky_factors(np.concatenate((positive, flat[None])))
    np.testing.assert_allclose(factors @ np.swapaxes(factors, 1, 2), np.concatenate((positive, flat[None])), atol=1e-9)
