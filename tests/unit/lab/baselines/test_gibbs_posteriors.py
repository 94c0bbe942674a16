"""The releases of the sufficient-statistic baselines have a posterior like any other."""

from dataclasses import replace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.lab.baselines import (
    BinomialFamily,
    CategoricalFamily,
    ExponentialFamily,
    bernstein_sheldon_posterior,
    gibbs_sampler_posterior,
    gibbs_ss_noisy_posterior,
    release_regression_statistics,
    release_statistics,
)
from dpinfer.testing import InsecureRNG

N = 400
RECORDS = {
    "binomial": (BinomialFamily(3), lambda rng: rng.binomial(3, 0.3, N)),
    "categorical": (CategoricalFamily((1.0, 2.0, 3.0)), lambda rng: rng.integers(0, 3, N)),
    "exponential": (ExponentialFamily((0.0, 3.0)), lambda rng: rng.exponential(0.5, N)),
}


def statistics(kind, epsilon=1.0):
    family, records = RECORDS[kind]
    source = InsecureRNG(5)
    X = records(np.random.default_rng(3))
    return release_statistics(family, X, epsilon=epsilon, n_records=N, random_source=source)


def regression(**options):
    rng = np.random.default_rng(4)
    X = rng.uniform(-1.0, 1.0, (2000, 2))
    y = np.clip(X @ [1.0, -0.5] + 0.2 + 0.3 * rng.standard_normal(2000), -4.0, 4.0)
    settings = {"epsilon": 20.0, "n_records": 2000, "feature_bound": 1.0, "response_bound": 4.0} | options
    return release_regression_statistics(X, y, random_source=InsecureRNG(6), **settings)


@pytest.mark.parametrize("kind", RECORDS)
def test_the_draws_are_those_of_the_sampler(kind):
    release = statistics(kind)
    posterior = gibbs_sampler_posterior(release, n_samples=50, n_warmup=20, seed=2)
    draws = bernstein_sheldon_posterior(release, n_samples=50, n_burn_in=20, seed=2)
    model = posterior.model
    np.testing.assert_array_equal(posterior.distribution.location, model.unconstrain(draws[:, : model.n_params]))
    assert posterior.method == "gibbs"
    assert posterior.names == model.names
    assert posterior.guarantee == release.guarantee


def test_the_regression_sampler_too():
    release = regression()
    posterior = gibbs_sampler_posterior(release, n_samples=200, n_warmup=100, seed=2)
    draws = gibbs_ss_noisy_posterior(release, n_samples=200, n_burn_in=100, seed=2)
    np.testing.assert_array_equal(posterior.distribution.location, draws)
    assert posterior.names == ("coef[0]", "coef[1]", "intercept", "noise_variance")
    np.testing.assert_allclose(posterior.mean[:3], [1.0, -0.5, 0.2], atol=0.15)


def test_the_share_of_privacy_is_that_of_the_noise():
    """With hardly any noise the data are all there is; with much, privacy is most of it."""
    for epsilon, least, most in ((1000.0, 0.0, 0.2), (0.01, 0.5, 1.0)):
        posterior = gibbs_sampler_posterior(statistics("binomial", epsilon), n_samples=2000)
        parts = posterior.distribution.variance_parts()
        np.testing.assert_allclose(parts.data + parts.privacy, posterior.distribution.marginals.variance)
        assert least <= parts.privacy[0] / (parts.data[0] + parts.privacy[0]) <= most


def test_it_agrees_with_the_exact_posterior_of_the_same_noise():
    family, records = RECORDS["binomial"]
    X = records(np.random.default_rng(3))
    model = dpi.models.BetaBinomial(3, family.a, family.b)
    exact = dpi.noise_aware_posterior(
        dpi.run_statistic(model, X, epsilon=0.1, n_records=N, random_source=InsecureRNG(5))
    )
    release = statistics("binomial", 0.1)
    shifted = replace(release, noisy_statistics=np.array([N * 3 * 0.3]))
    drawn = gibbs_sampler_posterior(shifted, n_samples=4000)
    assert 0.8 < drawn.stddev[0] / exact.stddev[0] < 1.25


def test_what_does_not_fit_is_refused():
    release = statistics("binomial")
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        gibbs_sampler_posterior(release, n_samples=0)
    with pytest.raises(ValueError, match="third and fourth moments"):
        gibbs_sampler_posterior(regression(moment_share=0.0))
    with pytest.raises(ValueError, match="method must be one of"):
        replace(release, method="other")
    with pytest.raises(ValueError, match=r"lab\.baselines\.gibbs_sampler_posterior"):
        dpi.noise_aware_posterior(release)


def test_it_is_saved_and_loaded(tmp_path):
    posterior = gibbs_sampler_posterior(statistics("categorical"), n_samples=30, n_warmup=5)
    posterior.save(tmp_path / "p.posterior")
    again = dpi.load_posterior(tmp_path / "p.posterior")
    np.testing.assert_array_equal(again.mean, posterior.mean)
    assert "gibbs" in repr(again)
