"""Private Newton runs in units of any size: what is paid for is a release, what cannot be is refused before."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import FallbackWarning, NumericalError
from dpinfer.inference import fit
from dpinfer.mechanism.newton import glm, linear
from dpinfer.mechanism.newton.glm import prior_in
from dpinfer.models.whitening import steady_inverse, steady_solve, watched
from dpinfer.testing import InsecureRNG

N = 500
KINDS = ("LinearRegression", "LogisticRegression", "ProbitRegression", "PoissonRegression")

# Whether a system between two passes is singular is up to the noise; that it is told is tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:between its passes:dpinfer.errors.FallbackWarning")


def run(kind, sizes, *, seed=1, prior_scale=1.0, target="model", **options):
    """A run on features of these sizes, truthfully declared; the first has a weight of one in its own size."""
    rng = np.random.default_rng(seed)
    sizes = np.asarray(sizes, dtype=np.float64)
    model = getattr(dpi.models, kind)(
        sizes.size, fit_intercept=True, feature_scale=tuple(sizes), prior_scale=prior_scale
    )
    X = rng.normal(size=(N, sizes.size)) * sizes
    eta = X[:, 0] / sizes[0]
    y = {
        "LinearRegression": eta + rng.normal(size=N),
        "PoissonRegression": rng.poisson(np.exp(np.minimum(eta, 3.0))) * 1.0,
    }.get(kind, (eta + rng.normal(size=N) > 0.0) * 1.0)
    if kind == "LinearRegression":
        options = {"response_scale": 1.0} | options
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N, target=target)
    return dpi.run_newton(model, X, y, plan=plan, n_records=N, random_source=InsecureRNG(seed), **options)


@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-12, 1e-20, 1e9, 1e20])
@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_of_another_unit_ends_in_a_release(kind, size):
    release = run(kind, (1.0, size))
    assert np.all(np.isfinite(release.scores))
    assert np.all(np.isfinite(release.positions))


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_of_another_size_ends_in_a_release(kind):
    for prior_scale in (1e-15, 1e15):
        assert np.all(np.isfinite(run(kind, (1.0, 1e-9), prior_scale=prior_scale).scores))


@pytest.mark.parametrize("kind", ["LinearRegression", "LogisticRegression"])
def test_a_feature_in_small_units_has_its_prior(kind):
    """A weight of a feature of size 1e-12 has no effect that its prior would allow: its posterior is its prior."""
    posterior = dpi.noise_aware_posterior(run(kind, (1.0, 1e-12)))
    # A linear regression's prior is in units of its noise's spread, which is one.
    assert posterior.stddev[1] == pytest.approx(1.0, rel=0.15)
    assert abs(posterior.mean[1]) < 0.2


def test_a_posterior_that_doubles_cannot_hold_says_what_to_do(monkeypatch):
    def singular(release, request):
        raise np.linalg.LinAlgError("Singular matrix")

    release = run("LogisticRegression", (1.0, 1.0))
    room = replace(fit.ROOMS[type(release)](), posterior=singular)
    monkeypatch.setitem(fit.ROOMS, type(release), lambda: room)
    with pytest.raises(NumericalError, match="about one size"):
        dpi.noise_aware_posterior(release)


@pytest.mark.parametrize("response_scale", [1e-30, 1e30, 1e26, 0.0, np.inf])
def test_a_scale_that_sums_cannot_have_is_refused_before_the_charge(tmp_path, response_scale):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(9.0, 1e-4))
    with pytest.raises(ValueError, match="response_scale"):
        run("LinearRegression", (1.0, 1.0), response_scale=response_scale, ledger=account)
    with pytest.raises(ValueError, match="response_scale"):
        run("LinearRegression", (1.0, 1.0), response_scale=1e12, ledger=account, target="population")
    for options in ({"sizes": (1.0, 1e-31)}, {"sizes": (1.0, 1e31)}, {"sizes": (1.0,), "prior_scale": 1e40}):
        with pytest.raises(ValueError, match="give them in other units"):
            run("LogisticRegression", ledger=account, **options)
    assert not account.runs()


def test_a_prior_that_matters_is_as_it_was():
    transform = np.random.default_rng(2).normal(size=(3, 3))
    variance = np.full(3, 2.5**2)
    np.testing.assert_allclose(
        prior_in(transform, variance, np.array([0.1, 10.0, 1.0]), 1000.0), transform @ transform.T / 2.5**2, rtol=1e-12
    )
    held = prior_in(transform * [1.0, 1e12, 1.0], variance, np.array([1.0, 1e-12, 1.0]), 1000.0)
    assert np.linalg.cond(held) < 1e15
    assert np.all(np.linalg.eigvalsh(held) > 0.0)


def test_what_cannot_be_solved_is_solved_as_far_as_it_can_be():
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    np.testing.assert_array_equal(steady_solve(matrix, np.ones(2)), np.linalg.solve(matrix, np.ones(2)))
    np.testing.assert_array_equal(steady_inverse(matrix), np.linalg.inv(matrix))
    with watched() as left:
        steady_solve(matrix, np.ones(2))
        assert left == []
        np.testing.assert_allclose(steady_solve(np.ones((2, 2)), np.ones(2)), [0.5, 0.5])
        np.testing.assert_allclose(steady_solve(np.diag([1e-200, 0.0]), np.array([1e-200, 0.0])), [1.0, 0.0])
        np.testing.assert_array_equal(steady_solve(np.full((2, 2), np.nan), np.ones(2)), [0.0, 0.0])
        np.testing.assert_array_equal(steady_inverse(np.full((2, 2), np.inf)), np.zeros((2, 2)))
        assert len(left) == 4


@pytest.mark.parametrize(("kind", "module"), [("LinearRegression", linear), ("LogisticRegression", glm)])
def test_a_run_whose_arithmetic_fails_returns_a_release_and_says_so(monkeypatch, kind, module):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        assert "steadied" not in run(kind, (1.0, 1.0)).settings
    monkeypatch.setattr(module, "steady_solve", lambda matrix, right: steady_solve(np.full_like(matrix, np.nan), right))
    with pytest.warns(FallbackWarning, match="the release is valid"):
        release = run(kind, (1.0, 1.0))
    assert release.settings["steadied"] > 0
    assert np.all(np.isfinite(release.positions))


@pytest.mark.parametrize("response_scale", [1e-20, 1.0, 1e20])
def test_a_flat_prior_and_a_record_end_in_a_release(response_scale):
    """Without a limit the expected residuals grew to the prior's size, and a clip was refused: 20 of 20 seeds."""
    model = dpi.models.LinearRegression(2, prior_scale=1e30, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=0.1, target_delta=1e-6, n_records=1)
    release = dpi.run_newton(
        model, np.ones((30, 2)), np.ones(30), plan=plan, n_records=1, response_scale=response_scale,
        random_source=InsecureRNG(0),
    )  # fmt: skip
    assert np.all(np.isfinite(release.clips))
