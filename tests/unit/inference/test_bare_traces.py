"""Traces of other DP-SGD code: a bare trace is named for what it is; a stated curvature adds the sampling variance."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.release import load_release, release_from_arrays

WARNING = "sampling uncertainty of the records is not in these intervals"


def trace(**options):
    rng = np.random.default_rng(1)
    x = rng.normal(2.0, 1.0, (500, 2))
    g = 0.1 * 50.0 * (x - 2.0) + rng.normal(0.0, 3.0, (500, 2))
    return release_from_arrays(x, g, noise_stddev=3.0, sample_rate=0.1, family="point", **options)


def test_a_bare_trace_warns_that_it_is_the_optimum():
    posterior = dpi.noise_aware_posterior(trace(), burn_in=0)
    assert WARNING in str(posterior.summary())
    assert WARNING in str(dpi.noise_aware_posterior(trace(), burn_in=0, approximation="naive").summary())
    np.testing.assert_allclose(posterior.stddev, posterior.optimum_stddev)


def test_a_stated_curvature_adds_its_variance_and_is_kept_in_the_file(tmp_path):
    release = trace(curvature=[50.0, 200.0])
    bare = dpi.noise_aware_posterior(trace(), burn_in=0)
    release.save(tmp_path / "trace")
    for item in (release, load_release(tmp_path / "trace")):
        posterior = dpi.noise_aware_posterior(item, burn_in=0)
        assert WARNING not in str(posterior.summary())
        np.testing.assert_allclose(posterior.stddev**2, bare.stddev**2 + [1.0 / 50.0, 1.0 / 200.0])
        np.testing.assert_allclose(posterior.decompose().data, [1.0 / 50.0, 1.0 / 200.0])


def test_with_correlations_a_curvature_of_each_coordinate_is_not_used_and_that_is_said():
    posterior = dpi.noise_aware_posterior(trace(curvature=[50.0, 200.0]), burn_in=0, hessian="full", prior="weak")
    assert WARNING in str(posterior.summary())


@pytest.mark.parametrize(
    ("curvature", "message"),
    [([1.0], "shape"), ([1.0, -1.0], "positive"), ([1.0, np.inf], "finite"), (["a", "b"], "real numbers")],
)
def test_wrong_curvatures_are_refused(curvature, message):
    with pytest.raises((TypeError, ValueError), match=message):
        trace(curvature=curvature)


def test_a_variational_trace_has_its_own():
    with pytest.raises(ValueError, match="raw scales determine it"):
        release_from_arrays(np.ones((5, 2)), np.ones((5, 2)), noise_stddev=1.0, sample_rate=0.1, curvature=[1.0, 1.0])
