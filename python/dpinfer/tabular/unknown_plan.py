"""One budget for unknown facts about a table, and for the fit that follows."""

from collections.abc import Callable, Sequence

from dpinfer._validate import check_choice
from dpinfer.accounting import Adjacency, Event, GaussianEvent, as_adjacency
from dpinfer.accounting.accountant import AccountantName
from dpinfer.mechanism.unknowns.plan import UNKNOWN, UnknownParts, UnknownPlan, split_budget
from dpinfer.tabular.draft import SchemaDraft

__all__ = ["UNKNOWN", "UnknownParts", "UnknownPlan", "check_unknown", "plan_unknown"]


def plan_unknown(
    draft: SchemaDraft,
    unknown: Sequence[str] = UNKNOWN,
    *,
    target_epsilon: float,
    target_delta: float,
    budget_share: float = 0.1,
    make_event: Callable[[float], Event] = GaussianEvent,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: AccountantName = "pld",
) -> UnknownPlan:
    """Split one privacy target among a number of records, bounds and categories that are unknown, and the fit.

    **Privacy.** Reads no records.  The accountant certified the composition of all.

    Parameters
    ----------
    draft : SchemaDraft
        Whose gaps are to be filled.
    unknown : sequence of {"n_records", "bounds", "categories"}
        "bounds" and "categories" if, and only if, columns of the draft lack them.
    target_epsilon : float
        In (0, inf), for all together.
    target_delta : float
        In (0, 1), for all together.
    budget_share : float
        Share of the squared signal-to-noise ratio that the parts get, in (0, 1); it makes the fit's noise about
        1 / sqrt(1 - budget_share) times as large.
    make_event : callable
        The fit's event from its noise multiplier: by default a Gaussian, which the passes of :func:`dpinfer.run_newton`
        add up to.  For :func:`dpinfer.run_dpvi`, ``lambda noise: run_event(noise, sample_rate, n_steps)``.
    adjacency : {"add_remove", "replace_one"}
        "replace_one" for a known number of records; a blank record is none in a table.
    accountant : {"pld", "prv", "rdp"}

    Returns
    -------
    UnknownPlan
        ``plan.fit_epsilon`` is the target of the fit's own plan, made when the number of records and the columns are
        known, at the same delta.

    Raises
    ------
    BudgetExceededError
        If no noise meets the target.
    TypeError, ValueError
        If an argument is wrong.

    Examples
    --------
    >>> draft = SchemaDraft({"columns": {"age": {"kind": "continuous"}, "job": {"kind": "categorical"}}})
    >>> plan = plan_unknown(draft, target_epsilon=1.0, target_delta=1e-5)
    >>> plan.epsilon <= 1.0, 0.9 < plan.fit_epsilon < 1.0
    (True, True)
    """
    relation = as_adjacency(adjacency)
    return split_budget(
        check_unknown(draft, unknown, relation),
        n_selections=sum(search.n_selections for search in draft.searches),
        n_labelled=len(draft.unknown_categories),
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        budget_share=budget_share,
        make_event=make_event,
        adjacency=relation,
        accountant=accountant,
    )


def check_unknown(draft: SchemaDraft, unknown: Sequence[str], relation: Adjacency) -> tuple[str, ...]:
    """Return the requested facts in the order of release, if the draft has exactly these gaps.

    Raises TypeError or ValueError if it has other gaps, or the relation excludes the request.
    """
    if not isinstance(draft, SchemaDraft):
        raise TypeError(f"draft must be a SchemaDraft, got {type(draft).__name__}")
    if isinstance(unknown, str) or not isinstance(unknown, Sequence):
        raise TypeError(f"unknown must be a sequence of strings, got {type(unknown).__name__}")
    requested = {check_choice("unknown", name, UNKNOWN) for name in unknown}
    if not requested:
        raise ValueError("unknown must name at least one thing")
    for name, columns in (("bounds", draft.unknown_bounds), ("categories", draft.unknown_categories)):
        if bool(columns) != (name in requested):
            there = f"the columns {', '.join(map(repr, columns))} lack them" if columns else "no column lacks them"
            raise ValueError(f"unknown must{'' if columns else ' not'} hold {name!r}: {there}")
    if relation is Adjacency.ZERO_OUT:
        raise ValueError("adjacency must not be 'zero_out': no line of a table is a blank record")
    if relation is Adjacency.REPLACE_ONE and "n_records" in requested:
        raise ValueError("unknown must not hold 'n_records' under 'replace_one', where it is public")
    return tuple(name for name in UNKNOWN if name in requested)
