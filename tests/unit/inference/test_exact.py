"""The exact posterior against grids over the raw trace, for every kind of prior, noise and release."""

import numpy as np
import pytest
from scipy import special, stats
from tests.reference import inference_oracles as oracle

from dpinfer.errors import NumericalError
from dpinfer.inference import TracePrior, noise_aware_posterior
from dpinfer.models.base import softplus
from dpinfer.release import GradientTrace, release_from_arrays

RATE = 0.1


def one_coordinate(rng, steps=60, score=8.0, varying=False, omega=0.0):
    x = rng.normal(2.0, 0.3, (steps, 1))
    tau = rng.uniform(0.5, 2.0, (steps, 1)) if varying else np.array([1.3])
    slope = score * 1.3 / (0.3 * np.sqrt(steps))
    g = slope * (x - 2.05) + np.sqrt(tau**2 + omega**2) * rng.standard_normal((steps, 1))
    return x, g, tau, slope / RATE


def grids(posterior, points=161, reach=9.0):
    a, sd = posterior.hessian_mean[0], posterior.hessian_stddev[0]
    centre, spread = posterior.optimum_mean[0], posterior.optimum_stddev[0]
    hessian = np.linspace(max(np.log(a) - 9.0, np.log(max(a - reach * sd, 1e-3 * a))), np.log(a + reach * sd), points)
    return np.linspace(centre - reach * spread, centre + reach * spread, points), hessian


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("extra_noise", [False, True])
@pytest.mark.parametrize("kind", ["own", "weak", "empirical"])
def test_moments_and_quantiles_match_the_grid_over_the_raw_trace(rng, varying, extra_noise, kind):
    x, g, tau, a = one_coordinate(rng, varying=varying, score=12.0)
    if kind == "own":
        prior = TracePrior(optimum_loc=2.2, optimum_scale=0.2, raw_hessian_loc=0.8 * a, raw_hessian_scale=0.2 * a)
        loc, scale = 2.2, 0.2
        log_prior = lambda h: oracle.normal_on_raw_prior(h, 0.8 * a, 0.2 * a)  # noqa: E731
    else:
        prior = kind
        weight, mx, _, xx, xg, _ = oracle.weighted_statistics(x, g, tau)[:, 0]
        tau0 = float(np.ravel(tau)[0])
        slope, stderr = xg / xx / RATE, tau0 / np.sqrt(xx) / RATE
        if kind == "weak":
            loc, scale = mx, 10.0 * np.sqrt(xx / weight)
            log_prior = lambda h: oracle.wide_prior(h, 100.0 * np.hypot(slope, stderr), 1.0)  # noqa: E731
        else:
            loc, scale = mx, 1.0
            log_prior = lambda h: oracle.normal_on_raw_prior(h, abs(slope), stderr)  # noqa: E731
    posterior = noise_aware_posterior(
        oracle.point_release(x, g, tau if varying else tau[0], RATE),
        burn_in=0,
        prior=prior,
        extra_noise=extra_noise,
    )
    optimum, hessian = grids(posterior)
    ratios = np.linspace(0.0, 2.5, 61) if extra_noise else None
    want = oracle.grid_posterior(
        x[:, 0],
        g[:, 0],
        tau[:, 0] if varying else tau,
        RATE,
        optimum,
        hessian,
        log_prior,
        prior_loc=loc,
        prior_scale=scale,
        ratios=ratios,
    )
    sd = want["optimum_stddev"]
    assert posterior.optimum_mean[0] == pytest.approx(want["optimum_mean"], abs=2e-4 * sd)
    assert posterior.optimum_stddev[0] == pytest.approx(sd, rel=1e-3)
    assert posterior.hessian_mean[0] == pytest.approx(want["hessian_mean"], rel=1e-4)
    assert posterior.hessian_stddev[0] == pytest.approx(want["hessian_stddev"], rel=1e-3)
    # Family "point": theta is the optimum, so its quantiles are the optimum's.
    levels = np.array([0.01, 0.05, 0.3, 0.5, 0.95, 0.99])
    np.testing.assert_allclose(np.interp(posterior.quantile(levels)[:, 0], optimum, want["cdf"]), levels, atol=2e-3)


@pytest.mark.parametrize("scale_x", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("scale_g", [1e-6, 1.0, 1e8])
def test_weak_prior_has_no_units(rng, scale_x, scale_g):
    x, g, tau, _ = one_coordinate(rng, score=4.0)
    base = noise_aware_posterior(oracle.point_release(x, g, tau, RATE), burn_in=0)
    moved = noise_aware_posterior(oracle.point_release(scale_x * x, scale_g * g, scale_g * tau, RATE), burn_in=0)
    np.testing.assert_allclose(moved.optimum_mean, scale_x * base.optimum_mean, rtol=1e-9)
    np.testing.assert_allclose(moved.optimum_stddev, scale_x * base.optimum_stddev, rtol=1e-9)
    np.testing.assert_allclose(moved.hessian_mean, scale_g / scale_x * base.hessian_mean, rtol=1e-9)
    np.testing.assert_allclose(moved.quantile([0.1, 0.9]), scale_x * base.quantile([0.1, 0.9]), rtol=1e-9)


def test_well_identified_slope_has_the_regression_posterior(rng):
    x, g, tau, _ = one_coordinate(rng, steps=400, score=40.0)
    posterior = noise_aware_posterior(oracle.point_release(x, g, tau, RATE), burn_in=0, extra_noise=False)
    slope, intercept = np.polyfit(x[:, 0], g[:, 0], 1)
    stderr = tau[0] / np.sqrt(np.sum((x - x.mean()) ** 2))
    assert posterior.hessian_mean[0] == pytest.approx(slope / RATE, abs=0.03 * stderr / RATE)
    assert posterior.hessian_stddev[0] == pytest.approx(stderr / RATE, rel=0.01)
    assert posterior.optimum_mean[0] == pytest.approx(-intercept / slope, abs=0.05 * posterior.optimum_stddev[0])


def test_negative_slope_estimate_gives_a_wide_but_proper_posterior(rng):
    x, g, tau, _ = one_coordinate(rng, score=-5.0)
    posterior = noise_aware_posterior(oracle.point_release(x, g, tau, RATE), burn_in=0)
    spread = x.std()
    assert 0.0 < posterior.hessian_mean[0] < 5.0 * tau[0] / (RATE * spread * np.sqrt(60.0))
    assert spread < posterior.optimum_stddev[0] < 11.0 * spread
    assert "hessian not identified" in posterior.summary().flags[0]


def test_extra_noise_is_found_and_widens_the_posterior(rng):
    x, g, tau, _ = one_coordinate(rng, steps=2000, score=60.0, omega=2.6)
    release = oracle.point_release(x, g, tau, RATE)
    with_extra = noise_aware_posterior(release, burn_in=0)
    without = noise_aware_posterior(release, burn_in=0, extra_noise=False)
    ratio = with_extra.optimum_stddev[0] / without.optimum_stddev[0]
    assert ratio == pytest.approx(np.sqrt(1.0 + 4.0), rel=0.1)
    assert "extra noise" in with_extra.summary().flags[0]
    parts = with_extra.decompose()
    assert parts.approximation[0] > 2.0 * parts.privacy[0]


def test_erratum_the_noise_is_divided_by_beta_squared(rng):
    """g = (g_clipped + sigma C eta) / beta has variance (sigma C)^2 / beta^2; eq. A60 prints 1 / beta."""
    beta, sigma_c, a, optimum = 50.0, 20.0, 40.0, 1.0
    # From afar, the slope is known to half a percent with the right noise, and to 4% with the printed one.
    x, g, _ = oracle.simulate(
        rng, steps=4000, hessian=[a], optimum=np.array([optimum]), noise_stddev=sigma_c / beta, start=[3.0]
    )
    right = noise_aware_posterior(oracle.point_release(x, g, sigma_c / beta, RATE), burn_in=0, extra_noise=False)
    wrong = noise_aware_posterior(
        oracle.point_release(x, g, sigma_c / np.sqrt(beta), RATE), burn_in=0, extra_noise=False
    )
    # The residual sum over its variance is chi-square: accepted with the right noise, impossible with the printed one.
    low, high = stats.chi2.ppf([5e-7, 1.0 - 5e-7], 3998)
    assert low < 3998 * right.diagnostics.noise_ratio[0] ** 2 < high
    assert not low < 3998 * wrong.diagnostics.noise_ratio[0] ** 2 < high
    assert abs(right.optimum_mean[0] - optimum) < 6.0 * right.optimum_stddev[0]
    # Given the slope, the width is proportional to the noise; the slope's own error adds 0.4% (not random to 1e-4).
    assert wrong.optimum_stddev[0] / right.optimum_stddev[0] == pytest.approx(np.sqrt(beta), rel=0.01)


def test_mean_field_marginal_is_the_mixture_over_both_parameters(rng):
    x, g, _ = oracle.simulate(
        rng, steps=2000, hessian=[60.0, 9.0], optimum=np.array([0.5, -1.0]), noise_stddev=[1.0, 0.4]
    )
    release = release_from_arrays(x, g, noise_stddev=np.array([1.0, 0.4]), sample_rate=RATE)
    posterior = noise_aware_posterior(release, burn_in=0)
    locations = posterior.distribution.optimum
    scales = posterior.distribution.raw_scale
    draws = posterior.sample(40_000, seed=3)
    z, z_weight = np.polynomial.hermite_e.hermegauss(41)
    z_weight = z_weight / z_weight.sum()
    q = softplus(scales.mean[:, None] + np.sqrt(scales.variance)[:, None] * z)
    q_weight = scales.weight[:, None] * z_weight
    theta = posterior.quantile([0.03, 0.5, 0.97])[:, 0]
    for level, value in zip((0.03, 0.5, 0.97), theta, strict=True):
        stddev = np.sqrt(locations.variance[:, None, None] + q**2)
        cdf = special.ndtr((value - locations.mean[:, None, None]) / stddev)
        # The 15 nodes in use over the scale leave an error of some 1e-9, at most 1.5e-8 over 25 traces.
        assert np.einsum("i,jk,ijk->", locations.weight, q_weight, cdf) == pytest.approx(level, abs=1e-6)
    variance = posterior.optimum_stddev[0] ** 2 + np.sum(q_weight * q**2)
    assert posterior.stddev[0] ** 2 == pytest.approx(variance, rel=1e-10)
    assert np.all(np.abs(draws.mean(axis=0) - posterior.mean) < 6.0 * posterior.stddev / np.sqrt(40_000))


def test_aligned_release_mixes_over_hessian_and_optimum(rng):
    steps, a, optimum = 4000, 30.0, 0.7
    theta = rng.normal(0.7, 0.2, (steps, 1))
    tau = 2.0
    g = RATE * a * (theta - optimum) + tau * rng.standard_normal((steps, 1))
    params = np.column_stack([np.full(steps, 0.7), np.full(steps, -1.5)])
    release = GradientTrace(
        params=params,
        positions=theta,
        noisy_gradients=g,
        noise_stddev=np.array([tau]),
        final_params=params[-1],
        sample_rate=RATE,
        names=("w",),
        gradient="aligned",
    )
    posterior = noise_aware_posterior(release, burn_in=0)
    nodes = posterior.distribution
    want = np.sum(nodes.optimum.weight * nodes.q_variance) + posterior.optimum_stddev[0] ** 2
    assert posterior.stddev[0] ** 2 == pytest.approx(want, rel=1e-12)
    assert posterior.stddev[0] == pytest.approx(1.0 / np.sqrt(a), rel=0.1)
    assert posterior.optimum_names == ("loc[w]",)
    full = noise_aware_posterior(release, burn_in=0, hessian="full", n_samples=4000)
    assert full.stddev[0] == pytest.approx(posterior.stddev[0], rel=0.02)
    assert full.mean[0] == pytest.approx(posterior.mean[0], abs=0.02)


@pytest.mark.parametrize("steps", [2, 3, 63, 64, 65])
def test_awkward_lengths(rng, steps):
    x, g, tau, _ = one_coordinate(rng, steps=steps)
    posterior = noise_aware_posterior(oracle.point_release(x, g, tau, RATE))
    assert np.all(np.isfinite(posterior.quantile([0.01, 0.5, 0.99])))
    assert np.isfinite(posterior.optimum_stddev[0])


def test_one_step_is_refused():
    release = oracle.point_release(np.ones((1, 1)), np.ones((1, 1)), 1.0)
    with pytest.raises(ValueError, match="burn_in must leave at least 2"):
        noise_aware_posterior(release)


def test_a_coordinate_that_never_moves_is_named(rng):
    x = np.column_stack([rng.normal(size=50), np.full(50, 3.0)])
    release = oracle.point_release(x, rng.normal(size=(50, 2)), 1.0, names=("moving", "frozen"))
    with pytest.raises(NumericalError, match="'frozen'"):
        noise_aware_posterior(release)


def test_result_does_not_depend_on_threads(rng):
    x, g, _ = oracle.simulate(
        rng, steps=3000, hessian=np.full(40, 30.0), optimum=np.zeros(40), noise_stddev=np.full(40, 2.0)
    )
    release = oracle.point_release(x, g, 2.0, RATE)
    first = noise_aware_posterior(release, n_threads=1)
    for threads in (2, 3, 7):
        other = noise_aware_posterior(release, n_threads=threads)
        assert first.optimum_mean.tobytes() == other.optimum_mean.tobytes()
        assert first.quantile(0.9).tobytes() == other.quantile(0.9).tobytes()
