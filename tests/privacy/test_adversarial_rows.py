"""Rows made to break arithmetic: on every instruction set they move the sum by at most C, and nothing raises."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reference.site_runs import run_sites

import dpinfer as dpi
from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG

KEY = bytes(range(7, 39))
LIKELIHOODS = ("logistic", "probit", "gaussian", "poisson")
VARIANTS = ("portable", "avx2", "avx512", "neon")
NASTY = [
    np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 1e308, 1e300, 1.1e154, 1e154, 1e100, 3.4e38, 2.0**52 + 0.5, 50.0, 1.0,
    -0.0, 0.0, 1e-30, 1e-160, 2.2e-308, 1e-308, 5e-324, -5e-324,
]  # fmt: skip
LARGEST_WIDTH = 2**19 - 3


@pytest.fixture(params=VARIANTS)
def variant(request, monkeypatch):
    monkeypatch.setenv("DPINFER_SIMD", request.param)
    try:
        assert _native.simd_variant() == request.param
    except ValueError:
        pytest.skip(f"this build or processor has no {request.param}")
    return request.param


def exceeds(vector, norm, lattice_step, share=1.0):
    """Whether ||vector|| > share * C / g, with Python integers on the left."""
    squared = sum((vector * vector).tolist())  # each below 2**62
    numerator, denominator = (share * norm / lattice_step).as_integer_ratio()
    return squared * denominator * denominator > numerator * numerator


def glm_session(X, y, likelihood, *, draws, norm=1.3, threads=1, beta=1.0, intercept=True):
    coef = X.shape[1] + intercept
    gaussian = likelihood == "gaussian"
    n = coef + gaussian
    session = _native.StepSession(
        features=X, response=y, likelihood=likelihood, intercept=intercept, aligned=False, sample_rate=1.0,
        max_grad_norm=norm, key=KEY, n_threads=threads,
    )  # fmt: skip
    if draws:
        theta = np.linspace(-1, 1, 3 * coef).reshape(3, coef)
        session.set_draws(theta, 2 * theta, np.full((3, 3), 1.5) if gaussian else np.empty((0, 3)))
    else:
        nodes = np.array([-1.7, 0.0, 1.7])
        moments = np.array([2.0, -1.0, 0.5, 0.3, 0.2]) if gaussian else np.empty(0)
        session.set_quadrature(np.full(coef, 0.3), np.full(coef, 0.1), nodes, np.full(3, 1 / 3), moments)
    session.set_scales(np.full(2 * n, beta), np.full(2 * n, 0.0 if n % 2 else 1e-3))
    return session


rows = st.lists(st.sampled_from(NASTY) | st.floats(), min_size=1, max_size=20)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    values=rows,
    response=st.sampled_from(NASTY) | st.floats(),
    place=st.integers(0, 30),
    likelihood=st.sampled_from(LIKELIHOODS),
    draws=st.booleans(),
    narrow=st.booleans(),
)
def test_a_glm_row_moves_the_sum_by_at_most_c(variant, values, response, place, likelihood, draws, narrow):
    rng = np.random.default_rng(len(values))
    X, y = rng.normal(size=(31, len(values))), (rng.random(31) < 0.5).astype(float)
    bad_X, bad_y = np.insert(X, place, values, axis=0), np.insert(y, place, response)
    if narrow:
        with np.errstate(over="ignore"):
            X, bad_X = X.astype(np.float32), bad_X.astype(np.float32)
    without = glm_session(X, y, likelihood, draws=draws)
    session = glm_session(bad_X, bad_y, likelihood, draws=draws)
    moved = session.clipped_sum(0) - without.clipped_sum(0)
    assert not exceeds(moved, 1.3, session.lattice_step)
    assert np.isfinite(session.noisy_sum(0, 2.0)).all()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(st.sampled_from(NASTY) | st.floats(), min_size=1, max_size=6),
    place=st.integers(0, 30),
    length=st.sampled_from([1, 3, 8, 64]),
)
def test_a_conjugate_row_moves_the_sum_by_at_most_c(variant, values, place, length):
    rng = np.random.default_rng(length)
    statistics = rng.normal(size=(31, len(values)))
    matrix, offset = rng.normal(size=(length, len(values))), rng.normal(size=length)

    def session(records):
        made = _native.AffineSession(
            statistics=records, length=length, sample_rate=1.0, max_grad_norm=0.8, key=KEY, n_threads=1
        )
        made.set_map(matrix, offset)
        return made

    bad = session(np.insert(statistics, place, values, axis=0))
    moved = bad.clipped_sum(0) - session(statistics).clipped_sum(0)
    assert not exceeds(moved, 0.8, bad.lattice_step)
    assert np.isfinite(bad.noisy_sum(0, 2.0)).all()


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_saturating_row_nearly_reaches_c(variant, likelihood):
    """The power twin: were the bound smaller by 1e-5, or a row counted twice, the tests above would fail."""
    session = glm_session(np.full((1, 5), 50.0), np.zeros(1), likelihood, draws=False)
    assert exceeds(session.clipped_sum(0), 1.3, session.lattice_step, 1 - 1e-5)
    twice = glm_session(np.full((2, 5), 50.0), np.zeros(2), likelihood, draws=False)
    assert exceeds(twice.clipped_sum(0), 1.3, twice.lattice_step)


@pytest.mark.parametrize("value", [1.0, 1e308, np.nan])
def test_a_row_of_the_greatest_width(variant, value):
    """Half a million features; wider rows are refused by the binding."""
    X = np.full((1, LARGEST_WIDTH), 1e-3)
    bad = np.vstack((X, np.full((1, LARGEST_WIDTH), value)))
    session = glm_session(bad, np.array([1.0, 0.0]), "logistic", draws=False, intercept=False)
    alone = glm_session(X, np.ones(1), "logistic", draws=False, intercept=False)
    moved = session.clipped_sum(0) - alone.clipped_sum(0)
    assert not exceeds(moved, 1.3, session.lattice_step)
    # The power twin: the honest one comes near.
    assert exceeds(moved, 1.3, session.lattice_step, 0.99) == (value == 1.0)


def test_wider_rows_are_refused():
    with pytest.raises(ValueError, match="columns"):
        glm_session(np.zeros((1, LARGEST_WIDTH + 1)), np.ones(1), "logistic", draws=False, intercept=False)


def test_all_variants_agree_on_nasty_rows(monkeypatch):
    values = np.array([[a, b] for a in NASTY for b in NASTY])
    y = np.resize([0.0, 1.0], len(values))
    sums = {}
    for name in VARIANTS:
        monkeypatch.setenv("DPINFER_SIMD", name)
        try:
            _native.simd_variant()
        except ValueError:
            continue
        for likelihood in LIKELIHOODS:
            for draws in (False, True):
                for threads in (1, 3):
                    session = glm_session(values, y, likelihood, draws=draws, threads=threads)
                    sums.setdefault((likelihood, draws), []).append(session.clipped_sum(0).tobytes())
    assert all(len(set(found)) == 1 for found in sums.values())


@pytest.mark.parametrize("recipe", ["plain", "paper", "tied"])
@pytest.mark.parametrize("kind", ["LogisticRegression", "ProbitRegression", "LinearRegression", "PoissonRegression"])
def test_a_run_does_not_raise_because_of_a_record(kind, recipe, rng):
    """Every finite row may come: they are in the data, and the run must not say so."""
    finite = [value for value in NASTY if np.isfinite(value)]
    X = np.concatenate((rng.normal(size=(60, 2)), [[a, b] for a in finite for b in finite]))
    y = (rng.random(len(X)) < 0.5).astype(float)
    if kind == "LinearRegression":
        y[60:] = np.resize(finite, len(X) - 60)
    elif kind == "PoissonRegression":
        y[60:] = np.resize([0.0, 1.0, 1e15, 1e300], len(X) - 60)
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 0.5, 15, 1e-5)
    release = dpi.run_dpvi(
        getattr(dpi.models, kind)(2), X, y, plan=plan, n_records=500, recipe=recipe,
        max_grad_norm=1.0, random_source=InsecureRNG(2), n_threads=1,
    )  # fmt: skip
    assert np.isfinite(release.noisy_gradients).all()


@pytest.mark.parametrize("value", [1e308, 5e-324, 1e-300, 1e155])
def test_a_conjugate_run_does_not_raise_because_of_a_record(value, rng):
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 0.5, 15, 1e-5)
    records = np.append(rng.exponential(size=80), value)
    release = dpi.run_dpvi(
        dpi.models.GammaExponential(), records, plan=plan, n_records=80, max_grad_norm=1.0,
        random_source=InsecureRNG(2), n_threads=1,
    )  # fmt: skip
    assert np.isfinite(release.noisy_gradients).all()


@pytest.mark.parametrize("kind", ["probit", "logistic", "mixture", "network", "scaled network"])
def test_a_run_of_sites_does_not_raise_because_of_a_record(kind, rng):
    """Nor warn: a warning is an error in this suite."""
    finite = [value for value in NASTY if np.isfinite(value)]
    X = np.concatenate((rng.normal(size=(60, 2)), [[a, b] for a in finite for b in finite]))
    y = (rng.random(len(X)) < 0.5).astype(float)
    if kind.endswith("network"):
        y[60:] = np.resize(finite, len(X) - 60)
    model = {
        "probit": dpi.models.ProbitRegression(2),
        "logistic": dpi.models.LogisticRegression(2),
        "mixture": dpi.models.GaussianMixture(2, 2),
        "network": dpi.models.BayesianNeuralNetwork(2, 3),
        "scaled network": dpi.models.BayesianNeuralNetwork(2, 3, feature_scale=0.1, target_loc=1.0, target_scale=0.1),
    }[kind]
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 0.5, 15, 1e-5)
    records = (X,) if kind == "mixture" else (X, y)
    release = run_sites(model, *records, plan=plan, n_records=500, random_source=InsecureRNG(2), n_threads=1)
    assert np.isfinite(release.noisy_sums).all()
