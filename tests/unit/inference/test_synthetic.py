"""Synthetic records: a set for each draw of the parameters, its guarantee, and the rules that combine analyses."""

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.inference import CombinedEstimates, SyntheticSets
from dpinfer.testing import InsecureRNG


def beta_posterior(n=400):
    release = dpi.run_statistic(
        dpi.models.BetaBernoulli(), np.arange(n) % 2.0, epsilon=0.1, n_records=n, random_source=InsecureRNG(3)
    )
    return dpi.noise_aware_posterior(release)


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(500, 2))
    y = (rng.random(500) < 1 / (1 + np.exp(-X[:, 0]))) + 0.0
    return dpi.fit(
        dpi.models.LogisticRegression(2), X, y, epsilon=1.0, delta=1e-5, n_records=500, random_source=InsecureRNG(1)
    ).posterior


def test_each_set_is_drawn_at_one_draw_of_the_parameters():
    posterior = beta_posterior()
    sets = posterior.synthetic(n_records=20_000, n_sets=200, seed=2)
    rates = np.array([each.mean() for each in sets])
    chance = sets.parameters[:, 0]
    z = (rates - chance) / np.sqrt(chance * (1.0 - chance) / 20_000)
    # False positives: 1 in 10**6.
    assert stats.chi2(200).ppf(5e-7) < np.sum(z**2) < stats.chi2(200).isf(5e-7)
    # The power twin: sets that were all drawn at the posterior mean would not differ by what the posterior leaves open.
    z = (rates - posterior.mean[0]) / np.sqrt(chance * (1.0 - chance) / 20_000)
    assert np.sum(z**2) > stats.chi2(200).isf(5e-7)
    assert rates.std() == pytest.approx(posterior.stddev[0], rel=0.2)
    again = posterior.synthetic(n_records=20_000, n_sets=200, seed=2)
    assert np.array_equal(again.responses, sets.responses)


def test_sets_of_a_regression_have_the_callers_points_and_the_guarantee(regression):
    points = np.random.default_rng(5).normal(size=(30, 2))
    sets = regression.synthetic(points, n_sets=4)
    assert len(list(sets)) == len(sets) == 4
    X, y = sets[-1]
    assert np.array_equal(X, points)
    assert set(np.unique(y)) == {0.0, 1.0}
    assert sets.guarantee == regression.guarantee
    assert sets.leaks == regression.guarantee.leaks
    assert "NOT PRIVATE" in repr(sets)
    with pytest.raises(ValueError, match="X must be given"):
        regression.synthetic(n_records=30)
    with pytest.raises(ValueError, match="n_sets"):
        regression.synthetic(points, n_sets=0)
    with pytest.raises(TypeError, match="cannot be drawn"):
        dpi.Posterior.synthetic(regression_of_a_network(), n_records=3)


def regression_of_a_network():
    class Other:
        model = dpi.models.BayesianNeuralNetwork(2, 3)

    return Other()


def some_sets(m):
    posterior = beta_posterior()
    return posterior.synthetic(n_records=5, n_sets=m)


def test_the_mixture_has_the_quantiles_of_its_components():
    rng = np.random.default_rng(6)
    estimates, variances = rng.normal(size=(40, 2)), rng.uniform(0.5, 2.0, size=(40, 2))
    found = some_sets(40).combine(estimates, variances)
    low, high = found.interval(0.8)
    for end, level in ((low, 0.1), (high, 0.9)):
        assert np.allclose(stats.norm.cdf((end - estimates) / np.sqrt(variances)).mean(axis=0), level, atol=1e-9)
    draws = some_sets(40).mix(estimates[:, None, :] + np.sqrt(variances)[:, None, :] * rng.normal(size=(40, 5000, 2)))
    assert draws.shape == (200_000, 2)
    assert np.allclose(draws.std(axis=0), found.stddev, rtol=0.02)
    one = some_sets(40).combine(estimates[:, 0], variances[:, 0])
    assert one.interval(0.8).ravel() == pytest.approx([low[0], high[0]])


def test_both_rules_recover_a_posterior_from_sets_of_their_kind():
    """A normal posterior of variance 1, sets whose analyses have variance w: 1 + 2 w by mixture, 1 by moments."""
    rng = np.random.default_rng(7)
    m = 4000
    centre = rng.normal(size=(m, 1))
    for w in (0.01, 1.0):
        estimates, variances = centre + np.sqrt(w) * rng.normal(size=(m, 1)), np.full((m, 1), w)
        mixture = CombinedEstimates("mixture", estimates, variances)
        moments = CombinedEstimates("moments", estimates, variances)
        # Standard error of a variance from 4000 draws: 2.2% of it.
        assert mixture.stddev[0] ** 2 == pytest.approx(1.0 + 2.0 * w, rel=0.12)
        assert moments.stddev[0] ** 2 == pytest.approx(1.0, rel=0.2)
        assert np.diff(moments.interval(), axis=0)[0, 0] == pytest.approx(2 * 1.645, rel=0.1)
        assert np.diff(mixture.interval(), axis=0)[0, 0] == pytest.approx(2 * 1.645 * np.sqrt(1 + 2 * w), rel=0.08)


@pytest.mark.parametrize(
    ("estimates", "variances", "options", "match"),
    [
        (np.zeros((2, 2)), np.ones((2, 1)), {}, "one shape"),
        (np.zeros((3, 2)), np.ones((3, 2)), {}, "estimates must have shape"),
        (np.zeros((2, 2)), np.zeros((2, 2)), {}, "variances must be positive"),
        (np.zeros((2, 2)), np.ones((2, 2)), {"rule": "mean"}, "rule must be one of"),
    ],
)
def test_what_cannot_be_combined_is_refused(estimates, variances, options, match):
    with pytest.raises(ValueError, match=match):
        some_sets(2).combine(estimates, variances, **options)
    with pytest.raises(ValueError, match="as many rows"):
        some_sets(2).mix(np.zeros((3, 4)))


def test_a_mixture_of_gaussians_gives_points():
    model = dpi.models.GaussianMixture(2, 2, covariance=0.1)
    rng = np.random.default_rng(8)
    X = rng.normal(size=(300, 2)) * 0.3 + np.array([[2.0, 0.0], [-2.0, 0.0]])[rng.integers(2, size=300)]
    plan = dpi.plan_privacy(target_epsilon=5.0, target_delta=1e-5, sample_rate=1.0, n_steps=5)
    release = dpi.run_dp_sep(model, X, plan=plan, n_records=300, random_source=InsecureRNG(1))
    sets = dpi.noise_aware_posterior(release).synthetic(n_records=50, n_sets=3)
    assert isinstance(sets, SyntheticSets)
    assert sets.responses.shape == (3, 50, 2)
