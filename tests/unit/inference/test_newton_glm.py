"""The posterior of a private Newton run without a scale: conditionals by hand, coverage, files, refusals."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from tests.reference.negative_binomial import NegativeBinomial

import dpinfer as dpi
from dpinfer.accounting import NonPrivateEvent
from dpinfer.inference.newton.scores import BoundedScores, sampling_ratio
from dpinfer.testing import InsecureRNG

KINDS = ("LogisticRegression", "ProbitRegression", "PoissonRegression")


def simulated_release(rng, *, kind="LogisticRegression", n_records=4000, epsilon=2.0, seed=1):
    X = rng.normal(size=(n_records, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    weights = 0.7 * rng.normal(size=2)
    model = getattr(dpi.models, kind)(2, prior_scale=0.7)
    y = model.simulate(weights, X, rng)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=n_records)
    return dpi.run_newton(model, X, y, plan=plan, n_records=n_records, random_source=InsecureRNG(seed)), weights


def test_the_noise_of_a_score_takes_in_five_percent_of_a_slope_where_it_was_moved(rng):
    """The last score was taken nearest to where the run ended: its precision is closest to that of the noise alone."""
    release, _ = simulated_release(rng)
    scores = BoundedScores(release, dpi.models.LogisticRegression(2, prior_scale=0.7))
    share = scores._measured(1).precision[0] * np.square(release.score_stddev)
    assert np.all((share > 0.2) & (share < 1.0))
    wrong = release.slope_bound * 0.05**2 * scores._excess / 2
    np.testing.assert_allclose(share, 1.0 / (1.0 + wrong / np.square(release.score_stddev)), rtol=1e-12)


def test_a_model_of_ones_own_runs_by_what_it_says(rng):
    """Counts with more spread than a Poisson's, through the log link's residual: no file of the library knows them."""
    X = rng.normal(size=(4000, 2))
    model = NegativeBinomial(2, fit_intercept=True)
    truth = np.array([0.5, -0.3, 0.4])
    y = model.simulate(truth, X, rng)
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=4000)
    release = dpi.run_newton(model, X, y, plan=plan, n_records=4000, random_source=InsecureRNG(1))
    posterior = dpi.noise_aware_posterior(release, model=model, seed=2)
    z = (posterior.mean - truth) / posterior.stddev
    assert np.all(np.abs(z) < 4.0)
    # Without privacy a weight is known to about 0.015, a Poisson's to 0.012.
    assert np.all((posterior.stddev > 0.016) & (posterior.stddev < 0.05))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kind", [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow), pytest.param(KINDS[2], marks=pytest.mark.slow)]
)
def test_intervals_cover(kind):
    """50 runs of 2 weights; false-positive rate below 1e-6 if every interval covers 0.85.

    Intervals at half the width cover 0.59, and would pass with a probability below 0.2.
    """
    rng = np.random.default_rng(4)
    pairs = [simulated_release(rng, kind=kind, n_records=1500, seed=index) for index in range(50)]
    model = getattr(dpi.models, kind)(2, prior_scale=0.7)
    covered = 0
    for release, weights in pairs:
        low, high = dpi.noise_aware_posterior(release, model=model).quantile(np.array([0.05, 0.95]))
        covered += int(np.sum((low < weights) & (weights < high)))
    least = stats.binom.ppf(1e-6, 100, 0.85)
    assert covered >= least
    assert stats.binom.sf(least - 1, 100, 0.59) < 0.2


def test_the_sampling_ratio_is_one_for_a_score_that_is_not_clipped_and_below_it_otherwise(rng):
    """A Poisson score without a clip is the likelihood's own: its variance is its slope."""
    release, _ = simulated_release(rng, kind="PoissonRegression", epsilon=0.2)
    model = dpi.models.PoissonRegression(2)
    free = {"event": NonPrivateEvent(), "certified_epsilon": math.inf}
    wide = dataclasses.replace(release, clip=1e4, slope_bound=1e9, residual_bound=1e4, **free)
    assert sampling_ratio(wide, model) == pytest.approx(1.0, abs=1e-3)
    assert 0.3 < sampling_ratio(release, model) < 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_the_public_posterior_and_its_file(rng, tmp_path, kind):
    release, weights = simulated_release(rng, kind=kind)
    path = tmp_path / "run.release"
    release.save(path)
    loaded = dpi.load_release(path)
    assert isinstance(loaded, dpi.GlmNewtonRelease)
    np.testing.assert_array_equal(loaded.slope, release.slope)
    np.testing.assert_array_equal(loaded.counts, release.counts)
    assert (loaded.clip, loaded.score_radius) == (release.clip, release.score_radius)
    posterior = dpi.noise_aware_posterior(loaded, seed=2)
    assert np.all(np.abs(posterior.mean - weights) < 6.0 * posterior.stddev)
    assert np.max(posterior.diagnostics.mcse) < 0.05
    assert posterior.predict_mean(np.zeros((1, 2)))[0] == pytest.approx(1.0 if kind == "PoissonRegression" else 0.5)
    assert "Monte Carlo error" in str(posterior.summary())


def test_what_does_not_fit_is_refused(rng):
    release, _ = simulated_release(rng, n_records=200)
    with pytest.raises(ValueError, match="prior"):
        dpi.noise_aware_posterior(release, prior="weak")
    with pytest.raises(TypeError, match="LogisticRegression"):
        dpi.noise_aware_posterior(release, model=dpi.models.ProbitRegression(2))
    with pytest.raises(TypeError, match="regression of the release"):
        dpi.noise_aware_posterior(release, model=dpi.models.LinearRegression(1))
    with pytest.raises(ValueError, match="slope must have shape"):
        dataclasses.replace(release, slope=np.eye(3))
    for change in (
        {"slope_stddev": 1e-9},
        {"residual_bound": 5.0},
        {"slope_bound": 1.0},
        {"localise_residual_bound": 5.0},
    ):
        with pytest.raises(ValueError, match="claim more noise"):
            dataclasses.replace(release, **change)
    with pytest.raises(ValueError, match="edges must have shape"):
        dataclasses.replace(release, edges=np.ones(3))
