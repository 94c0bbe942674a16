"""A record's contribution is its own, and its integer norm never exceeds C / g, whatever the record holds."""

import itertools

import numpy as np
import pytest
from tests.unit.mechanism.test_step_session import KEY, LIKELIHOODS, make_records

from dpinfer.mechanism import _native

NORM = 1.7
HUGE = (np.nan, np.inf, -np.inf, 1e308, -1e300, 1e160, 1e155, 1e150, 1e80, 1e20, 1e9)
TINY = (5e-324, -1e-310, 1e-200, 1e-160, 0.0)


def contribution(X, y, likelihood, mode, *, offset=0.0, scale=1.3, max_norm=NORM, intercept=True, step=7):
    """The clipped integer sum over all rows of ``X``, the norm bound C / g, under inputs that depend on no record."""
    session = _native.StepSession(
        features=X,
        response=y,
        likelihood=likelihood,
        intercept=intercept,
        aligned=False,
        sample_rate=1.0,
        max_grad_norm=max_norm,
        key=KEY,
        n_threads=1,
    )
    n_coef = X.shape[1] + intercept
    rng = np.random.default_rng(5)
    released = session.released_length
    # Loc's multipliers are all alike, as without preconditioning, or not.
    multiplier = np.full(released, scale) if scale > 1.0 else scale * np.exp(rng.normal(size=released))
    session.set_scales(multiplier, np.full(released, offset))
    gaussian = likelihood == "gaussian"
    if mode == "quadrature":
        nodes, weights = np.polynomial.hermite_e.hermegauss(6)
        moments = np.array([2.0, -1.0, 0.5, 0.3, 0.2]) if gaussian else np.empty(0)
        loc, variance = 0.3 * rng.normal(size=n_coef), np.exp(rng.normal(size=n_coef) - 3)
        session.set_quadrature(loc, variance, nodes, weights / np.sqrt(2 * np.pi), moments)
    else:
        draws, standard = 0.3 * rng.normal(size=(3, n_coef)), rng.normal(size=(3, n_coef))
        session.set_draws(draws, standard, np.full((3 if gaussian else 0, 3), 0.7))
    return session.clipped_sum(step), max_norm / session.lattice_step


def adversarial_rows(n_features):
    """Rows of extremes in one place, in all places, and mixed."""
    rng = np.random.default_rng(11)
    rows = []
    for value in HUGE + TINY:
        rows.append(np.full(n_features, value))
        for place in {0, n_features // 2, n_features - 1}:
            row = rng.normal(size=n_features)
            row[place] = value
            rows.append(row)
    rows += [rng.choice(HUGE[3:] + TINY, size=n_features) for _ in range(10)]
    rows += [np.exp(rng.uniform(-700, 350, size=n_features)) for _ in range(10)]
    return np.array(rows)


@pytest.mark.parametrize(
    ("n_features", "mode"),
    [*((n, "quadrature") for n in (1, 3, 10, 23, 24, 40)), *((n, "draws") for n in (1, 23, 40))],
)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_no_record_exceeds_the_norm(likelihood, mode, n_features):
    rows = adversarial_rows(n_features)
    responses = {"logistic": (0.0, 1.0), "probit": (0.0, 1.0)}.get(likelihood, (0.0, 3.0, 1e9, 1e150, np.nan))
    near = 0
    settings = itertools.product(responses, (0.0, 0.01), (1.3, 1e-3))
    for response, offset, scale in settings:
        for row in rows:
            k, bound = contribution(
                row[None, :], np.array([response]), likelihood, mode, offset=offset, scale=scale
            )  # fmt: skip
            square = sum(int(value) ** 2 for value in k)
            assert square <= bound**2
            near += square > 0.999 * bound**2
    # The test would notice a bound that is too large: many of these records are clipped.
    assert near > 20


@pytest.mark.parametrize("max_norm", [1e-30, 1.0, np.nextafter(2.0, 1.0), 1e30])
@pytest.mark.parametrize("n_features", [10, 40])
def test_every_clipping_norm_keeps_the_bound(max_norm, n_features):
    for row in adversarial_rows(n_features):
        k, bound = contribution(row[None, :], np.array([1.0]), "logistic", "quadrature", max_norm=max_norm)
        assert sum(int(value) ** 2 for value in k) <= bound**2


@pytest.mark.parametrize("mode", ["quadrature", "draws"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("n_features", "intercept"), [(1, True), (2, False), (10, True), (23, True), (24, True)])
@pytest.mark.parametrize("offset", [0.0, 0.01])
def test_sum_is_the_sum_of_the_records_alone(rng, likelihood, mode, n_features, intercept, offset):
    """In exact integers, with records among them that are dropped."""
    X, y = make_records(rng, likelihood, 83, n_features)
    X[[0, 20, 82], -1] = np.nan, np.inf, 1e30
    X[5] *= 1e6
    for features in (X, X.astype(np.float32)):
        together, _ = contribution(features, y, likelihood, mode, offset=offset, intercept=intercept)
        alone = sum(
            contribution(features[i : i + 1], y[i : i + 1], likelihood, mode, offset=offset, intercept=intercept)[0]
            for i in range(len(y))
        )
        np.testing.assert_array_equal(together, alone)
        assert np.abs(together).max() > 0


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("n_features", [10, 40])
def test_float32_rows_give_the_bits_of_float64_rows(rng, likelihood, n_features):
    X, y = make_records(rng, likelihood, 83, n_features)
    narrow = X.astype(np.float32)
    for offset in (0.0, 0.01):
        got, _ = contribution(narrow, y, likelihood, "quadrature", offset=offset)
        want, _ = contribution(narrow.astype(np.float64), y, likelihood, "quadrature", offset=offset)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n_features", [10, 40])
def test_dropped_records_add_nothing(rng, n_features):
    X, y = make_records(rng, "logistic", 40, n_features)
    want, _ = contribution(X[1:], y[1:], "logistic", "quadrature")
    for value in (np.nan, np.inf, 1e300):
        X[0, 1] = value
        np.testing.assert_array_equal(contribution(X, y, "logistic", "quadrature")[0], want)
