"""The optimum's prior that follows from the model's own prior."""

from contextlib import nullcontext

import numpy as np
import pytest
from scipy import stats
from tests.reference import inference_oracles as oracle

from dpinfer.errors import FallbackWarning
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.priors import optimum_under_model
from dpinfer.models import LinearRegression, LogisticRegression
from dpinfer.models.base import softplus, softplus_inverse
from dpinfer.release import GradientTrace

RATE, N_RECORDS = 0.1, 10_000


def release_with_noise(noise, *, rate=1e-4, model=True, n_records=N_RECORDS, seed=3):
    """A trace of two weights: well identified at little noise, hardly moving against its noise at much."""
    rng = np.random.default_rng(seed)
    hessian = np.array([900.0, 700.0, 500.0, 400.0])
    stddev = np.full(4, noise)
    x, g, _ = oracle.simulate(
        rng,
        steps=1500,
        hessian=hessian,
        learning_rate=np.full(4, rate),
        optimum=np.array([0.4, -0.3, -3.0, -3.0]),
        noise_stddev=stddev,
    )
    return GradientTrace(
        params=x, positions=x, noisy_gradients=g, noise_stddev=stddev, final_params=x[-1], sample_rate=RATE,
        names=("a", "b"), n_records=n_records,
        model_spec=LogisticRegression(2, feature_names=("a", "b")).to_dict() if model else {},
    )  # fmt: skip


def test_it_changes_nothing_where_the_trace_knows():
    release = release_with_noise(5.0, rate=3e-3)
    weak = noise_aware_posterior(release, burn_in=0)
    model = noise_aware_posterior(release, burn_in=0, prior="model")
    np.testing.assert_allclose(model.optimum_mean, weak.optimum_mean, atol=0.1 * weak.optimum_stddev.max())
    np.testing.assert_allclose(model.optimum_stddev, weak.optimum_stddev, rtol=0.05)


def test_it_bounds_what_the_trace_does_not_know():
    """Much noise: the optimum's posterior is no wider than the model's prior, where the weak prior is far wider."""
    release = release_with_noise(2e4)
    weak = noise_aware_posterior(release, burn_in=0, hessian="diagonal")
    model = noise_aware_posterior(release, burn_in=0, hessian="diagonal", prior="model")
    assert np.all(model.optimum_stddev[:2] <= 1.05)
    assert np.all(weak.optimum_stddev[:2] > 2.0)
    assert np.all(np.abs(model.optimum_mean[:2]) < 1.0)


def test_moments_follow_the_model():
    loc, scale = optimum_under_model(LogisticRegression(3, prior_scale=0.7), 99, with_scales=True)
    np.testing.assert_allclose(loc[:3], 0.0)
    np.testing.assert_allclose(scale[:3], 0.7)
    np.testing.assert_allclose(softplus(loc[3:] + scale[3:]), 0.7)
    np.testing.assert_allclose(softplus(loc[3:] - scale[3:]), 0.07)
    assert optimum_under_model(LogisticRegression(3), 99, with_scales=False)[0].shape == (3,)
    model = LinearRegression(1, variance_shape=20.0, variance_rate=0.5)
    loc, scale = model.prior_moments()
    prior = stats.invgamma(20.0, scale=0.5)
    assert loc[1] + scale[1] == pytest.approx(float(softplus_inverse(prior.ppf(stats.norm.cdf(1.0)))))
    assert loc[1] - scale[1] == pytest.approx(float(softplus_inverse(prior.ppf(stats.norm.cdf(-1.0)))))
    assert scale[0] == pytest.approx(2.0 * np.sqrt(prior.median()))


@pytest.mark.parametrize("options", [{"model": False}, {"n_records": None}])
def test_it_needs_a_model_and_a_number_of_records(options):
    with pytest.raises(ValueError, match="needs a release with a model and a public n_records"):
        noise_aware_posterior(release_with_noise(5.0, **options), prior="model")


@pytest.mark.parametrize("approximation", ["exact", "laplace"])
def test_a_prior_that_contradicts_its_trace_is_no_error(approximation):
    """The paper's prior takes the absolute value of the slope: against a clearly negative one it has to give way."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2000, 2))
    release = GradientTrace(
        params=x, positions=x, noisy_gradients=-30.0 * x + rng.normal(size=x.shape), noise_stddev=np.ones(2),
        final_params=x[-1], sample_rate=RATE, names=("a",),
    )  # fmt: skip
    options = {"prior": "empirical", "burn_in": 0, "extra_noise": False}
    # Laplace's approximation has no interior mode there, and says that quadrature answers in its place.
    told = pytest.warns(FallbackWarning) if approximation == "laplace" else nullcontext()
    with told:
        posterior = noise_aware_posterior(release, approximation=approximation, **options)
    assert np.all(np.isfinite(posterior.optimum_mean))
    assert np.all(posterior.optimum_stddev > 0.0)
    assert np.all(posterior.hessian_mean < 30.0)  # the absolute slope, which the prior proposes, is 300
