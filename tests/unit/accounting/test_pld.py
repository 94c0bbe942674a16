"""The default accountant against exact curves, brute-force convolution, and the numbers of the design."""

import math

import numpy as np
import pytest
from scipy import optimize
from tests.reference import accounting_oracles as oracle

from dpinfer.accounting import (
    Composed,
    GaussianEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    delta_for,
)
from dpinfer.accounting._steps import Direction, Step, StepKind
from dpinfer.accounting.pld import pld_delta, pld_epsilon

DIRECTIONS = {"remove": (Direction.REMOVE,), "add": (Direction.ADD,)}


def poisson(noise, rate, count):
    return SelfComposed(PoissonSampled(rate, GaussianEvent(noise)), count)


@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"), [(20.0, 0.1, 10**4, 1.99609), (1.0, 0.01, 10**4, 6.18772)]
)
def test_known_values(noise, rate, count, epsilon):
    found = account(poisson(noise, rate, count), delta=1e-5).epsilon
    assert epsilon <= found <= epsilon * (1.0 + 2e-4)


def test_known_value_of_a_million_steps():
    assert account(poisson(1.0, 1e-4, 10**6), delta=1e-5).epsilon == pytest.approx(0.4592, rel=5e-4)


def test_without_replacement_at_a_thousand_records():
    """Noise 1.588 per sensitivity, one of 1000 records per step, 100 epochs: epsilon 1."""
    event = SelfComposed(SampledWithoutReplacement(1000, 1, GaussianEvent(2.0 * 1.588)), 100_000)
    assert account(event, delta=1e-5, adjacency="replace_one").epsilon == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize("name", ["remove", "add", "subset"])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.5, 0.1), (5.0, 0.3), (1.0, 1e-4)])
def test_one_step_against_forty_digits(noise, rate, name):
    step = Step(StepKind.SUBSET if name == "subset" else StepKind.POISSON, 1.0 / noise, rate)
    curve = oracle.ONE_STEP[name]
    directions = DIRECTIONS.get(name, tuple(Direction))
    for share in (0.1, 1e-6):
        delta = share * float(curve(step.shift, rate, 0.0))
        epsilon = pld_epsilon({step: 1}, delta, directions)
        exact, less = (curve(step.shift, rate, scale * epsilon) for scale in (1.0, 1.0 - 1e-3))
        assert exact <= delta < less
        assert exact <= pld_delta({step: 1}, epsilon, directions) <= 1.001 * less


@pytest.mark.parametrize("name", ["remove", "add"])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.6, 0.2), (4.0, 0.5)])
def test_two_steps_against_quadrature(noise, rate, name):
    step = Step(StepKind.POISSON, 1.0 / noise, rate)
    for delta in (1e-3, 1e-6):
        epsilon = pld_epsilon({step: 2}, delta, DIRECTIONS[name])
        assert epsilon > 0.0
        exact = oracle.two_step_delta(step.shift, rate, epsilon, name)
        # The quadrature itself is good to about 1e-13.
        assert exact - 1e-12 <= delta
        assert oracle.two_step_delta(step.shift, rate, epsilon * (1.0 - 1e-3), name) > delta
        # Power: one step's delta at the same epsilon is far too small, so a lost composition would be seen.
        assert float(oracle.ONE_STEP[name](step.shift, rate, epsilon)) < 0.8 * delta


def test_both_directions_count():
    """Near delta = TV the addition dominates at one step; the bound is the larger of the two."""
    step = Step(StepKind.POISSON, 1.0, 0.5)
    remove, add = (pld_epsilon({step: 1}, 1e-5, DIRECTIONS[name]) for name in ("remove", "add"))
    assert pld_epsilon({step: 1}, 1e-5) == pytest.approx(max(remove, add), rel=1e-6)
    assert remove > 1.5 * add


def test_gaussians_through_the_grid_agree_with_the_closed_form():
    """A sampled Gaussian whose rate is almost 1, and a mixture that is almost all plain Gaussian."""
    exact = account(SelfComposed(GaussianEvent(10.0), 50), delta=1e-6).epsilon
    nearly = account(poisson(10.0, 1.0 - 1e-9, 50), delta=1e-6).epsilon
    assert nearly == pytest.approx(exact, rel=2e-4)
    mixed = Composed([SelfComposed(GaussianEvent(10.0), 50), PoissonSampled(1e-6, GaussianEvent(10.0))])
    assert exact * (1.0 - 1e-9) <= account(mixed, delta=1e-6).epsilon <= exact * (1.0 + 2e-4)


def test_composition_is_associative():
    step = PoissonSampled(0.05, GaussianEvent(2.0))
    flat = SelfComposed(step, 600)
    nested = Composed([SelfComposed(SelfComposed(step, 20), 10), SelfComposed(step, 400)])
    assert account(flat, delta=1e-6) == account(nested, delta=1e-6)


def test_heterogeneous_lies_between_its_homogeneous_neighbours():
    low, high = (PoissonSampled(0.05, GaussianEvent(noise)) for noise in (2.2, 1.8))
    mixed = Composed([SelfComposed(low, 300), SelfComposed(high, 300)])
    bounds = [account(event, delta=1e-6).epsilon for event in (SelfComposed(low, 600), mixed, SelfComposed(high, 600))]
    assert bounds[0] < bounds[1] < bounds[2]


def test_heterogeneous_two_steps_against_quadrature():
    """A Poisson step after a plain Gaussian: the Gaussian curve averaged over the Poisson step's loss."""
    noise, rate, shift = 1.5, 0.2, 0.4
    event = Composed([PoissonSampled(rate, GaussianEvent(noise)), GaussianEvent(1.0 / shift)])

    def exact(epsilon, remove):
        grid = np.linspace(-10.0, 11.0, 200_001)
        near = np.exp(-0.5 * grid**2)
        loss = oracle._remove_loss(1.0 / noise, rate, grid)
        density = (1.0 - rate) * near + rate * np.exp(-0.5 * (grid - 1.0 / noise) ** 2) if remove else near
        curve = oracle._curve(shift, 1.0 - 1e-15, epsilon - (loss if remove else -loss), "remove")
        return float(np.trapezoid(density / math.sqrt(2.0 * math.pi) * curve, grid))

    bound = account(event, delta=1e-4).epsilon
    root = optimize.brentq(lambda e: max(exact(e, True), exact(e, False)) - 1e-4, 0.01, 20.0, xtol=1e-10)
    assert root * (1.0 - 1e-7) <= bound <= root * (1.0 + 5e-4)


@pytest.mark.parametrize(
    ("noise", "rate", "count"), [(1.0, 0.01, 1), (20.0, 0.1, 10_000), (0.6, 1e-3, 500), (3.0, 0.5, 20)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_delta_inverts_epsilon(noise, rate, count, delta):
    event = poisson(noise, rate, count)
    epsilon = account(event, delta=delta).epsilon
    assert delta_for(event, epsilon=epsilon) == pytest.approx(delta, rel=2e-2)
    assert delta_for(event, epsilon=epsilon + 0.05) < delta_for(event, epsilon=epsilon)


@pytest.mark.parametrize(
    ("noise", "rate", "count"),
    [
        (1e-6, 0.1, 10),  # no noise to speak of
        (0.1, 0.5, 10**7),  # epsilon of some 10^9: beyond what rounding lets the accountant certify
    ],
)
def test_fails_closed(noise, rate, count):
    bound = account(poisson(noise, rate, count), delta=1e-6)
    assert bound.epsilon == math.inf
    assert bound.note


def test_a_failed_check_is_never_a_number(monkeypatch):
    monkeypatch.setattr("dpinfer.accounting._steps._TOLERANCE", -1.0)
    assert account(poisson(1.0, 0.1, 10), delta=1e-5).epsilon == math.inf
    assert delta_for(poisson(0.3, 0.9, 100), epsilon=1.0) == 1.0


def test_trivial_targets():
    event = poisson(5.0, 1e-5, 3)
    assert account(event, delta=0.01).epsilon == 0.0
    assert delta_for(event, epsilon=50.0) < 1e-9
    assert delta_for(event, epsilon=0.0) <= 3e-5


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_delta_interval(delta):
    with pytest.raises(ValueError, match="delta"):
        account(GaussianEvent(1.0), delta=delta)


def test_argument_errors():
    with pytest.raises(TypeError, match="event"):
        account(1.0, delta=1e-5)
    with pytest.raises(TypeError, match="delta"):
        account(GaussianEvent(1.0), delta="1e-5")
    with pytest.raises(ValueError, match="accountant"):
        account(GaussianEvent(1.0), delta=1e-5, accountant="clt")
    with pytest.raises(ValueError, match="epsilon"):
        delta_for(GaussianEvent(1.0), epsilon=-0.1)
