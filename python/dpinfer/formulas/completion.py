"""A regression of a table with unknown public facts, which are released first, for a part of the budget.

**Privacy.** :meth:`Completion.release` reads the records, through :func:`dpinfer.release_unknown`; the rest is public.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpinfer.accounting import Adjacency, as_adjacency
from dpinfer.fitting import plan_fit
from dpinfer.fitting.one_call import as_request
from dpinfer.fitting.unknown import keep_with, try_out
from dpinfer.formulas.columns import MOST_COLUMNS, count_columns
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.design_files import save_first
from dpinfer.formulas.factors import FormulaError, compile_factor
from dpinfer.formulas.records import UnreadRecords, unread_columns
from dpinfer.methods import RunSettings, method_with
from dpinfer.tabular import Schema, SchemaDraft, UnknownPlan, UnknownRelease, plan_unknown, release_unknown

_STAND_IN = 10_000  # stand-in for a number of records that is not yet released; any value of usual size would do
_NARROW = 1e-9  # share of the limits: the narrowest bounds that a release could give


def response_scale_of(family: str) -> float | None:
    """Return the public size of the scaled responses, which the schema's bounds make about 1."""
    return 1.0 if family == "gaussian" else None


@dataclass(frozen=True)
class Completion:
    """A plan for the unknown facts and for the fit, checked against everything that may be released."""

    formula: str
    family: str
    prior_scale: float | None
    draft: SchemaDraft  # of the columns that the formula uses, for tables in memory
    file_draft: SchemaDraft  # the same, with the other columns to ignore, for files
    stand_in: Design  # design for a schema with possible released values
    plan: UnknownPlan
    max_labels: int  # how many labels of a column may be released, so that the formula does not give too many columns
    fit: Mapping[str, Any]  # arguments of :func:`dpinfer.fit`

    @classmethod
    def of(
        cls,
        formula: str,
        schema: Schema | SchemaDraft,
        unknown: Any,
        *,
        family: str,
        prior_scale: float | None,
        fit: Mapping[str, Any],
    ) -> "Completion":
        """Plan and check all public arguments.

        Raises TypeError or ValueError if an argument is wrong, or the formula could fail for some released values.
        Raises BudgetExceededError if the ledger's budget would be exceeded.
        """
        draft = SchemaDraft(schema.to_dict()) if isinstance(schema, Schema) else schema
        if not isinstance(draft, SchemaDraft):
            raise TypeError(f"schema must be a SchemaDraft or a Schema, got {type(schema).__name__}")
        stand_in = _robust_design(formula, draft, family=family, prior_scale=prior_scale)
        hidden = sorted(stand_in.response_columns & set(draft.unknown_categories))
        if hidden:
            raise FormulaError(f"schema must have the categories of the response {hidden[0]!r}: they are the model")
        used = stand_in.predictor_columns | stand_in.response_columns
        draft, file_draft = draft.only(used, ignore=False), draft.only(used, ignore=True)
        requested = _asked(draft, unknown, fit["n_records"])
        if fit.get("checkpoint") is not None:
            raise ValueError("checkpoint must be None with unknown: a run taken up again would release twice")
        fit = {**fit, "method": method_with("unknown", fit["method"])}
        relation = as_adjacency(fit.get("adjacency", Adjacency.ADD_REMOVE))
        plan = plan_unknown(
            draft, requested, target_epsilon=fit["epsilon"], target_delta=fit["delta"], adjacency=relation
        )
        most = _most_labels(formula, draft)
        made = cls(formula, family, prior_scale, draft, file_draft, stand_in, plan, most, fit)
        made._check()
        return made

    def _check(self) -> None:
        """Refuse fits that would fail, or whose posterior would, and a budget that does not cover both parts."""
        request = as_request(self.fit.get("posterior"))

        def check() -> None:
            plan_fit(
                self.stand_in.model,
                epsilon=self.plan.fit_epsilon,
                delta=self.fit["delta"],
                n_records=_STAND_IN if self.fit["n_records"] is None else self.fit["n_records"],
                method=self.fit["method"],
                adjacency=self.plan.adjacency,
                response_scale=response_scale_of(self.family),
                predictor_spread=self.fit.get("predictor_spread"),
            ).check(request, RunSettings(n_threads=self.fit.get("n_threads")))

        try_out(self.plan, check, self.fit["ledger"])

    def release(self, data: Any, folder: Path | None) -> tuple[UnknownRelease, Design]:
        """Release the unknown facts, and return them with the resulting design.

        **Privacy.** Reads the records, through :func:`dpinfer.release_unknown`.

        `folder`: the released facts are written there at once.
        """
        UnreadRecords(data, self.stand_in)
        if folder is not None:
            save_first(self.stand_in, folder)
        unknown = release_unknown(
            unread_columns(data, self.draft.placeholder),
            self.file_draft if isinstance(data, (str, os.PathLike)) else self.draft,
            plan=self.plan,
            n_records=self.fit["n_records"],
            max_labels=self.max_labels,
            ledger=self.fit["ledger"],
            random_source=self.fit["random_source"],
        )
        with keep_with(unknown):
            made = design(
                self.formula, unknown.schema, family=self.family, prior_scale=self.prior_scale, completed=True
            )
            if folder is not None:
                save_first(made, folder)
        return unknown, made

    def fit_arguments(self, release: UnknownRelease) -> dict[str, Any]:
        """Return the arguments of the fit that follow from the plan and the release."""
        counted = {} if release.n_records is None else {"n_records": release.n_records}
        return {"epsilon": self.plan.fit_epsilon, "method": self.fit["method"], **counted}


def _asked(draft: SchemaDraft, unknown: Any, n_records: int | None) -> tuple[str, ...]:
    """Return the unknown facts to release: gaps of columns outside of the formula remain."""
    if isinstance(unknown, str) or not isinstance(unknown, (list, tuple)):
        raise TypeError("unknown must be a list of 'n_records', 'bounds' and 'categories'")
    if ("n_records" in unknown) == (n_records is not None):
        raise ValueError("n_records must be given, or be among unknown, and not both")
    gaps = {"bounds": bool(draft.unknown_bounds), "categories": bool(draft.unknown_categories)}
    requested = tuple(name for name in unknown if gaps.get(name, True))
    if not requested:
        raise ValueError(f"unknown must name facts that the formula's columns lack, got {unknown!r}")
    return requested


def _most_labels(formula: str, draft: SchemaDraft) -> int:
    """Return how many labels of each column, a power of two, the formula can have."""
    most = 1
    while most < MOST_COLUMNS and count_columns(formula, draft.stand_in(n_labels=2 * most)) <= MOST_COLUMNS:
        most *= 2
    return most


def _robust_design(formula: str, draft: SchemaDraft, *, family: str, prior_scale: float | None) -> Design:
    """Return a design with possible releases, after refusing a formula that could fail with other bounds."""
    try:
        made = design(formula, draft.stand_in(), family=family, prior_scale=prior_scale)
        narrow = draft.stand_in(reach=_NARROW)
        for term in made.formula.terms:
            for factor in term:
                compile_factor(factor, narrow)
    except FormulaError as error:
        if not draft.unknown_bounds:
            raise
        listed = ", ".join(map(repr, draft.unknown_bounds))
        raise FormulaError(
            f"{error} (the bounds of {listed} are to be released, and can be any within the draft's limits: declare "
            "limits, or bounds)"
        ) from error
    return made
