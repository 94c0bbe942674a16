"""Neighbouring data sets for networks: one record's integer vector keeps to the bound and is its own."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpinfer.mechanism import _native

KEY = bytes(range(32, 64))
D, HIDDEN = 2, 3
N_PARAMS = (D + 2) * HIDDEN + 1

extreme = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-308, 1e154, 1e155, 1e300, -1.7e308]),
)


def clipped_sum(X, y, norm, mean, variance, weights, gradient=False):
    session = _native.NetworkSession(
        features=np.ascontiguousarray(X), response=np.ascontiguousarray(y), n_hidden=HIDDEN, hidden_scale=0.6,
        output_scale=0.5, sample_rate=1.0, max_norm=norm, key=KEY, n_threads=1,
    )  # fmt: skip
    if gradient:
        session.set_gradients(mean, variance, 0.3, np.ones(N_PARAMS), variance, weights[2])
    else:
        session.set_sites(mean, variance, 0.3, *weights, norm, norm)
    return session.clipped_sum(0), session.lattice_step


def keeps_to_the_bound(vector, norm, lattice_step, share=1):
    """Whether ||vector|| <= share * C / g, exactly: C / g is an integer over a power of two."""
    numerator, denominator = (norm / lattice_step).as_integer_ratio()
    return sum(int(k) ** 2 for k in vector) * denominator**2 <= (share * numerator) ** 2


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    x=hnp.arrays(np.float64, (1, D), elements=extreme),
    y=hnp.arrays(np.float64, 1, elements=extreme),
    mean=hnp.arrays(np.float64, N_PARAMS, elements=extreme),
    variance=hnp.arrays(np.float64, N_PARAMS, elements=extreme),
    norm=st.floats(1e-30, 9e29),
    gradient=st.booleans(),
)
def test_one_record_keeps_to_the_bound(x, y, mean, variance, norm, gradient):
    """Whatever the record and the released state, both blocks at their own limits; never an error."""
    vector, step = clipped_sum(x, y, norm, mean, variance, (1.0, 0.1, 1.0), gradient)
    assert keeps_to_the_bound(vector, norm, step)


def test_the_bound_is_nearly_reached():
    """The power twin: a record that saturates comes within 1e-5 of the bound."""
    mean, variance = np.ones(N_PARAMS), np.full(N_PARAMS, 0.1)
    vector, step = clipped_sum(np.full((1, D), 50.0), np.full(1, 1e4), 3.0, mean, variance, (1.0, 0.1, 1.0))
    assert not keeps_to_the_bound(vector, 3.0 * (1 - 1e-5), step)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), n_rows=st.integers(2, 30), removed=st.integers(0, 29), gradient=st.booleans())
def test_removing_a_record_removes_exactly_its_vector(seed, n_rows, removed, gradient):
    rng = np.random.default_rng(seed)
    removed %= n_rows
    X, y = rng.normal(size=(n_rows, D)), rng.normal(size=n_rows)
    state = (rng.normal(size=N_PARAMS), rng.uniform(0.05, 0.5, N_PARAMS), (0.7, 0.2, 0.4), gradient)
    whole, step = clipped_sum(X, y, 0.6, *state)
    rest, _ = clipped_sum(np.delete(X, removed, 0), np.delete(y, removed), 0.6, *state)
    alone, _ = clipped_sum(X[[removed]], y[[removed]], 0.6, *state)
    np.testing.assert_array_equal(whole - rest, alone)
    assert keeps_to_the_bound(alone, 0.6, step)


def test_blocks_clipped_apart_would_break_the_bound_if_noised_as_one():
    """A named wrong variant: eta and precision each clipped at C reach sqrt(2) C together; the joint clip does not."""
    rng = np.random.default_rng(3)
    mean, variance = rng.normal(size=N_PARAMS), np.full(N_PARAMS, 0.1)
    X, y = np.full((1, D), 3.0), np.full(1, 8.0)
    weights = (1.0, 1.0, 1e-12)
    session = _native.NetworkSession(
        features=X, response=y, n_hidden=HIDDEN, hidden_scale=0.6, output_scale=0.5, sample_rate=1.0, max_norm=1.0,
        key=KEY, n_threads=1,
    )  # fmt: skip
    session.set_sites(mean, variance, 0.3, *weights, np.inf, np.inf)
    site = session.plain_sum(np.array([0]), np.inf)[:-1]
    norm = 0.5 * min(np.linalg.norm(site[:N_PARAMS]), np.linalg.norm(site[N_PARAMS:]))
    apart = [part * norm / np.linalg.norm(part) for part in (site[:N_PARAMS], site[N_PARAMS:])]
    assert np.linalg.norm(np.concatenate(apart)) > 1.4 * norm
    vector, step = clipped_sum(X, y, norm, mean, variance, weights)
    assert keeps_to_the_bound(vector, norm, step)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e308])
def test_a_record_that_is_not_finite_contributes_zero(poison):
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(40, D)), rng.normal(size=40)
    state = (rng.normal(size=N_PARAMS), rng.uniform(0.05, 0.5, N_PARAMS), (0.7, 0.2, 0.4))
    bad = X.copy()
    bad[17, 1] = poison
    with_poison, _ = clipped_sum(bad, y, 1.0, *state)
    without, _ = clipped_sum(np.delete(X, 17, 0), np.delete(y, 17), 1.0, *state)
    np.testing.assert_array_equal(with_poison, without)
