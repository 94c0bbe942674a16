"""Rényi accounting, with the Rényi divergences taken from the package autodp."""

import math
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from dpinfer.accounting._steps import Step, StepKind

__all__ = ["rdp_epsilon", "renyi_divergence"]

_LARGEST_ORDER = 10_000


def rdp_epsilon(steps: Mapping[Step, int], delta: float) -> float:
    """Return the Rényi bound on epsilon at `delta`; infinity when no order gives a finite one.

    **Privacy.** Reads no records.

    Parameters
    ----------
    steps : mapping of Step to int
        Distinct steps and their counts.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        epsilon in [0, inf].

    Notes
    -----
    Poisson sampling: Mironov, Talwar and Zhang (2019), exact at integer orders for both orders of the data sets, and
    linear interpolation of the cumulant generating function between them, as in Zhu and Wang (2019).  Without
    replacement: Wang, Balle and Kasiviswanathan (2019), Theorem 9, valid and loose.  Conversion: Balle, Barthe,
    Gaboardi, Hsu and Sato (2020), Theorem 21.  Every order gives a valid bound, so the search for the best one needs no
    guarantee.  Only autodp's formula for a single order is used: its table of integer orders has an exponent of
    (1 - rate) that is too large by one, and its own composition and conversion classes are not needed.
    """
    divergences = [(_divergence(step), count) for step, count in steps.items()]
    cache: dict[float, float] = {}

    def bound(order: float) -> float:
        if order not in cache:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                total = math.fsum(count * float(divergence(order)) for divergence, count in divergences)
            value = total + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
            cache[order] = max(0.0, value) if math.isfinite(value) else math.inf
        return cache[order]

    integers = sorted({round(order) for order in np.geomspace(2.0, _LARGEST_ORDER, 28)})
    for order in (1.05, 1.1, 1.2, 1.35, 1.5, 1.75, *map(float, integers)):
        if bound(order) > 2.0 * min(cache.values()) and order > 4.0:
            break  # the bound falls and then rises with the order, and the cost of an order is proportional to it
    best = min(cache, key=lambda order: cache[order])
    if best >= 2.0:
        _refine(bound, integers, round(best))
    return min(cache.values())


def renyi_divergence(step: Step, order: int) -> float:
    """Return the Rényi divergence of one step at an integer order, at least 2; infinity or NaN where there is none.

    **Privacy.** Reads no records.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(_divergence(step)(float(order)))


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
    """Return the Rényi divergence of one step as a function of the order."""
    if step.kind is StepKind.PURE:
        # Bun and Steinke (2016), Proposition 3.3.
        return lambda order: min(step.shift, 0.5 * step.shift * step.shift * order)
    if step.kind is StepKind.GAUSSIAN:
        return lambda order: 0.5 * step.shift * step.shift * order
    from autodp.rdp_acct import anaRDPacct
    from autodp.rdp_bank import RDP_gaussian

    def gaussian(order: float) -> float:
        # autodp asks for the limit at infinity, which its own formula has too.
        return float(RDP_gaussian({"sigma": 1.0 / step.shift}, order))

    accountant = anaRDPacct(m=8)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if step.kind is StepKind.POISSON:
            accountant.compose_poisson_subsampled_mechanisms(gaussian, step.rate)
        else:
            accountant.compose_subsampled_mechanism(gaussian, step.rate, improved_bound_flag=False)
    accountant.build_zeroth_oracle()
    return lambda order: float(accountant.evalRDP(order))
