"""One budget for unknown facts about the records, and for the fit that follows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpinfer._validate import check_interval
from dpinfer.accounting import (
    Adjacency,
    Composed,
    Event,
    GaussianEvent,
    Guarantee,
    PureEvent,
    calibrate_noise_multiplier,
)
from dpinfer.accounting.accountant import AccountantName, certify, check_stated_epsilon
from dpinfer.accounting.gaussian import bisected, pure_mu
from dpinfer.mechanism.unknowns import tuning
from dpinfer.mechanism.unknowns.draws import least_threshold
from dpinfer.mechanism.unknowns.releases import bounds_event, categories_event

UNKNOWN = ("n_records", "bounds", "categories")
_CALIBRATED = 1.0 - 1e-6  # the calibrations of the plan and, later, of the fit each have a smaller error


@dataclass(frozen=True, kw_only=True)
class UnknownParts:
    """Budgets of the releases of unknown facts.

    **Privacy.** Holds no records.

    Parameters
    ----------
    unknown : tuple of {"n_records", "bounds", "categories"}
    count_epsilon : float
        Of the number of records; 0 if known.
    selection_epsilon : float
        Of each of `n_selections` draws for bounds.
    n_selections : int
    column_epsilon, column_delta : float
        Of each of `n_labelled` columns of categories.
    n_labelled : int
    adjacency : Adjacency
    """

    unknown: tuple[str, ...]
    count_epsilon: float
    selection_epsilon: float
    n_selections: int
    column_epsilon: float
    column_delta: float
    n_labelled: int
    adjacency: Adjacency

    @property
    def event(self) -> Event:
        """The privacy event of all parts."""
        events: list[Event] = []
        if "n_records" in self.unknown:
            events.append(PureEvent(self.count_epsilon, self.adjacency.value))
        if "bounds" in self.unknown:
            events.append(bounds_event(self.selection_epsilon, self.n_selections, self.adjacency))
        if "categories" in self.unknown:
            events.append(categories_event(self.column_epsilon, self.column_delta, self.n_labelled, self.adjacency))
        return events[0] if len(events) == 1 else Composed(tuple(events))

    @property
    def threshold(self) -> int:
        """The noisy count that a label needs."""
        replace = self.adjacency is Adjacency.REPLACE_ONE
        return least_threshold(self.column_epsilon, self.column_delta, replace=replace)


@dataclass(frozen=True, kw_only=True)
class UnknownPlan:
    """The releases of unknown facts, and the noise of a fit after them: together they meet one target.

    **Privacy.** Holds no records.  ``epsilon`` is that of the composition of all; ``fit_epsilon`` is the rest for the
    fit.

    Raises UnfoundedEpsilonError if `epsilon` is below the certified one.

    Parameters
    ----------
    parts : UnknownParts
    noise_multiplier : float
        Of the fit, as `fit_event` has it.
    fit_event : Event
    fit_epsilon : float
        Of the fit alone at `delta`: the target of its own plan, :func:`dpinfer.plan_newton` say.
    epsilon, delta : float
        Certified for all together.
    accountant : {"pld", "prv", "rdp"}
    """

    parts: UnknownParts
    noise_multiplier: float
    fit_event: Event
    fit_epsilon: float
    epsilon: float
    delta: float
    accountant: str

    def __post_init__(self) -> None:
        terms: dict[str, Any] = {"delta": self.delta, "adjacency": self.adjacency, "accountant": self.accountant}
        check_stated_epsilon("epsilon", self.epsilon, self.event, **terms)

    @property
    def adjacency(self) -> Adjacency:
        """The relation that all is stated under."""
        return self.parts.adjacency

    @property
    def event(self) -> Composed:
        """The privacy event of all."""
        return Composed((self.parts.event, self.fit_event))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all together: a sentence with conversions to other terms."""
        return Guarantee(
            self.event,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            accountant=self.accountant,
            released="the released unknown facts and all releases of the fit",
        )


def names_of(unknown: Any) -> tuple[str, ...]:
    """Return the names of what is unknown, at least one."""
    if isinstance(unknown, str) or not isinstance(unknown, Sequence):
        raise TypeError("unknown must be a sequence of names, such as ['n_records']")
    if not unknown:
        raise ValueError("unknown must be a sequence of names with at least one of them")
    return tuple(unknown)


def split_budget(
    asked: Sequence[str],
    *,
    n_selections: int,
    n_labelled: int,
    target_epsilon: float,
    target_delta: float,
    budget_share: float,
    make_event: Callable[[float], Event] = GaussianEvent,
    adjacency: Adjacency,
    accountant: AccountantName = "pld",
) -> UnknownPlan:
    """Split one privacy target among `n_selections` draws for bounds, `n_labelled` columns of labels, and the fit.

    The other arguments are those of :func:`dpinfer.plan_unknown`.

    **Privacy.** Reads no records.  The accountant certified the composition of all.

    Raises TypeError or ValueError if an argument is wrong (BudgetExceededError: no noise meets the target).
    """
    relation = adjacency
    if relation is Adjacency.ZERO_OUT:
        raise ValueError("adjacency must not be 'zero_out' with unknown: a row is counted whether it is blank or not")
    if relation is Adjacency.REPLACE_ONE and "n_records" in asked:
        raise ValueError("unknown must not hold 'n_records' under 'replace_one', where it is public")
    target = check_interval("target_epsilon", target_epsilon, 0.0)
    delta = check_interval("target_delta", target_delta, 0.0, 1.0)
    share = check_interval("budget_share", budget_share, 0.0, 1.0)
    terms: dict[str, Any] = {"adjacency": relation, "accountant": accountant}
    whole = calibrate_noise_multiplier(GaussianEvent, target_epsilon=target, target_delta=delta, **terms)
    mu = relation.sensitivity_factor / whole
    total = math.fsum(getattr(tuning.TUNING, name) for name in asked)

    def part(name: str, count: int) -> float:
        return _pure_of(mu * math.sqrt(share * getattr(tuning.TUNING, name) / total / count)) if name in asked else 0.0

    parts = UnknownParts(
        unknown=tuple(asked),
        count_epsilon=part("n_records", 1),
        selection_epsilon=part("bounds", n_selections),
        n_selections=n_selections,
        column_epsilon=part("categories", n_labelled),
        column_delta=tuning.TUNING.failure_share * delta / n_labelled if n_labelled else 0.0,
        n_labelled=n_labelled,
        adjacency=relation,
    )
    noise = calibrate_noise_multiplier(
        lambda value: Composed((parts.event, make_event(value))),
        target_epsilon=target * _CALIBRATED,
        target_delta=delta,
        **terms,
    )
    run = make_event(noise)
    return UnknownPlan(
        parts=parts,
        noise_multiplier=noise,
        fit_event=run,
        fit_epsilon=certify(run, delta=delta, **terms).epsilon,
        epsilon=target,
        delta=delta,
        accountant=accountant,
    )


def _pure_of(mu: float) -> float:
    """Return the epsilon of the pure guarantee that a Gaussian of `mu` dominates, to a relative 1e-9 from below."""
    return bisected(lambda epsilon: pure_mu(epsilon) > mu, 0.0, 2.0 * mu + 0.5 * mu * mu)[0]
