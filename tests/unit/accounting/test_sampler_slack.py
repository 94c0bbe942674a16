"""A share of delta pays for the finite precision of the noise."""

import math

import pytest

from dpinfer.accounting import (
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    SelfComposed,
    account,
    delta_for,
)
from dpinfer.accounting import _steps as slack
from dpinfer.accounting.gaussian import gaussian_delta, gaussian_epsilon


def test_slack_adds_up_over_steps():
    step = slack.total_variation_slack(GaussianEvent(37.0))
    assert step == 37.0 * 2.0**-111 + 2.0**-118
    assert slack.total_variation_slack(SelfComposed(PoissonSampled(0.1, GaussianEvent(37.0)), 1000)) == 1000 * step
    both = Composed((GaussianEvent(37.0), GaussianEvent(37.0), NonPrivateEvent()))
    assert slack.total_variation_slack(both) == pytest.approx(2 * step, rel=1e-15)


def test_the_reserve_is_counted_and_moves_no_digit():
    exact = gaussian_epsilon(0.5, 1e-5)
    certified = account(GaussianEvent(2.0), delta=1e-5).epsilon
    assert exact < certified < exact * (1 + 1e-9)
    # The certified epsilon holds at a delta that leaves room for the slack at both ends.
    room = 1e-5 - gaussian_delta(0.5, certified)
    assert room >= (1 + math.exp(certified)) * slack.total_variation_slack(GaussianEvent(2.0))


def test_more_is_set_aside_where_more_is_needed():
    """At delta = 1e-20 a billionth does not do; at 1e-27 nothing does; above an epsilon of 40 it is not counted."""
    event = SelfComposed(GaussianEvent(1000.0), 10_000)
    assert not slack.reserve_suffices(slack.total_variation_slack(event), 0.5, slack.RESERVED_SHARES[0] * 1e-20)
    exact = gaussian_epsilon(0.1, 1e-20)
    assert exact * (1 + 1e-9) < account(event, delta=1e-20).epsilon < exact * (1 + 1e-2)
    impossible = account(event, delta=1e-27)
    assert impossible.epsilon == math.inf
    assert "too small" in impossible.note
    large = account(GaussianEvent(0.07), delta=1e-5)
    assert slack.LARGEST_EPSILON < large.epsilon == pytest.approx(gaussian_epsilon(1 / 0.07, 1e-5), rel=1e-9)
    assert "not counted" in large.note
    assert account(GaussianEvent(2.0), delta=1e-5).note == ""


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 30.0, 1000.0])
def test_reserve_is_the_inequality_it_states(epsilon):
    need = 1e-30 * (1 + math.exp(min(epsilon, 600.0)))
    assert slack.reserve_suffices(1e-30, epsilon, min(0.5, 1.001 * need)) == (epsilon < 60)
    assert not slack.reserve_suffices(1e-30, epsilon, min(0.5, 0.999 * need))


def test_delta_includes_the_slack():
    exact = gaussian_delta(0.5, 30.0)
    assert exact < delta_for(GaussianEvent(2.0), epsilon=30.0) < exact + 1e-18
