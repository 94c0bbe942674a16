"""Arguments of a fit that are not public: released first, with noise, for a part of the fit's budget."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dpinfer._validate import check_choice, check_interval
from dpinfer.accounting import Adjacency, LedgerAccount
from dpinfer.accounting.ledger import check_account
from dpinfer.errors import WeakGuaranteeWarning
from dpinfer.mechanism import RandomSource, release_bounds, release_count
from dpinfer.mechanism.unknowns import tuning
from dpinfer.mechanism.unknowns.draws import QuantileSearch
from dpinfer.mechanism.unknowns.plan import UnknownPlan, names_of, split_budget
from dpinfer.mechanism.unknowns.releases import resolved_probability
from dpinfer.release import BoundsRelease
from dpinfer.release.guarantee import Guaranteed, Part

T = TypeVar("T")


@dataclass(frozen=True)
class ReleasedArguments:
    """Released values in place of public arguments.

    **Privacy.** Safe to publish: everything carries the noise that `parts` account for.
    """

    values: dict[str, Any]  # names of arguments to their values
    parts: tuple[Part, ...]


def split_arguments(
    unknown: Any,
    given: Mapping[str, Any],  # the arguments that may be unknown; None if not given
    n_columns: Mapping[str, int],  # how many columns' quantiles each takes; "n_records" takes none
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
) -> UnknownPlan:
    """Split a budget among unknown arguments and a private Newton run.

    Raises TypeError or ValueError if a name is given as an argument too, or cannot be released.
    """
    names = {check_choice("unknown", name, tuple(given)) for name in names_of(unknown)}
    for name in sorted(names):
        if given[name] is not None:
            raise ValueError(f"{name} must not be given when it is among unknown")
    columns = sum(n_columns[name] for name in names)
    return split_budget(
        [part for part, wanted in (("n_records", "n_records" in names), ("bounds", columns > 0)) if wanted],
        n_selections=QuantileSearch(None).n_selections * columns,
        n_labelled=0,
        target_epsilon=epsilon,
        target_delta=check_interval("delta", delta, 0.0, 1.0),
        budget_share=tuning.TUNING.budget_share,
        adjacency=adjacency,
    )


def release_numbers(
    plan: UnknownPlan,
    records: Any,  # to be counted
    columns: Any,  # of numbers, whose quantiles are released
    names: Sequence[str],
    # gets the released bounds, and returns the arguments that follow from them
    values_of: Callable[[BoundsRelease], dict[str, Any]],
    *,
    n_records: int | None,  # the public number, if there is one
    # ledger, random_source: as in :func:`dpinfer.fit`
    ledger: LedgerAccount | None,
    random_source: RandomSource | None,
) -> ReleasedArguments:
    """Release the number of records and quantiles of columns, according to a plan.

    **Privacy.** Reads the records, through :func:`dpinfer.release_count` and :func:`dpinfer.release_bounds`, each
    charged by itself.
    """
    common: dict[str, Any] = {"adjacency": plan.adjacency, "ledger": ledger, "random_source": random_source}
    values: dict[str, Any] = {}
    parts: list[Part] = []
    if "n_records" in plan.parts.unknown:
        count = release_count(records, epsilon=plan.parts.count_epsilon, **common)
        values["n_records"] = count.n_records
        parts += count.parts
    if "bounds" in plan.parts.unknown:
        total = plan.parts.n_selections * plan.parts.selection_epsilon
        with keep_with(ReleasedArguments(dict(values), tuple(parts))):
            probability = resolved_probability(values.get("n_records", n_records), plan.parts.selection_epsilon)
            bounds = release_bounds(columns, epsilon=total, names=names, probability=probability, **common)
        values |= values_of(bounds)
        parts += bounds.parts
    return ReleasedArguments(values, tuple(parts))


def try_out(plan: UnknownPlan, check: Callable[[], T], ledger: LedgerAccount | None) -> T:
    """Check the later fit, with stand-ins of what is unknown, and that the ledger's budget covers all parts.

    Raises TypeError or ValueError if an argument is wrong (BudgetExceededError: the ledger's budget would be exceeded).
    """
    with warnings.catch_warnings():
        # They concern the stand-ins.
        warnings.simplefilter("ignore", WeakGuaranteeWarning)
        result = check()
    if ledger is not None:
        check_account(ledger).check(plan.event, adjacency=plan.adjacency)
    return result


@contextlib.contextmanager
def keep_with(released: ReleasedArguments | Guaranteed) -> Iterator[None]:
    """Attach earlier, charged releases to every error in the block, as its ``unknown``."""
    try:
        yield
    except BaseException as error:
        if released.parts:
            error.unknown = released  # type: ignore[attr-defined]
            error.add_note(
                "What was unknown is released and paid for: it is 'unknown' of this error, values (of a table the "
                "completed schema) and parts; pass the values to the next fit, of the rest of the budget, and the "
                "parts: parts= of dpinfer.fit, or with_parts of the release."
            )
        raise
