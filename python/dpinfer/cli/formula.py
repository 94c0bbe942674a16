"""The route of ``dpinfer fit`` for a regression by the mechanism that a plan chooses, in the units of the table."""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._sinks import csv_cell, terminal_text
from dpinfer.cli.arguments import posterior_request, public_arguments
from dpinfer.cli.output import OutputFolder, files_text
from dpinfer.cli.pictures import draw_all
from dpinfer.cli.pipeline import (
    COUNT_LEAK,
    account_of,
    as_comment,
    calibration_of,
    check_target,
    count_records,
    drafted_schema,
    named_account,
    tell_failures,
)
from dpinfer.errors import FallbackWarning
from dpinfer.fitting.report import render
from dpinfer.fitting.result import RELEASE_FILE
from dpinfer.formulas import RegressionFit, plan_regression, regression
from dpinfer.formulas.completion import Completion
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.records import UnreadRecords
from dpinfer.tabular import Schema, SchemaDraft, UnreadTable


class RegressionRoute:
    """The route of a regression by the mechanism that a plan chooses: of a formula, or logistic on all columns.

    **Privacy.** Reads no records before :meth:`spend`, unless what is public is to be read from them.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._notes = args, list[str]()
        self._request = replace(posterior_request(args), progress=True)
        self._budget: dict[str, Any] = {name: getattr(args, name) for name in ("epsilon", "delta", "method")}
        self._n_records: int | None = args.n_records
        self._schema = self._declared()
        self._formula, self._family = args.formula, args.family or "gaussian"
        if args.formula is None:
            self._formula, self._family = self._on_all_columns(), "binomial"
        if isinstance(self._schema, SchemaDraft):
            self._account = named_account(args)
            fitted = self._stand_in(self._schema)
        else:
            fitted = self._planned(self._schema)
        with public_arguments():
            # The names of the columns are public; a file without them is refused before anything is spent.
            UnreadRecords(args.file, fitted, unit=args.clusters or "")
            if args.test is not None:
                UnreadRecords(args.test, fitted)
        self.need_bytes = 64 * len(fitted.model.names) ** 2 + (1 << 20)

    def _declared(self) -> Schema | SchemaDraft:
        if self._args.unknown is not None:
            return SchemaDraft.load(self._args.schema)
        return drafted_schema(self._args, self._notes) if self._args.schema is None else Schema.load(self._args.schema)

    def _on_all_columns(self) -> str:
        """Return the formula of the schema's target, having counted the records where their number is not given."""
        schema = self._schema
        declared = schema.placeholder if isinstance(schema, SchemaDraft) else schema
        check_target(declared, self._args.target)
        if self._n_records is None and isinstance(schema, Schema):
            self._n_records = count_records(UnreadTable(self._args.file, schema), self._notes)
            self._schema = replace(schema, leaks=(*schema.leaks, COUNT_LEAK))
        return f"`{'' if declared.target is None else declared.target.name}` ~ ."

    def _stand_in(self, draft: SchemaDraft) -> Design:
        """Return a stand-in for the later design, and refuse designs that could fail; no data is read."""
        args = self._args
        fit = {**self._budget, "n_records": self._n_records, "ledger": self._account, "posterior": self._request}
        with public_arguments():
            return Completion.of(
                self._formula, draft, list(args.unknown), family=self._family, prior_scale=args.prior_scale, fit=fit
            ).stand_in

    def _planned(self, schema: Schema) -> Design:
        """Return the design, having planned and checked the fit; no data is read."""
        args = self._args
        made: dict[str, Any] = {name: getattr(args, name) for name in ("prior_scale", "weights", "strata")}
        made["family"] = self._family
        public = {**self._budget, "n_records": self._n_records or 1, "clusters": args.clusters}
        with public_arguments():
            plan = plan_regression(self._formula, schema=schema, **public, **made)
            plan.check(self._request)
            fitted = design(self._formula, schema, **made)
        self._account = account_of(args, plan.adjacency, plan.event)
        return fitted

    def spend(self, folder: OutputFolder) -> RegressionFit:
        """Run the mechanism and infer the posterior; each is saved at once.

        **Privacy.** Reads the records, through :func:`dpinfer.regression` and when the ledger is charged.
        """
        args = self._args
        if args.overwrite:
            folder.release_path.unlink(missing_ok=True)
        tell_failures(self._notes)
        options = {name: getattr(args, name) for name in ("checkpoint", "weights", "clusters", "strata")}
        options = {name: value for name, value in options.items() if value is not None}
        if args.unknown is not None:
            options["unknown"] = list(args.unknown)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            fit = regression(
                self._formula,
                args.file,
                family=self._family,
                schema=self._schema,
                n_records=self._n_records,
                ledger=self._account,
                path=folder.path,
                prior_scale=args.prior_scale,
                posterior=self._request,
                progress=True,
                n_threads=args.threads,
                **self._budget,
                **options,
            )
        tell_failures([str(item.message) for item in caught])
        return fit

    def write(self, result: RegressionFit, folder: OutputFolder) -> str:
        """Write the table, the schema and the report."""
        text = write_regression(result, self._args.level, folder, test=self._args.test, notes=self._notes)
        return f"{terminal_text(str(result.choice))}\n\n{text}"


def write_regression(
    fit: RegressionFit,
    level: float,
    folder: OutputFolder,
    *,
    test: Path | None = None,  # records to check the calibration on
    notes: Sequence[str] = (),  # further warnings
    **content: Any,  # further fields of :class:`dpinfer.fitting.report.ReportContent`
) -> str:
    """Write the table, the schema and the report, and return the results for the terminal.

    **Privacy.** Post-processing of a Release; `test`, if given, is read and its calibration shown without noise.
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
        fit.report_content(level), calibration=curve, pictures=pictures, notes=[*notes, *failures], **content
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
