"""Which event is covered under which relation, by which accountant; everything else is refused."""

import math

import pytest

from dpinfer.accounting import (
    Adjacency,
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    add_remove_to_replace_one,
    as_adjacency,
    delta_for,
)
from dpinfer.accounting.gaussian import gaussian_epsilon
from dpinfer.errors import UnsupportedEventError

GAUSSIAN = GaussianEvent(3.0)
POISSON = PoissonSampled(0.1, GAUSSIAN)
SUBSET = SampledWithoutReplacement(100, 10, GAUSSIAN)
RELATIONS = ("add_remove", "zero_out", "replace_one")
COVERED = {
    ("gaussian", "add_remove"),
    ("gaussian", "zero_out"),
    ("gaussian", "replace_one"),
    ("poisson", "add_remove"),
    ("poisson", "zero_out"),
    ("subset", "zero_out"),
    ("subset", "replace_one"),
}
BY_NAME = {"gaussian": GAUSSIAN, "poisson": POISSON, "subset": SUBSET}


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: SelfComposed(e, 5), lambda e: Composed([GAUSSIAN, e])])
def test_refusal_matrix(name, relation, accountant, wrap):
    event = wrap(BY_NAME[name])
    if (name, relation) in COVERED and not (name == "subset" and accountant == "prv"):
        assert 0.0 < account(event, delta=1e-5, adjacency=relation, accountant=accountant).epsilon < math.inf
    else:
        with pytest.raises(UnsupportedEventError, match=r"covered|cover"):
            account(event, delta=1e-5, adjacency=relation, accountant=accountant)


def test_a_refusal_names_the_way_out():
    with pytest.raises(UnsupportedEventError, match="add_remove_to_replace_one"):
        account(POISSON, delta=1e-5, adjacency="replace_one")
    with pytest.raises(UnsupportedEventError, match="use replace_one"):
        account(SUBSET, delta=1e-5, adjacency="add_remove")


@pytest.mark.parametrize("inner", [SelfComposed(GAUSSIAN, 2), Composed([GAUSSIAN]), POISSON])
@pytest.mark.parametrize(
    "sample",
    [lambda e: PoissonSampled(0.1, e), lambda e: SampledWithoutReplacement(10, 1, e)],
    ids=["poisson", "subset"],
)
def test_sampling_of_anything_but_a_gaussian_is_refused(inner, sample):
    with pytest.raises(UnsupportedEventError, match="compose outside"):
        account(sample(inner), delta=1e-5, adjacency="zero_out")


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
@pytest.mark.parametrize(
    "event", [NonPrivateEvent(), PoissonSampled(0.1, NonPrivateEvent()), Composed([GAUSSIAN, NonPrivateEvent()])]
)
def test_no_guarantee_is_infinite(event, accountant):
    bound = account(event, delta=1e-5, accountant=accountant)
    assert bound.epsilon == math.inf
    assert "no guarantee" in bound.note
    assert delta_for(event, epsilon=1.0) == 1.0


def test_a_part_without_guarantee_does_not_hide_an_unsupported_one():
    with pytest.raises(UnsupportedEventError):
        account(Composed([NonPrivateEvent(), SUBSET]), delta=1e-5, adjacency="add_remove")


def test_replace_one_doubles_the_sensitivity():
    once = account(GaussianEvent(1.0), delta=1e-5, adjacency="zero_out").epsilon
    twice = account(GaussianEvent(2.0), delta=1e-5, adjacency="replace_one").epsilon
    assert once == pytest.approx(twice, rel=1e-12)
    assert account(GaussianEvent(1.0), delta=1e-5, adjacency="replace_one").epsilon > 1.9 * once


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_sampling_everything_is_the_plain_gaussian(relation):
    plain = account(GAUSSIAN, delta=1e-5, adjacency=relation).epsilon
    assert account(SampledWithoutReplacement(9, 9, GAUSSIAN), delta=1e-5, adjacency=relation).epsilon == plain
    assert account(PoissonSampled(1.0, GAUSSIAN), delta=1e-5, adjacency=relation).epsilon == plain


def test_zero_out_without_replacement_uses_the_replace_one_bound():
    bounds = [account(SUBSET, delta=1e-5, adjacency=relation).epsilon for relation in ("zero_out", "replace_one")]
    assert bounds[0] == bounds[1]


def test_one_step_without_replacement_matches_the_closed_form():
    # delta = q delta_G(log(1 + (e^eps - 1) / q)) with sensitivity 2, solved for eps.
    inner = gaussian_epsilon(2.0 / 3.0, 1e-5 / 0.1)
    expected = math.log1p(0.1 * math.expm1(inner))
    assert account(SUBSET, delta=1e-5, adjacency="replace_one").epsilon == pytest.approx(expected, rel=1e-4)


def test_strings_and_members_are_accepted():
    assert as_adjacency("replace_one") is Adjacency.REPLACE_ONE
    assert as_adjacency(Adjacency.ZERO_OUT) is Adjacency.ZERO_OUT
    with pytest.raises(ValueError, match="'add_remove', 'zero_out', 'replace_one'"):
        as_adjacency("replace")
    with pytest.raises(TypeError, match="adjacency"):
        as_adjacency(1)


def test_explicit_conversion():
    epsilon, delta = add_remove_to_replace_one(1.0, 1e-6)
    assert epsilon == 2.0
    assert delta == pytest.approx((1.0 + math.e) * 1e-6, rel=1e-12)
    assert add_remove_to_replace_one(1e6, 1e-6) == (2e6, 1.0)
    with pytest.raises(ValueError, match="epsilon"):
        add_remove_to_replace_one(-1.0, 1e-6)


def test_conversion_covers_the_exact_replace_one_guarantee_of_the_gaussian():
    bound = account(GAUSSIAN, delta=1e-6, adjacency="add_remove")
    epsilon, delta = add_remove_to_replace_one(bound.epsilon, bound.delta)
    assert delta_for(GAUSSIAN, epsilon=epsilon, adjacency="replace_one") <= delta
