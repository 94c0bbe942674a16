"""Rényi accounting whose every rounding errs toward more divergence, and the filter of adaptively chosen events."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import standard_arithmetic
from dpinfer.accounting._steps import UNIT, Step, StepKind, reduce_event, reserve_suffices, total_variation_slack
from dpinfer.accounting.bound import PrivacyBound
from dpinfer.accounting.events import Adjacency, Event

_LARGEST_ORDER = 10_000  # larger orders suit epsilon below 1e-3 only
_RESERVED_SHARE = 2.0**-20  # of delta, for the finite precision of the noise: fixed, because the filter must be
_SLACK = 16.0  # units in the last place: several times the errors of logarithm, exponential and log-gamma
_LARGEST_EXPONENT = 700.0  # beyond it 1 + exp(x) rounds to exp(x), which nearly leaves the range of the arithmetic


def rdp_epsilon(
    steps: Mapping[Step, int],  # distinct steps and their counts
    delta: float,  # in (0, 1)
) -> float:  # epsilon in [0, inf]
    """Return the Rényi bound on epsilon at `delta`; infinity when no order gives a finite one.

    Poisson sampling: Mironov, Talwar and Zhang (2019), exact at integer orders for both orders of the data sets, and
    linear interpolation of the cumulant generating function between them, as in Zhu and Wang (2019).  Without
    replacement: Wang, Balle and Kasiviswanathan (2019), Theorem 9, valid and loose.  Conversion: Balle, Barthe,
    Gaboardi, Hsu and Sato (2020), Theorem 21.  Every order gives a valid bound, so the search for the best one needs no
    guarantee.
    """
    divergences = [(_divergence(step), count) for step, count in steps.items()]
    cache: dict[float, float] = {}

    def bound(order: float) -> float:
        if order not in cache:
            cache[order] = converted([(count, divergence(order)) for divergence, count in divergences], order, delta)
        return cache[order]

    integers = sorted({round(order) for order in np.geomspace(2.0, _LARGEST_ORDER, 28)})
    for order in (1.05, 1.1, 1.2, 1.35, 1.5, 1.75, *map(float, integers)):
        if bound(order) > 2.0 * min(cache.values()) and order > 4.0:
            break  # the bound falls and then rises with the order, and the cost of an order is proportional to it
    best = min(cache, key=lambda order: cache[order])
    if best >= 2.0:
        _refine(bound, integers, round(best))
    return min(cache.values())


def renyi_divergence(
    step: Step,
    order: int,  # at least 2
) -> float:  # in [0, inf]; of both orders of the data sets
    """Return an upper bound, tight to rounding, on the Rényi divergence of one step at an integer order."""
    return _divergence(step)(float(order))


def converted(parts: list[tuple[int, float]], order: float, delta: float) -> float:
    """Return an upper bound on epsilon at `delta` of counted divergences of one order; infinity without one."""
    try:
        used = math.fsum(count * divergence for count, divergence in parts) * (1.0 + 4.0 * UNIT)
    except OverflowError:
        return math.inf
    value = used + conversion(order, delta)
    value += 2.0 * UNIT * abs(value)
    return max(0.0, value) if math.isfinite(value) else math.inf


def conversion(order: float, delta: float) -> float:
    """Return an upper bound on epsilon at `delta` less the divergence of `order`.

    Balle, Barthe, Gaboardi, Hsu and Sato (2020), Theorem 21.
    """
    first, second, third = math.log1p(-1.0 / order), -math.log(delta), math.log(order)
    size = abs(first) + 1.0 / (order - 1.0) + (abs(second) + third) / (order - 1.0)
    return first + (second - third) / (order - 1.0) + _SLACK * UNIT * size


def _refine(bound: Callable[[float], float], integers: list[int], best: int) -> None:
    """Shrink the interval around the best integer order of the coarse search."""
    position = integers.index(best)
    low = integers[max(0, position - 1)]
    high = integers[min(len(integers) - 1, position + 1)]
    while high - low > 2:
        left = low + (high - low) // 3
        right = high - (high - low) // 3
        if bound(float(left)) <= bound(float(right)):
            high = right
        else:
            low = left
    for order in range(low, high + 1):
        bound(float(order))


def _divergence(step: Step) -> Callable[[float], float]:
    """Return an upper bound on the Rényi divergence of one step as a function of the order."""
    if step.kind is StepKind.PURE:
        # Bun and Steinke (2016), Proposition 3.3.
        return lambda order: min(step.shift, 0.5 * step.shift * step.shift * order * (1.0 + 4.0 * UNIT))
    if step.kind is StepKind.FAILURE:
        return lambda order: math.inf
    if step.kind is StepKind.GAUSSIAN:
        return lambda order: 0.5 * step.shift * step.shift * order * (1.0 + 4.0 * UNIT)
    cumulant = _poisson_cumulant if step.kind is StepKind.POISSON else _subset_cumulant

    def divergence(order: float) -> float:
        # The cumulant generating function is convex and 0 at order 1: between integers the chord is above it.
        below, above = math.floor(order), math.ceil(order)
        upper = cumulant(step, above)
        if below == above:
            chord = upper
        else:
            lower = cumulant(step, below) if below > 1 else 0.0
            chord = (above - order) * lower + (order - below) * upper
        return chord / (order - 1.0) * (1.0 + _SLACK * UNIT)

    return divergence


def _poisson_cumulant(step: Step, order: int) -> float:
    """Return an upper bound on log E (dP/dQ)^order under Q.

    The moment is the sum over k of binomial(order, k) (1 - rate)^(order - k) rate^k exp(x), x = k (k - 1) shift^2 / 2.
    The binomial weights add up to 1, so it is 1 plus the same sum with exp(x) - 1 in place of exp(x): its terms are
    positive, and nothing cancels however small they are.
    """
    k = np.arange(2.0, order + 1.0)
    weights = [*_log_binomial(order, k), k * math.log(step.rate), (order - k) * math.log1p(-step.rate)]
    return _log_one_plus_sum(_upper_sum(*weights, *_log_rise(step.shift, k)))


def _subset_cumulant(step: Step, order: int) -> float:
    """Return an upper bound on (order - 1) times the divergence of Wang, Balle and Kasiviswanathan (2019), Theorem 9.

    The Gaussian's own divergence of order j is j shift^2 / 2, and infinite at order infinity.
    """
    j = np.arange(2.0, order + 1.0)
    weights = [*_log_binomial(order, j), j * math.log(step.rate)]
    logs = _upper_sum(*weights, np.full_like(j, math.log(2.0)), _exponents(step.shift, j))
    rise = _upper_sum(*weights, np.full_like(j, math.log(4.0)), *_log_rise(step.shift, j))
    logs[0] = min(logs[0], rise[0])
    return _log_one_plus_sum(logs)


def _log_binomial(order: int, k: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return three parts whose sum is the logarithm of binomial(order, k)."""
    from scipy.special import gammaln

    return np.full_like(k, gammaln(order + 1.0)), -gammaln(k + 1.0), -gammaln(order - k + 1.0)


def _exponents(shift: float, k: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", under="ignore"):
        return (0.5 * k * (k - 1.0) * shift) * shift


def _log_rise(shift: float, k: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return two parts whose sum is at least log(exp(x) - 1), x = k (k - 1) shift^2 / 2.

    It is log x + log((exp(x) - 1) / x), the last at most x; beyond 1 it is x + log(1 - exp(-x)), the last at most 0.
    """
    x = _exponents(shift, k)
    small = x < 1.0
    with np.errstate(all="ignore"):
        ratio = np.where(x > 2.0**-30, np.log(np.expm1(x) / x), x)
        large = np.log1p(-np.exp(-x))
    first = np.where(small, np.log(0.5 * k * (k - 1.0)) + 2.0 * math.log(shift), x)
    return first, np.where(small, ratio, large)


def _upper_sum(*parts: FloatArray) -> FloatArray:
    """Add up logarithms, each accurate to a few units of its own last place, and round up."""
    size = 1.0 + np.sum(np.abs(parts), axis=0)
    return np.asarray(np.sum(parts, axis=0) + _SLACK * UNIT * size)


def _log_one_plus_sum(logs: FloatArray) -> float:
    """Return an upper bound on log(1 + sum of exp(logs)), positive however small the sum is."""
    largest = float(np.max(logs))
    if not largest < math.inf:
        return math.inf
    with np.errstate(under="ignore"):
        total = float(np.sum(np.exp(logs - largest))) * (1.0 + (_SLACK + logs.size) * UNIT)
    log_sum = largest + math.log(total)
    log_sum += _SLACK * UNIT * (1.0 + abs(largest) + abs(log_sum))
    if log_sum > _LARGEST_EXPONENT:
        return log_sum * (1.0 + _SLACK * UNIT)
    return max(math.log1p(math.exp(log_sum)) * (1.0 + _SLACK * UNIT), sys.float_info.min)


@dataclass(frozen=True)
class RenyiFilter:
    """Admits events while the sum of their Rényi divergences, of an order fixed by the budget, stays within a bound.

    **Privacy.** Reads no records.  If an analyst chooses each event after seeing all earlier releases, and stops when
    the filter refuses, all releases together are (epsilon, delta)-differentially private (docs/derivations/ledger.md).

    Feldman and Zrnic (2021), Theorem 3.1; conversion by Balle, Barthe, Gaboardi, Hsu and Sato (2020), Theorem 21.  The
    order is the integer at which a Gaussian may have the least noise within the budget.

    Examples
    --------
    >>> RenyiFilter(1.0, 1e-5).order
    18
    """

    # epsilon, delta: the budget; in (0, inf) and (0, 1)
    epsilon: float
    delta: float

    @property
    def order(self) -> int:
        """The order of the divergences."""
        orders = np.unique(np.round(np.geomspace(2, _LARGEST_ORDER, 4000)))
        allowed = [(self.epsilon - conversion(float(order), self.delta)) / order for order in orders]
        return int(orders[int(np.argmax(allowed))])

    @standard_arithmetic()
    def bound(self, event: Event, adjacency: Adjacency) -> PrivacyBound:
        """Return the epsilon spent by an event (the composition of all admitted ones), at the budget's delta.

        Infinite without a certified bound; an event may be admitted if it is at most the budget's epsilon.
        """
        steps = reduce_event(event, adjacency)
        epsilon = math.inf
        slack = total_variation_slack(event)
        if steps is not None and reserve_suffices(slack, self.epsilon, _RESERVED_SHARE * self.delta):
            order = self.order
            used = [(count, renyi_divergence(step, order)) for step, count in steps.items()]
            epsilon = converted(used, float(order), self.delta * (1.0 - _RESERVED_SHARE))
        return PrivacyBound(
            epsilon=epsilon, delta=self.delta, adjacency=adjacency, accountant="rdp", estimate=epsilon,
            note=f"a filter by divergences of order {self.order}",
        )  # fmt: skip
