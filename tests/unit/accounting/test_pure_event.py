"""Pure guarantees next to Gaussian ones: composition, the relation they are stated under, the privacy profile."""

import math

import numpy as np
import pytest
from scipy import stats

from dpinfer.accounting import (
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    PureEvent,
    SelfComposed,
    account,
    delta_for,
    gaussian_dp_mu,
    privacy_curve,
    zcdp_rho,
)
from dpinfer.accounting._steps import reduce_event
from dpinfer.accounting.events import Adjacency
from dpinfer.accounting.pld import pld_delta, pld_epsilon
from dpinfer.accounting.rdp import RenyiFilter
from dpinfer.errors import UnsupportedEventError

PURE = PureEvent(0.5, "add_remove")
STEPS = SelfComposed(PoissonSampled(0.1, GaussianEvent(3.0)), 50)


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_alone_it_is_exact_and_composed_it_adds(accountant):
    assert account(PURE, delta=1e-6, accountant=accountant).epsilon == 0.5
    assert account(SelfComposed(PURE, 4), delta=1e-6, accountant=accountant).epsilon == pytest.approx(2.0, rel=1e-12)
    run = account(STEPS, delta=1e-6, accountant=accountant).epsilon
    both = account(Composed((STEPS, PURE)), delta=1e-6, accountant=accountant).epsilon
    assert run + 0.5 <= both <= run + 0.5 + 1e-9
    assert math.isinf(account(Composed((PURE, NonPrivateEvent())), delta=1e-6, accountant=accountant).epsilon)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_another_relation_is_refused(relation):
    with pytest.raises(UnsupportedEventError, match="PureEvent under 'add_remove'"):
        account(PURE, delta=1e-6, adjacency=relation)


def test_sampling_of_one_is_refused():
    with pytest.raises(UnsupportedEventError, match="sampling of a PureEvent"):
        account(PoissonSampled(0.1, PURE), delta=1e-6)


def test_the_profile_is_that_of_randomised_response():
    for epsilon in (0.0, 0.2, 0.499, 0.5, 1.0):
        exact = max(0.0, (math.exp(0.5) - math.exp(epsilon)) / (1.0 + math.exp(0.5)))
        assert exact <= delta_for(PURE, epsilon=epsilon) <= exact * (1.0 + 1e-9)
    assert delta_for(PureEvent(5000.0, "add_remove"), epsilon=1.0) == 1.0


def test_the_profile_of_a_composition_covers_the_true_one():
    """Randomised response beside a Gaussian: the loss is a sum of two, and its divergence a mixture of shifted ones."""
    both = Composed((GaussianEvent(2.0), PURE))
    high = 1.0 / (1.0 + math.exp(-0.5))
    for epsilon in (0.1, 0.4, 0.6, 1.5):
        grid = np.linspace(-12.0, 12.0, 200_001)
        density = np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi)
        loss = 0.5 * grid + 0.125
        exact = sum(
            share * np.trapezoid(density * np.maximum(0.0, -np.expm1(np.minimum(epsilon - shift - loss, 0.0))), grid)
            for share, shift in ((high, 0.5), (1.0 - high, -0.5))
        )
        assert delta_for(both, epsilon=epsilon) >= exact
        assert account(both, delta=exact).epsilon >= epsilon


def test_the_curve_mu_and_rho_of_it():
    """Of randomised response: delta in closed form, G_mu through the corner of its trade-off curve, rho = e**2 / 2."""
    curve = privacy_curve(PURE)
    exact = np.maximum(0.0, (math.exp(0.5) - np.exp(curve.epsilons)) / (1.0 + math.exp(0.5)))
    np.testing.assert_allclose(curve.deltas, exact, atol=1e-12)
    assert np.all(curve.deltas >= exact)
    corner = 1.0 / (1.0 + math.exp(0.5))
    assert gaussian_dp_mu(PURE, slack=1e-6) == pytest.approx(-2.0 * stats.norm.ppf(corner), rel=1e-3)
    assert zcdp_rho(PURE) == pytest.approx(0.125, rel=1e-12)


@pytest.mark.parametrize("run", [GaussianEvent(2.0), STEPS], ids=["gaussian", "sampled"])
def test_the_curve_of_a_composition_is_that_of_the_mixture(run):
    both, alone = privacy_curve(Composed((run, PURE))), privacy_curve(run)
    high = 1.0 / (1.0 + math.exp(-0.5))
    for epsilon, delta in zip(both.epsilons[::64], both.deltas[::64], strict=True):
        if epsilon < 0.5:
            continue
        parts = [np.interp(epsilon + shift, alone.epsilons, alone.deltas) for shift in (-0.5, 0.5)]
        mixture = high * parts[0] + (1.0 - high) * parts[1]
        assert delta == pytest.approx(mixture, rel=2e-2, abs=1e-9)
        assert delta <= parts[0] * (1.0 + 1e-6) + 1e-12
    if isinstance(run, GaussianEvent):
        mu = gaussian_dp_mu(Composed((run, PURE)), slack=1e-6)
        assert 0.5 <= mu <= math.hypot(0.5, gaussian_dp_mu(PURE, slack=1e-6)) * (1.0 + 1e-3)


def test_the_filter_counts_it():
    used = RenyiFilter(3.0, 1e-5)
    without = used.bound(STEPS, Adjacency.ADD_REMOVE).epsilon
    with_it = used.bound(Composed((STEPS, PURE)), Adjacency.ADD_REMOVE).epsilon
    assert with_it == pytest.approx(without + min(0.5, 0.5 * used.order * 0.25), rel=1e-9)


def test_a_law_on_the_grid_is_not_made_up():
    steps = reduce_event(Composed((STEPS, PURE)), Adjacency.ADD_REMOVE)
    with pytest.raises(UnsupportedEventError):
        pld_epsilon(steps, 1e-6)
    with pytest.raises(UnsupportedEventError):
        pld_delta(steps, 1.0)


@pytest.mark.parametrize("epsilon", [1.0, 30.0, 600.0, 699.9, 700.1, 3000.0, 1e4, 1e6, 1e12])
@pytest.mark.parametrize("count", [1, 3])
def test_no_pure_guarantee_is_stated_better_than_randomised_response(epsilon, count):
    """Which says the truth `count` times with probability at least 1 - count e**-epsilon, with a loss of their sum."""
    told = 1.0 - min(0.7, count * math.exp(-min(epsilon, 700.0)))
    if count == 1 or epsilon >= 30.0:
        least = count * epsilon + math.log1p(-1e-6 / told)
        event = SelfComposed(PureEvent(epsilon, "add_remove"), count)
        assert account(event, delta=1e-6).epsilon >= least * (1.0 - 1e-15)
