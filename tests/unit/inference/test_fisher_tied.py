"""The tied posterior of Fisher-scaled traces: its sums, its quadrature, its limits and its corrections."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats
from tests.reference import fisher_oracles as oracle
from tests.reference.fisher_runs import MODELS, fisher_run, traced

import dpinfer as dpi
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.collapsed import CollapsedProblems, SideRegression, collapsed_nodes
from dpinfer.inference.trace.priors import CoordinatePriors
from dpinfer.inference.trace.scales.fisher import TiedTrace
from dpinfer.inference.trace.scales.tied import fisher_tied_nodes
from dpinfer.models.base import sigmoid, softplus, softplus_inverse
from dpinfer.release import load_release
from dpinfer.testing import InsecureRNG

RATE, N_RECORDS = 0.1, 800
STATISTICS = ("reference_stddev", "weight", "position_mean", "gradient_mean", "xx", "xg", "gg")
SIDE = ("design_square", "product", "response_square", "design", "response")


def private_release(name, n_steps=120, seed=1, noise_variance=None, **changes):
    model = MODELS[name]
    rng = np.random.default_rng(seed)
    truth = model.sample_prior(1, rng)[0]
    if noise_variance is not None:
        truth[-1] = noise_variance
    if name == "linear":
        features = model.simulate_features(N_RECORDS, rng)
        records = (features, model.simulate(truth, features, rng))
    else:
        records = (model.simulate(truth, N_RECORDS, rng),)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=RATE, n_steps=n_steps)
    return dpi.run_dpvi(
        model,
        *records,
        plan=plan,
        n_records=N_RECORDS,
        recipe="tied",
        random_source=InsecureRNG(seed),
        **changes,
    )


@pytest.fixture(scope="module")
def releases():
    return {name: private_release(name) for name in MODELS}


def columns(release, first, j):
    """What the oracles take of coordinate j of a release, from step `first` on."""
    n = release.n_params
    params, gradients, noise = release.positions[first:], release.noisy_gradients[first:], release.noise_stddev[first:]
    information = np.asarray(release.grad_scale)[first:, j] ** -2.0
    position, chain = params[:, j], 1.0
    if j == n - 1 and "noise_variance" in release.names:
        # The trace model is linear in the variance: rho ~ N(loc, s**2) under q, and E_q[1 / variance] by brute force.
        z = np.linspace(-9.0, 9.0, 2001)
        weight = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
        position = 1.0 / ((1.0 / softplus(params[:, [j]] + softplus(params[:, [n + j]]) * z)) @ weight)
        chain = sigmoid(params[:, j])
    return (
        position,
        params[:, n + j],
        gradients[:, j] * chain,
        gradients[:, n + j],
        noise[:, j] * chain,
        noise[:, n + j],
        information,
        release.sample_rate,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("burn_in", [0, 5, 42])
def test_sums_of_a_release_are_those_of_the_raw_trace(releases, name, burn_in):
    release = releases[name]
    trace = traced(release, burn_in)
    whole = min(burn_in, 7)  # 6% of 120 steps
    for first, statistics, side in (
        (burn_in, trace.statistics, trace.side),
        (whole, trace.whole_statistics, trace.whole_side),
    ):
        for j in range(release.n_params):
            want = oracle.sums(*columns(release, first, j))
            assert statistics.count == side.count == want["count"] == 120 - first
            for field in STATISTICS:
                assert getattr(statistics, field)[j] == pytest.approx(want[field], rel=1e-9), field
            for field in SIDE:
                assert getattr(side, field)[j] == pytest.approx(want[field], rel=1e-9), field
            if first == burn_in:
                assert trace.scale_square[j] == pytest.approx(want["scale_square"], rel=1e-12)
                last = columns(release, first, release.n_params - 1)
                weight = (last[6] / last[4]) ** 2
                position = columns(release, first, j)[0]
                mean = np.average(position, weights=weight)
                assert trace.last_position[j] == pytest.approx(mean, rel=1e-9)
                spread = np.sqrt(np.average((position - mean) ** 2, weights=weight))
                assert trace.last_spread[j] == pytest.approx(spread, rel=1e-9)
    model = MODELS[name]
    n = release.n_params
    rows = [model.information(row[:n], softplus(row[n:])) for row in release.positions]
    np.testing.assert_allclose(np.asarray(release.grad_scale)[:, :n] ** -2.0, rows, rtol=1e-9)


@pytest.mark.parametrize("name", ["exponential", "linear"])
@pytest.mark.parametrize("tolerance", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("own_prior", [False, True])
def test_nodes_are_the_posterior_on_a_grid_over_the_raw_trace(releases, name, tolerance, own_prior):
    release = releases[name]
    model, n = MODELS[name], release.n_params
    trace = traced(release, 42)
    loc, scale = trace.statistics.position_mean, 10.0 * trace.statistics.spread
    optimum = None
    if own_prior:
        loc, scale = optimum = (loc + trace.statistics.spread, trace.statistics.spread)
    nodes = fisher_tied_nodes(
        trace,
        fisher_run(release, tolerance=tolerance),
        release.names,
        extra_noise=False,
        optimum=optimum,
        correct=False,
    )
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    # eta = h / I at the posterior mean of the optimum.
    eta, eta_variance = nodes.moments(nodes.hessian / nodes.spread_to_nodes(model.information(mean)))
    for j in range(n - model.has_dispersion if name == "linear" else n):  # the variance has a test of its own
        sd, eta_sd = np.sqrt(variance[j]), np.sqrt(eta_variance[j])
        reach = np.sqrt(np.log1p((eta_sd / eta[j]) ** 2))
        want = oracle.grid_moments(
            *columns(release, 42, j),
            log_eta=np.log(eta[j]) + reach * np.linspace(-10.0, 10.0, 261),
            optimum=mean[j] + sd * np.linspace(-24.0, 24.0, 641),
            n_records=N_RECORDS,
            tolerance=tolerance,
            prior_loc=loc[j],
            prior_scale=scale[j],
        )
        assert want["edge"] < 1e-5
        assert eta[j] == pytest.approx(want["eta_mean"], rel=1e-4)
        assert eta_sd == pytest.approx(want["eta_stddev"], rel=1e-3)
        assert mean[j] == pytest.approx(want["mean"], abs=1e-4 * sd)
        assert sd == pytest.approx(want["stddev"], rel=1e-3)


@pytest.mark.parametrize("own_prior", [False, True])
@pytest.mark.parametrize("noise_variance", [0.009, 0.06])
def test_the_noise_variance_has_the_posterior_of_the_raw_trace_times_its_prior(noise_variance, own_prior):
    """Below the prior's quantile of 1e-7, and in its upper tail, where the prior pulls by 0.3 to 0.9 spreads.

    What is compared has no Monte Carlo error: over 30 data sets the two differed by at most 0.017 spreads.
    """
    release, model = private_release("linear", noise_variance=noise_variance), MODELS["linear"]
    n = release.n_params
    trace = traced(release, 42)
    optimum = (np.zeros(n), np.ones(n)) if own_prior else None  # of the other coordinates
    nodes = fisher_tied_nodes(
        trace, fisher_run(release), release.names, extra_noise=False, optimum=optimum, correct=False
    )
    mean, variance = (value[-1] for value in nodes.moments(nodes.mean, nodes.variance))
    assert np.diff(nodes.offsets)[-1] == 1
    # A grid over the slope and v; the variance's inverse-gamma prior, and no other.
    v = np.geomspace(1e-3, 1.0, 4001)
    density = (
        v
        * oracle.grid_moments(
            *columns(release, 42, n - 1),
            log_eta=np.log(N_RECORDS) + 0.02 * np.linspace(-6.0, 6.0, 61),
            optimum=v,
            n_records=N_RECORDS,
            tolerance=0.02,
            prior_loc=0.0,
            prior_scale=1e6,
        )["over_optimum"]
    )
    with_prior = density * stats.invgamma(model.variance_shape, scale=model.variance_rate).pdf(v)
    rho = softplus_inverse(v)
    for weight, close in ((with_prior, True), (density, False)):
        centre = np.average(rho, weights=weight)
        spread = np.sqrt(np.average((rho - centre) ** 2, weights=weight))
        same = abs(mean - centre) < 0.05 * spread and np.sqrt(variance) == pytest.approx(spread, rel=0.05)
        assert same == close  # power: the prior matters here


def problems(trace, *, factor, log_normal, extra_noise=False, side=True, optimum=None):
    """The collapsed problems of a trace with the log-normal prior of the slope, as `fisher_tied_nodes` states them."""
    statistics = trace.statistics
    zero = np.zeros_like(statistics.weight)
    loc, scale = optimum or (statistics.position_mean, 10.0 * statistics.spread)
    priors = CoordinatePriors(loc, scale, zero, zero, zero + log_normal[0], zero + log_normal[1])
    return CollapsedProblems.build(
        statistics, priors, RATE * factor, extra_noise=extra_noise, side=trace.side.regression() if side else None
    )


@pytest.mark.parametrize("factor", [0.7, 1.0])
def test_slope_factor_belongs_to_the_location_gradients_only(releases, factor):
    release = releases["exponential"]
    trace = traced(release, 42)
    nodes = collapsed_nodes(problems(trace, factor=factor, log_normal=(np.log(N_RECORDS), 0.2)), release.names)
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    eta, eta_variance = nodes.moments(nodes.hessian)
    reach = np.sqrt(eta_variance[0]) / eta[0]
    want = oracle.grid_moments(
        *columns(release, 42, 0),
        log_eta=np.log(eta[0]) + reach * np.linspace(-8.0, 8.0, 241),
        optimum=mean[0] + np.sqrt(variance[0]) * np.linspace(-12.0, 12.0, 321),
        n_records=N_RECORDS,
        tolerance=0.2,
        prior_loc=trace.statistics.position_mean[0],
        prior_scale=10.0 * trace.statistics.spread[0],
        slope_factor=factor,
    )
    assert eta[0] == pytest.approx(want["eta_mean"], rel=1e-4)
    assert np.sqrt(eta_variance[0]) == pytest.approx(want["eta_stddev"], rel=1e-3)
    assert mean[0] == pytest.approx(want["mean"], abs=1e-4 * np.sqrt(variance[0]))
    assert np.sqrt(variance[0]) == pytest.approx(want["stddev"], rel=1e-3)


def collapsed_log_likelihood(statistics, side, slope_unit, optimum, omega):
    """log p(trace | log a, omega) with the optimum integrated out, one coordinate, from its weighted sums."""
    tau, weight, mx, mg, xx, xg, gg = (float(getattr(statistics, name)[0]) for name in STATISTICS)
    loc, scale = (float(value[0]) for value in optimum)

    def value(t):
        b = slope_unit * np.exp(t)
        noise = tau**2 * (1.0 + omega**2)
        spread = noise / weight + (b * scale) ** 2
        squares = gg - 2.0 * b * xg + b**2 * xx
        log_density = -0.5 * squares / noise - 0.5 * (statistics.count - 1) * np.log(noise)
        log_density += -0.5 * (mg - b * (mx - loc)) ** 2 / spread - 0.5 * np.log(spread)
        if side is not None:
            gap = float(side.precision[0]) * (np.exp(t) - float(side.slope[0])) ** 2
            log_density -= 0.5 * (float(side.residual[0]) + gap)
        return log_density

    return value


@pytest.mark.parametrize("with_side", [False, True])
@pytest.mark.parametrize("log_normal", [(np.log(800.0), 0.2), (np.log(800.0), 3.0), (2.0, 0.5), (11.0, 0.3)])
def test_log_normal_prior_against_adaptive_quadrature(releases, with_side, log_normal):
    trace = traced(releases["exponential"], 20)
    optimum = (trace.statistics.position_mean + 0.1, np.array([0.3]))
    nodes = collapsed_nodes(
        problems(trace, factor=0.9, log_normal=log_normal, side=with_side, optimum=optimum), ("rate",)
    )
    side = trace.side.regression() if with_side else None
    log_likelihood = collapsed_log_likelihood(trace.statistics, side, 0.9 * RATE, optimum, 0.0)
    mean, variance = nodes.moments(nodes.hessian)
    # The integral reaches beyond the prior too: the posterior has a part there where the trace says little.
    width = 24.0 * max(np.sqrt(variance[0]) / mean[0], 0.05)
    width += abs(np.log(mean[0]) - log_normal[0]) + 8.0 * log_normal[1]
    want = oracle.log_normal_moments(log_likelihood, *log_normal, np.log(mean[0]), width)
    assert mean[0] == pytest.approx(want[0], rel=1e-6)
    assert np.sqrt(variance[0]) == pytest.approx(want[1], rel=1e-5)


def test_log_normal_prior_with_extra_noise(releases):
    """omega / tau has a half-Cauchy prior; without a side regression both unknowns are integrated here."""
    trace = traced(releases["exponential"], 60)
    optimum = (trace.statistics.position_mean, np.array([0.3]))
    loc, scale = np.log(800.0), 0.4
    nodes = collapsed_nodes(
        problems(trace, factor=1.0, log_normal=(loc, scale), side=False, optimum=optimum, extra_noise=True), ("rate",)
    )

    def log_density(t, w):
        value = collapsed_log_likelihood(trace.statistics, None, RATE, optimum, w)(t)
        return value - np.log1p(w**2) - 0.5 * ((t - loc) / scale) ** 2

    peak = max(log_density(t, w) for t in np.linspace(loc - 2.0, loc + 2.0, 81) for w in np.linspace(0.0, 1.0, 21))
    moments = [
        integrate.dblquad(
            lambda t, w, power=power: np.exp(power * (t - loc) + log_density(t, w) - peak),
            0.0,
            3.0,
            loc - 3.0,
            loc + 3.0,
            epsabs=1e-9,
            epsrel=1e-8,
        )[0]
        for power in range(3)
    ]
    mean, variance = nodes.moments(nodes.hessian)
    first, second = moments[1] / moments[0], moments[2] / moments[0]
    assert mean[0] == pytest.approx(800.0 * first, rel=1e-6)
    assert np.sqrt(variance[0]) == pytest.approx(800.0 * np.sqrt(second - first**2), rel=1e-5)


def eta_of(trace, run, names):
    nodes = fisher_tied_nodes(trace, run, names, extra_noise=False, correct=False)
    mean = nodes.expectation(nodes.mean)
    return nodes.moments(nodes.hessian / nodes.spread_to_nodes(run.model.information(mean)))


def test_strong_side_information_gives_the_side_estimate(releases):
    release = releases["exponential"]
    trace = traced(release, 42)
    many = 1e8
    side = replace(trace.side, **{name: many * getattr(trace.side, name) for name in SIDE})
    eta, variance = eta_of(replace(trace, side=side), fisher_run(release, tolerance=50.0), release.names)
    assert eta[0] == pytest.approx(side.regression().slope[0], rel=1e-5)
    assert variance[0] == pytest.approx(1.0 / side.regression().precision[0], rel=1e-3)
    assert abs(eta[0] / N_RECORDS - 1.0) > 1e-3  # the two limits can be told apart


def test_a_tiny_tolerance_gives_the_number_of_records(releases):
    release = releases["exponential"]
    trace = traced(release, 42)
    eta, variance = eta_of(trace, fisher_run(release, tolerance=1e-5), release.names)
    assert eta[0] == pytest.approx(N_RECORDS, rel=1e-5)
    assert np.sqrt(variance[0]) == pytest.approx(1e-5 * N_RECORDS, rel=1e-2)


def test_many_runs_are_solved_together_as_one_by_one(releases):
    release = releases["exponential"]
    traces = [traced(private_release("exponential", seed=seed), 42) for seed in (1, 2)]

    def join(read):
        parts = [read(trace) for trace in traces]
        fields = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in vars(parts[0])
            if name in STATISTICS + SIDE
        }
        return replace(parts[0], **fields)

    both = TiedTrace(
        join(lambda trace: trace.statistics),
        join(lambda trace: trace.side),
        *(
            np.concatenate([getattr(trace, name) for trace in traces])
            for name in ("scale_square", "last_position", "last_spread")
        ),
        join(lambda trace: trace.whole_statistics),
        join(lambda trace: trace.whole_side),
    )
    run = fisher_run(release)
    together = fisher_tied_nodes(both, run, ("rate", "rate"))
    for row, trace in enumerate(traces):
        alone = fisher_tied_nodes(trace, run, ("rate",))
        for field in ("mean", "variance", "hessian", "inflation"):
            want = alone.expectation(getattr(alone, field))[0]
            assert together.expectation(getattr(together, field))[row] == pytest.approx(want, rel=1e-12), field


def test_model_prior_of_the_optimum(releases):
    release = releases["exponential"]
    weak, own = (noise_aware_posterior(release, prior=prior) for prior in ("weak", "model"))
    loc, scale = MODELS["exponential"].prior_moments()
    assert own.optimum_stddev[0] < scale[0]
    assert own.optimum_mean[0] != weak.optimum_mean[0]
    nodes = fisher_tied_nodes(traced(release, 42), fisher_run(release), release.names, optimum=(loc, scale))
    assert own.optimum_mean[0] == pytest.approx(nodes.expectation(nodes.mean)[0], rel=1e-12)
    assert own.burn_in == 42


@pytest.mark.parametrize("missing", ["model_spec", "n_records", "grad_scale", "max_grad_norm"])
def test_a_release_without_its_settings_is_refused(releases, missing):
    release = releases["exponential"].replace(**{missing: {} if missing == "model_spec" else None})
    with pytest.raises(ValueError, match="model, n_records, grad_scale and max_grad_norm"):
        noise_aware_posterior(release)


def test_wrong_combinations_are_refused(releases):
    release = releases["exponential"]
    with pytest.raises(ValueError, match="prior must be 'weak' or 'model'"):
        noise_aware_posterior(release, prior="empirical")
    for method in ("laplace", "naive", "averaged"):
        with pytest.raises(ValueError, match="approximation must be 'exact' with hessian='tied'"):
            noise_aware_posterior(release, approximation=method, hessian="tied")
    with pytest.raises(TypeError, match="expected information"):
        fisher_tied_nodes(traced(release, 0), fisher_run(release, model=object()), release.names)


def test_a_saved_release_has_the_same_posterior(releases, tmp_path):
    for name, release in releases.items():
        release.save(tmp_path / name)
        loaded = load_release(tmp_path / name)
        before, after = noise_aware_posterior(release), noise_aware_posterior(loaded)
        for field in ("mean", "stddev", "optimum_mean", "hessian_mean"):
            np.testing.assert_array_equal(getattr(before, field), getattr(after, field))
        assert dict(loaded.settings) == dict(release.settings)


def test_slope_of_the_side_regression_after_a_shift(rng):
    """Adding c to every response and regressing again is what `regression(c)` computes from the sums."""
    design, response = rng.uniform(0.5, 2.0, 50), rng.normal(3.0, 1.0, 50)
    trace_side = traced(private_release("exponential"), 42).side
    made = replace(
        trace_side,
        count=50,
        **{
            name: np.array([value])
            for name, value in zip(
                SIDE,
                (design @ design, design @ response, response @ response, design.sum(), response.sum()),
                strict=True,
            )
        },
    )
    for shift in (0.0, 0.7):
        got = made.regression(shift)
        slope, residual, _, _ = np.linalg.lstsq(design[:, None], response + shift, rcond=None)
        assert isinstance(got, SideRegression)
        assert got.slope[0] == pytest.approx(slope[0], rel=1e-12)
        assert got.residual[0] == pytest.approx(residual[0], rel=1e-10)
        assert got.precision[0] == pytest.approx(design @ design, rel=1e-12)
