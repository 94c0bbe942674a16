"""Neighbouring data sets: sums differ by exactly one record's vector, and that vector keeps to the bound."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpinfer.mechanism import _native

KEY = bytes(range(32, 64))
LIKELIHOODS = ("logistic", "probit", "gaussian", "poisson")


def clipped_sum(X, y, likelihood, *, norm, beta, rate=1.0, step=0, draws=False):
    n_coef = X.shape[1]
    gaussian = likelihood == "gaussian"
    n = n_coef + gaussian
    session = _native.StepSession(
        features=X,
        response=y,
        likelihood=likelihood,
        intercept=False,
        aligned=False,
        sample_rate=rate,
        max_grad_norm=norm,
        key=KEY,
        n_threads=1,
    )
    if draws:
        theta = np.linspace(-1, 1, 2 * n_coef).reshape(2, n_coef)
        session.set_draws(theta, 2 * theta, np.full((3, 2), 1.5) if gaussian else np.empty((0, 2)))
    else:
        moments = np.array([2.0, -1.0, 0.5, 0.3, 0.2]) if gaussian else np.empty(0)
        nodes = np.array([-1.0, 1.0])
        session.set_quadrature(np.full(n_coef, 0.3), np.full(n_coef, 0.1), nodes, np.full(2, 0.5), moments)
    session.set_scales(np.full(2 * n, beta), np.full(2 * n, 1e-3))
    return session.clipped_sum(step), session.lattice_step


def squared_norm(vector):
    """The exact sum of squares, in Python integers."""
    return sum(int(k) * int(k) for k in vector)


def bound(norm, lattice_step):
    """(C / g)**2 exactly: C / g is a double, hence an integer over a power of two."""
    numerator, denominator = (norm / lattice_step).as_integer_ratio()
    return numerator * numerator, denominator * denominator


extreme = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-308, 1e154, 1.1e154, 1e155, 1e300, 1.7e308, -1.7e308]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    x=hnp.arrays(np.float64, st.tuples(st.just(1), st.integers(1, 9)), elements=extreme),
    y=extreme,
    likelihood=st.sampled_from(LIKELIHOODS),
    norm=st.floats(1e-30, 9e29),
    beta=st.sampled_from([1e-30, 1e-3, 1.0, 550.0, 1e30]),
    draws=st.booleans(),
)
def test_one_record_keeps_to_the_bound(x, y, likelihood, norm, beta, draws):
    """Whatever the record, its integer vector has norm at most C / g; it is never an error."""
    vector, step = clipped_sum(x, np.array([y]), likelihood, norm=norm, beta=beta, draws=draws)
    numerator, denominator = bound(norm, step)
    assert squared_norm(vector) * denominator <= numerator


@pytest.mark.parametrize("n_features", [1, 3, 64, 1000])
def test_the_bound_is_nearly_reached(n_features):
    """The power twin: a record that saturates comes within 1e-5 of the bound, so a bound smaller by 1e-5 would fail."""
    vector, step = clipped_sum(np.full((1, n_features), 50.0), np.array([0.0]), "logistic", norm=3.0, beta=1.0)
    assert squared_norm(vector) > ((1 - 1e-5) * 3.0 / step) ** 2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n_rows=st.integers(2, 40),
    removed=st.integers(0, 39),
    likelihood=st.sampled_from(LIKELIHOODS),
)
def test_removing_a_record_removes_exactly_its_vector(seed, n_rows, removed, likelihood):
    """Bit for bit: no other record's contribution changes, whatever its neighbours in memory."""
    generator = np.random.default_rng(seed)
    removed %= n_rows
    X = generator.normal(size=(n_rows, 5)) * 10.0 ** generator.uniform(-3, 3, (n_rows, 1))
    y = (generator.random(n_rows) < 0.5).astype(float)
    arguments = {"norm": 1.0, "beta": 2.0}
    whole, _ = clipped_sum(X, y, likelihood, **arguments)
    rest, _ = clipped_sum(np.delete(X, removed, 0), np.delete(y, removed), likelihood, **arguments)
    alone, step = clipped_sum(X[[removed]], y[[removed]], likelihood, **arguments)
    np.testing.assert_array_equal(whole - rest, alone)
    numerator, denominator = bound(1.0, step)
    assert squared_norm(whole - rest) * denominator <= numerator


def test_the_order_of_the_rows_does_not_matter(rng):
    X, y = rng.normal(size=(300, 7)), (rng.random(300) < 0.5).astype(float)
    whole, _ = clipped_sum(X, y, "logistic", norm=1.0, beta=1.0)
    order = rng.permutation(300)
    np.testing.assert_array_equal(
        clipped_sum(X[order].copy(), y[order].copy(), "logistic", norm=1.0, beta=1.0)[0], whole
    )


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_record_that_is_not_finite_contributes_zero(rng, poison, likelihood):
    X, y = rng.normal(size=(50, 4)), (rng.random(50) < 0.5).astype(float)
    bad = X.copy()
    bad[17, 2] = poison
    with_poison, _ = clipped_sum(bad, y, likelihood, norm=1.0, beta=1.0)
    without, _ = clipped_sum(np.delete(X, 17, 0), np.delete(y, 17), likelihood, norm=1.0, beta=1.0)
    np.testing.assert_array_equal(with_poison, without)
