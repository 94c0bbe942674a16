"""The front door for tables: a formula, a table, a public schema and a budget."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from dpinfer._surroundings import ProgressCallback
from dpinfer._validate import check_choice
from dpinfer.accounting import Adjacency, LedgerAccount
from dpinfer.fitting import FitPlan, fit, plan_fit
from dpinfer.fitting.unknown import keep_with
from dpinfer.formulas.completion import Completion, response_scale_of
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.design_files import save_first
from dpinfer.formulas.levels import HORSESHOE, layout_of
from dpinfer.formulas.persons import PersonFit
from dpinfer.formulas.records import UnreadRecords, asked_of_sites
from dpinfer.formulas.result import RegressionFit
from dpinfer.inference import PosteriorRequest
from dpinfer.mechanism import Silos, Units
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import CheckpointArgument
from dpinfer.methods import method_with
from dpinfer.tabular import Schema, SchemaDraft

_SURVEY = ("weights", "strata")  # columns that are read beside the response


class PlanOptions(TypedDict, total=False):
    """Further keyword arguments of :func:`plan_regression`."""

    weights: str | None
    unit: Units | None
    clusters: str | None
    strata: str | None


class RegressionOptions(PlanOptions, total=False):
    """Further keyword arguments of :func:`regression`."""

    prior_scale: float | None
    unknown: Sequence[str]
    posterior: PosteriorRequest | None
    adjacency: Adjacency | str
    predictor_spread: float | None
    simulate: bool
    target: str
    prior: str | None
    checkpoint: CheckpointArgument
    progress: bool | ProgressCallback | None
    n_threads: int | None


def plan_regression(
    formula: str,
    *,
    family: str = "gaussian",
    schema: Schema,
    epsilon: float,
    delta: float,
    n_records: int,
    method: str = "auto",
    prior_scale: float | None = None,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    predictor_spread: float | None = None,
    simulate: bool = False,
    target: str = "auto",
    **options: Unpack[PlanOptions],
) -> FitPlan:
    """Return the plan of a regression, before any record is read; see :func:`dpinfer.plan_fit`.

    **Privacy.** Reads no records.

    Parameters
    ----------
    formula, family, schema, prior_scale, weights, unit, clusters, strata
        As in :func:`regression`; `unit` for a formula with effects of persons.
    epsilon, delta, n_records, method, adjacency, predictor_spread, simulate, target
        As in :func:`dpinfer.plan_fit`.
    """
    foreign = set(options) - set(PlanOptions.__annotations__)
    if foreign:
        raise TypeError(f"plan_regression() got an unexpected keyword argument {min(foreign)!r}")
    unit, clusters = options.get("unit"), options.get("clusters")
    survey: Any = {name: options.get(name) for name in _SURVEY}
    _check_survey(survey, unit, clusters, alone=True)
    found = design(formula, schema, family=family, prior_scale=prior_scale, unit=unit, **survey)
    if unit is not None and found.persons is None:
        raise ValueError("unit must be None for a formula without effects of its persons: plan for n_records persons")
    return plan_fit(
        found.model,
        epsilon=epsilon,
        delta=delta,
        n_records=n_records,
        method=method,
        adjacency=adjacency,
        response_scale=None if found.persons is not None else response_scale_of(family),
        predictor_spread=predictor_spread,
        simulate=simulate,
        target=target,
        clusters=clusters is not None,
    )


def regression(
    formula: str,
    data: Any,
    *,
    family: str = "gaussian",
    schema: Schema | SchemaDraft | str | os.PathLike[str],
    epsilon: float,
    delta: float,
    n_records: int | None = None,
    method: str = "auto",
    ledger: LedgerAccount | None = None,
    path: str | os.PathLike[str] | None = None,
    random_source: RandomSource | None = None,
    **options: Unpack[RegressionOptions],
) -> RegressionFit:
    """Fit a regression of a table with differential privacy, with coefficients in the table's units.

    If the posterior fails, the fit holds the release, and ``fit.failure`` gives the reason.

    **Privacy.** Hands the records to one (epsilon, delta)-differentially private mechanism, through
    :func:`dpinfer.fit`.  The design is public: it follows from formula and schema.  Each record by itself is decoded,
    dropped if it lacks a value that the formula uses, and clamped to the schema's bounds.  Until the run is charged,
    only the names of the columns of `data` are read.

    Raises TypeError or ValueError if an argument is wrong, or the formula needs more than public knowledge; nothing was
    spent. Raises SchemaError if the table lacks a column; nothing was spent. Raises BackendUnavailableError if
    formulaic is not installed.

    Parameters
    ----------
    formula : str
        ``y ~ age + C(job) + age:sex``: see docs/tables.md for the terms. With ``(1 | site)`` or ``s(age)`` the
        result is a :class:`MixedFit`: docs/levels.md.
    data : data frame, mapping of columns, path-like, or Silos
        pandas, Polars, Arrow or DuckDB (through narwhals), or a CSV or Parquet file, as in
        :func:`dpinfer.tabular.read_table`.  :class:`dpinfer.mechanism.Silos` have a
        :class:`dpinfer.formulas.SiloTable` each, with the same schema (docs/silos.md).
    family : {"gaussian", "binomial", "multinomial", "poisson", "probit", "negativebinomial"}
        "multinomial" has a response of several categories, each with coefficients of its own, ``class:column``,
        against the base level.  "multinomial", "negativebinomial", and any but "gaussian" with an offset, run as
        models written as code, by "newton": slower, and measured for a dozen parameters.
    schema : Schema, SchemaDraft or path-like
        Public kinds, bounds and categories of all columns and the response; a draft with `unknown`; the path of a TOML
        file.
    epsilon, delta, n_records, method
        As in :func:`dpinfer.plan_fit`.
    ledger, path, random_source
        As in :func:`dpinfer.fit`.
    prior_scale : float, optional
        See :func:`dpinfer.formulas.design`.
    unknown : sequence of {"n_records", "bounds", "categories"}, optional
        Facts that are not public. They are left out of the call and of the draft, and released first, with noise, for
        the columns of the formula and a tenth of the budget (in squares); the fit gets the rest, by "newton".
        `epsilon` and `delta` cover both releases, and the release's guarantee states them; a ledger has an entry for
        each. ``fit.design.schema`` and ``fit.plan.n_records`` hold the released values: docs/unknown.md.
    prior : "horseshoe", optional
        A prior for all coefficients but the intercept, under which most are near zero and a few may be large.
    weights : str, optional
        A column of survey weights, for the coefficients of the weighted population.  In the schema it is continuous,
        with a public mean, and the largest weight as a bound.  The schema's policy for missing values applies.
    unit : Units, optional
        Its `ids` name the column that identifies the unit of each row: privacy protects a unit with all of its rows,
        and intervals allow for dependence of its rows.  With ``(1 | person)`` of that column the result is a
        :class:`PersonFit`, a mixed model: docs/people.md.
    clusters : str, optional
        The column that identifies clusters, within which rows may depend on each other: privacy protects rows, and
        intervals allow for the dependence.
    strata : str, optional
        A column of categories.  Records, units or clusters were sampled separately in each category, so that
        differences between strata do not widen the intervals.  A unit belongs to the stratum of its first row; a
        cluster with rows in two strata counts as two.
    posterior, adjacency, predictor_spread, simulate, target, checkpoint, progress, n_threads
        As in :func:`dpinfer.fit`.

    Notes
    -----
    The coefficient of a column is that of the scaled column, divided by its public scale; the intercept refers to
    unscaled columns.  The schema's bounds scale the response of a gaussian family.  They are too wide if wider than
    10 times the root mean square of the response about their middle.
    """
    foreign = set(options) - set(RegressionOptions.__annotations__)
    if foreign:
        raise TypeError(f"regression() got an unexpected keyword argument {min(foreign)!r}; see RegressionOptions")
    prior_scale, unknown = options.pop("prior_scale", None), options.pop("unknown", None)
    prior = options.pop("prior", None)
    if prior is not None:
        check_choice("prior", prior, (HORSESHOE,))
    unit, clusters = options.pop("unit", None), options.pop("clusters", None)
    survey: Any = {name: options.pop(name, None) for name in _SURVEY}  # type: ignore[misc]
    at_sites = isinstance(data, Silos)
    _check_survey(survey, unit, clusters, alone=unknown is None and not at_sites)
    folder = None if path is None else Path(path)
    if isinstance(schema, (str, os.PathLike)):
        schema = Schema.load(schema) if unknown is None else SchemaDraft.load(schema)
    given: Any = {
        "epsilon": epsilon,
        "delta": delta,
        "n_records": n_records,
        "method": method,
        "ledger": ledger,
        "random_source": random_source,
        "path": path,
        **options,
    }
    if unknown is None:
        if isinstance(schema, SchemaDraft):
            raise TypeError("schema must be a Schema: a SchemaDraft needs unknown=, the facts to release")
        found = design(formula, schema, family=family, prior_scale=prior_scale, unit=unit, **survey)
        terms = _learned(found, prior, given, alone=not (any(survey.values()) or unit or clusters))
        if at_sites:
            return _fitted(found, asked_of_sites(data, found, formula, prior_scale), None, folder, given, terms)
        records = UnreadRecords(data, found, unit=clusters or ("" if unit is None else str(unit.ids)))
        whose: Any = {} if unit is None else {"unit": replace(unit, ids=records.unit)}
        if clusters is not None:
            whose = {"clusters": records.unit}
        return _fitted(found, records.X, records.y, folder, given | whose, terms)
    if at_sites:
        raise TypeError("unknown must be None with Silos: give n_records, bounds and categories that are public")
    completion = Completion.of(formula, schema, unknown, family=family, prior_scale=prior_scale, fit=given)
    terms = _learned(completion.stand_in, prior, given)
    release, found = completion.release(data, folder)
    with keep_with(release):
        records = UnreadRecords(data, found)
        given |= completion.fit_arguments(release)
        return _fitted(found, records.X, records.y, folder, given, terms)


def _learned(found: Design, prior: str | None, given: dict[str, Any], *, alone: bool = True) -> tuple[str, ...]:
    """Return the terms with a learned scale, checked; method "auto" becomes "newton", and target "auto" "model"."""
    terms = (*found.formula.levels, *(() if prior is None else (prior,)))
    if terms:
        layout_of(found, terms)
        if not alone:
            raise ValueError(
                f"weights, strata, unit and clusters must be None with {terms[0]!r}: effects of persons are those of "
                "the column of unit"
            )
        given["method"] = method_with("levels", given["method"], argument=repr(terms[0]))
        if given.get("target", "auto") == "auto":
            # Effects that come from a law are a model; the population's steps are slow where categories are rare.
            given["target"] = "model"
    return terms


def _check_survey(survey: dict[str, Any], unit: Any, clusters: Any, *, alone: bool) -> None:
    """Refuse weights, units and clusters that name no columns, and those of a regression that something else has."""
    for name, value in (*survey.items(), ("clusters", clusters)):
        if value is not None and not (isinstance(value, str) and value):
            raise TypeError(f"{name} must be the name of a column, got {type(value).__name__}")
    if unit is not None and clusters is not None:
        raise ValueError("clusters must be None with unit: a unit is a cluster, and is protected as a whole")
    if unit is not None and not (isinstance(unit, Units) and isinstance(unit.ids, str)):
        raise TypeError("unit must be Units whose ids are the name of a column: Units('household', max_rows=5)")
    if not alone and (any(survey.values()) or unit or clusters):
        raise ValueError("weights, strata, unit and clusters must be None with unknown, and with Silos")


def _fitted(
    found: Design, X: Any, y: Any, folder: Path | None, given: dict[str, Any], terms: tuple[str, ...] = ()
) -> RegressionFit:
    """Fit the design's model to its rows, then learn the scales of `terms`."""
    if folder is not None:
        save_first(found, folder)
    result = fit(
        found.model,
        X,
        y,
        response_scale=None if found.persons is not None else response_scale_of(found.family),
        leaks=found.schema.leaks,
        parts=found.schema.parts,
        **given,
    )
    plain = (RegressionFit if found.persons is None else PersonFit)(design=found, fit=result)
    if not terms or plain.failure:
        return plain
    try:
        return plain.with_prior(*terms)
    except (ValueError, TypeError) as error:  # LinAlgError is a ValueError
        # The release is paid for, and released categories may leave a single group.
        warnings.warn(f"no learned scales: {error}; the result is the regression without them", stacklevel=3)
        return plain
