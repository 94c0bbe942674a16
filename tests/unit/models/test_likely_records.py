"""Records that a regression makes likely: their curvatures, the sizes of their scores, how far a step may go."""

import numpy as np
import pytest
from scipy import special

import dpinfer as dpi
from dpinfer.models.clipping import SIZE_EDGES, SizeShares
from dpinfer.models.likely_records import Curves, LikelyRecords

TRANSFORM = np.array([[1.0, 0.3, 0.0], [0.0, 2.0, -0.5], [0.2, 0.0, 1.0]])


def records(kind="LogisticRegression", means=(0.5, -1.0)):
    """Features with given means and unit variances, known but for rounding, in the coordinates of TRANSFORM."""
    mean = np.append(means, 1.0)
    moments = np.outer(mean, mean) + np.diag([1.0, 1.0, 0.0])
    arrays = {
        "transforms": TRANSFORM[None],
        "moments": (TRANSFORM @ moments @ TRANSFORM.T)[None],
        "moment_stddev": np.array([1e-9]),
        "moment_bounds": np.array([2.0]),
    }
    return LikelyRecords.of_moments(getattr(dpi.models, kind)(2, fit_intercept=True), arrays)


def test_features_have_the_released_moments():
    features = records().features
    np.testing.assert_array_equal(features[:, -1], 1.0)
    # 8192 draws and their opposites: means are exact but for what keeps the moments positive, spreads to 0.02.
    np.testing.assert_allclose(features.mean(axis=0), [0.5, -1.0, 1.0], atol=2e-3)
    np.testing.assert_allclose(np.cov(features[:, :2].T), np.eye(2), atol=0.06)


def test_a_curvature_is_carried_to_another_point():
    likely = records()
    curves = Curves(TRANSFORM, likely, np.array([0.1, 0.0, -0.4]))
    point = np.array([0.3, -0.2, -1.5])
    change = curves.change(point)
    first, second = (likely.curvature(TRANSFORM, TRANSFORM.T @ at) for at in (np.array([0.1, 0.0, -0.4]), point))
    np.testing.assert_allclose(change @ first @ change, second, rtol=1e-8)
    np.testing.assert_allclose(curves.slope(np.array([0.1, 0.0, -0.4])), np.eye(3), atol=1e-8)
    np.testing.assert_array_equal(Curves(TRANSFORM).change(point), np.eye(3))


@pytest.mark.parametrize("point", [np.full(3, np.nan), np.full(3, 1e300)])
def test_nothing_is_raised_where_numbers_overflow(point):
    with np.errstate(all="ignore"):
        change = Curves(TRANSFORM, records(), np.zeros(3)).change(point)
    assert np.all(np.isfinite(change))


def test_a_step_changes_predictors_by_one_at_most():
    likely = records()
    curves = Curves(TRANSFORM, likely, np.zeros(3))
    far = curves.within_reach(np.zeros(3), np.array([5.0, 5.0, 5.0]))
    assert likely.predictor_spread(TRANSFORM.T @ far) == pytest.approx(1.0)
    near = np.array([0.05, 0.0, 0.0])
    np.testing.assert_array_equal(curves.within_reach(np.zeros(3), near), near)


@pytest.mark.parametrize("kind", ["LogisticRegression", "PoissonRegression"])
def test_likely_sizes_are_those_of_simulated_responses(kind, rng):
    likely, weights, unit = records(kind), np.array([0.4, 0.3, -2.0]), 2.0
    found = likely.size_shares(TRANSFORM, weights, unit)
    eta = likely.features @ weights
    mean = special.expit(eta) if kind == "LogisticRegression" else np.exp(eta)
    drawn = (rng.random(eta.size) < mean).astype(float) if kind == "LogisticRegression" else rng.poisson(mean)
    sizes = np.abs(drawn - mean) * np.linalg.norm(likely.features @ TRANSFORM.T, axis=1) / unit
    exact = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0] / sizes.size
    # Five standard errors of the difference of two samples: 22 cells, a false-positive rate of 1e-5.
    np.testing.assert_allclose(found, exact, atol=5.0 * np.sqrt(2.0 * 0.25 / sizes.size))
    assert found.sum() == pytest.approx(1.0)


def test_shares_that_noise_hides_are_the_likely_ones():
    exact = np.zeros(SIZE_EDGES.size + 1)
    exact[1], exact[9:12] = 0.99, [0.002, 0.005, 0.003]
    blind, told = SizeShares(exact, 0.004), SizeShares(exact, 0.004, exact)
    assert blind.bias(8.0) < 0.1 * told.bias(8.0)
    # Not where the noisy shares exclude them.
    wrong = np.zeros_like(exact)
    wrong[14] = 0.5
    assert SizeShares(exact, 1e-6, wrong).shares[14] <= 2e-6 + 1e-9
