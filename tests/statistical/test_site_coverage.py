"""Noise-aware SEP covers where its last iterate does not: a small seeded study, with the naive posterior as twin."""

import numpy as np
import pytest
from scipy import special, stats

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

RUNS, RECORDS, WIDTH = 40, 1000, 2


@pytest.fixture(scope="module")
def scores():
    """z-scores of theta under each posterior, (RUNS, WIDTH)."""
    model = dpi.models.LogisticRegression(WIDTH)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=24)
    found = {"naive": [], "exact": []}
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        theta = rng.normal(size=WIDTH)
        X = rng.normal(size=(RECORDS, WIDTH))
        y = (rng.random(RECORDS) < special.expit(X @ theta)) * 1.0
        release = dpi.run_dp_sep(
            model, X, y, plan=plan, n_records=RECORDS, random_source=InsecureRNG(seed), n_threads=1
        )
        for method, rows in found.items():
            options = {"n_samples": 200} if method == "exact" else {}
            posterior = dpi.noise_aware_posterior(release, approximation=method, **options)
            rows.append((theta - posterior.mean) / posterior.stddev)
    return {method: np.array(rows) for method, rows in found.items()}


def spread_is_one(scores):
    """Whether the z-scores' sum of squares is a chi-square's, at a false-positive rate of 1e-6."""
    total, count = np.sum(scores**2), scores.size
    return stats.chi2.ppf(5e-7, count) < total < stats.chi2.isf(5e-7, count)


@pytest.mark.statistical
def test_noise_aware_posteriors_cover(scores):
    assert spread_is_one(scores["exact"])


@pytest.mark.statistical
def test_the_last_iterate_does_not(scores):
    """The power twin: the posterior that ignores the noise."""
    assert not spread_is_one(scores["naive"])
