"""``dpinfer fit --formula``: a private regression of a file, with coefficients in its units."""

import argparse
import sys
import warnings
from typing import Any, cast

from dpinfer._sinks import csv_cell, printable, terminal_text
from dpinfer.accounting import LedgerAccount
from dpinfer.cli.errors import EXIT_DONE, UsageError, public_arguments
from dpinfer.cli.output import OutputFolder, files_text
from dpinfer.cli.pipeline import after_spending
from dpinfer.errors import FallbackWarning
from dpinfer.fitting import FitPlan
from dpinfer.formulas import RegressionFit, plan_regression, regression
from dpinfer.formulas.completion import Completion
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.records import UnreadRecords
from dpinfer.inference import PosteriorRequest
from dpinfer.tabular import Schema, SchemaDraft

__all__ = ["check_formula_options", "plan_completion", "plan_formula", "run_formula"]

_METHODS = {"exact": "auto", "auto": "auto", "newton": "newton", "dpvi": "dpvi"}


def check_formula_options(args: argparse.Namespace) -> None:
    """Refuse options that belong to fits without a formula; no file is opened."""
    if args.formula is None:
        if args.family is not None:
            raise UsageError("--family needs --formula")
        return
    if args.schema is None or (args.n_records is None and args.unknown is None):
        raise UsageError("--formula needs --schema and --n-records: the design and the plan follow from them")
    if args.method not in _METHODS:
        raise UsageError(f"--method must be auto, newton or dpvi with --formula, got {args.method}")
    for option, given in (
        ("--target", args.target is not None),
        ("--test", args.test is not None),
        ("--shares-budget", args.shares_budget is not None),
        ("--max-grad-norm", args.max_grad_norm is not None),
        ("--recipe", args.recipe != "plain"),
    ):
        if given:
            raise UsageError(f"{option} cannot be given with --formula")


def plan_formula(args: argparse.Namespace, schema: Schema) -> FitPlan:
    """Return the plan; no data is read."""
    with public_arguments():
        return plan_regression(
            args.formula,
            family=args.family or "gaussian",
            schema=schema,
            epsilon=args.epsilon,
            delta=args.delta,
            n_records=args.n_records,
            method=_METHODS[args.method],
            prior_scale=args.prior_scale,
        )


def plan_completion(args: argparse.Namespace, draft: SchemaDraft, account: LedgerAccount | None) -> Design:
    """Return a design that stands for the one to come, after refusing what would fail of it; no data is read."""
    fit = {
        "epsilon": args.epsilon,
        "delta": args.delta,
        "n_records": args.n_records,
        "method": _METHODS[args.method],
        "ledger": account,
    }
    family = args.family or "gaussian"
    with public_arguments():
        return Completion.of(
            args.formula, draft, list(args.unknown), family=family, prior_scale=args.prior_scale, fit=fit
        ).stand_in


def run_formula(
    args: argparse.Namespace,
    schema: Schema | SchemaDraft,
    plan: FitPlan | Design,
    account: LedgerAccount | None,
) -> int:
    """Charge, read the records, save the release, then analyse it."""
    family = args.family or "gaussian"
    request = None if args.n_samples is None else PosteriorRequest(n_samples=args.n_samples, progress=True)
    with public_arguments():
        if request is not None and isinstance(plan, FitPlan):
            plan.check(request)
        # The names of the columns are public; a file without them is refused before anything is spent.
        public = plan if isinstance(schema, SchemaDraft) else design(args.formula, schema, family=family)
        UnreadRecords(args.file, cast(Design, public))
    size = 64 * len(plan.model.names) ** 2 + (1 << 20)
    with OutputFolder(args.out, need_bytes=size, overwrite=args.overwrite) as folder:
        if args.overwrite:
            folder.release_path.unlink(missing_ok=True)
        options: dict[str, Any] = {} if args.checkpoint is None else {"checkpoint": args.checkpoint}
        if request is not None:
            options["posterior"] = request
        if args.unknown is not None:
            options["unknown"] = list(args.unknown)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            fit = regression(
                args.formula,
                args.file,
                family=family,
                schema=schema,
                epsilon=args.epsilon,
                delta=args.delta,
                n_records=args.n_records,
                method=_METHODS[args.method],
                ledger=account,
                path=folder.path,
                prior_scale=args.prior_scale,
                progress=True,
                n_threads=args.threads,
                **options,
            )
        for item in caught:
            sys.stderr.write(f"dpinfer: warning: {printable(item.message)}\n")
        with after_spending(folder):
            _write(fit, args.level, folder)
    return EXIT_DONE


def _write(fit: RegressionFit, level: float, folder: OutputFolder) -> None:
    """Write the table and the report, and say what was found."""
    names = ["fit.release", "plan.json", "regression.json"]
    if fit.fit.maybe_posterior is not None:
        names.append("fit.posterior")
        table = fit.coefficients(level)
        columns = table.to_dict()
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(_cell(value) for value in row) for row in rows)]
        folder.write("coefficients.csv", f"# {fit.release.guarantee}\n" + "\n".join(lines) + "\n")
        names.append("coefficients.csv")
    fit.report(folder.path / "report.html")
    names.append("report.html")
    text = f"{fit.choice}\n\n{fit.summary(level)}\n"
    sys.stdout.write(terminal_text(text) + files_text(folder.path / name for name in names))


def _cell(value: Any) -> str:
    if isinstance(value, str):
        quoted = csv_cell(value).replace('"', '""')
        return f'"{quoted}"'
    return repr(value)
