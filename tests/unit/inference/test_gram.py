"""Linear regression with a full Hessian: its statistics, one weight by brute force, correlated features, the test."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.errors import NumericalError
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.information.gram import GramTrace, VarianceTrace, gram_posterior
from dpinfer.inference.trace.information.posteriors import coupling_pvalue, features_coupled
from dpinfer.inference.trace.information.under_model import InformationTrace
from dpinfer.models.base import sigmoid, softplus, softplus_inverse
from dpinfer.testing import InsecureRNG

RATE, N_RECORDS = 0.1, 2000


def silent(done, total):
    """Report nothing."""


def private_release(seed, *, correlation, steps=500, epsilon=3.0, recipe="tied", model=None):
    """Return (truth, release) of three standardised features whose neighbours are correlated."""
    model = dpi.models.LinearRegression(3) if model is None else model
    rng = np.random.default_rng(seed)
    truth = model.sample_prior(1, rng)[0]
    root = np.linalg.cholesky(correlation ** np.abs(np.subtract.outer(np.arange(3), np.arange(3))))
    X = rng.normal(size=(N_RECORDS, 3)) @ root.T
    y = model.simulate(truth, X, rng)
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=RATE, n_steps=steps)
    release = dpi.run_dpvi(
        model, X, y, plan=plan, n_records=N_RECORDS, recipe=recipe, random_source=InsecureRNG(seed), n_threads=1
    )
    return truth, release


@pytest.fixture(scope="module")
def correlated():
    """Five runs on features whose neighbours' correlation is 0.9."""
    return [private_release(seed, correlation=0.9) for seed in range(5)]


def test_statistics_of_a_trace_without_noise(correlated):
    """The gradients of q's loss in closed form: the slopes are the Gram matrix, the residuals those at the iterates."""
    release = correlated[0][1]
    model = dpi.models.LinearRegression(3)
    gram = N_RECORDS * np.array([[1.0, 0.5, 0.2], [0.5, 0.8, 0.4], [0.2, 0.4, 1.3]])
    mle, own = np.array([0.1, -0.3, 0.2]), 0.04
    loc, scale = release.positions[:, :4], softplus(release.positions[:, 4:])
    weights, rho, variance = loc[:, :3], loc[:, 3], softplus(loc[:, 3])
    distance = np.einsum("ti,ij,tj->t", weights - mle, gram, weights - mle) + scale[:, :3] ** 2 @ np.diag(gram)
    residual = own + distance / N_RECORDS
    precision = 1.0 / model.harmonic_variance(rho, scale[:, 3])
    gradients = np.array(release.noisy_gradients)
    gradients[:, :3] = RATE * precision[:, None] * ((weights - mle) @ gram + weights / model.prior_scale**2)
    squares = np.sum(weights**2 + scale[:, :3] ** 2, axis=1)
    slope = 0.5 * N_RECORDS * sigmoid(rho) / variance * (1.0 - residual / variance)
    gradients[:, 3] = RATE * (slope - model.log_prior_slope(squares, rho))
    trace = GramTrace.from_release(replace(release, noisy_gradients=gradients), model, None, 50, 250)
    np.testing.assert_allclose(trace.weights.cross, RATE * gram @ trace.weights.gram, rtol=1e-9)
    level = trace.weights.position_mean - trace.weights.gradient_mean @ np.linalg.inv(RATE * gram)
    np.testing.assert_allclose(level, mle, rtol=1e-9)
    noise = release.noise_stddev[250:, 3] * variance[250:] ** 2 / sigmoid(rho[250:])
    share = noise**-2.0 / np.sum(noise**-2.0)
    assert trace.variance.residual == pytest.approx(share @ residual[250:], rel=2e-3)
    # The noise at a step of weight 1, and so at every step.
    expected = release.noise_stddev[50:, :3] / precision[50:, None]
    total = np.sum(expected**-2.0, axis=0)
    np.testing.assert_allclose(trace.weights.weight / trace.weights.noise_variance, total, rtol=1e-9)


def one_weight(model, *, neglect):
    """Return (trace, means and deviations of the weight and rho) by brute force, from the model's own densities.

    The traces tell nearly the same of the information and much of the weight: the residuals at the iterates are larger
    than the prior of the noise variance expects. With `neglect` the noise variance's trace says nothing of the weight.
    """
    n_records, steps, noise, level, residual, error, moved = 600, 200.0, 4050.0, 0.45, 0.0484, 0.002, 0.002
    cross = RATE * 450.0 * steps
    weights = InformationTrace(
        weight=steps,
        sample_rate=RATE,
        position_mean=np.array([0.35]),
        gradient_mean=np.array([level]),
        gram=np.array([[steps]]),
        cross=np.array([[cross]]),
        noise_variance=np.array([noise]),
    )
    half = np.array([0.5 * moved])
    trace = GramTrace(
        weights, VarianceTrace(residual, error, 1.0, np.array([0.34]), half[:, None], half), n_records, 1.0, 1.0
    )
    a = np.linspace(150.0, 800.0, 60)[:, None, None]
    mle = np.linspace(-0.5, 1.2, 120)[None, :, None]
    v = np.geomspace(0.006, 0.12, 80)[None, None, :]
    slope = RATE * a
    noise += RATE * (1.0 - RATE) * 0.03 * 450.0
    log = np.log(a) * 0.5 - 1.5 * a / n_records  # Wishart: three degrees of freedom
    log = log + (-0.5 * slope**2 * steps + slope * cross) / noise
    log = log - 0.5 * steps * (level - slope * (0.35 - mle)) ** 2 / noise
    spread = v * (model.prior_scale**2 + 1.0 / a)
    log = log - 0.5 * mle**2 / spread - 0.5 * np.log(spread) + model.variance_prior_logpdf(v) + np.log(v)
    mean = v * (1.0 - 1.0 / n_records) + a * ((0.34 - mle) ** 2 + moved) / n_records
    spread = error**2 + 2.0 * v**2 / n_records
    both = log - 0.5 * (residual - mean) ** 2 / spread - 0.5 * np.log(spread)
    mass = np.exp(both - both.max())
    if neglect:
        alone = np.exp(log - log.max(axis=1, keepdims=True))
        mass = mass.sum(axis=1, keepdims=True) * alone / alone.sum(axis=1, keepdims=True)
    mass /= mass.sum()
    precision, rho = a + 1.0 / model.prior_scale**2, softplus_inverse(v)
    given = a * mle / precision
    moments = np.array([np.sum(mass * item) for item in (given, rho, given**2 + v / precision, rho**2)])
    return trace, np.concatenate([moments[:2], np.sqrt(moments[2:] - moments[:2] ** 2)])


def test_one_weight_against_brute_force():
    """Information, least-squares weight and noise variance on a grid; Student's t over chains, at 1e-6 for all four.

    Beside it 0.03 standard deviations: the records' score is drawn at a plug-in noise variance.
    """
    model, chains = dpi.models.LinearRegression(1), 16
    trace, expected = one_weight(model, neglect=False)
    found = []
    for seed in range(chains):
        theta = gram_posterior(
            trace, model, n_draws=60, n_warmup=40, seed=seed, check_convergence=False, report=silent
        ).theta
        found.append(np.append(theta.marginals.mean, np.sqrt(np.diag(theta.covariance))))
    error = np.std(found, axis=0, ddof=1) / np.sqrt(chains)
    allowed = stats.t.isf(1e-6 / 8.0, chains - 1) * error + 0.03 * np.tile(expected[2:], 2)
    distance = np.abs(np.mean(found, axis=0) - expected)
    assert np.all(distance < allowed)
    # Weights that ignore the noise variance's trace are rejected, by place and by width.
    wrong = one_weight(model, neglect=True)[1]
    assert np.all(np.abs(np.mean(found, axis=0) - wrong)[[0, 2]] > allowed[[0, 2]])


def test_a_variance_that_no_draw_explains_is_an_error():
    model = dpi.models.LinearRegression(1)
    weights = InformationTrace(
        50.0, RATE, np.zeros(1), np.zeros(1), np.array([[40.0]]), np.array([[RATE * 60.0 * 40.0]]), np.ones(1)
    )
    # Excursions of 1 at an information of about 60, and a mean square of the residuals below 0.5 with 60 records.
    variance = VarianceTrace(0.5, 0.001, 1.0, np.zeros(1), np.ones((1, 1)), np.zeros(1))
    trace = GramTrace(weights, variance, 60, 1.0, 1.0)
    options = {"n_draws": 100, "n_warmup": 60, "seed": 0, "report": silent}
    with pytest.raises(NumericalError, match="contradicts nearly all draws"):
        gram_posterior(trace, model, check_convergence=True, **options)
    assert gram_posterior(trace, model, check_convergence=False, **options).effective_draws < 10.0


def test_correlated_features_are_covered_and_are_not_by_one_unknown_per_weight(correlated):
    """Squared z-scores of the weights, rotated to be independent, against chi-square at false-positive rate 1e-6."""
    squares = {}
    for hessian in ("full", "tied"):
        total = 0.0
        for truth, release in correlated:
            given = {"n_samples": 100, "n_warmup": 60, "check_convergence": False} if hessian == "full" else {}
            theta = noise_aware_posterior(release, hessian=hessian, n_threads=1, **given).distribution
            root = np.linalg.cholesky(theta.covariance[:3, :3])
            total += np.sum(np.square(np.linalg.solve(root, truth[:3] - theta.marginals.mean[:3])))
        squares[hessian] = total
    high = stats.chi2.ppf(1.0 - 1e-6, 3 * len(correlated))
    assert squares["full"] < high < squares["tied"]


def test_the_default_is_full_where_the_trace_shows_correlation(correlated):
    """Independent features are taken for correlated in 1% of the releases: in four of four with probability 1e-8."""
    release = correlated[0][1]
    posterior = noise_aware_posterior(release, n_samples=60, n_warmup=40, check_convergence=False, n_threads=1)
    assert (posterior.hessian, posterior.prior) == ("full", "model")
    assert posterior.hessian_mean.shape == (4, 4)
    assert posterior.diagnostics.effective_draws > 10.0
    parts = posterior.distribution.variance_parts()
    np.testing.assert_allclose(
        parts.data + parts.privacy + parts.approximation, np.diag(posterior.distribution.covariance), rtol=1e-6
    )
    others = (noise_aware_posterior(private_release(seed, correlation=0.0)[1], n_threads=1) for seed in range(3, 7))
    plain = next(found for found in others if found.hessian == "tied")
    assert "correlated" not in plain.diagnostics.verdict
    tied = noise_aware_posterior(release, hessian="tied", n_threads=1)
    assert tied.hessian == "tied"
    assert tied.diagnostics.verdict.endswith("use hessian='full'.")
    assert tied.diagnostics.coupling_pvalue < 1e-6 < 0.01 < plain.diagnostics.coupling_pvalue


def test_declared_correlation_needs_no_evidence():
    moments = np.eye(4)
    moments[0, 1] = moments[1, 0] = 0.5
    model = dpi.models.LinearRegression(3, feature_moments=moments)
    _, release = private_release(1, correlation=0.0, steps=60, recipe="steady", model=model)
    assert release.settings["recipe"] == "steady"
    assert features_coupled(release, model) == 0.0
    design = model.reference_design(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(design.T @ design / 20_000, moments[:3, :3], atol=0.04)


def recursion(rng, information, steps=300, noise=3.0, rate=0.02):
    """Return the statistics of a trace with this Hessian, started away from its optimum at 0."""
    n = len(information)
    positions, gradients = np.empty((steps, n)), np.empty((steps, n))
    x = rng.normal(size=n) * 0.3
    for t in range(steps):
        positions[t] = x
        gradients[t] = RATE * information @ x + noise * rng.normal(size=n)
        x = x - rate / (RATE * information[0, 0]) * gradients[t]
    return InformationTrace.build(positions, gradients, np.full(n, noise), sample_rate=RATE, prior_variance=1e12)


def test_coupling_holds_its_level_and_sees_correlation():
    rng = np.random.default_rng(4)
    size, level, runs = 4, 0.2, 60
    independent = 100.0 * np.eye(size)
    linked = 100.0 * (0.2 * np.eye(size) + 0.8)
    # Sampling noise is no part of these traces.
    traces = {
        name: [replace(recursion(rng, matrix), score_variance=0.0) for _ in range(runs)]
        for name, matrix in (("independent", independent), ("linked", linked))
    }
    rejected = {
        name: sum(coupling_pvalue(item, np.diag(independent)) < level for item in items)
        for name, items in traces.items()
    }
    most = stats.binom.isf(1e-6, runs, level)
    assert rejected["independent"] <= most < rejected["linked"]
    assert coupling_pvalue(recursion(rng, 100.0 * np.eye(1)), np.array([100.0])) == 1.0


def test_the_model_says_that_its_moments_are_known(correlated):
    _, release = correlated[0]
    plain, guessed, told = (
        dpi.models.LinearRegression(3, **given)
        for given in ({}, {"feature_moments": np.eye(4)}, {"feature_moments": np.eye(4), "feature_moments_known": True})
    )
    options = {"hessian": "full", "n_samples": 20, "n_warmup": 20, "check_convergence": False}
    means = [noise_aware_posterior(release, model=model, **options).mean for model in (plain, guessed, told)]
    np.testing.assert_array_equal(means[0], means[1])
    assert not np.array_equal(means[1], means[2])


def test_combinations_that_do_not_fit(correlated):
    release = correlated[0][1]
    with pytest.raises(ValueError, match="prior must be 'model' or 'weak'"):
        noise_aware_posterior(release, hessian="full", prior="empirical")
    own = np.array(release.noise_stddev)
    own[::2, 1] *= 2.0
    with pytest.raises(ValueError, match="the same for all weights up to a factor of the step"):
        noise_aware_posterior(replace(release, noise_stddev=own), hessian="full", prior="model")
