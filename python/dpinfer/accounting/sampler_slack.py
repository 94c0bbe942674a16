"""The part of delta for noise with finitely many random bits.

Accountants treat the noise as exactly Gaussian.  The library's draws are, outside an event of a bounded probability,
the exact rounding of an exact Gaussian; docs/derivations/noise.md has the bound and its use here.
"""

import math

from dpinfer.accounting.events import (
    ApproximateEvent,
    Composed,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PureEvent,
    SelfComposed,
)

# The probability that one coordinate of one step, with noise multiplier s, differs from exact noise is at
# most s 2**-131 + 2**-138; a step has at most 2**20 coordinates.
_PER_NOISE_MULTIPLIER = 2.0**-111
_PER_STEP = 2.0**-118  # 2**-138 times 2**20 coordinates

# Shares of delta to set aside, tried in turn: the first moves epsilon by less than its tenth digit.
RESERVED_SHARES = (2.0**-30, 2.0**-20, 2.0**-10, 2.0**-5, 2.0**-3, 0.5)

# Beyond this an (epsilon, delta) guarantee is void, and the slack, which grows as e**epsilon, is not counted.
LARGEST_EPSILON = 40.0


def total_variation_slack(event: Event) -> float:
    """Return a bound on the total variation distance between an event with exact noise and with the library's.

    **Privacy.** Reads no records.

    Returns
    -------
    float
        In [0, inf); parts without a guarantee count nothing.
    """
    if isinstance(event, (NonPrivateEvent, PureEvent, ApproximateEvent)):
        # These are drawn exactly, by integers.
        return 0.0
    if isinstance(event, Composed):
        return math.fsum(total_variation_slack(part) for part in event.events)
    if isinstance(event, SelfComposed):
        return event.count * total_variation_slack(event.event)
    if isinstance(event, GaussianEvent):
        return event.noise_multiplier * _PER_NOISE_MULTIPLIER + _PER_STEP
    return total_variation_slack(event.event)


def reserve_suffices(slack: float, epsilon: float, reserve: float) -> bool:
    """Whether delta + `reserve` covers a mechanism within `slack` of an (epsilon, delta)-private one.

    Parameters
    ----------
    slack : float
        Total variation distance between the two.
    epsilon : float
        In [0, inf].
    reserve : float
        In (0, 1).

    Notes
    -----
    P'(A) <= P(A) + s <= e**epsilon Q(A) + delta + s <= e**epsilon Q'(A) + delta + (1 + e**epsilon) s.
    """
    if slack == 0.0:
        return True
    return math.log(slack) + max(epsilon, 0.0) + math.log1p(math.exp(-epsilon)) <= math.log(reserve)
