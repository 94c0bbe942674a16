"""Guarantees that may fail with a small probability, and pure ones counted by their squares."""

import math

import numpy as np
import pytest
from scipy import stats

from dpinfer.accounting import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    PoissonSampled,
    PureEvent,
    SelfComposed,
    account,
    delta_for,
    gaussian_dp_mu,
    privacy_curve,
    zcdp_rho,
)
from dpinfer.accounting.events import Adjacency
from dpinfer.accounting.gaussian import pure_mu
from dpinfer.accounting.rdp import RenyiFilter
from dpinfer.errors import UnsupportedEventError

MAY_FAIL = ApproximateEvent(0.5, 1e-6, "add_remove")


def randomised_responses(epsilon, count, at):
    """The exact hockey-stick divergence of `count` randomised responses of `epsilon` each, at `at`."""
    share = 1.0 / (1.0 + math.exp(-epsilon))
    heads = np.arange(count + 1)
    loss = epsilon * (2 * heads - count)
    return float(np.sum(stats.binom.pmf(heads, count, share) * np.maximum(0.0, -np.expm1(at - loss))))


def test_alone_it_is_what_it_says():
    assert account(MAY_FAIL, delta=1e-6).epsilon == 0.5
    assert account(MAY_FAIL, delta=1e-5).epsilon == 0.5
    assert math.isinf(account(MAY_FAIL, delta=0.999e-6).epsilon)
    assert delta_for(MAY_FAIL, epsilon=0.5) == pytest.approx(1e-6, rel=1e-9)
    assert math.isinf(zcdp_rho(MAY_FAIL))
    assert math.isinf(gaussian_dp_mu(MAY_FAIL, slack=1e-6))


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_the_failure_is_taken_out_of_delta_and_the_rest_composes(accountant):
    run = GaussianEvent(4.0)
    both = account(Composed((run, MAY_FAIL)), delta=1e-5, accountant=accountant).epsilon
    without = account(Composed((run, PureEvent(0.5, "add_remove"))), delta=9e-6, accountant=accountant).epsilon
    assert both == pytest.approx(without, rel=1e-6)
    assert math.isinf(account(Composed((run, MAY_FAIL)), delta=1e-6, accountant=accountant).epsilon)
    twice = account(Composed((run, SelfComposed(MAY_FAIL, 2))), delta=1e-5, accountant=accountant).epsilon
    assert twice > both


def test_what_is_certified_covers_the_mechanism_that_is_worst():
    """With probability d it gives all away, else randomised response, beside a Gaussian: an integral on a grid."""
    failure, pure, noise = 1e-3, 0.4, 2.0
    both = Composed((GaussianEvent(noise), ApproximateEvent(pure, failure, "add_remove")))
    grid = np.linspace(-12.0, 12.0, 200_001)
    density = np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi)
    loss = grid / noise + 0.5 / noise**2
    high = 1.0 / (1.0 + math.exp(-pure))
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        rest = sum(
            share * np.trapezoid(density * np.maximum(0.0, -np.expm1(np.minimum(epsilon - shift - loss, 0.0))), grid)
            for share, shift in ((high, pure), (1.0 - high, -pure))
        )
        exact = failure + (1.0 - failure) * rest
        assert delta_for(both, epsilon=epsilon) >= exact
        assert account(both, delta=exact).epsilon >= epsilon
        assert privacy_curve(both).delta(epsilon) >= exact


@pytest.mark.parametrize(("epsilon", "count"), [(0.01, 1), (0.05, 10), (0.05, 200), (0.3, 40), (2.0, 3)])
def test_squares_of_pure_guarantees_cover_their_composition(epsilon, count):
    event = SelfComposed(PureEvent(epsilon, "add_remove"), count)
    for delta in (1e-3, 1e-5, 1e-8):
        certified = account(event, delta=delta).epsilon
        assert certified <= epsilon * count * (1.0 + 1e-9)
        assert randomised_responses(epsilon, count, certified) <= delta
    for at in (0.0, 0.3, 1.0):
        assert delta_for(event, epsilon=at) >= randomised_responses(epsilon, count, at)


def test_small_parts_cost_little_beside_a_run():
    """The power of it: the sum of the epsilons says three per cent, the squares say one."""
    run = GaussianEvent(3.731)
    alone = account(run, delta=1e-5).epsilon
    small = Composed((run, PureEvent(0.03, "add_remove")))
    assert alone < account(small, delta=1e-5).epsilon < alone + 0.012
    sampled = SelfComposed(PoissonSampled(0.1, GaussianEvent(3.0)), 50)
    both = account(Composed((sampled, SelfComposed(PureEvent(0.02, "add_remove"), 4))), delta=1e-5).epsilon
    assert both < account(sampled, delta=1e-5).epsilon + 0.03


@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 0.1, 1.0, 30.0])
def test_the_dominating_gaussian_meets_the_corner(epsilon):
    mu = pure_mu(epsilon)
    corner = 1.0 / (1.0 + math.exp(epsilon))
    assert stats.norm.cdf(stats.norm.isf(corner) - mu) <= corner * (1.0 + 1e-9)
    assert mu <= epsilon * math.sqrt(math.pi / 2.0) * (1.0 + 1e-9) + 1e-14


def test_another_relation_and_sampling_are_refused():
    with pytest.raises(UnsupportedEventError, match="ApproximateEvent under 'add_remove'"):
        account(MAY_FAIL, delta=1e-5, adjacency="replace_one")
    with pytest.raises(UnsupportedEventError, match="sampling of a ApproximateEvent"):
        account(PoissonSampled(0.1, MAY_FAIL), delta=1e-5)


def test_a_filter_admits_none():
    assert math.isinf(RenyiFilter(3.0, 1e-5).bound(MAY_FAIL, Adjacency.ADD_REMOVE).epsilon)
