"""Rényi divergences against 50 digits: never below, and to nine digits, from the rarest sampling to certain."""

import itertools
import math

import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency, GaussianEvent, PoissonSampled, SampledWithoutReplacement, SelfComposed
from dpinfer.accounting._steps import Step, StepKind
from dpinfer.accounting.rdp import RenyiFilter, _divergence, rdp_epsilon, renyi_divergence

mpmath = pytest.importorskip("mpmath", reason="mpmath is a cross-check for tests only")

DIGITS = 50
RATES = (1e-15, 1e-8, 1e-3, 0.3, 0.999)
SHIFTS = (1e-200, 1e-9, 0.2, 1.0, 30.0, 1e4)
ORDERS = (2, 3, 64)


def exact(step, order):
    """Return the divergence as published: Mironov, Talwar and Zhang (2019); Wang et al. (2019), Theorem 9."""
    q, mu = mpmath.mpf(step.rate), mpmath.mpf(step.shift)
    total = mpmath.mpf(0)
    for k in range(2, order + 1):
        x = k * (k - 1) * mu**2 / 2
        if step.kind is StepKind.POISSON:
            total += mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.expm1(x)
        else:
            factor = 2 * mpmath.exp(x)
            total += mpmath.binomial(order, k) * q**k * (min(4 * mpmath.expm1(x), factor) if k == 2 else factor)
    return mpmath.log1p(total) / (order - 1)


@pytest.mark.parametrize("kind", [StepKind.POISSON, StepKind.SUBSET])
def test_divergences_are_rounded_up_and_no_more(kind):
    with mpmath.workdps(DIGITS):
        for rate, shift, order in itertools.product(RATES, SHIFTS, ORDERS):
            want = exact(Step(kind, shift, rate), order)
            found = mpmath.mpf(renyi_divergence(Step(kind, shift, rate), order))
            # Below the range of doubles the answer is the least normal number.
            assert want <= found <= want * (1 + mpmath.mpf("1e-9")) + mpmath.mpf("1e-300"), (rate, shift, order)


def test_the_published_sum_is_what_is_computed():
    """The oracle's own form, with the terms that cancel, in the other order of summation."""
    with mpmath.workdps(DIGITS):
        q, mu, order = mpmath.mpf("0.01"), mpmath.mpf("0.5"), 9
        terms = (
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) * mu**2 / 2)
            for k in range(order + 1)
        )
        whole = mpmath.log(mpmath.fsum(terms)) / (order - 1)
        assert abs(whole / exact(Step(StepKind.POISSON, 0.5, 0.01), order) - 1) < 1e-15


def test_large_orders_stay_in_range():
    for order, shift in ((10_000, 1e-3), (10_000, 5.0), (10_000, 1e200)):
        value = renyi_divergence(Step(StepKind.POISSON, shift, 0.1), order)
        # rate^order exp(order (order - 1) shift^2 / 2) is one of the terms, and the others are no larger at order^-1.
        assert 0.0 < value <= math.inf
        assert value == math.inf or value <= 0.5 * order * shift**2 * (1 + 1e-9)
    assert renyi_divergence(Step(StepKind.POISSON, 1e200, 0.1), 2) == math.inf


def test_between_integer_orders_the_chord_of_the_cumulants_is_used():
    divergence = _divergence(Step(StepKind.POISSON, 0.8, 0.1))
    cumulant = {order: (order - 1.0) * divergence(order) for order in (1.5, 2.0, 2.4, 3.0)}
    assert cumulant[2.4] == pytest.approx(0.6 * cumulant[2.0] + 0.4 * cumulant[3.0], rel=1e-12)
    assert cumulant[1.5] == pytest.approx(0.5 * cumulant[2.0], rel=1e-12)


# A step whose divergences are lost below the unit of 1: rate 1e-8, noise 5, and 1e15 of them.
RARE, MANY = Step(StepKind.POISSON, 0.2, 1e-8), 10**15


def exact_epsilon(step, count, delta):
    """Return the least bound over the integer orders, in 50 digits."""
    with mpmath.workdps(DIGITS):
        best = mpmath.inf
        for order in (*range(2, 12), *range(12, 40, 3), *range(40, 130, 15)):
            gain = mpmath.log(1 - mpmath.mpf(1) / order) - (mpmath.log(delta) + mpmath.log(order)) / (order - 1)
            best = min(best, count * exact(step, order) + gain)
        return best


@pytest.mark.parametrize(
    ("rate", "shift", "count"), [(1e-8, 0.2, 10**15), (1e-10, 1.0, 10**18), (1e-12, 3.0, 10**12), (1e-4, 0.05, 10**9)]
)
def test_many_rare_steps_are_not_understated(rate, shift, count):
    step = Step(StepKind.POISSON, shift, rate)
    found, least = rdp_epsilon({step: count}, 1e-5), exact_epsilon(step, count, mpmath.mpf("1e-5"))
    # Each sees orders that the other does not.
    assert least * 0.98 <= found <= least * 1.02


def test_the_same_through_the_public_interface():
    event = SelfComposed(PoissonSampled(1e-8, GaussianEvent(5.0)), MANY)
    found = dpi.account(event, delta=1e-5, accountant="rdp").epsilon
    # A Gaussian of mu = rate sqrt(T (exp(1 / sigma^2) - 1)) is the limit; a Rényi bound cannot be below it.
    limit = dpi.account(GaussianEvent(1.0 / (1e-8 * math.sqrt(MANY * math.expm1(1.0 / 25.0)))), delta=1e-5).epsilon
    assert limit < found < 1.5 * limit
    # The others certify the limit or nothing.
    assert dpi.account(event, delta=1e-5).epsilon >= limit * (1 - 1e-3)
    with pytest.warns(dpi.accounting.AccountantFallbackWarning):
        assert dpi.account(event, delta=1e-5, accountant="prv").epsilon >= limit * (1 - 1e-3)


def test_the_filter_shares_the_divergences():
    rule = RenyiFilter(1.0, 1e-5)
    event = SelfComposed(PoissonSampled(1e-8, GaussianEvent(5.0)), MANY)
    with mpmath.workdps(DIGITS):
        gain = mpmath.log(1 - mpmath.mpf(1) / rule.order) - (mpmath.log(mpmath.mpf(1e-5)) + mpmath.log(rule.order)) / (
            rule.order - 1
        )
        want = MANY * exact(RARE, rule.order) + gain
    found = rule.bound(event, Adjacency.ADD_REMOVE).epsilon
    assert want <= found <= want * (1 + 1e-6)


def test_counts_beyond_the_range_of_doubles_are_refused():
    step = Step(StepKind.POISSON, 0.2, 1e-8)
    assert rdp_epsilon({step: 10**400}, 1e-5) == math.inf
    subset = SelfComposed(SampledWithoutReplacement(10**9, 1, GaussianEvent(1e-3)), 10)
    assert dpi.account(subset, delta=1e-5, adjacency="replace_one", accountant="rdp").epsilon > 1e6


# One step of the default accountant, against the closed form


@pytest.mark.parametrize(
    ("rate", "noise"), [(1e-12, 0.05), (1e-8, 1.0), (1e-3, 1e4), (0.5, 0.05), (1 - 1e-9, 1.0), (1e-8, 1e4)]
)
def test_one_step_of_pld_is_never_below_the_closed_form(rate, noise):
    """Removal of a record: delta = q Phi(a) - (e^eps - 1 + q) Phi(b), with 50 digits."""
    event = PoissonSampled(rate, GaussianEvent(noise))
    for epsilon in (0.0, 1.0):
        with mpmath.workdps(DIGITS):
            q, mu = mpmath.mpf(rate), 1 / mpmath.mpf(noise)
            ratio = (mpmath.expm1(epsilon) + q) / q
            a = mu / 2 - mpmath.log(ratio) / mu
            want = q * (mpmath.ncdf(a) - ratio * mpmath.ncdf(a - mu))
        assert dpi.accounting.delta_for(event, epsilon=epsilon) >= want


def test_no_delta_is_rounded_to_zero():
    for event in (GaussianEvent(1.0), PoissonSampled(0.1, GaussianEvent(1.0))):
        assert 0.0 < dpi.accounting.delta_for(event, epsilon=1000.0) < 1e-100


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (2.0, 0.01), (20.0, 0.1)])
def test_divergences_are_those_of_autodp_where_its_arithmetic_resolves_them(noise, rate):
    autodp = pytest.importorskip("autodp.rdp_acct", reason="autodp is a cross-check for tests only")
    from autodp.rdp_bank import RDP_gaussian

    accountant = autodp.anaRDPacct(m=8)
    accountant.compose_poisson_subsampled_mechanisms(lambda order: RDP_gaussian({"sigma": noise}, order), rate)
    accountant.build_zeroth_oracle()
    divergence = _divergence(Step(StepKind.POISSON, 1.0 / noise, rate))
    for order in (9, 17, 64, 400):
        assert divergence(float(order)) == pytest.approx(float(accountant.evalRDP(float(order))), rel=1e-6)
