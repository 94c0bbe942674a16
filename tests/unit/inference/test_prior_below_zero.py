"""A normal prior of v whose mass reaches below zero, where the Hessian softplus(v) is 0: NA-DPVI's appendix H.3."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reference import inference_oracles as oracle

import dpinfer as dpi
from dpinfer.errors import NumericalError
from dpinfer.inference import TracePrior, noise_aware_posterior
from dpinfer.inference.trace.burn_in import choose_burn_in
from dpinfer.inference.trace.collapsed import CollapsedProblems, collapsed_nodes
from dpinfer.inference.trace.laplace import JointDensity
from dpinfer.inference.trace.priors import coordinate_priors
from dpinfer.lab.comparison import sampled_posterior
from dpinfer.lab.studies import recipes
from dpinfer.lab.studies.posteriors import by_coordinate
from dpinfer.lab.studies.simulation import simulate_data, simulate_releases
from dpinfer.models.base import softplus

RATE = 0.1


def trace(seed, steps, score, unit):
    """Return a trace whose Hessian has a standard error of `unit` and lies `score` of them from 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0.0, 0.05, (steps, 1))
    tau = unit * RATE * 0.05 * np.sqrt(steps)
    g = RATE * score * unit * (x - 0.02) + tau * rng.standard_normal((steps, 1))
    return x, g, tau


def stated(seed, steps, score, unit, extra_noise):
    x, g, tau = trace(seed, steps, score, unit)
    statistics = choose_burn_in(0, x, g, np.array([tau])).statistics
    priors = coordinate_priors("empirical", statistics, RATE)
    return CollapsedProblems.build(statistics, priors, RATE, extra_noise=extra_noise)


def brute(problems):
    """Return moments of (Hessian, optimum), and the mass with v < -30, by sums over v and w in the problem's units."""
    c = problems.columns
    unit, loc, scale = problems.hessian_unit[0], c.raw_loc[0], c.raw_scale[0]
    wide = np.linspace(min(loc, c.slope_score[0] * unit) - 10.0 * scale, loc + 10.0 * scale, 60_001)
    v = np.union1d(wide, np.linspace(-60.0, 60.0, 12_001))
    beta = softplus(v) / unit
    w = np.linspace(0.0, 6.0 / np.sqrt(np.sqrt(c.n_steps[0])), 120) if problems.extra_noise else np.zeros(1)
    log_c = np.log(np.cosh(w))[:, None]
    nu = np.exp(2.0 * log_c)
    s = nu + (beta * c.optimum_scale[0]) ** 2
    fit = (c.residual[0] + (beta - c.slope_score[0]) ** 2) / nu + np.log(s)
    fit = fit + (c.mean_score[0] - beta * c.optimum_offset[0]) ** 2 / s + ((v - loc) / scale) ** 2
    log_density = -0.5 * fit - (c.n_steps[0] * log_c if problems.extra_noise else 0.0)
    cells = np.exp(log_density - log_density.max()) * np.gradient(v)
    cells[0] *= 0.5 if problems.extra_noise else 1.0
    cells /= cells.sum()
    variance = 1.0 / (beta**2 / nu + c.optimum_scale[0] ** -2.0)
    mean = -(beta * c.mean_score[0] / nu + c.optimum_offset[0] / c.optimum_scale[0] ** 2) * variance
    first = (cells * mean).sum()
    second = (cells * (variance + mean**2)).sum() - first**2
    below = cells[:, v < -30.0].sum()
    return unit * (cells * beta).sum(), first, second, below


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([8, 40, 1000]),
    st.floats(-4.0, 8.0),
    st.floats(0.0, 6.0),
    st.booleans(),
)
@example(1, 1000, 0.0, 5.0, True)
@example(2, 8, 1.6, 5.0, True)
@example(3, 1000, -4.0, 6.0, False)
def test_the_quadrature_is_that_of_sums_over_v(seed, steps, score, log_unit, extra_noise):
    problems = stated(seed, steps, score, 10.0**log_unit, extra_noise)
    nodes = collapsed_nodes(problems, ("a",))
    hessian, mean, variance, _ = brute(problems)
    got_mean, got_variance = nodes.moments((nodes.mean - problems.position_mean) / problems.spread)
    got_variance = got_variance + nodes.expectation(nodes.variance) / problems.spread**2
    assert nodes.expectation(nodes.hessian)[0] == pytest.approx(hessian, rel=2e-3)
    assert got_mean[0] == pytest.approx(mean, abs=2e-3 * np.sqrt(variance))
    assert got_variance[0] == pytest.approx(variance, rel=2e-3)


def test_the_share_of_a_hessian_of_zero_is_told():
    x, g, tau = trace(3, 1000, 1.0, 1e5)
    release = oracle.point_release(x, g, tau, RATE)
    posterior = noise_aware_posterior(release, burn_in=0, prior="empirical", fallback=False)
    share = brute(stated(3, 1000, 1.0, 1e5, True))[3]
    (zero,) = posterior.diagnostics.zero_hessian
    assert 0.1 < share < 0.9
    assert zero == pytest.approx(share, abs=1e-3)
    summary = posterior.summary()
    assert f"hessian 0 with probability {zero:.0%}" in summary.flags[0]
    assert any("reaches below zero" in text and "prior='weak'" in text for text in summary.warnings)
    weak = noise_aware_posterior(release, burn_in=0)
    assert weak.diagnostics.zero_hessian is None
    assert not any("below zero" in text for text in weak.summary().warnings)


@pytest.fixture(scope="module")
def weakly_identified():
    """Return a release whose coordinates are identified by 0 to 6 standard errors."""
    rng = np.random.default_rng(7)
    hessian, tau = np.array([300.0, 3000.0, 8000.0, 20000.0]), 100.0
    x = rng.normal(0.0, 0.05, (2000, 4)) + 0.3
    g = RATE * hessian * (x - 0.31) + tau * rng.standard_normal(x.shape)
    return oracle.point_release(x, g, tau, RATE, names=("a", "b", "c", "d"))


@pytest.mark.parametrize("sampler", ["emcee", "nuts"])
@pytest.mark.parametrize("extra_noise", [False, True])
def test_samplers_agree_with_the_quadrature(weakly_identified, sampler, extra_noise):
    """Means within six Monte Carlo errors (false alarm: 1e-7), for 1000 effective draws of emcee and 250 of NUTS.

    NUTS crosses between a Hessian of 0, where the optimum is as wide as its prior, and the trace's own.  One chain
    hardly enters the funnel of large Hessians with an optimum at the trace's: their moments are left to emcee.
    """
    if sampler == "nuts":
        pytest.importorskip("numpyro")
    options = {"burn_in": 0, "prior": "empirical", "extra_noise": extra_noise}
    exact = noise_aware_posterior(weakly_identified, fallback=False, **options)
    sampled = sampled_posterior(weakly_identified, sampler, seed=1, check_convergence=False, **options)
    assert 0.05 < exact.diagnostics.zero_hessian.max() < 0.9
    error = 6.0 / np.sqrt(1000.0 if sampler == "emcee" else 250.0)
    for name in ("optimum", "hessian") if sampler == "emcee" else ("optimum",):
        stddev = getattr(exact, f"{name}_stddev")
        gap = getattr(sampled, f"{name}_mean") - getattr(exact, f"{name}_mean")
        assert np.all(np.abs(gap) < error * stddev)
        np.testing.assert_allclose(getattr(sampled, f"{name}_stddev"), stddev, rtol=0.2)
    share = exact.diagnostics.zero_hessian
    np.testing.assert_allclose(sampled.diagnostics.zero_hessian, share, atol=0.5 * error)


@pytest.mark.parametrize("kind", ["raw", "wide", "log"])
@pytest.mark.parametrize("extra_noise", [False, True])
def test_laplace_has_the_derivatives_of_its_density(kind, extra_noise):
    rng = np.random.default_rng(2)
    problems = stated(5, 200, 4.0, 10.0, extra_noise)
    table = problems.table.copy()
    table[:, 7:11] = {"raw": (0.0, 1.0, 30.0, 12.0), "wide": (90.0, 2.0, 0.0, 1.0), "log": (0.0, 0.0, 3.0, 0.7)}[kind]
    joint = JointDensity(CollapsedProblems(table, problems.position_mean, problems.spread, problems.hessian_unit))
    width = 3 if extra_noise else 2
    for _ in range(20):
        x = np.array([[rng.normal(), rng.normal(20.0, 20.0), rng.normal(-2.0, 1.0)]])[:, :width]
        _, gradient, hessian = joint(x)
        for index in range(width):
            h = 1e-4 * np.eye(width)[index]
            (up, slope_up, _), (down, slope_down, _) = joint(x + h), joint(x - h)
            assert gradient[0, index] == pytest.approx((up - down)[0] / 2e-4, rel=1e-5, abs=1e-5)
            np.testing.assert_allclose(hessian[0, index], (slope_up - slope_down)[0] / 2e-4, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_no_run_of_the_published_recipe_fails(epsilon):
    """100 runs of the 10-dimensional regression: with fewer records and steps slopes are identified less still."""
    study = recipes.find("linear-regression")
    model = study.published_model
    published, _ = study._settings(model, "paper", epsilon, 500, {"n_steps": 1000})
    data = simulate_data(model, 500, first=0, count=100, seed=21)
    releases = simulate_releases(model, data, published, first=0, seed=21, n_threads=1)
    for method in ("exact", "laplace"):
        options = {"prior": "empirical", "burn_in": 0.2, "extra_noise": method == "exact", "n_threads": 1}
        for posterior in by_coordinate(releases, model.n_params, method=method, **options):
            assert np.all(np.isfinite(posterior.marginals.mean))
            assert np.all(posterior.marginals.variance > 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_no_run_at_the_published_settings_fails(epsilon):
    for method in ("exact", "laplace"):
        result = dpi.coverage_study(
            "linear-regression", method=method, recipe="paper", epsilon=epsilon, n_runs=100, n_draws=20, n_repeats=1
        )
        assert result.n_failed == 0


def test_a_prior_without_mass_above_zero_is_refused():
    with pytest.raises(ValueError, match="raw_hessian_loc and raw_hessian_scale must leave v some mass above zero"):
        TracePrior(0.0, 1.0, -100.0, 5.0)
    TracePrior(0.0, 1.0, -100.0, 50.0)


def test_a_contradiction_is_named_with_its_size():
    x, g, tau = trace(4, 71, 2.7, 0.01)
    prior = TracePrior(0.0, 1.0, 4.4e5, 4e-3)
    with pytest.raises(NumericalError, match=r"prior is .* standard errors away from the trace's Hessian"):
        noise_aware_posterior(oracle.point_release(x, g, tau, RATE), burn_in=0, prior=prior, fallback=False)
