"""Arguments of a fit that are not public: released first, with noise, for a part of the fit's budget."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy.typing as npt

from dpinfer._validate import check_choice
from dpinfer.accounting import Adjacency, LedgerAccount
from dpinfer.accounting.ledger import check_account
from dpinfer.errors import WeakGuaranteeWarning
from dpinfer.mechanism import RandomSource, Records, release_bounds, release_count
from dpinfer.mechanism.sources.held import records_of
from dpinfer.mechanism.unknowns.draws import QuantileSearch
from dpinfer.mechanism.unknowns.plan import UnknownPlan, split_budget
from dpinfer.mechanism.unknowns.releases import resolved_probability
from dpinfer.release import BoundsRelease
from dpinfer.release.guarantee import Guaranteed
from dpinfer.release.parts import Part

T = TypeVar("T")

# How many columns' quantiles each takes.
UNKNOWN_ARGUMENTS = {"n_records": 0, "response_scale": 1}

# Of the budget, in squares: as in plan_unknown.
_SHARE = 0.1


@dataclass(frozen=True)
class ReleasedArguments:
    """Released values in place of public arguments.

    **Privacy.** Safe to publish: everything carries the noise that `parts` account for.

    Parameters
    ----------
    values : dict
        Names of arguments to their values.
    """

    values: dict[str, Any]
    parts: tuple[Part, ...]


def plan_unknown_arguments(
    unknown: Any, given: dict[str, Any], *, epsilon: float, delta: float, adjacency: Adjacency, X: Any
) -> UnknownPlan:
    """Split the budget of :func:`dpinfer.fit` among its unknown arguments and its run, a private Newton run.

    **Privacy.** Reads no records.

    Parameters
    ----------
    unknown : sequence of {"n_records", "response_scale"}
    given : dict
        The arguments of these names; None if not given.
    X : object
        Refused if it is a source with units, or Silos.

    Raises
    ------
    TypeError, ValueError
        If a name is given as an argument too, or cannot be released.
    """
    names = check_unknown_names(unknown)
    if {"bounds", "categories"} & set(names):
        raise ValueError(
            "unknown must hold arguments of fit ('n_records', 'response_scale'); bounds and categories belong to a "
            "schema: dpinfer.regression takes them as unknown"
        )
    split = split_arguments(names, given, UNKNOWN_ARGUMENTS, epsilon=epsilon, delta=delta, adjacency=adjacency)
    records_of(X).refuse("X, of which something is unknown,", ("blocks", "parts", "sparse", "cuda"))
    return split


def check_unknown_names(unknown: Any) -> tuple[str, ...]:
    """Return the names of unknown arguments, at least one."""
    if isinstance(unknown, str) or not isinstance(unknown, Sequence) or not unknown:
        raise TypeError("unknown must be a sequence of names of arguments, such as ['n_records']")
    return tuple(unknown)


def split_arguments(
    unknown: Sequence[str],
    given: Mapping[str, Any],
    n_columns: Mapping[str, int],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
) -> UnknownPlan:
    """Split a budget among unknown arguments and a private Newton run.

    **Privacy.** Reads no records.

    Parameters
    ----------
    unknown : sequence of str
        Of the names in `n_columns`.
    given : mapping
        The arguments of these names; None if not given.
    n_columns : mapping
        Of each argument that may be unknown, how many columns' quantiles it takes; "n_records" takes none.

    Raises
    ------
    TypeError, ValueError
        If a name is given as an argument too, or cannot be released.
    """
    names = {check_choice("unknown", name, tuple(n_columns)) for name in unknown}
    for name in sorted(names):
        if given[name] is not None:
            raise ValueError(f"{name} must not be given when it is among unknown")
    if adjacency is Adjacency.ZERO_OUT:
        raise ValueError("adjacency must not be 'zero_out' with unknown: a row is counted whether it is blank or not")
    if adjacency is Adjacency.REPLACE_ONE and "n_records" in names:
        raise ValueError("unknown must not hold 'n_records' under 'replace_one', where it is public")
    columns = sum(n_columns[name] for name in names)
    return split_budget(
        [part for part, wanted in (("n_records", "n_records" in names), ("bounds", columns > 0)) if wanted],
        n_selections=QuantileSearch(None).n_selections * columns,
        n_labelled=0,
        target_epsilon=epsilon,
        target_delta=delta,
        budget_share=_SHARE,
        adjacency=adjacency,
    )


def release_arguments(
    plan: UnknownPlan,
    X: npt.ArrayLike | Records,
    y: npt.ArrayLike | None,
    *,
    n_records: int | None,
    ledger: LedgerAccount | None,
    random_source: RandomSource | None,
) -> ReleasedArguments:
    """Release the unknown arguments of a plan of :func:`dpinfer.fit`.

    **Privacy.** Reads the records, through :func:`release_numbers`.

    Parameters
    ----------
    X, y, n_records, ledger, random_source
        As in :func:`dpinfer.fit`.

    Returns
    -------
    ReleasedArguments
        ``response_scale`` is the root mean square of the normal law that has the released quantiles.
    """
    responses = records_of(X, y).responses()
    return release_numbers(
        plan,
        X,
        responses,
        ("y",),
        lambda found: {"response_scale": math.hypot(float(found.centre[0]), float(found.scale[0]))},
        n_records=n_records,
        ledger=ledger,
        random_source=random_source,
    )


def release_numbers(
    plan: UnknownPlan,
    records: Any,
    columns: Any,
    names: Sequence[str],
    values_of: Callable[[BoundsRelease], dict[str, Any]],
    *,
    n_records: int | None,
    ledger: LedgerAccount | None,
    random_source: RandomSource | None,
) -> ReleasedArguments:
    """Release the number of records and quantiles of columns, according to a plan.

    **Privacy.** Reads the records, through :func:`dpinfer.release_count` and :func:`dpinfer.release_bounds`, each
    charged by itself.

    Parameters
    ----------
    records : array, RowSource or ShardedRows
        To be counted.
    columns : array, RowSource or ShardedRows
        Of numbers, whose quantiles are released.
    names : sequence of str
        Of the columns.
    values_of : callable
        Gets the released bounds, and returns the arguments that follow from them.
    n_records : int or None
        The public number, if there is one.
    ledger, random_source
        As in :func:`dpinfer.fit`.
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

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong (BudgetExceededError: the ledger's budget would be exceeded).
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
    """Attach earlier releases, which are paid for, to every error in the block, as its ``unknown``."""
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
