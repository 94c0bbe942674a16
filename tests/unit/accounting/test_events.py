"""Events: checked on construction, equal by value, and rebuilt from plain data only when that is exactly right."""

import json

import pytest

from dpinfer.accounting import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    PureEvent,
    SampledWithoutReplacement,
    SelfComposed,
    event_from_dict,
)

GAUSSIAN = GaussianEvent(2.0)
EVENTS = [
    GAUSSIAN,
    NonPrivateEvent(),
    PureEvent(0.5, "replace_one"),
    ApproximateEvent(0.5, 1e-6, "zero_out"),
    PoissonSampled(0.25, GAUSSIAN),
    SampledWithoutReplacement(100, 7, GAUSSIAN),
    SelfComposed(PoissonSampled(0.25, GAUSSIAN), 12),
    Composed([GAUSSIAN, SelfComposed(GAUSSIAN, 3), NonPrivateEvent()]),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type_name)
def test_round_trip_through_json(event):
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert hash(event) == hash(event_from_dict(event.to_dict()))


def test_composed_accepts_any_sequence_and_stores_a_tuple():
    assert Composed([GAUSSIAN]) == Composed((GAUSSIAN,))
    assert isinstance(Composed([GAUSSIAN]).events, tuple)


def test_events_are_frozen_and_distinct():
    with pytest.raises(AttributeError):
        GAUSSIAN.noise_multiplier = 1.0
    assert GaussianEvent(1.0) != GaussianEvent(1.0 + 1e-12)
    assert PoissonSampled(1.0, GAUSSIAN) != GAUSSIAN


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_noise_multiplier_must_be_positive_and_finite(value):
    with pytest.raises(ValueError, match="noise_multiplier"):
        GaussianEvent(value)


@pytest.mark.parametrize("value", ["1.0", True, None, [1.0]])
def test_noise_multiplier_must_be_a_number(value):
    with pytest.raises(TypeError, match="noise_multiplier"):
        GaussianEvent(value)


@pytest.mark.parametrize("value", [0.0, 1.0 + 1e-12, -0.1])
def test_sample_rate_interval(value):
    with pytest.raises(ValueError, match="sample_rate"):
        PoissonSampled(value, GAUSSIAN)


@pytest.mark.parametrize(("n_records", "n_sampled"), [(0, 1), (10, 0), (10, 11)])
def test_sample_sizes(n_records, n_sampled):
    with pytest.raises(ValueError, match="n_"):
        SampledWithoutReplacement(n_records, n_sampled, GAUSSIAN)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SelfComposed(GAUSSIAN, 1.0),
        lambda: SelfComposed("gaussian", 1),
        lambda: PoissonSampled(0.1, 2.0),
        lambda: SampledWithoutReplacement(10.0, 1, GAUSSIAN),
        lambda: Composed(GAUSSIAN),
        lambda: Composed("events"),
        lambda: Composed([GAUSSIAN, None]),
    ],
)
def test_wrong_types_are_type_errors(make):
    with pytest.raises(TypeError):
        make()


def test_empty_counts_and_sequences_are_refused():
    with pytest.raises(ValueError, match="count"):
        SelfComposed(GAUSSIAN, 0)
    with pytest.raises(ValueError, match="events"):
        Composed([])


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"type": "laplace", "noise_multiplier": 1.0},
        {"type": ["gaussian"], "noise_multiplier": 1.0},
        {"type": "gaussian"},
        {"type": "gaussian", "noise_multiplier": 1.0, "sigma": 1.0},
        {"type": "gaussian", "noise_multiplier": "1.0"},
        {"type": "gaussian", "noise_multiplier": True},
        {"type": "gaussian", "noise_multiplier": -1.0},
        {"type": "non_private", "epsilon": 1.0},
        {"type": "poisson_sampled", "sample_rate": 0.1, "event": None},
        {"type": "self_composed", "count": 2.0, "event": {"type": "non_private"}},
        {"type": "composed", "events": {"type": "non_private"}},
        {"type": "composed", "events": []},
    ],
)
def test_malformed_data_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        event_from_dict(data)


def test_nesting_is_limited():
    data = {"type": "non_private"}
    for _ in range(5000):
        data = {"type": "self_composed", "count": 1, "event": data}
    with pytest.raises(ValueError, match="nested"):
        event_from_dict(data)
