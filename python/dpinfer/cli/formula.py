"""``dpinfer fit``: a private regression of a file by the mechanism that a plan chooses, in the units of the table."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._sinks import csv_cell, printable, terminal_text
from dpinfer.accounting import LedgerAccount
from dpinfer.cli.arguments import POSTERIORS, posterior_request
from dpinfer.cli.errors import EXIT_DONE, UsageError, public_arguments
from dpinfer.cli.fit import (
    COUNT_FROM_DATA,
    COUNT_LEAK,
    account_of,
    check_target,
    drafted_schema,
    named_account,
)
from dpinfer.cli.output import OutputFolder, files_text
from dpinfer.cli.pictures import draw_all
from dpinfer.cli.pipeline import after_spending, calibration_of, interruptible, tell_failures
from dpinfer.cli.summary import as_comment
from dpinfer.errors import FallbackWarning
from dpinfer.fitting import FitPlan
from dpinfer.fitting.files import RELEASE_FILE
from dpinfer.fitting.report import render
from dpinfer.formulas import RegressionFit, plan_regression, regression
from dpinfer.formulas.completion import Completion
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.records import UnreadRecords
from dpinfer.inference import PosteriorRequest
from dpinfer.tabular import Schema, SchemaDraft, UnreadTable

__all__ = ["check_formula_options", "run_regression", "write_regression"]


_BINARY = ("binomial", "probit")


def check_formula_options(args: argparse.Namespace) -> None:
    """Refuse options that belong to fits without a formula; no file is opened."""
    if args.formula is None:
        raise UsageError("--family, --weights and --clusters need --formula")
    if args.schema is None or (args.n_records is None and args.unknown is None):
        raise UsageError("--formula needs --schema and --n-records: the design and the plan follow from them")
    if args.method in POSTERIORS:
        raise UsageError(f"--method must be a method of fits with --formula, auto say, got {args.method}")
    if args.target is not None:
        raise UsageError("--target cannot be given with --formula")
    if args.weights and args.test is not None:
        raise UsageError("--test cannot be given with --weights: its calibration counts every record once")
    if args.unknown is not None and (args.weights or args.clusters):
        raise UsageError("--weights and --clusters cannot be given with --unknown")
    if args.test is not None and args.family not in _BINARY:
        raise UsageError("--test needs a response of two categories: --family binomial or probit")


@dataclass(frozen=True)
class _Asked:
    """The design of a fit, from public knowledge (or with stated leaks)."""

    formula: str
    family: str
    schema: Schema | SchemaDraft
    n_records: int | None
    notes: Sequence[str] = ()


def run_regression(args: argparse.Namespace) -> int:
    """Check public arguments, charge, read the records, save the release, and analyse it."""
    design_request = _asked(args)
    request = replace(posterior_request(args), progress=True)
    plan: FitPlan | None = None
    if isinstance(design_request.schema, SchemaDraft):
        account = named_account(args)
        fitted = _completed(args, design_request, design_request.schema, account, request)
    else:
        with public_arguments():
            plan = plan_regression(
                design_request.formula,
                family=design_request.family,
                schema=design_request.schema,
                epsilon=args.epsilon,
                delta=args.delta,
                n_records=design_request.n_records or 1,
                method=args.method,
                prior_scale=args.prior_scale,
                weights=args.weights,
                clusters=args.clusters,
            )
            plan.check(request)
            fitted = design(
                design_request.formula,
                design_request.schema,
                family=design_request.family,
                prior_scale=args.prior_scale,
                weights=args.weights,
            )
        account = account_of(args, plan, plan.event)
    with public_arguments():
        # The names of the columns are public; a file without them is refused before anything is spent.
        UnreadRecords(args.file, fitted, unit=args.clusters or "")
        if args.test is not None:
            UnreadRecords(args.test, fitted)
    size = 64 * len(fitted.model.names) ** 2 + (1 << 20)
    with OutputFolder(args.out, need_bytes=size, overwrite=args.overwrite) as folder:
        if args.overwrite:
            folder.release_path.unlink(missing_ok=True)
        for note in design_request.notes:
            sys.stderr.write(f"dpinfer: warning: {note}\n")
        with interruptible(folder, args.checkpoint, charged=account is not None):
            fit = _fitted(args, design_request, account, folder, request)
        with after_spending(folder):
            text = write_regression(fit, args.level, folder, test=args.test, notes=design_request.notes)
        sys.stdout.write(f"{terminal_text(str(fit.choice))}\n\n{text}")
    return EXIT_DONE


def _fitted(
    args: argparse.Namespace,
    asked: _Asked,
    account: LedgerAccount | None,
    folder: OutputFolder,
    request: PosteriorRequest,
) -> RegressionFit:
    options: dict[str, Any] = {} if args.checkpoint is None else {"checkpoint": args.checkpoint}
    options |= {name: getattr(args, name) for name in ("weights", "clusters") if getattr(args, name) is not None}
    if args.unknown is not None:
        options["unknown"] = list(args.unknown)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        fit = regression(
            asked.formula,
            args.file,
            family=asked.family,
            schema=asked.schema,
            epsilon=args.epsilon,
            delta=args.delta,
            n_records=asked.n_records,
            method=args.method,
            ledger=account,
            path=folder.path,
            prior_scale=args.prior_scale,
            posterior=request,
            progress=True,
            n_threads=args.threads,
            **options,
        )
    for item in caught:
        sys.stderr.write(f"dpinfer: warning: {printable(item.message)}\n")
    return fit


def _asked(args: argparse.Namespace) -> _Asked:
    """Return the design: of the formula, or of a logistic regression on all columns of the schema."""
    notes: list[str] = []
    schema: Schema | SchemaDraft
    if args.unknown is not None:
        schema = SchemaDraft.load(args.schema)
    else:
        schema = drafted_schema(args, notes) if args.schema is None else Schema.load(args.schema)
    if args.formula is not None:
        return _Asked(args.formula, args.family or "gaussian", schema, args.n_records)
    declared = schema.placeholder if isinstance(schema, SchemaDraft) else schema
    check_target(declared, args.target)
    n_records = args.n_records
    if n_records is None and isinstance(schema, Schema):
        # No ledger: nothing is charged, and everything that follows says that the number leaks.
        n_records = len(UnreadTable(args.file, schema).read().X)
        schema = replace(schema, leaks=(*schema.leaks, COUNT_LEAK))
        notes.append(COUNT_FROM_DATA)
    target = "" if declared.target is None else declared.target.name
    return _Asked(f"`{target}` ~ .", "binomial", schema, n_records, notes)


def _completed(
    args: argparse.Namespace,
    asked: _Asked,
    draft: SchemaDraft,
    account: LedgerAccount | None,
    request: PosteriorRequest,
) -> Design:
    """Return a stand-in for the later design, and refuse designs that could fail; no data is read."""
    fit = {
        "epsilon": args.epsilon,
        "delta": args.delta,
        "n_records": asked.n_records,
        "method": args.method,
        "ledger": account,
        "posterior": request,
    }
    with public_arguments():
        return Completion.of(
            asked.formula, draft, list(args.unknown), family=asked.family, prior_scale=args.prior_scale, fit=fit
        ).stand_in


def write_regression(
    fit: RegressionFit,
    level: float,
    folder: OutputFolder,
    *,
    test: Path | None = None,
    notes: Sequence[str] = (),
    **content: Any,
) -> str:
    """Write the table, the schema and the report, and return the results for the terminal.

    **Privacy.** Post-processing of a Release; `test`, if given, is read and its calibration shown without noise.

    Parameters
    ----------
    fit : RegressionFit
    level : float
    folder : OutputFolder
    test : Path, optional
        Records to check the calibration on.
    notes : sequence of str
        Further warnings.
    content
        Further fields of :class:`dpinfer.fitting.report.ReportContent`.
    """
    kept = (RELEASE_FILE, "plan.json", "regression.json", "fit.posterior")
    names = [each for each in kept if (folder.path / each).exists()]
    comment = as_comment(fit.release.guarantee)
    names.append(folder.write("schema.toml", comment + fit.design.schema.to_toml()).name)
    posterior = fit.fit.maybe_posterior
    curve = None
    failures: list[str] = []
    if posterior is not None:
        columns = fit.coefficients(level).to_dict()
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(_cell(value) for value in row) for row in rows)]
        names.append(folder.write("coefficients.csv", comment + "\n".join(lines) + "\n").name)
        if test is not None:
            curve, failures = calibration_of(lambda: _predicted(fit, test))
    pictures = {} if posterior is None else draw_all(fit.release, posterior, calibration=curve, failures=failures)
    page = replace(
        fit.report_content(level),
        calibration=curve,
        pictures=pictures,
        notes=[*notes, *failures],
        **content,
    )
    names.append(folder.write("report.html", render(page)).name)
    tell_failures(failures)
    text = f"{fit.summary(level)}\n"
    if curve is not None:
        text += f"{curve}\n(computed from the test labels without noise)\n"
    return terminal_text(text) + files_text(folder.path / each for each in names)


def _predicted(fit: RegressionFit, test: Path) -> tuple[FloatArray, FloatArray]:
    """Return probabilities and labels of test records."""
    records = UnreadRecords(test, fit.design)
    return fit.posterior.predict_mean(np.asarray(records.X)), np.asarray(records.y)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        quoted = csv_cell(value).replace('"', '""')
        return f'"{quoted}"'
    return repr(value)
