"""Spending of an estimator and its clones, since cross-validation and grid search fit many."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from dpinfer.accounting import Adjacency, Composed, Event, LedgerAccount, PrivacyBound, PrivacyPlan, account
from dpinfer.errors import RepeatedSpendingWarning
from dpinfer.mechanism import NewtonPlan


@dataclass(frozen=True)
class Charge:
    """A part of a fit without a plan of its own: released unknown parameters.

    Parameters
    ----------
    event : Event
    delta : float
        Of the fit that it is a part of.
    adjacency : Adjacency
    """

    event: Event
    delta: float
    adjacency: Adjacency


AnyPlan: TypeAlias = PrivacyPlan | NewtonPlan | Charge


class Spending:
    """The plans of all fits of an estimator and its clones, in this process.

    **Privacy.** Public plans.  Copies share it; a pickle carries the spending so far, and later spending of another
    process does not return.
    """

    def __init__(self, plans: Sequence[AnyPlan] = (), *, elsewhere: bool = False) -> None:
        self._plans, self._elsewhere, self._told = list(plans), elsewhere, False

    def total(self) -> PrivacyBound:
        """Return the guarantee of all fits together, if all are of the same records.

        Raises ValueError if nothing was fitted, or under several adjacency relations.
        """
        if not self._plans:
            raise ValueError("spent needs a fit: nothing has been spent yet")
        if len({plan.adjacency for plan in self._plans}) > 1:
            raise ValueError("spent needs fits under one adjacency: those under several do not add up")
        delta = max(plan.delta for plan in self._plans)
        events = [plan.event for plan in self._plans]
        event = events[0] if len(events) == 1 else Composed(tuple(events))
        return account(event, delta=delta, adjacency=self._plans[0].adjacency)

    def add(self, plan: AnyPlan) -> None:
        """Count a fit, or a part of one."""
        self._plans.append(plan)

    def warn_of(self, plan: AnyPlan, ledger: LedgerAccount | None) -> None:
        """Warn, once, that the next fit is not the only one.

        Warns
        -----
        RepeatedSpendingWarning
            At the second fit, or at the first of a copy that came from elsewhere.
        """
        alike = [earlier for earlier in self._plans if earlier.adjacency is plan.adjacency]
        if self._told or not (alike or self._elsewhere):
            return
        self._told = True
        text = (
            "this fit spends its own budget, as does every fit of the estimator's clones in cross-validation and grid "
            "search: "
        )
        together = Spending([*alike, plan]).total()
        if self._elsewhere:
            text += "this is a copy from another process or file, and fits there are not counted here"
        else:
            text += (
                f"with this one, number {len(alike) + 1}, they are together at epsilon <= {together.epsilon:.4g} "
                f"at delta = {together.delta:g} if all are of the same records, and each further one adds to it; see "
                "spent()"
            )
        if ledger is None:
            text += ". Without ledger= nothing adds up the fits of several estimators and processes"
        else:
            before = ledger.spent(together.delta).epsilon
            text += f". The ledger counts them all: before this fit, data set {ledger.dataset!r} is at {before:.4g}"
        warnings.warn(text, RepeatedSpendingWarning, stacklevel=3)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _elsewhere, (tuple(self._plans),)


def _elsewhere(plans: tuple[AnyPlan, ...]) -> Spending:
    return Spending(plans, elsewhere=True)
