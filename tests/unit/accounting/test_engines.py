"""The accountants against each other and against Google's, over a grid of regimes."""

import itertools
import math
import warnings

import pytest

from dpinfer.accounting import (
    AccountantFallbackWarning,
    Composed,
    GaussianEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    delta_for,
)
from dpinfer.accounting import pld as prv_module
from dpinfer.accounting._steps import Direction, Step, StepKind
from dpinfer.accounting.pld import PRVError, pld_epsilon, prv_epsilon
from dpinfer.accounting.rdp import rdp_epsilon

DELTA = 1e-5
SAMPLING = [(0.5, 20), (0.1, 100), (0.01, 1), (0.01, 1000), (1e-3, 3000)]
# The least and the most noise with each sampling, and two between in turn.
ENDS, BETWEEN = itertools.product([0.7, 20.0], SAMPLING), zip([1.0, 2.0, 1.0, 2.0, 1.0], SAMPLING, strict=True)
REGIMES = [*ENDS, *BETWEEN, (5.0, (0.9, 10)), (0.5, (0.02, 30))]
FAILING = (1.0, 0.3, 2000)


@pytest.fixture
def coarse_prv(monkeypatch):
    """prv-accountant on a small mesh: wider intervals, the same guarantee, a tenth of the time."""
    monkeypatch.setattr(prv_module, "_MAX_MESH", 20_000)
    monkeypatch.setattr(prv_module, "_RELATIVE_ERROR", 0.02)


def poisson(noise, rate, count):
    return SelfComposed(PoissonSampled(rate, GaussianEvent(noise)), count)


@pytest.mark.parametrize(("noise", "sampling"), REGIMES)
def test_the_default_lies_inside_prv_and_below_rdp(noise, sampling, coarse_prv):
    rate, count = sampling
    steps = {Step(StepKind.POISSON, 1.0 / noise, rate): count}
    default = pld_epsilon(steps, DELTA)
    assert default <= rdp_epsilon(steps, DELTA) * (1.0 + 1e-9)
    interval = prv_epsilon(steps, DELTA)
    assert interval.lower <= default
    assert default <= interval.upper * (1.0 + 1e-4)
    assert interval.lower <= interval.estimate <= interval.upper


def test_the_order_prv_does_not_model_is_covered(monkeypatch):
    """If removing a record cost nothing, the bound would still be that of the other order of the data sets."""
    steps = {Step(StepKind.POISSON, 0.5, 0.1): 50}

    def only_addition(steps, delta, directions):
        return pld_epsilon(steps, delta, directions) if directions == (Direction.ADD,) else 0.0

    monkeypatch.setattr(prv_module, "_run", lambda *arguments: (0.0, 0.0, 0.0))
    monkeypatch.setattr(prv_module, "pld_epsilon", only_addition)
    assert prv_epsilon(steps, DELTA).upper == pld_epsilon(steps, DELTA, (Direction.ADD,)) > 0.1


@pytest.mark.parametrize(
    "answer", [(9.0, 9.1, 9.2), (0.1, 0.2, math.nan), (0.3, 0.2, 0.4), (math.inf,) * 3, (0.1, 0.2, 0.3)]
)
def test_contradictions_of_prv_are_failures(monkeypatch, answer):
    """The last is an interval below the certified bound, as rounding that nobody counts would give."""
    monkeypatch.setattr(prv_module, "_run", lambda *arguments: answer)
    with pytest.raises(PRVError):
        prv_epsilon({Step(StepKind.POISSON, 0.5, 0.1): 50}, DELTA)


def test_a_failure_of_prv_is_visible(coarse_prv):
    event = poisson(*FAILING)
    with pytest.warns(AccountantFallbackWarning, match="Discrete mean"):
        bound = account(event, delta=DELTA, accountant="prv")
    assert bound.fallback == "pld"
    assert bound.accountant == "prv"
    assert bound.lower is None
    assert "prv" in bound.note
    assert "fallback='pld'" in repr(bound)
    assert bound.epsilon == account(event, delta=DELTA).epsilon


def test_no_warning_without_a_fallback(coarse_prv):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound = account(poisson(2.0, 0.1, 100), delta=DELTA, accountant="prv")
    assert bound.fallback is None
    assert "removal" in bound.note
    assert bound.lower <= bound.estimate <= bound.epsilon


def test_prv_composes_different_steps(coarse_prv):
    event = Composed([poisson(2.0, 0.1, 100), SelfComposed(GaussianEvent(30.0), 5)])
    bound = account(event, delta=DELTA, accountant="prv")
    assert bound.lower <= account(event, delta=DELTA).epsilon <= bound.epsilon


def test_rdp_of_the_plain_gaussian_is_above_the_exact_value_and_near():
    event = SelfComposed(GaussianEvent(50.0), 100)
    exact = account(event, delta=DELTA).epsilon
    assert exact < account(event, delta=DELTA, accountant="rdp").epsilon < 1.15 * exact


def test_rdp_without_replacement_is_valid_and_loose():
    event = SelfComposed(SampledWithoutReplacement(1000, 50, GaussianEvent(4.0)), 200)
    tight = account(event, delta=DELTA, adjacency="replace_one").epsilon
    assert tight < account(event, delta=DELTA, adjacency="replace_one", accountant="rdp").epsilon < 4.0 * tight


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("noise", "rate", "count"), [(1.0, 0.01, 500), (5.0, 0.3, 50), (0.8, 0.05, 1)])
def test_against_dp_accounting(noise, rate, count):
    reason = "Google's dp-accounting is a cross-check for tests only"
    dp_event = pytest.importorskip("dp_accounting.dp_event", reason=reason)
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant", reason=reason)
    accountant = pld.PLDAccountant()
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), count)
    for delta in (1e-3, 1e-8):
        theirs = accountant.get_epsilon(delta)
        ours = account(poisson(noise, rate, count), delta=delta).epsilon
        # Both are upper bounds; theirs is on a grid of 1e-4 per step.
        assert ours <= theirs * (1.0 + 1e-4)
        assert ours == pytest.approx(theirs, rel=2e-2)


def test_the_engines_are_imported_on_first_use():
    import subprocess
    import sys

    code = (
        "import sys, dpinfer.accounting as a\n"
        "heavy = ('scipy', 'prv_accountant', 'dpinfer.mechanism')\n"
        "assert not [m for m in heavy if m in sys.modules]\n"
        "a.account(a.GaussianEvent(1.0), delta=1e-5)\n"
        "assert not [m for m in heavy[1:] if m in sys.modules]\n"
        "assert set(a.__all__) <= set(dir(a))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
@pytest.mark.parametrize("event", [GaussianEvent(2.0), PoissonSampled(1e-9, GaussianEvent(1e5))])
def test_more_steps_than_numbers_go_have_no_guarantee(event, accountant):
    """Files may say so; an OverflowError would be none that loading them documents."""
    endless = SelfComposed(SelfComposed(event, 10**200), 10**200)
    assert account(endless, delta=1e-5, accountant=accountant).epsilon == math.inf
    assert delta_for(endless, epsilon=1.0) == 1.0
    # The power twin: ten are computed with.
    assert account(SelfComposed(event, 10), delta=1e-5, accountant=accountant).epsilon < math.inf
