"""A budget for adaptively chosen events: a privacy filter by Rényi divergences of one fixed order."""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._float_environment import standard_arithmetic
from dpinfer.accounting._steps import reduce_event
from dpinfer.accounting.adjacency import Adjacency
from dpinfer.accounting.bound import PrivacyBound
from dpinfer.accounting.events import Event
from dpinfer.accounting.rdp import conversion, converted, renyi_divergence
from dpinfer.accounting.sampler_slack import reserve_suffices, total_variation_slack

_LARGEST_ORDER = 10_000  # larger orders suit epsilon below 1e-3 only
# Of delta, for the finite precision of the noise: fixed, because the filter must be.
_RESERVED_SHARE = 2.0**-20


@dataclass(frozen=True)
class RenyiFilter:
    """Admits events while the sum of their Rényi divergences, of an order fixed by the budget, stays within a bound.

    **Privacy.** Reads no records.  If an analyst chooses each event after seeing all earlier releases, and stops when
    the filter refuses, all releases together are (epsilon, delta)-differentially private (docs/derivations/ledger.md).

    Parameters
    ----------
    epsilon, delta : float
        The budget; in (0, inf) and (0, 1).

    Notes
    -----
    Feldman and Zrnic (2021), Theorem 3.1; conversion by Balle, Barthe, Gaboardi, Hsu and Sato (2020), Theorem 21.  The
    order is the integer at which a Gaussian may have the least noise within the budget.

    Examples
    --------
    >>> RenyiFilter(1.0, 1e-5).order
    18
    """

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
