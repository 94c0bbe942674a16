"""Neighbouring data sets for conjugate models: one record's integer vector keeps to the bound and is its own."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpinfer.mechanism import _native
from dpinfer.models import BetaBinomial, DirichletCategorical, GammaExponential

KEY = bytes(range(32, 64))
MODELS = [
    GammaExponential(),
    BetaBinomial(5),
    DirichletCategorical((1.0, 2.0, 3.0, 4.0)),
    DirichletCategorical(bijector="softmax"),
]


def clipped_sum(statistics, matrix, offset, norm):
    session = _native.AffineSession(
        statistics=statistics,
        length=matrix.shape[0],
        sample_rate=1.0,
        max_grad_norm=norm,
        key=KEY,
        n_threads=1,
    )
    session.set_map(matrix, offset)
    return session.clipped_sum(0), session.lattice_step


def squared_norm(vector):
    """The exact sum of squares, in Python integers."""
    return sum(int(k) * int(k) for k in vector)


def keeps_to_the_bound(vector, norm, lattice_step, share=1):
    """Whether ||vector|| <= share * C / g, exactly: C / g is an integer over a power of two."""
    numerator, denominator = (norm / lattice_step).as_integer_ratio()
    return squared_norm(vector) * denominator * denominator <= share * share * numerator * numerator


extreme = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-308, 1e154, 1.1e154, 1e155, 1e300, 1.7e308, -1.7e308]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), shape=st.tuples(st.integers(1, 9), st.integers(1, 4)), norm=st.floats(1e-30, 9e29))
def test_one_record_keeps_to_the_bound(data, shape, norm):
    """Whatever the record and the map, its integer vector has norm at most C / g; it is never an error."""
    length, width = shape
    statistics = data.draw(hnp.arrays(np.float64, (1, width), elements=extreme))
    matrix = data.draw(hnp.arrays(np.float64, (length, width), elements=extreme))
    offset = data.draw(hnp.arrays(np.float64, length, elements=extreme))
    vector, step = clipped_sum(statistics, matrix, offset, norm)
    assert keeps_to_the_bound(vector, norm, step)


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_the_bound_is_nearly_reached(length):
    """The power twin: a record that saturates comes within 1e-5 of the bound, so a bound smaller by 1e-5 would fail."""
    vector, step = clipped_sum(np.full((1, 1), 50.0), np.ones((length, 1)), np.zeros(length), 3.0)
    assert not keeps_to_the_bound(vector, 3.0 * (1 - 1e-5), step)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n_rows=st.integers(2, 40),
    removed=st.integers(0, 39),
    model=st.sampled_from(MODELS),
)
def test_removing_a_record_removes_exactly_its_vector(seed, n_rows, removed, model):
    """Bit for bit, with the map of the model; and replacing it moves the sum by at most twice the bound."""
    generator = np.random.default_rng(seed)
    removed %= n_rows
    n = model.n_params
    X = model.simulate(model.sample_prior(1, generator)[0], n_rows, generator)
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    rule = (nodes, weights / weights.sum())
    matrix, offset = model.gradient_map(generator.normal(size=n), generator.normal(size=n) - 2.0, *rule)

    def total(records):
        return clipped_sum(model.sufficient_statistics(records), matrix, offset, 0.7)[0]

    rest = np.delete(X, removed)
    alone, step = clipped_sum(model.sufficient_statistics(X[[removed]]), matrix, offset, 0.7)
    np.testing.assert_array_equal(total(X) - total(rest), alone)
    assert keeps_to_the_bound(alone, 0.7, step)
    other = np.append(rest, model.simulate(model.sample_prior(1, generator)[0], 1, generator))
    assert keeps_to_the_bound(total(X) - total(other), 0.7, step, share=2)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e308])
def test_a_record_that_is_not_finite_contributes_zero(rng, poison):
    statistics = rng.normal(size=(50, 3))
    matrix, offset = rng.normal(size=(6, 3)), rng.normal(size=6)
    bad = statistics.copy()
    bad[17, 1] = poison
    with_poison, _ = clipped_sum(bad, matrix, offset, 1.0)
    without, _ = clipped_sum(np.delete(statistics, 17, 0), matrix, offset, 1.0)
    np.testing.assert_array_equal(with_poison, without)


def test_the_order_of_the_rows_does_not_matter(rng):
    statistics, matrix, offset = rng.normal(size=(301, 2)), rng.normal(size=(4, 2)), rng.normal(size=4)
    whole, _ = clipped_sum(statistics, matrix, offset, 1.0)
    shuffled, _ = clipped_sum(statistics[rng.permutation(301)].copy(), matrix, offset, 1.0)
    np.testing.assert_array_equal(shuffled, whole)
