"""DP-EM: plain EM without noise, refusals, and what its release says."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import InsecureReleaseError, RecordError
from dpinfer.lab.baselines import run_dp_em
from dpinfer.testing import InsecureRNG

MODEL = dpi.models.GaussianMixture(2, 2, covariance=[[0.3, 0.1], [0.1, 0.2]], weights=(0.3, 0.7), prior_scale=2.0)
START = np.array([[-0.8, 0.3], [0.9, -0.2]])


@pytest.fixture
def points(rng):
    return MODEL.simulate(np.array([-1.0, 0.5, 1.0, -0.5]), 300, rng)


def plain_em(X, steps):
    loc, inverse = START.copy(), np.linalg.inv(MODEL.covariances[0])
    for _ in range(steps):
        gaps = X[:, None] - loc
        log_p = MODEL.log_weights - 0.5 * np.einsum("njd,de,nje->nj", gaps, inverse, gaps)
        share = np.exp(log_p - log_p.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        for j in range(2):
            precision = np.eye(2) / 4.0 + share[:, j].sum() * inverse
            loc[j] = np.linalg.solve(precision, inverse @ (share[:, j] @ X))
    return loc, share.sum(axis=0)


@pytest.mark.parametrize("statistics", ["published", "centred"])
def test_without_noise_to_speak_of_it_is_em(points, statistics):
    plan = dpi.PrivacyPlan.from_noise_multiplier(1e-2, 1.0, 6, 1e-5)
    release = run_dp_em(
        MODEL, points, plan=plan, n_records=300, max_site_norm=10.0, statistics=statistics, start=START,
        random_source=InsecureRNG(1),
    )  # fmt: skip
    loc, counts = plain_em(points, 6)
    np.testing.assert_allclose(release.loc[-1], loc, atol=0.01)
    np.testing.assert_allclose(release.counts[-1], counts, atol=1.0)
    mean, cov = release.moments()
    np.testing.assert_array_equal(mean, release.loc[-1])
    np.testing.assert_allclose(
        cov[0], np.linalg.inv(np.eye(2) / 4.0 + counts[0] * np.linalg.inv(MODEL.covariances[0])), rtol=0.05
    )
    assert release.moments(0.5)[0].shape == (2, 2)


def test_the_release_says_what_it_is(points):
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=5)
    release = run_dp_em(MODEL, points, plan=plan, n_records=300, max_site_norm=2.0)
    assert release.epsilon <= 1.0
    assert "differentially private" in release.guarantee
    assert np.all(release.counts >= 1.0)
    seeded = run_dp_em(MODEL, points, plan=plan, n_records=300, max_site_norm=2.0, random_source=InsecureRNG(1))
    with pytest.raises(InsecureReleaseError):
        _ = seeded.epsilon
    with pytest.raises(ValueError, match="read-only"):
        seeded.loc[0, 0, 0] = 1.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": dpi.models.ProbitRegression(2)}, "model"),
        ({"plan": 1}, "plan"),
        ({"n_records": 0}, "n_records"),
        ({"max_site_norm": 0.0}, "max_site_norm"),
        ({"statistics": "raw"}, "statistics"),
        ({"count_weight": 0.0}, "count_weight"),
        ({"damping": 2.0}, "damping"),
        ({"start": np.zeros(3)}, "start"),
    ],
)
def test_argument_errors_name_the_argument(points, changes, name):
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 1.0, 3, 1e-5)
    arguments = {"model": MODEL, "X": points, "plan": plan, "n_records": 300, "max_site_norm": 1.0} | changes
    with pytest.raises((TypeError, ValueError), match=name):
        run_dp_em(**arguments)


@pytest.mark.parametrize("statistics", ["published", "centred"])
def test_empty_components_and_one_record(statistics):
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 1.0, 6, 1e-5)
    for X in (np.tile([-1.0, 0.5], (30, 1)), np.array([[-1.0, 0.5]])):
        release = run_dp_em(
            MODEL, X, plan=plan, n_records=30, max_site_norm=2.0, statistics=statistics,
            start=np.array([[-1.0, 0.5], [50.0, 50.0]]), random_source=InsecureRNG(1),
        )  # fmt: skip
        assert np.all(np.isfinite(release.loc))
        assert np.linalg.eigvalsh(release.moments()[1]).min() > 0.0


def test_plans_and_records_are_checked(points):
    single = dpi.PrivacyPlan.from_noise_multiplier(3.0, None, 3, 1e-5, sampling="uniform", n_records=300)
    with pytest.raises(ValueError, match="plan"):
        run_dp_em(MODEL, points, plan=single, n_records=300, max_site_norm=1.0)
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 1.0, 3, 1e-5)
    with pytest.raises(RecordError, match="X"):
        run_dp_em(MODEL, points * np.nan, plan=plan, n_records=300, max_site_norm=1.0)
