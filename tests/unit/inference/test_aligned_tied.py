"""The tied posterior of Fisher-scaled aligned gradients: sums at the sampled points, the bend, what the draws tell."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats
from tests.reference import fisher_oracles as oracle

import dpinfer as dpi
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.scales.fisher import FisherRun, TiedTrace
from dpinfer.inference.trace.scales.tied import fisher_tied_nodes
from dpinfer.models.base import sigmoid, softplus, softplus_inverse
from dpinfer.release import GradientTrace, load_release
from dpinfer.testing import InsecureRNG

RATE, N_RECORDS, N_STEPS, NORM = 0.1, 500, 400, 50.0
MODEL = dpi.models.GammaExponential()
FIELDS = ("reference_stddev", "weight", "position_mean", "gradient_mean", "xx", "xg", "gg")


@pytest.mark.parametrize(
    "model", [dpi.models.GammaExponential(), dpi.models.LinearRegression(2)], ids=["exp", "linear"]
)
def test_sums_are_those_at_the_sampled_points(model, rng, tmp_path):
    linear = isinstance(model, dpi.models.LinearRegression)
    truth = model.sample_prior(1, rng)[0]
    if linear:
        features = model.simulate_features(N_RECORDS, rng)
        records = (features, model.simulate(truth, features, rng))
    else:
        records = (model.simulate(truth, N_RECORDS, rng),)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=RATE, n_steps=120)
    release = dpi.run_dpvi(
        model, *records, plan=plan, n_records=N_RECORDS, recipe="tied", gradient="aligned", random_source=InsecureRNG(1)
    )
    n, points = release.n_params, release.positions
    trace = TiedTrace.from_release(release, model, 42)
    assert trace.side is trace.whole_side is None
    np.testing.assert_array_equal(trace.scale_square, 0.0)
    for first, got in ((42, trace.statistics), (7, trace.whole_statistics)):
        for j in range(n):
            variance = linear and j == n - 1  # linear in the variance at the point
            chain = sigmoid(points[first:, j]) if variance else 1.0
            want = oracle.sums(
                softplus(points[first:, j]) if variance else points[first:, j],
                release.params[first:, n + j],
                release.noisy_gradients[first:, j] * chain,
                np.ones(120 - first),
                release.noise_stddev[first:, j] * chain,
                np.ones(120 - first),
                model.information(points[first:])[:, j],
                RATE,
            )
            for field in FIELDS:
                assert getattr(got, field)[j] == pytest.approx(want[field], rel=1e-9), field
    release.save(tmp_path / "release")
    posterior, again = (
        noise_aware_posterior(item, burn_in=42) for item in (release, load_release(tmp_path / "release"))
    )
    assert posterior.hessian == "tied"
    np.testing.assert_array_equal(posterior.mean, again.mean)
    np.testing.assert_allclose(posterior.diagnostics.slope_score, trace.statistics.slope_score)
    # q itself has the scale that N records leave, however wide the draws.
    plain = noise_aware_posterior(release, approximation="naive").distribution.marginals
    np.testing.assert_allclose(plain.variance, 1.0 / (N_RECORDS * model.information(plain.mean)))


def drawn_trace(excursion, noise_multiplier, seed=3):
    """A trace of waiting times, none clipped, with draws around a point beside the mode; and the rate's posterior."""
    rng = np.random.default_rng(seed)
    total = 0.4 * N_RECORDS
    loc = float(softplus_inverse((MODEL.shape + N_RECORDS) / (MODEL.rate + total))) + 0.02
    scale = excursion * (N_RECORDS * MODEL.information(np.array([loc]))[0]) ** -0.5
    theta = loc + scale * rng.standard_normal((N_STEPS, 1))
    rate, slope = softplus(theta), sigmoid(theta)
    prior = -((MODEL.shape - 1.0) / rate - MODEL.rate) * slope - sigmoid(-theta)
    beta = MODEL.information(theta) ** -0.5
    noise = noise_multiplier * NORM / beta
    release = GradientTrace(
        params=np.tile([loc, float(softplus_inverse(scale))], (N_STEPS, 1)),
        positions=theta,
        noisy_gradients=RATE * (slope * (total - N_RECORDS / rate) + prior) + noise * rng.standard_normal((N_STEPS, 1)),
        noise_stddev=noise,
        final_params=np.array([loc, float(softplus_inverse(scale))]),
        sample_rate=RATE,
        names=("rate",),
        n_records=N_RECORDS,
        gradient="aligned",
        grad_scale=beta,
        max_grad_norm=NORM,
        noise_multiplier=noise_multiplier,
        model_spec=MODEL.to_dict(),
        settings={"scaling": "fisher", "raw_ratio": 0.0, "tolerance": 0.1},
    )
    return release, stats.gamma(MODEL.shape + N_RECORDS, scale=1.0 / (MODEL.rate + total))


def test_it_is_the_posterior_of_a_loss_that_is_not_quadratic():
    """Mean over 16 traces, in the posterior's spread: Student's t at 1e-6, and 0.05 for the loss's curvature."""
    traces = 16
    off, ratio, wrong = [], [], []
    for seed in range(traces):
        release, exact = drawn_trace(excursion=4.0, noise_multiplier=0.01, seed=seed)
        low, high = exact.ppf([1e-12, 1.0 - 1e-12])
        mean, square = (
            integrate.quad(lambda r, k=k, p=exact: softplus_inverse(r) ** k * p.pdf(r), low, high)[0] for k in (1, 2)
        )
        spread = np.sqrt(square - mean**2)
        marginals = noise_aware_posterior(release, burn_in=0).distribution.marginals
        off.append((marginals.mean[0] - mean) / spread)
        ratio.append(np.sqrt(marginals.variance[0]) / spread)
        # Power: the spread of the draws counted twice, or not at all, shows.
        trace = TiedTrace.from_release(release, MODEL, 0)
        run = FisherRun(MODEL, N_RECORDS, RATE, 0.01, NORM, 0.0, 0.1)
        twice = replace(trace, scale_square=np.var(release.positions, axis=0))
        nodes = [
            fisher_tied_nodes(item, run, ("rate",), correct=correct)
            for item, correct in ((twice, True), (trace, False))
        ]
        wrong.append([(item.expectation(item.mean)[0] - mean) / spread for item in nodes])
    allowed = 0.05 + stats.t.isf(0.5e-6, traces - 1) * np.std(off, ddof=1) / np.sqrt(traces)
    assert abs(np.mean(off)) < allowed
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.06)
    assert np.all(np.abs(np.mean(wrong, axis=0)) > allowed)


@pytest.mark.parametrize("excursion", [1.0, 2.0])
def test_what_the_draws_tell_of_the_hessian(excursion):
    """To a relative error of sigma C / (kappa c sqrt(N T)): half of it with draws twice as wide."""
    noise = 0.05
    release, _ = drawn_trace(excursion, noise)
    run = FisherRun(MODEL, N_RECORDS, RATE, noise, NORM, 0.0, 50.0)
    nodes = fisher_tied_nodes(TiedTrace.from_release(release, MODEL, 0), run, ("rate",), extra_noise=False)
    mean, variance = nodes.moments(nodes.hessian)
    want = noise * NORM / (RATE * excursion * np.sqrt(N_RECORDS * N_STEPS))
    assert np.sqrt(variance[0]) / mean[0] == pytest.approx(want, rel=0.15)


def test_other_aligned_releases_have_no_tied_posterior():
    release, _ = drawn_trace(1.0, 0.05)
    with pytest.raises(ValueError, match="without Fisher scaling"):
        noise_aware_posterior(release.replace(settings={}), hessian="tied")
