"""EP, SEP and ADF: against exact posteriors, against each other, and against brute force."""

import numpy as np
import pytest
from scipy import special
from tests.reference import site_oracles

import dpinfer as dpi
from dpinfer.errors import RecordError


def one_dimensional_posterior(x, y, log_likelihood):
    """Mean and standard deviation of a weight with a N(0, 1) prior, on a grid."""
    theta = np.linspace(-8.0, 8.0, 40_001)
    log_p = -0.5 * theta**2 + sum(log_likelihood((2 * b - 1) * a * theta) for a, b in zip(x, y, strict=True))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ theta
    return mean, np.sqrt(p @ (theta - mean) ** 2)


def plain_ep(x, y, likelihood, sweeps=15):
    """Textbook EP for one weight with a N(0, 1) prior, on the brute-force sites: (mean, standard deviation)."""
    eta, precision = np.zeros(x.size), np.full(x.size, 0.2)
    for _ in range(sweeps):
        for i in range(x.size):
            rest = 1.0 + precision.sum() - precision[i]
            cavity = np.array([(eta.sum() - eta[i]) / rest])
            new = site_oracles.binary_site(x[i : i + 1], y[i], likelihood, cavity, np.array([[1.0 / rest]]), 2001)
            eta[i], precision[i] = new[0][0], new[1][0, 0]
    total = 1.0 + precision.sum()
    return eta.sum() / total, total**-0.5


@pytest.mark.parametrize(
    ("model", "log_likelihood"),
    [
        (dpi.models.ProbitRegression(1), special.log_ndtr),
        (dpi.models.LogisticRegression(1), lambda eta: -np.logaddexp(0.0, -eta)),
    ],
    ids=["probit", "logistic"],
)
def test_fixed_points_against_brute_force(rng, model, log_likelihood):
    X = rng.normal(size=(60, 1))
    y = (X[:, 0] + rng.normal(size=60) > 0) * 1.0
    mean, stddev = one_dimensional_posterior(X[:, 0], y, log_likelihood)
    ep = dpi.run_sep(model, X, y, method="ep")
    sep = dpi.run_sep(model, X, y)
    assert ep.converged
    assert sep.converged
    loc, spread = plain_ep(X[:, 0], y, model.likelihood)
    assert ep.loc[0, 0] == pytest.approx(loc, abs=1e-5)
    assert ep.cov[0, 0, 0] ** 0.5 == pytest.approx(spread, rel=1e-5)
    for result in (ep, sep):
        assert abs(result.loc[0, 0] - mean) < 0.03 * stddev
        assert result.cov[0, 0, 0] ** 0.5 == pytest.approx(stddev, rel=0.03)
    gap = abs(sep.loc[0, 0] - ep.loc[0, 0]) / stddev
    assert gap > 0.0
    adf = dpi.run_sep(model, X, y, method="adf", seed=1)
    assert abs(adf.loc[0, 0] - mean) < 0.5 * stddev
    # SEP and EP approach each other with more of the same records.
    X4, y4 = np.tile(X, (4, 1)), np.tile(y, 4)
    sep4, ep4 = dpi.run_sep(model, X4, y4), dpi.run_sep(model, X4, y4, method="ep", tolerance=1e-5)
    assert abs(sep4.loc[0, 0] - ep4.loc[0, 0]) / ep4.cov[0, 0, 0] ** 0.5 < 0.7 * gap


def test_one_component_is_conjugate(rng):
    """With a single component every site is the likelihood itself: EP, SEP and ADF are exact."""
    covariance = np.array([[0.5, 0.2], [0.2, 0.3]])
    model = dpi.models.GaussianMixture(1, 2, covariance=covariance, prior_loc=(0.5, -1.0), prior_scale=2.0)
    X = rng.multivariate_normal([1.0, 2.0], covariance, 50)
    precision = np.eye(2) / 4.0 + 50 * np.linalg.inv(covariance)
    mean = np.linalg.solve(precision, np.array([0.5, -1.0]) / 4.0 + np.linalg.solve(covariance, X.sum(axis=0)))
    for method in ("sep", "ep", "adf"):
        start = None if method == "adf" else np.zeros((1, 2))
        result = dpi.run_sep(model, X, method=method, start=start)
        np.testing.assert_allclose(result.loc[0], mean, atol=1e-6)
        np.testing.assert_allclose(result.precision[0], precision, rtol=1e-6)


def test_mixture_fixed_points_agree_with_a_sampler(rng):
    model = dpi.models.GaussianMixture(2, 1, covariance=0.25, prior_scale=2.0)
    X = model.simulate(np.array([-1.0, 1.0]), 200, rng)
    start = np.array([[-1.0], [1.0]])
    sep = dpi.run_sep(model, X, start=start)
    ep = dpi.run_sep(model, X, start=start, method="ep", n_passes=8)
    grid = np.linspace(-0.35, 0.35, 61)
    low, high = np.meshgrid(-1.0 + grid, 1.0 + grid, indexing="ij")
    theta = np.stack((low.ravel(), high.ravel()), axis=1)
    log_p = model.log_likelihood(theta, X).sum(axis=1) + model.log_prior(theta)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ theta
    stddev = np.sqrt(p @ (theta - mean) ** 2)
    for result in (sep, ep):
        np.testing.assert_allclose(result.loc[:, 0], mean, atol=0.1 * stddev.min())
        np.testing.assert_allclose(np.sqrt(result.cov[:, 0, 0]), stddev, rtol=0.05)


def test_clipping_changes_nothing_until_it_does(rng):
    model = dpi.models.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)
    truth = np.array([[-1.0, 0.5], [1.0, -0.5]])
    X = model.simulate(truth.ravel(), 300, rng)
    plain = dpi.run_sep(model, X, start=truth)
    wide = dpi.run_sep(model, X, start=truth, max_site_norm=1e6)
    np.testing.assert_allclose(wide.loc, plain.loc, atol=1e-6)
    for clip in ("joint", "separate"):
        tight = dpi.run_sep(model, X, start=truth, max_site_norm=1.0, clip=clip)
        # Less evidence gets through: wider posteriors.
        assert np.linalg.det(tight.cov).min() > np.linalg.det(plain.cov).max()
    joint = dpi.run_sep(model, X, start=truth, max_site_norm=5.0)
    separate = dpi.run_sep(model, X, start=truth, max_site_norm=5.0, clip="separate")
    assert np.trace(separate.precision[0]) > np.trace(joint.precision[0])


def test_results_say_that_they_are_not_private(rng):
    result = dpi.run_sep(dpi.models.ProbitRegression(2), rng.normal(size=(20, 2)), np.ones(20))
    assert not result.safe_to_publish
    assert "NOT PRIVATE" in repr(result)
    assert not isinstance(result, dpi.SiteRelease)
    draws = result.sample(4000, seed=1)
    np.testing.assert_allclose(draws.mean(axis=0), result.loc[0], atol=0.1)
    with pytest.raises(TypeError, match="release"):
        dpi.noise_aware_posterior(result)


def test_threads_do_not_matter(rng):
    X, y = rng.normal(size=(500, 3)), (rng.random(500) < 0.5) * 1.0
    model = dpi.models.LogisticRegression(3)
    results = [dpi.run_sep(model, X, y, n_threads=n) for n in (1, 2, 3, 7)]
    for other in results[1:]:
        np.testing.assert_array_equal(other.loc, results[0].loc)
        np.testing.assert_array_equal(other.precision, results[0].precision)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": dpi.models.PoissonRegression(2)}, "model"),
        ({"method": "vb"}, "method"),
        ({"damping": 0.0}, "damping"),
        ({"damping": 1.5}, "damping"),
        ({"n_passes": 0}, "n_passes"),
        ({"max_site_norm": -1.0}, "max_site_norm"),
        ({"max_site_norm": 1.0, "method": "ep"}, "max_site_norm"),
        ({"clip": "both"}, "clip"),
        ({"start": np.zeros(3)}, "start"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"y": None}, "y"),
    ],
)
def test_argument_errors_name_the_argument(rng, changes, name):
    arguments = {"model": dpi.models.ProbitRegression(2), "X": np.ones((5, 2)), "y": np.ones(5)} | changes
    with pytest.raises((TypeError, ValueError), match=name):
        dpi.run_sep(**arguments)


@pytest.mark.parametrize("method", ["sep", "ep", "adf"])
def test_empty_components_and_one_record(method):
    """Everything stays Gaussian; a component that ADF gives no record keeps its prior, and SEP and EP share records."""
    model = dpi.models.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)
    start = np.array([[-1.0, 0.5], [50.0, 50.0]])
    for X in (np.tile([-1.0, 0.5], (30, 1)), np.array([[-1.0, 0.5]])):
        result = dpi.run_sep(model, X, method=method, start=start)
        assert np.linalg.eigvalsh(result.precision).min() > 0.0
        assert np.all(np.isfinite(result.loc))
        if method == "adf":
            np.testing.assert_allclose(result.precision[1], np.eye(2) / 4.0, atol=1e-12)
            np.testing.assert_allclose(result.precision[0], (0.25 + len(X) / 0.25) * np.eye(2))
        else:
            # The prior does not tell the components apart, and one place of records does not either.
            np.testing.assert_allclose(result.precision[0], result.precision[1], rtol=1e-6)


def test_bad_records_are_refused():
    model = dpi.models.GaussianMixture(2, 2)
    for X in (np.ones((3, 3)), np.ones(3), np.ones((0, 2)), np.array([[1.0, np.nan]]), np.array([[1.0, np.inf]])):
        with pytest.raises(RecordError, match="X"):
            dpi.run_sep(model, X)
    with pytest.raises(TypeError, match="X"):
        dpi.run_sep(model, np.array([["a", "b"]]))
    with pytest.raises(TypeError, match="y"):
        dpi.run_sep(model, np.ones((3, 2)), np.ones(3))
    with pytest.raises(RecordError, match="y"):
        dpi.run_sep(dpi.models.ProbitRegression(2), np.ones((3, 2)), np.array([0.0, 1.0, 2.0]))
