"""Mixtures whose components overlap: intervals of DP-SEP hold the truth, where those of a factorised q do not."""

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.inference.request import SiteRequest
from dpinfer.inference.sites import posterior as rooms
from dpinfer.testing import InsecureRNG

RUNS, RECORDS = 12, 1200


@pytest.fixture(scope="module")
def scores():
    """z-scores of both means of a mixture, 2.5 standard deviations apart, under each posterior."""
    model = dpi.models.GaussianMixture(2, 1, prior_scale=4.0)
    plan = dpi.plan_privacy(target_epsilon=5.0, target_delta=1e-5, sample_rate=1.0, n_steps=40)
    found, flagged = {"mixture": [], "factorised": []}, 0
    for seed in range(RUNS):
        truth = np.array([-1.25, 1.25])
        X = model.simulate(truth, RECORDS, 100 + seed)
        release = dpi.run_dp_sep(
            model, X, plan=plan, n_records=RECORDS, random_source=InsecureRNG(seed), n_threads=1,
            start=np.array([[-0.3], [0.3]]),
        )  # fmt: skip
        posterior = dpi.noise_aware_posterior(release)
        flagged += bool(posterior.diagnostics.warnings)
        other = rooms._noise_aware(release, SiteRequest(), rooms.site_burn_in(release, "auto"))
        for name, one in (("mixture", posterior), ("factorised", other)):
            found[name].append((np.sort(one.mean) - truth) / one.stddev)
    return {name: np.array(rows) for name, rows in found.items()}, flagged


def test_intervals_of_overlapping_components_count_what_they_share(scores):
    """The sum of squares is a chi-square's, at a false-positive rate of 1e-5; 8 flagged runs of 12 are no better."""
    found, flagged = scores
    total = np.sum(found["mixture"] ** 2)
    assert total < stats.chi2.isf(1e-5, found["mixture"].size)
    assert flagged <= 3


def test_a_factorised_posterior_misses_them(scores):
    """The power twin: the posterior that ignores what components share, and the clipping."""
    assert np.sum(scores[0]["factorised"] ** 2) > stats.chi2.isf(1e-6, scores[0]["factorised"].size)


def test_components_that_one_cannot_tell_apart_are_flagged():
    model = dpi.models.GaussianMixture(2, 1, prior_scale=4.0)
    plan = dpi.plan_privacy(target_epsilon=0.3, target_delta=1e-5, sample_rate=1.0, n_steps=30)
    X = model.simulate([-0.2, 0.2], 400, 1)
    release = dpi.run_dp_sep(model, X, plan=plan, n_records=400, random_source=InsecureRNG(1), n_threads=1)
    posterior = dpi.noise_aware_posterior(release)
    assert posterior.diagnostics.warnings == ("overlap",)
    assert "overlap" in str(posterior.summary())
