"""One step on the grid dominates the exact law, by hardly anything; and the checks notice wrong variants."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from scipy import fft
from tests.reference import accounting_oracles as oracle

from dpinfer.accounting import _steps
from dpinfer.accounting._steps import UNIT, Direction, Step, StepKind, discretise
from dpinfer.accounting._tilted import _FFT_CONSTANT, _transform
from dpinfer.accounting.gaussian import ndtr

TAIL = 1e-14
REGIMES = [
    # noise multiplier, sample rate, grid step
    (20.0, 0.1, 2.0**-13),
    (300.0, 0.1, 2.0**-19),
    (1.0, 1e-4, 2.0**-17),
    (1.0, 0.01, 2.0**-12),
    (0.5, 0.1, 2.0**-9),
    (0.3, 0.5, 2.0**-7),
    (2.0, 0.999, 2.0**-9),
    (0.4, 1.0 - 1e-9, 2.0**-9),
    (5.0, 1e-8, 2.0**-34),
]
CASES = [
    (StepKind.POISSON, Direction.REMOVE, "remove"),
    (StepKind.POISSON, Direction.ADD, "add"),
    (StepKind.SUBSET, Direction.REMOVE, "subset"),
]


def grid_deltas(law, width, indices):
    """Trade-off of a grid law at some of its points, by direct summation of positive terms."""
    loss = np.arange(law.start, law.start + law.masses.size)
    return [
        law.infinite + float(np.sum(law.masses[loss > k] * -np.expm1(-(loss[loss > k] - k) * width))) for k in indices
    ]


def shortfall(law, width, curve, shift, rate):
    """Least value over the grid of (bound - exact) / exact, and the greatest."""
    last = law.start + law.masses.size - 1
    indices = np.unique(np.linspace(law.start, law.start + 0.8 * (last - law.start), 40).astype(int))
    bounds = grid_deltas(law, width, indices)
    gaps = []
    for k, bound in zip(indices, bounds, strict=True):
        exact = curve(shift, rate, mpmath.mpf(float(k * width)) + mpmath.mpf(law.margin))
        if exact > 100.0 * TAIL:
            gaps.append(float((mpmath.mpf(bound) - exact) / exact))
    return min(gaps), max(gaps)


@pytest.mark.parametrize(("kind", "direction", "name"), CASES, ids=[case[2] for case in CASES])
@pytest.mark.parametrize(("noise", "rate", "width"), REGIMES)
def test_dominates_the_exact_curve_tightly(noise, rate, width, kind, direction, name):
    step = Step(kind, 1.0 / noise, rate)
    law = discretise(step, direction, width, TAIL)
    assert law.consistent
    assert law.infinite <= 1.1 * TAIL
    least, most = shortfall(law, width, oracle.ONE_STEP[name], step.shift, rate)
    assert least >= 0.0
    # The cut tail is at most a hundredth of the least value compared; the rest is rounding.
    assert most <= 0.011


@pytest.mark.parametrize(("kind", "direction", "name"), CASES, ids=[case[2] for case in CASES])
def test_power_the_comparison_rejects_masses_one_bin_lower(kind, direction, name):
    step = Step(kind, 1.0, 0.01)
    law = discretise(step, direction, 2.0**-12, TAIL)
    lower = dataclasses.replace(law, start=law.start - 1)
    assert shortfall(lower, 2.0**-12, oracle.ONE_STEP[name], step.shift, step.rate)[0] < -1e-4


def test_power_the_comparison_rejects_the_other_direction():
    step, width = Step(StepKind.POISSON, 1.0, 0.01), 2.0**-12
    law = discretise(step, Direction.ADD, width, TAIL)
    for k in (20, 40, 100):
        assert grid_deltas(law, width, [k])[0] < 0.9 * oracle.remove_delta(step.shift, step.rate, k * width)


def test_power_the_comparison_rejects_a_sensitivity_of_one_for_two():
    law = discretise(Step(StepKind.SUBSET, 1.0, 0.01), Direction.REMOVE, 2.0**-12, TAIL)
    assert shortfall(law, 2.0**-12, oracle.subset_delta, 2.0, 0.01)[0] < -0.1


def test_the_subset_law_is_its_own_reverse():
    """E exp(-L) f(L) = E f(-L) for a symmetric dominating pair, here with f an indicator of each sign."""
    width = 2.0**-10
    law = discretise(Step(StepKind.SUBSET, 0.8, 0.2), Direction.REMOVE, width, TAIL)
    loss = np.arange(law.start, law.start + law.masses.size) * width
    weighted = law.masses * np.exp(-loss)
    assert np.sum(weighted[loss > 0]) == pytest.approx(np.sum(law.masses[loss < 0]), rel=1e-9)


@pytest.mark.parametrize("direction", Direction)
def test_inconsistent_masses_are_noticed(direction, monkeypatch):
    """A normal distribution function wrong by 1e-6, or edges wrong by a hundredth, must not pass the checks."""
    step, width = Step(StepKind.POISSON, 1.0, 0.1), 2.0**-10
    with monkeypatch.context() as patch:
        patch.setattr(_steps, "ndtr", lambda x: ndtr(x) * (1.0 + 1e-6))
        assert not discretise(step, direction, width, TAIL).consistent
    edge_noise = _steps._edge_noise
    monkeypatch.setattr(_steps, "_edge_noise", lambda *arguments: edge_noise(*arguments) + 0.01)
    assert not discretise(step, direction, width, TAIL).consistent


def test_normal_distribution_function_is_as_accurate_as_the_error_bound_assumes():
    for x in np.concatenate([np.linspace(-37.0, 8.0, 400), -np.geomspace(1e-8, 1.0, 40)]):
        exact = mpmath.ncdf(mpmath.mpf(float(x)))
        error = abs(mpmath.mpf(float(ndtr(x))) - exact) / exact
        assert error <= 4.0 * UNIT * (4.0 + x * x)


@pytest.mark.parametrize("rate", [1e-6, 0.1, 0.4, 0.7, 0.999, 1.0 - 1e-9, 1.0])
@pytest.mark.parametrize("shift", [1e-3, 0.5, 10.0])
def test_the_edges_stand_where_the_margin_says(rate, shift):
    """The exact loss at each computed edge is within the margin of the edge it was computed for."""
    width = 2.0**-12 * shift * rate
    least = math.log1p(-rate) if rate < 1.0 else -10.0 * shift
    first = max(math.ceil(least / width), math.ceil(-9.0 * shift / width))
    edges = np.unique(np.linspace(first, int(9.0 * shift / width), 200).astype(int)) * width
    noise = _steps._edge_noise(shift, rate, edges)
    margin = _steps._bins(shift, rate, edges).margin
    for edge, place in zip(edges, noise, strict=True):
        if np.isfinite(place):
            exponent = mpmath.mpf(shift) * (mpmath.mpf(float(place)) - mpmath.mpf(shift) / 2)
            exact = mpmath.log(1 - mpmath.mpf(rate) + mpmath.mpf(rate) * mpmath.exp(exponent))
            assert abs(exact - mpmath.mpf(float(edge))) <= 0.5 * margin


@pytest.mark.parametrize("size", [4096, 4320, 65610, 131072])
@pytest.mark.parametrize("spread", [3.0, 300.0])
def test_transform_is_as_accurate_as_the_error_bound_assumes(size, spread, rng):
    """Against extended precision: the norm-wise error is below a quarter of the constant that is granted to it."""
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("long double is no wider than double on this platform")
    points = np.arange(size)
    values = np.exp(-0.5 * ((points - size // 3) / spread) ** 2) * rng.uniform(0.5, 1.0, size)
    values /= values.sum()
    exact = fft.rfft(values.astype(np.longdouble))
    granted = _FFT_CONSTANT * UNIT * np.log2(size) * np.sqrt(size) * np.linalg.norm(values)
    assert np.linalg.norm((np.fft.rfft(values) - exact).astype(complex)) <= 0.25 * granted
    result, error = _transform(values)
    assert np.max(np.abs(result - exact)) <= error
    atoms = np.zeros(size)
    atoms[[5, size - 1]] = 0.6, 0.4
    result, error = _transform(atoms)
    assert np.max(np.abs(result - fft.rfft(atoms.astype(np.longdouble)))) <= error
