"""Composition on the grid against direct convolution: an upper bound whatever the tilt and the window."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpinfer.accounting import _tilted
from dpinfer.accounting._steps import Direction, GridLaw, Step, StepKind, discretise
from dpinfer.accounting._tilted import Layout, compose, plan_layout
from dpinfer.accounting.gaussian import gaussian_epsilon

WIDTH = 2.0**-5


def random_law(rng, size):
    masses = rng.exponential(size=size) ** 3
    masses *= (1.0 - 1e-9) / masses.sum()
    return GridLaw(int(rng.integers(-size, 1)), masses, 1e-9, 0.0, True)


def test_transforms_have_the_least_length_with_small_factors():
    small = sorted(2**i * 3**j * 5**k for i in range(18) for j in range(12) for k in range(8))
    for least in (*range(1, 300), 67_499, 67_501, 99_999):
        assert _tilted._fast_length(least) == next(size for size in small if size >= least)


def direct(laws):
    """Start and masses of the composition by repeated convolution of positive numbers, and the mass at infinity."""
    masses, start, finite = np.ones(1), 0, 1.0
    for law, count in laws:
        for _ in range(count):
            masses, start, finite = np.convolve(masses, law.masses), start + law.start, finite * (1.0 - law.infinite)
    return start, masses, 1.0 - finite


def direct_deltas(laws, points):
    start, masses, infinite = direct(laws)
    loss = start + np.arange(masses.size)
    return np.array([infinite + np.sum(masses[loss > k] * -np.expm1(-(loss[loss > k] - k) * WIDTH)) for k in points])


def compared(composed, laws):
    points = composed.start + np.unique(np.linspace(0, composed.deltas.size - 1, 60).astype(int))
    return composed.deltas[points - composed.start], direct_deltas(laws, points)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=3),
    counts=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    tilt=st.floats(0.0, 60.0),
    extra=st.floats(1e-3, 60.0),
    window=st.tuples(st.floats(-2.0, 2.0), st.floats(0.01, 3.0)),
)
def test_an_upper_bound_under_any_layout(seed, sizes, counts, tilt, extra, window):
    rng = np.random.default_rng(seed)
    laws = [(random_law(rng, size), count) for size, count in zip(sizes, counts, strict=False)]
    layout = Layout(tilt, tilt + extra, WIDTH, window[0], window[0] + window[1])
    bound, exact = compared(compose(laws, layout), laws)
    assert np.all(bound >= exact * (1.0 - 1e-12))


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("direction", Direction)
def test_tight_under_the_planned_layout(count, direction):
    step = Step(StepKind.POISSON, 0.8, 0.2)
    law = discretise(step, direction, WIDTH, 1e-14)
    layout = plan_layout({step: count}, direction, 1e-14, delta=1e-6, epsilon=None)
    composed = compose([(law, count)], dataclasses.replace(layout, width=WIDTH))
    bound, exact = compared(composed, [(law, count)])
    assert np.all(bound >= exact * (1.0 - 1e-12))
    # Only where the answer is looked for is tightness promised.
    near = (exact > 1e-8) & (exact < 1e-4)
    if near.any():
        assert np.max(bound[near] / exact[near]) < 1.0 + 1e-3
    epsilon = composed.epsilon(1e-6)
    assert composed.delta(epsilon) == pytest.approx(1e-6, rel=1e-6)


def test_power_dropping_the_mass_above_the_window_is_noticed(monkeypatch):
    rng = np.random.default_rng(5)
    laws = [(dataclasses.replace(random_law(rng, 30), start=-5), 10)]
    layout = Layout(0.1, 1.0, WIDTH, 0.0, 1.0)
    bound, exact = compared(compose(laws, layout), laws)
    assert np.all(bound >= exact)
    monkeypatch.setattr(_tilted, "_mass_above", lambda *arguments: 0.0)
    bound, exact = compared(compose(laws, layout), laws)
    assert np.any(bound < 0.9 * exact)


def test_power_one_composition_too_few_is_noticed():
    rng = np.random.default_rng(6)
    law = dataclasses.replace(random_law(rng, 30), start=-5)
    layout = Layout(0.5, 2.0, WIDTH, -1.0, 8.0)
    bound, exact = compared(compose([(law, 9)], layout), [(law, 10)])
    assert np.any(bound < 0.9 * exact)


def test_rounding_is_counted_when_the_count_is_huge():
    """A fair coin's loss, many times: the bound exceeds the normal limit, and by little."""
    width, count = 2.0**-20, 10**8
    share = 1.0 / (1.0 + math.exp(-width))
    law = GridLaw(-1, np.array([1.0 - share, 0.0, share]), 0.0, 0.0, True)
    spread, mean = width * math.sqrt(count), width * count * math.tanh(0.5 * width)
    theta = 4.0 / spread
    layout = Layout(theta, 2.0 * theta, width, mean - 2.0 * spread, mean + 12.0 * spread)
    composed = compose([(law, count)], layout)
    # The loss is normal with mean spread^2 / 2 to within the lattice and 1 / sqrt(count).
    mu = spread
    epsilon = composed.epsilon(1e-5)

    assert epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=2e-3)
    assert epsilon >= gaussian_epsilon(mu, 1e-5) * (1.0 - 1e-3)
