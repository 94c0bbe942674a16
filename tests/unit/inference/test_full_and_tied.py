"""Full Hessian against plain least squares, tied posterior against a grid over the raw trace."""

import numpy as np
import pytest
from scipy import stats
from tests.reference import inference_oracles as oracle

from dpinfer.errors import FallbackWarning, NumericalError
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.information.rows import row_regressions
from dpinfer.models.base import sigmoid, softplus
from dpinfer.release import release_from_arrays

RATE = 0.1
STEPS = 20_000
HESSIAN = np.array([[50.0, 20.0, 0.0], [20.0, 40.0, -10.0], [0.0, -10.0, 30.0]])
OPTIMUM = np.array([1.0, -0.5, 2.0])


@pytest.fixture(scope="module")
def correlated():
    rng = np.random.default_rng(2)
    tau = np.array([1.0, 2.0, 0.5])
    x, g, _ = oracle.simulate(
        rng, steps=STEPS, hessian=HESSIAN, optimum=OPTIMUM, noise_stddev=tau, learning_rate=np.full(3, 0.02)
    )
    return x, g, tau


@pytest.mark.parametrize("varying", ["constant", "shared", "own"])
def test_rows_are_weighted_least_squares(correlated, varying):
    x, g, tau = correlated
    rng = np.random.default_rng(0)
    factor = {
        "constant": np.ones((STEPS, 1)),
        "shared": rng.uniform(0.5, 2.0, (STEPS, 1)),
        "own": rng.uniform(0.5, 2.0, (STEPS, 3)),
    }[varying]
    noise = tau if varying == "constant" else np.ascontiguousarray(tau * factor * np.ones((STEPS, 3)))
    rows = row_regressions(x, g, noise)
    for j in range(3):
        stddev = np.broadcast_to(tau * factor, (STEPS, 3))[:, j]
        design = np.column_stack([x, np.ones(STEPS)]) / stddev[:, None]
        solution, residual, _, _ = np.linalg.lstsq(design, g[:, j] / stddev, rcond=None)
        covariance = np.linalg.inv(design.T @ design)
        np.testing.assert_allclose(rows.coefficients[j], solution[:3], rtol=1e-8)
        own = rows.factor[j if rows.factor.shape[0] > 1 else 0]
        np.testing.assert_allclose(rows.stddev[j] ** 2 * np.linalg.inv(own @ own.T), covariance[:3, :3], rtol=1e-7)
        mean = rows.position_mean[j if rows.position_mean.shape[0] > 1 else 0]
        assert rows.intercept[j] == pytest.approx(solution[3] + solution[:3] @ mean, rel=1e-6, abs=1e-8)
        assert rows.residual[j] * rows.stddev[j] ** 2 / tau[j] ** 2 == pytest.approx(
            residual[0] * (rows.stddev[j] / tau[j]) ** 2, rel=1e-9
        )


def test_full_posterior_recovers_optimum_and_hessian(correlated):
    x, g, tau = correlated
    posterior = noise_aware_posterior(oracle.point_release(x, g, tau, RATE), hessian="full", burn_in=0, seed=3)
    assert posterior.hessian_mean.shape == (3, 3)
    assert np.all(np.abs(posterior.hessian_mean - HESSIAN) < 6.0 * posterior.hessian_stddev)
    assert np.all(np.abs(posterior.optimum_mean - OPTIMUM) < 6.0 * posterior.optimum_stddev)
    assert posterior.diagnostics.share_dropped < 0.01
    # Delta method: optimum = -(kappa A)^-1 c with the covariance of the intercepts at the mean position.
    inverse = np.linalg.inv(RATE * posterior.hessian_mean)
    delta = np.sqrt(np.diag(inverse @ np.diag(tau**2 / STEPS) @ inverse.T))
    np.testing.assert_allclose(posterior.optimum_stddev, delta, rtol=0.2)
    np.testing.assert_allclose(posterior.decompose().total, posterior.stddev**2, rtol=1e-9)
    np.testing.assert_allclose(np.diag(posterior.cov), posterior.stddev**2, rtol=1e-9)
    draws = posterior.sample(20_000, seed=1)
    np.testing.assert_allclose(np.cov(draws.T), posterior.cov, atol=0.1 * posterior.stddev.max() ** 2)


def test_diagonal_model_is_wrong_for_correlated_parameters_and_full_is_right(correlated):
    """The power twin of the test above: the diagonal Hessian misses what the full one finds."""
    x, g, tau = correlated
    release = oracle.point_release(x, g, tau, RATE)
    diagonal = noise_aware_posterior(release, burn_in=0)
    full = noise_aware_posterior(release, burn_in=0, hessian="full")
    assert np.max(np.abs(diagonal.hessian_mean - np.diag(HESSIAN)) / diagonal.hessian_stddev) > 6.0
    assert np.max(np.abs(np.diag(full.hessian_mean) - np.diag(HESSIAN)) / np.diag(full.hessian_stddev)) < 6.0


def test_full_with_scales_and_extra_noise(rng):
    x, g, _ = oracle.simulate(
        rng, steps=4000, hessian=[60.0, 40.0], optimum=np.array([0.3, -1.0]), noise_stddev=[1.0, 0.3], omega=0.0
    )
    release = release_from_arrays(x, g, noise_stddev=np.array([1.0, 0.3]), sample_rate=RATE)
    full = noise_aware_posterior(release, burn_in=0, hessian="full", n_samples=3000)
    diagonal = noise_aware_posterior(release, burn_in=0)
    np.testing.assert_allclose(full.stddev, diagonal.stddev, rtol=0.02)
    np.testing.assert_allclose(full.mean, diagonal.mean, atol=0.3 * diagonal.optimum_stddev[0])


def test_hopeless_hessian_raises_with_advice(rng):
    x = rng.normal(size=(40, 6))
    release = oracle.point_release(x, -5.0 * x + rng.normal(size=(40, 6)), 1.0)
    with pytest.raises(NumericalError, match="hessian='diagonal'"):
        noise_aware_posterior(release, hessian="full", burn_in=0, fallback=False)
    with pytest.warns(FallbackWarning, match="hessian='full'.*hessian='diagonal'"):
        posterior = noise_aware_posterior(release, hessian="full", burn_in=0)
    assert posterior.hessian == "diagonal"
    assert posterior.stddev.tobytes() == noise_aware_posterior(release, burn_in=0).stddev.tobytes()
    assert "failed" in posterior.summary().warnings[0]


def test_too_few_steps_or_collinear_positions_are_refused(rng):
    x = rng.normal(size=(6, 5))
    with pytest.raises(NumericalError, match="at least 7 steps"):
        noise_aware_posterior(oracle.point_release(x, x, 1.0), hessian="full", burn_in=0, fallback=False)
    x = rng.normal(size=(50, 2))
    x = np.column_stack([x, x[:, 0]])
    with pytest.raises(NumericalError, match="collinear"):
        noise_aware_posterior(oracle.point_release(x, x, 1.0), hessian="full", burn_in=0, fallback=False)


def tied_trace(rng, steps, h, optimum, tau, start_u=None):
    """Return a trace of (mu, u) with the exact mean-field gradients of a quadratic loss with curvature h."""
    params, gradients = np.empty((steps, 2)), np.empty((steps, 2))
    mu, u = optimum, float(np.log(np.expm1(1.0 / np.sqrt(h)))) if start_u is None else start_u
    for t in range(steps):
        s, slope = softplus(u), sigmoid(u)
        params[t] = mu, u
        clean = np.array([RATE * h * (mu - optimum), RATE * slope * (h * s - 1.0 / s)])
        gradients[t] = clean + tau * rng.standard_normal(2)
        mu = mu - 20.0 / (steps * RATE * h) * gradients[t, 0]
        u = u - 20.0 / (steps * RATE * 2.0 * slope**2 / s**2) * gradients[t, 1]
    return params, gradients


@pytest.mark.parametrize("extra_noise", [False, True])
def test_tied_posterior_matches_a_grid_over_the_raw_trace(rng, extra_noise):
    tau = np.array([1.5, 0.3])
    params, gradients = tied_trace(rng, 400, 40.0, 0.6, tau)
    release = release_from_arrays(params, gradients, noise_stddev=tau, sample_rate=RATE)
    posterior = noise_aware_posterior(release, burn_in=0, hessian="tied", extra_noise=extra_noise)
    h, sd = posterior.hessian_mean[0], posterior.hessian_stddev[0]
    log_h = np.linspace(np.log(h) - 8.0 * sd / h, np.log(h) + 8.0 * sd / h, 121)
    grid = posterior.optimum_mean[0] + posterior.optimum_stddev[0] * np.linspace(-9.0, 9.0, 121)
    s, slope = softplus(params[:, 1]), sigmoid(params[:, 1])
    ratios = np.linspace(0.0, 2.0, 401) if extra_noise else np.zeros(1)
    # The raw-scale likelihood depends on h only: integrate its own noise out first.
    gap = gradients[:, 1] - RATE * slope * (np.exp(log_h)[:, None] * s - 1.0 / s)
    squares = np.sum(gap**2, axis=1) / tau[1] ** 2
    log_u = -0.5 * squares[:, None] / (1.0 + ratios**2) - (0.5 * 400 + 1.0) * np.log1p(ratios**2)
    peak = log_u.max()
    cells = np.exp(log_u - peak)
    if extra_noise:
        cells[:, 0] *= 0.5
    side = np.log(cells.sum(axis=1)) + peak
    weight, mx, _, xx, xg, _ = oracle.weighted_statistics(params[:, :1], gradients[:, :1], tau[:1])[:, 0]
    stderr, spread = tau[0] / np.sqrt(xx) / RATE, np.sqrt(xx / weight)
    design = RATE * slope * s / tau[1]
    own = np.sum(design * (gradients[:, 1] + RATE * slope / s) / tau[1]) / np.sum(design**2)
    largest = max(np.hypot(xg / xx / RATE, stderr), abs(own) + 1.0 / np.sqrt(np.sum(design**2)))

    def log_prior(hessian):
        return oracle.wide_prior(hessian, 100.0 * largest, 2.0) + np.interp(np.log(hessian), log_h, side)

    want = oracle.grid_posterior(
        params[:, 0],
        gradients[:, 0],
        tau[0],
        RATE,
        grid,
        log_h,
        log_prior,
        prior_loc=mx,
        prior_scale=10.0 * spread,
        ratios=ratios[::8] if extra_noise else None,
    )
    assert posterior.hessian_mean[0] == pytest.approx(want["hessian_mean"], rel=1e-3)
    assert posterior.hessian_stddev[0] == pytest.approx(want["hessian_stddev"], rel=5e-3)
    assert posterior.optimum_mean[0] == pytest.approx(want["optimum_mean"], abs=2e-3 * want["optimum_stddev"])
    assert posterior.optimum_stddev[0] == pytest.approx(want["optimum_stddev"], rel=2e-3)
    nodes = posterior.distribution
    total = np.sum(nodes.optimum.weight / nodes.optimum.weight.sum() * nodes.q_variance) + want["optimum_stddev"] ** 2
    assert posterior.stddev[0] ** 2 == pytest.approx(total, rel=1e-3)


def test_tied_needs_no_converged_scale(rng):
    tau = np.array([1.5, 0.3])
    params, gradients = tied_trace(rng, 3000, 40.0, 0.6, tau, start_u=0.5)
    release = release_from_arrays(params, gradients, noise_stddev=tau, sample_rate=RATE)
    tied = noise_aware_posterior(release, burn_in=0, hessian="tied")
    assert abs(tied.hessian_mean[0] - 40.0) < 6.0 * tied.hessian_stddev[0]
    assert tied.stddev[0] == pytest.approx(1.0 / np.sqrt(40.0), rel=0.15)
    assert tied.optimum_names == ("loc[theta[0]]",)
    diagonal = noise_aware_posterior(release, burn_in=0)
    assert tied.hessian_stddev[0] < diagonal.hessian_stddev[0]


def test_tied_draws_follow_its_quantiles(rng):
    tau = np.array([1.5, 0.3])
    params, gradients = tied_trace(rng, 500, 40.0, 0.6, tau)
    release = release_from_arrays(params, gradients, noise_stddev=tau, sample_rate=RATE)
    posterior = noise_aware_posterior(release, burn_in=0, hessian="tied")
    draws = np.sort(posterior.sample(20_000, seed=9)[:, 0])
    cdf = posterior.distribution.marginals.cdf(0, draws)
    assert stats.kstest(cdf, "uniform").statistic < oracle.ks_critical(20_000, 1e-6)
