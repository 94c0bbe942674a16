"""Properties of the accountants over many regimes."""

import json
import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpinfer.accounting import (
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    delta_for,
    event_from_dict,
)
from dpinfer.accounting.gaussian import gaussian_delta, gaussian_epsilon

noises = st.floats(0.5, 200.0)
rates = st.floats(1e-4, 0.95)
counts = st.integers(1, 3000)
deltas = st.floats(1e-12, 1e-2)
# The bound is tight to about 1e-4, so a change smaller than that may be lost in the grid.
GRID = 1.0 + 2e-4

quick = settings(max_examples=15, deadline=None)

gaussians = st.builds(GaussianEvent, st.floats(1e-3, 1e6))
leaves = st.one_of(
    gaussians,
    st.just(NonPrivateEvent()),
    st.builds(PoissonSampled, st.floats(0.0, 1.0, exclude_min=True), gaussians),
    st.builds(
        lambda sizes, event: SampledWithoutReplacement(max(sizes), min(sizes), event),
        st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)),
        gaussians,
    ),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(SelfComposed, inner, st.integers(1, 10**12)),
        st.builds(Composed, st.lists(inner, min_size=1, max_size=4)),
    ),
    max_leaves=6,
)


def poisson(noise, rate, count):
    return SelfComposed(PoissonSampled(rate, GaussianEvent(noise)), count)


@settings(deadline=None)
@given(event=events)
def test_events_survive_json(event):
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


@quick
@given(noise=noises, rate=rates, count=counts, delta=deltas, factor=st.floats(1.01, 3.0))
def test_epsilon_is_monotone(noise, rate, count, delta, factor):
    epsilon = account(poisson(noise, rate, count), delta=delta).epsilon
    assert 0.0 <= epsilon < math.inf
    assert account(poisson(noise * factor, rate, count), delta=delta).epsilon <= epsilon * GRID
    assert account(poisson(noise, rate / factor, count), delta=delta).epsilon <= epsilon * GRID
    assert account(poisson(noise, rate, math.ceil(count * factor) + 1), delta=delta).epsilon >= epsilon / GRID
    assert account(poisson(noise, rate, count), delta=delta * factor).epsilon <= epsilon * GRID


@quick
@given(noise=noises, rate=rates, count=counts, delta=deltas)
def test_sampling_amplifies_and_composition_is_at_most_additive(noise, rate, count, delta):
    epsilon = account(poisson(noise, rate, count), delta=delta).epsilon
    assert epsilon <= account(poisson(noise, 1.0, count), delta=delta).epsilon * GRID
    single = account(poisson(noise, rate, 1), delta=delta / count).epsilon
    assert epsilon <= count * single * GRID + 1e-12


@quick
@given(noise=noises, rate=rates, count=counts, delta=deltas)
@example(noise=0.5, rate=0.0001, count=200, delta=0.0078125)
def test_delta_undoes_epsilon(noise, rate, count, delta):
    event = poisson(noise, rate, count)
    epsilon = account(event, delta=delta).epsilon
    # Near epsilon = 0 the certified delta may fall back on the sum of the steps' total variations.
    assert delta_for(event, epsilon=max(epsilon * GRID, 1e-2)) <= delta * 1.01


@quick
@given(n_records=st.integers(2, 10**6), share=st.floats(0.0, 1.0), noise=noises, count=counts, delta=deltas)
def test_without_replacement_costs_less_than_everything_every_time(n_records, share, noise, count, delta):
    n_sampled = max(1, round(share * n_records))
    event = SelfComposed(SampledWithoutReplacement(n_records, n_sampled, GaussianEvent(noise)), count)
    plain = SelfComposed(GaussianEvent(noise), count)
    epsilon = account(event, delta=delta, adjacency="replace_one").epsilon
    assert 0.0 <= epsilon <= account(plain, delta=delta, adjacency="replace_one").epsilon * GRID


@settings(deadline=None)
@given(shift=st.floats(1e-6, 100.0), delta=st.floats(1e-300, 0.99))
def test_gaussian_inverse_is_certified(shift, delta):
    assert gaussian_delta(shift, gaussian_epsilon(shift, delta)) <= delta
