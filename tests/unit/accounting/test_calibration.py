"""Calibration comes from above, is tight, is fast, and refuses what cannot be met."""

import math
import time

import pytest

from dpinfer.accounting import (
    AccountantFallbackWarning,
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    calibrate_noise_multiplier,
)
from dpinfer.accounting import accountant as accountant_module
from dpinfer.accounting import pld as prv_module
from dpinfer.errors import BudgetExceededError

DELTA = 1e-5


def poisson_maker(rate, count):
    return lambda noise: SelfComposed(PoissonSampled(rate, GaussianEvent(noise)), count)


@pytest.mark.parametrize(("epsilon", "noise"), [(0.1, 307.6), (0.3, 112.4), (1.0, 37.34)])
def test_the_numbers_of_the_design(epsilon, noise):
    make = poisson_maker(0.1, 10_000)
    found = calibrate_noise_multiplier(make, target_epsilon=epsilon, target_delta=DELTA)
    assert found == pytest.approx(noise, rel=1e-3)
    assert account(make(found), delta=DELTA).epsilon <= epsilon


def test_a_calibration_takes_less_than_a_second():
    make = poisson_maker(0.1, 10_000)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        calibrate_noise_multiplier(make, target_epsilon=0.3, target_delta=DELTA)
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0


@pytest.mark.parametrize(
    ("rate", "count", "epsilon", "delta"),
    [
        (1.0, 100, 1.0, 1e-5),
        (1.0, 1, 1e-3, 1e-8),
        (0.01, 1, 1.0, 1e-6),
        (0.01, 1, 1e-3, 1e-5),
        (0.5, 10, 50.0, 1e-5),
        (0.01, 1000, 500.0, 1e-5),
        (0.1, 10_000, 1e-3, 1e-5),
        (1e-3, 20_000, 0.5, 1e-10),
        (0.2, 50, 3.0, 0.1),
    ],
)
def test_certified_and_within_the_tolerance_of_the_least(rate, count, epsilon, delta):
    make = poisson_maker(rate, count)
    found = calibrate_noise_multiplier(make, target_epsilon=epsilon, target_delta=delta)
    assert account(make(found), delta=delta).epsilon <= epsilon
    # A tolerance below: the target is missed, so nothing was given away.
    assert account(make(found / 1.00011), delta=delta).epsilon > epsilon


def test_a_rate_below_delta_needs_no_noise():
    """At one step, delta is at most the sample rate whatever the noise."""
    found = calibrate_noise_multiplier(poisson_maker(1e-6, 1), target_epsilon=0.5, target_delta=DELTA)
    assert found == pytest.approx(1e-2)


def test_without_replacement_and_composed_events():
    def make(noise):
        draws = SelfComposed(SampledWithoutReplacement(1000, 1, GaussianEvent(noise)), 100_000)
        return Composed([draws, GaussianEvent(50.0)])

    found = calibrate_noise_multiplier(make, target_epsilon=1.0, target_delta=DELTA, adjacency="replace_one")
    assert found == pytest.approx(2.0 * 1.59, rel=0.02)
    assert account(make(found), delta=DELTA, adjacency="replace_one").epsilon <= 1.0


def test_rdp_needs_more_noise():
    make = poisson_maker(0.1, 1000)
    tight, loose = (
        calibrate_noise_multiplier(make, target_epsilon=1.0, target_delta=DELTA, accountant=name)
        for name in ("pld", "rdp")
    )
    assert tight < loose < 1.2 * tight
    assert account(make(loose), delta=DELTA, accountant="rdp").epsilon <= 1.0
    assert account(make(loose / 1.00011), delta=DELTA, accountant="rdp").epsilon > 1.0


def test_prv_is_calibrated_to_its_upper_end(monkeypatch):
    monkeypatch.setattr(prv_module, "_MAX_MESH", 20_000)
    monkeypatch.setattr(prv_module, "_RELATIVE_ERROR", 0.02)
    make = poisson_maker(0.1, 100)
    found = calibrate_noise_multiplier(
        make, target_epsilon=1.0, target_delta=DELTA, accountant="prv", relative_tolerance=1e-3
    )
    assert account(make(found), delta=DELTA, accountant="prv").epsilon <= 1.0
    least = calibrate_noise_multiplier(make, target_epsilon=1.0, target_delta=DELTA)
    assert least < found < 1.05 * least


@pytest.mark.usefixtures("forgetful")
def test_a_fallback_during_calibration_is_visible(monkeypatch):
    def fail(steps, delta):
        raise prv_module.PRVError("no")

    monkeypatch.setattr(accountant_module, "prv_epsilon", fail)
    make = poisson_maker(0.1, 100)
    with pytest.warns(AccountantFallbackWarning) as caught:
        found = calibrate_noise_multiplier(make, target_epsilon=1.0, target_delta=DELTA, accountant="prv")
    assert len(caught) == 1
    assert found == calibrate_noise_multiplier(make, target_epsilon=1.0, target_delta=DELTA)


@pytest.mark.parametrize(("rate", "count", "epsilon", "delta"), [(0.1, 10_000, 1e-9, 1e-12), (1.0, 10**9, 1e-4, 1e-12)])
def test_a_budget_that_cannot_be_met_is_refused(rate, count, epsilon, delta):
    with pytest.raises(BudgetExceededError, match="noise multiplier of at most"):
        calibrate_noise_multiplier(poisson_maker(rate, count), target_epsilon=epsilon, target_delta=delta)


def test_fixed_spending_above_the_target_is_refused():
    with pytest.raises(BudgetExceededError):
        calibrate_noise_multiplier(
            lambda noise: Composed([GaussianEvent(noise), GaussianEvent(1.0)]), target_epsilon=1.0, target_delta=DELTA
        )
    with pytest.raises(BudgetExceededError, match="guarantee"):
        calibrate_noise_multiplier(lambda noise: NonPrivateEvent(), target_epsilon=1.0, target_delta=DELTA)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"target_epsilon": 0.0}, ValueError),
        ({"target_epsilon": -1.0}, ValueError),
        ({"target_epsilon": math.inf}, ValueError),
        ({"target_epsilon": "1"}, TypeError),
        ({"target_delta": 0.0}, ValueError),
        ({"target_delta": 1.0}, ValueError),
        ({"target_delta": None}, TypeError),
        ({"adjacency": "none"}, ValueError),
        ({"accountant": "afa"}, ValueError),
        ({"relative_tolerance": 0.0}, ValueError),
    ],
)
def test_argument_errors_name_the_argument(changes, error):
    arguments = {"target_epsilon": 1.0, "target_delta": DELTA} | changes
    with pytest.raises(error, match=next(iter(changes))):
        calibrate_noise_multiplier(GaussianEvent, **arguments)


def test_make_event_must_be_callable_and_return_events():
    with pytest.raises(TypeError, match="make_event"):
        calibrate_noise_multiplier(GaussianEvent(1.0), target_epsilon=1.0, target_delta=DELTA)
    with pytest.raises(TypeError, match="make_event returns"):
        calibrate_noise_multiplier(lambda noise: noise, target_epsilon=1.0, target_delta=DELTA)
