"""Plans: certified, plain data, and strict about what they are built from."""

import dataclasses
import json
import math

import pytest

from dpinfer.accounting import (
    AccountantFallbackWarning,
    Adjacency,
    GaussianEvent,
    PoissonSampled,
    PrivacyPlan,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    plan_privacy,
)
from dpinfer.accounting import accountant as accountant_module
from dpinfer.accounting import pld as prv_module
from dpinfer.errors import BudgetExceededError, UnsupportedEventError

GOOD = {"target_epsilon": 1.0, "target_delta": 1e-5, "sample_rate": 0.1, "n_steps": 1000}


@pytest.fixture(scope="module")
def plan():
    return plan_privacy(**GOOD)


def test_a_plan_meets_its_target_and_says_what_it_is(plan):
    assert 0.999 < plan.epsilon <= 1.0
    assert plan.delta == 1e-5
    assert plan.adjacency is Adjacency.ADD_REMOVE
    assert plan.accountant == "pld"
    assert plan.target_epsilon == 1.0
    assert plan.fallback is None
    assert plan.event == SelfComposed(PoissonSampled(0.1, GaussianEvent(plan.noise_multiplier)), 1000)
    assert account(plan.event, delta=plan.delta).epsilon == plan.epsilon
    assert plan.certify().epsilon == plan.epsilon


def test_zero_out_costs_what_add_remove_costs(plan):
    assert plan_privacy(**GOOD, adjacency="zero_out").noise_multiplier == plan.noise_multiplier


def test_round_trip_through_json(plan):
    assert PrivacyPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    hopeless = PrivacyPlan.from_noise_multiplier(1e-6, 0.1, 10, 1e-5)
    assert hopeless.epsilon == math.inf
    assert PrivacyPlan.from_dict(json.loads(json.dumps(hopeless.to_dict()))) == hopeless


def test_repr_names_what_matters(plan):
    for part in ("noise_multiplier=", "epsilon=", "delta=", "sample_rate=0.1", "n_steps=1000"):
        assert part in repr(plan)


def test_plans_are_frozen(plan):
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epsilon = 0.0


def test_full_sampling_is_exact_under_every_relation():
    plans = [
        plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=100, adjacency=relation)
        for relation in Adjacency
    ]
    assert plans[0].noise_multiplier == pytest.approx(37.306, rel=2e-4)
    assert plans[2].noise_multiplier == pytest.approx(2.0 * plans[0].noise_multiplier, rel=2e-4)


def test_sampling_under_replace_one_is_refused():
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        plan_privacy(**GOOD, adjacency="replace_one")


def test_from_noise_multiplier(plan):
    again = PrivacyPlan.from_noise_multiplier(plan.noise_multiplier, 0.1, 1000, 1e-5)
    assert again == dataclasses.replace(plan, target_epsilon=None)
    rdp = PrivacyPlan.from_noise_multiplier(plan.noise_multiplier, 0.1, 1000, 1e-5, accountant="rdp")
    assert rdp.epsilon > plan.epsilon


@pytest.mark.usefixtures("forgetful")
def test_a_fallback_is_kept_in_the_plan(monkeypatch):
    def fail(steps, delta):
        raise prv_module.PRVError("no")

    monkeypatch.setattr(accountant_module, "prv_epsilon", fail)
    with pytest.warns(AccountantFallbackWarning):
        planned = plan_privacy(**GOOD, accountant="prv")
    with pytest.warns(AccountantFallbackWarning):
        given = PrivacyPlan.from_noise_multiplier(20.0, 0.1, 1000, 1e-5, accountant="prv")
    assert planned.fallback == given.fallback == "pld"
    assert planned.accountant == "prv"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"target_epsilon": 0.0}, ValueError),
        ({"target_epsilon": -1.0}, ValueError),
        ({"target_epsilon": float("nan")}, ValueError),
        ({"target_epsilon": "1"}, TypeError),
        ({"target_delta": 0.0}, ValueError),
        ({"target_delta": 1.0}, ValueError),
        ({"sample_rate": 0.0}, ValueError),
        ({"sample_rate": 1.5}, ValueError),
        ({"sample_rate": [0.1]}, TypeError),
        ({"n_steps": 0}, ValueError),
        ({"n_steps": 10.0}, TypeError),
        ({"n_steps": True}, TypeError),
        ({"adjacency": "add"}, ValueError),
        ({"accountant": "clt"}, ValueError),
    ],
)
def test_argument_errors_name_the_argument(changes, error):
    with pytest.raises(error, match=next(iter(changes))):
        plan_privacy(**(GOOD | changes))


def test_a_budget_that_cannot_be_met_is_refused():
    with pytest.raises(BudgetExceededError, match="epsilon 1e-10 at delta 1e-12 cannot be met"):
        plan_privacy(**(GOOD | {"target_epsilon": 1e-10, "target_delta": 1e-12}))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"epsilon": "1"},
        {"epsilon": 2.0},
        {"noise_multiplier": 0.0},
        {"n_steps": 1.0},
        {"adjacency": 3},
        {"accountant": "clt"},
        {"fallback": "clt"},
        {"target_epsilon": 0.0},
        {"extra": 1},
    ],
)
def test_malformed_plans_are_refused(plan, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        PrivacyPlan.from_dict(plan.to_dict() | change)


def test_missing_fields_are_refused(plan):
    data = plan.to_dict()
    del data["delta"]
    with pytest.raises(ValueError, match="delta"):
        PrivacyPlan.from_dict(data)
    with pytest.raises(ValueError, match="mapping"):
        PrivacyPlan.from_dict([])


@pytest.mark.parametrize(("sampling", "published"), [("uniform", 1.588), ("permutation", 37.3)])
def test_single_record_sampling_composes_what_touches_a_record(sampling, published):
    plan = plan_privacy(
        target_epsilon=1.0, target_delta=1e-5, n_steps=100_000, n_records=1000, sampling=sampling
    )  # 100 epochs
    assert plan.adjacency is Adjacency.REPLACE_ONE
    # The noise of a sum that moves by up to 2 C is counted in C, so halves are per unit of sensitivity.
    assert plan.noise_multiplier / 2.0 == pytest.approx(published, rel=2e-3)
    assert plan.sample_rate == 1e-3
    assert plan.certify().epsilon <= 1.0
    assert PrivacyPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    if sampling == "permutation":
        assert plan.event == SelfComposed(GaussianEvent(plan.noise_multiplier), 100)
    else:
        assert plan.event == SelfComposed(
            SampledWithoutReplacement(1000, 1, GaussianEvent(plan.noise_multiplier)), 100_000
        )


def test_an_unfinished_epoch_is_counted():
    plan = PrivacyPlan.from_noise_multiplier(10.0, None, 1001, 1e-5, sampling="permutation", n_records=1000)
    assert plan.event == SelfComposed(GaussianEvent(10.0), 2)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"sampling": "shuffle"}, "sampling"),
        ({"sampling": "uniform"}, "n_records"),
        ({"sampling": "uniform", "n_records": 0}, "n_records"),
        ({"sampling": "uniform", "n_records": 10, "sample_rate": 0.2}, "sample_rate"),
        ({"sampling": "permutation", "n_records": 10, "sample_rate": None, "adjacency": "add_remove"}, "adjacency"),
        ({"n_records": 10}, "n_records"),
    ],
)
def test_sampling_and_its_numbers_must_agree(changes, name):
    with pytest.raises(ValueError, match=name):
        plan_privacy(**(GOOD | changes))


def test_a_plan_stored_before_there_was_a_choice_of_sampling_is_read(plan):
    old = {key: value for key, value in plan.to_dict().items() if key not in ("sampling", "n_records")}
    assert PrivacyPlan.from_dict(old) == plan
