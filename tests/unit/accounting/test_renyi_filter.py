"""The privacy filter: its bound in closed form, and an analyst who chooses events in view of releases."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

import dpinfer as dpi
from dpinfer.accounting import (
    Adjacency,
    Composed,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    SelfComposed,
    account,
)
from dpinfer.accounting.ledger_state import DatasetState
from dpinfer.accounting.rdp import RenyiFilter
from dpinfer.errors import BudgetExceededError

BUDGET = (1.0, 1e-5)
RELATION = Adjacency.ADD_REMOVE


def conversion(order, delta):
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def test_gaussian_events_in_closed_form():
    """A Gaussian has divergence order / (2 sigma**2); divergences add up."""
    rule = RenyiFilter(*BUDGET)
    events = Composed((GaussianEvent(8.0), SelfComposed(GaussianEvent(40.0), 5)))
    want = rule.order / 2 * (1 / 64 + 5 / 1600) + conversion(rule.order, 1e-5)
    assert rule.bound(events, RELATION).epsilon == pytest.approx(want, rel=1e-5)
    assert rule.bound(events, Adjacency.REPLACE_ONE).epsilon == pytest.approx(
        want + 3 * (want - conversion(rule.order, 1e-5)), rel=1e-5
    )
    assert rule.bound(NonPrivateEvent(), RELATION).epsilon == math.inf


@pytest.mark.parametrize(("rate", "epsilon"), [(0.01, 0.1), (0.01, 1.0), (0.3, 0.1), (0.3, 1.0), (0.3, 8.0)])
def test_it_is_never_below_the_tight_bound_and_not_far_above(rate, epsilon):
    """Where the noise is not small: there the order that suits a Gaussian suits the event too."""
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=rate, n_steps=2000)
    tight = account(plan.event, delta=1e-5).epsilon
    found = RenyiFilter(epsilon, 1e-5).bound(plan.event, RELATION).epsilon
    assert tight <= found < 1.25 * tight


def test_the_order_is_the_best_for_a_gaussian():
    rule = RenyiFilter(*BUDGET)

    def least_noise(order):
        return order / (2 * (1.0 - conversion(order, 1e-5)))

    best = min((least_noise(order), order) for order in range(2, 400) if conversion(order, 1e-5) < 1.0)
    assert rule.order == best[1]


# An analyst who chooses


def gaussian_profile(epsilon, mu):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def profile(epsilon, rate, mu):
    """Of a Poisson-sampled Gaussian, removal of a record (Zhu, Dong and Wang, 2022)."""
    shrunk = np.expm1(epsilon) / rate
    tail = rate * gaussian_profile(np.log1p(np.maximum(shrunk, -1 + 1e-15)), mu)
    return np.where(shrunk > -1, tail, -np.expm1(epsilon))


FIRST = 0.2  # mu of the first run, without sampling
NODES, SPACING = np.linspace(-10.0, 10.0, 3_001, retstep=True)
WEIGHTS = SPACING * stats.norm.pdf(NODES)


def second_run(choices):
    """Total delta at the budget's epsilon when the second run is, at each loss of the first, the worst of `choices`."""
    losses = FIRST**2 / 2 + FIRST * NODES
    worst = np.max([profile(BUDGET[0] - losses, rate, mu) for rate, mu in choices], axis=0)
    return float(WEIGHTS @ worst)


RATES = (1.0, 0.05, 1e-3)


def admitted(allowed):
    """For each rate the largest mu of a second run that `allowed` accepts."""
    return [(rate, optimize.bisect(lambda mu, rate=rate: allowed(rate, mu), 0.05, 3.0, xtol=1e-5)) for rate in RATES]


def test_the_tight_rule_is_no_filter():
    """The power twin: each second run fits the budget by itself, the choice between them does not."""
    choices = admitted(lambda rate, mu: second_run([(rate, mu)]) - BUDGET[1])
    for choice in choices:
        assert second_run([choice]) <= BUDGET[1] * (1 + 1e-3)
    assert second_run(choices) > 1.1 * BUDGET[1]


def test_the_filter_holds_against_the_same_choice():
    rule = RenyiFilter(*BUDGET)

    def excess(rate, mu):
        second = GaussianEvent(1 / mu) if rate == 1.0 else PoissonSampled(rate, GaussianEvent(1 / mu))
        return rule.bound(Composed((GaussianEvent(1 / FIRST), second)), RELATION).epsilon - BUDGET[0]

    choices = admitted(lambda rate, mu: min(excess(rate, mu), 1.0))
    assert second_run(choices) <= BUDGET[1]
    assert second_run(choices) > 0.01 * BUDGET[1]


# In the ledger


def test_a_data_set_with_a_filter(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    account = ledger.add_dataset("census", budget=BUDGET, composition="filter")
    assert (account.composition, ledger.add_dataset("other", budget=BUDGET).composition) == ("filter", "pld")
    event = GaussianEvent(5.0)
    with dpi.accounting.charge_run(
        account, event, adjacency="add_remove", mechanism="test", secure=True, delta=1e-5
    ) as charge:
        charge.begin()
    assert account.spent().epsilon == RenyiFilter(*BUDGET).bound(Composed((event,)), RELATION).epsilon
    assert account.spent().accountant == "rdp"
    with pytest.raises(BudgetExceededError, match="budget"):
        account.check(event, adjacency="add_remove")
    assert account.preview(GaussianEvent(50.0)).epsilon <= 1.0
    # A filter is for its budget; at another delta the tight bound of what was charged is shown.
    assert account.spent(1e-3).accountant == "pld"
    assert DatasetState(RELATION, BUDGET, "filter").composed([], 1e-5).epsilon == 0.0


def test_a_filter_needs_a_budget(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    with pytest.raises(ValueError, match="composition must be 'pld' without a budget"):
        ledger.add_dataset("census", composition="filter")
    with pytest.raises(ValueError, match="composition"):
        ledger.add_dataset("census", budget=BUDGET, composition="sum")
