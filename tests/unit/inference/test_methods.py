"""Laplace, emcee, NUTS, naive and averaged against the exact posterior and against each other."""

import builtins

import emcee
import numpy as np
import pytest
from scipy import stats
from tests.reference import inference_oracles as oracle

from dpinfer.errors import BackendUnavailableError, NumericalError
from dpinfer.inference import TracePrior, noise_aware_posterior
from dpinfer.inference.trace.collapsed import CollapsedProblems
from dpinfer.inference.trace.priors import coordinate_priors
from dpinfer.lab.comparison import sampled_posterior
from dpinfer.models.base import softplus
from dpinfer.release import GradientTrace, release_from_arrays

RATE = 0.1


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(11)
    hessian = np.array([60.0, 9.0, 40.0, 12.0])
    x, g, _ = oracle.simulate(
        rng,
        steps=1500,
        hessian=hessian,
        learning_rate=150.0 / (1500 * RATE * hessian),
        optimum=np.zeros(4),
        noise_stddev=np.array([1.0, 0.4, 2.0, 0.3]),
    )
    return release_from_arrays(x, g, noise_stddev=np.array([1.0, 0.4, 2.0, 0.3]), sample_rate=RATE, names=("a", "b"))


@pytest.mark.parametrize("extra_noise", [False, True])
def test_emcee_agrees_with_quadrature_within_its_error(release, extra_noise):
    exact = noise_aware_posterior(release, burn_in=0, extra_noise=extra_noise)
    sampled = sampled_posterior(release, burn_in=0, extra_noise=extra_noise, seed=1)
    effective = 1500 * 16 / sampled.diagnostics.autocorrelation
    for name in ("optimum", "hessian"):
        error = getattr(exact, f"{name}_stddev") / np.sqrt(effective)
        gap = getattr(sampled, f"{name}_mean") - getattr(exact, f"{name}_mean")
        assert np.all(np.abs(gap) < 5.0 * error)
        np.testing.assert_allclose(getattr(sampled, f"{name}_stddev"), getattr(exact, f"{name}_stddev"), rtol=0.15)
    tails = np.abs(sampled.quantile([0.05, 0.95]) - exact.quantile([0.05, 0.95]))
    assert np.all(tails < 0.02 * exact.stddev)


def test_emcee_is_reproducible_and_refuses_a_short_chain(release):
    first = sampled_posterior(release, n_samples=60, n_warmup=10, check_convergence=False, seed=4)
    again = sampled_posterior(release, n_samples=60, n_warmup=10, check_convergence=False, seed=4)
    assert first.optimum_mean.tobytes() == again.optimum_mean.tobytes()
    with pytest.raises(NumericalError, match="raise n_samples"):
        sampled_posterior(release, n_samples=60, n_warmup=10)
    with pytest.raises(ValueError, match="samplers are for the diagonal Hessian"):
        sampled_posterior(release, hessian="full")
    with pytest.raises(ValueError, match="sampler must be one of"):
        sampled_posterior(release, "gibbs")
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        sampled_posterior(release, n_samples=0)


def test_plain_emcee_on_the_python_density_agrees(release):
    """The move that factorises over coordinates against emcee's own stretch move on a single coordinate."""
    exact = noise_aware_posterior(release, burn_in=0)
    x, g, tau = release.positions[:, :1], release.noisy_gradients[:, :1], release.noise_stddev[:1]
    one = noise_aware_posterior(oracle.point_release(x, g, tau, RATE), burn_in=0)
    from dpinfer.inference.trace.burn_in import choose_burn_in

    statistics = choose_burn_in(0, np.ascontiguousarray(x), np.ascontiguousarray(g), tau).statistics
    problems = CollapsedProblems.build(statistics, coordinate_priors("weak", statistics, RATE), RATE, extra_noise=True)

    def log_density(points):
        value = problems.log_density(points[:, :1], points[:, 1:])[:, 0]
        return np.where(np.isfinite(value), value, -np.inf)

    rng = np.random.default_rng(0)
    sampler = emcee.EnsembleSampler(32, 2, log_density, vectorize=True)
    sampler.random_state = np.random.RandomState(0).get_state()
    start = np.column_stack([statistics.slope_score + rng.normal(0, 0.5, 32), rng.normal(0.0, 0.2, 32)])
    sampler.run_mcmc(start, 1500, skip_initial_state_check=True)
    chain = softplus(sampler.get_chain(discard=300, flat=True)[:, 0]) * problems.hessian_unit
    effective = chain.size / sampler.get_autocorr_time(discard=300, quiet=True)[0]
    assert one.hessian_mean[0] == pytest.approx(exact.hessian_mean[0], rel=1e-12)
    assert abs(chain.mean() - exact.hessian_mean[0]) < 5.0 * exact.hessian_stddev[0] / np.sqrt(effective)
    assert chain.std() == pytest.approx(exact.hessian_stddev[0], rel=0.1)


@pytest.mark.parametrize("extra_noise", [False, True])
def test_laplace_is_the_mode_and_curvature_of_the_raw_joint_density(extra_noise):
    rng = np.random.default_rng(5)
    x, g, _ = oracle.simulate(rng, steps=300, hessian=[80.0], optimum=np.array([1.0]), noise_stddev=[1.2])
    g = g + 0.8 * extra_noise * rng.standard_normal(g.shape)
    prior = TracePrior(optimum_loc=0.8, optimum_scale=2.0, raw_hessian_loc=70.0, raw_hessian_scale=40.0)
    release = oracle.point_release(x, g, 1.2, RATE)
    posterior = noise_aware_posterior(release, burn_in=0, prior=prior, extra_noise=extra_noise, approximation="laplace")
    exact = noise_aware_posterior(release, burn_in=0, prior=prior, extra_noise=extra_noise)

    def log_joint(z):
        ratio = np.exp(0.5 * z[2]) if extra_noise else 0.0
        value = oracle.raw_log_likelihood(x[:, 0], g[:, 0], 1.2, RATE, z[0], softplus(z[1]), ratio)
        value = value - 0.5 * ((z[0] - 0.8) / 2.0) ** 2 - 0.5 * ((z[1] - 70.0) / 40.0) ** 2
        return value + (0.5 * z[2] - np.log1p(ratio**2) if extra_noise else 0.0)

    from scipy import optimize

    size = 3 if extra_noise else 2
    start = np.array([1.0, 80.0, -1.0])[:size]
    scale = np.array([exact.optimum_stddev[0], exact.hessian_stddev[0], 0.5])[:size]
    best = optimize.minimize(lambda z: -log_joint(start + scale * z), np.zeros(size), method="BFGS", tol=1e-9)
    h = 1e-3
    hessian = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            corner = lambda p, q: best.fun_at(best.x + h * (p * np.eye(size)[i] + q * np.eye(size)[j]))  # noqa: E731, B023
            best.fun_at = lambda z: -log_joint(start + scale * z)
            hessian[i, j] = (corner(1, 1) - corner(1, -1) - corner(-1, 1) + corner(-1, -1)) / (4 * h * h)
    covariance = np.linalg.inv(hessian) * np.outer(scale, scale)
    mode = start + scale * best.x
    assert posterior.optimum_mean[0] == pytest.approx(mode[0], abs=2e-3 * np.sqrt(covariance[0, 0]))
    assert posterior.optimum_stddev[0] == pytest.approx(np.sqrt(covariance[0, 0]), rel=2e-3)
    # Moments of the Hessian itself, which is positive: of the raw one's normal law a hundredth may lie below zero.
    nodes, shares = np.polynomial.hermite_e.hermegauss(200)
    values = softplus(mode[1] + np.sqrt(covariance[1, 1]) * nodes)
    mean = shares @ values / shares.sum()
    stddev = np.sqrt(shares @ (values - mean) ** 2 / shares.sum())
    assert posterior.hessian_mean[0] == pytest.approx(mean, abs=5e-3 * stddev)
    assert posterior.hessian_stddev[0] == pytest.approx(stddev, rel=5e-3)


def test_laplace_of_an_identified_trace_is_near_the_exact_posterior(release):
    exact = noise_aware_posterior(release, burn_in=0)
    laplace = noise_aware_posterior(release, burn_in=0, approximation="laplace")
    assert np.all(np.abs(laplace.optimum_mean - exact.optimum_mean) < 0.5 * exact.optimum_stddev)
    assert np.all(laplace.optimum_stddev < 1.05 * exact.optimum_stddev)
    np.testing.assert_allclose(laplace.decompose().total, laplace.stddev**2, rtol=1e-12)


def test_nuts_without_numpyro_names_the_extra(release, monkeypatch):
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name.split(".")[0] in ("jax", "numpyro"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[nuts\]"):
        sampled_posterior(release, "nuts")


def test_nuts_agrees_with_quadrature(release):
    pytest.importorskip("numpyro")
    exact = noise_aware_posterior(release, burn_in=0)
    sampled = sampled_posterior(release, "nuts", burn_in=0, n_samples=2000, n_warmup=500, seed=1)
    assert np.all(np.abs(sampled.optimum_mean - exact.optimum_mean) < 0.25 * exact.optimum_stddev)
    np.testing.assert_allclose(sampled.hessian_stddev, exact.hessian_stddev, rtol=0.2)


def test_naive_is_q_at_the_last_iterate(release):
    posterior = noise_aware_posterior(release, approximation="naive")
    np.testing.assert_array_equal(posterior.optimum_mean, release.final_params)
    np.testing.assert_array_equal(posterior.optimum_stddev, 0.0)
    assert np.all(np.isnan(posterior.hessian_mean))
    scale = softplus(release.final_params[2:])
    np.testing.assert_allclose(posterior.mean, release.final_params[:2], rtol=1e-14)
    np.testing.assert_allclose(posterior.stddev, scale, rtol=1e-12)
    want = stats.norm.ppf(np.array([[0.05], [0.5], [0.95]]), release.final_params[:2], scale)
    np.testing.assert_allclose(posterior.quantile([0.05, 0.5, 0.95]), want, rtol=1e-9)
    np.testing.assert_allclose(posterior.decompose().shares, [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert any("ignores the privacy noise" in text for text in posterior.summary().warnings)


@pytest.mark.parametrize(("burn_in", "first"), [(0.25, 375), (900, 900), ("auto", 750)])
def test_averaged_is_q_at_the_mean_iterate(release, burn_in, first):
    posterior = noise_aware_posterior(release, approximation="averaged", burn_in=burn_in)
    assert posterior.burn_in == first
    np.testing.assert_allclose(posterior.optimum_mean, release.params[first:].mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(posterior.optimum_stddev, 0.0)


def test_naive_of_a_point_release_is_a_point(rng):
    x = rng.normal(size=(20, 2))
    posterior = noise_aware_posterior(oracle.point_release(x, x, 1.0), approximation="naive")
    np.testing.assert_array_equal(posterior.quantile([0.1, 0.9]), np.stack([x[-1], x[-1]]))
    np.testing.assert_array_equal(posterior.sample(3, seed=0), np.stack([x[-1]] * 3))
    np.testing.assert_array_equal(posterior.stddev, 0.0)


def test_naive_of_an_aligned_release_uses_both_parameters(rng):
    params = rng.normal(size=(30, 2))
    release = GradientTrace(
        params=params,
        positions=rng.normal(size=(30, 1)),
        noisy_gradients=rng.normal(size=(30, 1)),
        noise_stddev=np.ones(1),
        final_params=np.array([0.5, -2.0]),
        sample_rate=RATE,
        names=("w",),
        gradient="aligned",
    )
    posterior = noise_aware_posterior(release, approximation="naive")
    assert posterior.optimum_names == ("loc[w]", "raw_scale[w]")
    assert posterior.stddev[0] == pytest.approx(float(softplus(-2.0)))
