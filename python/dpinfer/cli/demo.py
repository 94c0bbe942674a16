"""``dpinfer demo``: the whole pipeline on simulated people, in seconds."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer.cli.errors import EXIT_DONE
from dpinfer.cli.formula import write_regression
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import after_spending
from dpinfer.cli.simulated import N_RECORDS, SCHEMA_TOML, TRUE_PARAMETERS, simulate
from dpinfer.formulas import plan_regression, regression
from dpinfer.formulas.report import estimates
from dpinfer.tabular import ContinuousColumn, Schema

_EPSILON, _DELTA = 1.0, 1e-5  # the demonstration's budget: usual values of examples
_FORMULA = "`income` ~ ."
_TEST_SEED = 20_260_102  # a date, one day after the seed of the training table
_N_TEST = 4000  # half as many as the fitted records
_LEVEL = 0.9  # the default of all summaries


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "demo",
        help="the whole pipeline on simulated data, in seconds",
        description="Simulate a census-like table, fit it with differential privacy, and compare with the truth.",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default: a new temporary one)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the simulated files, then fit them as ``fit`` does."""
    write = sys.stdout.write
    path = Path(tempfile.mkdtemp(prefix="dpinfer-demo-")) if args.out is None else args.out
    schema = Schema.from_toml(SCHEMA_TOML)
    budget: dict[str, Any] = {"epsilon": _EPSILON, "delta": _DELTA, "n_records": N_RECORDS, "family": "binomial"}
    with OutputFolder(path, need_bytes=1 << 20) as folder:
        records = folder.write("census.csv", simulate(), lasting=False)
        schema_path = folder.write("census.toml", SCHEMA_TOML, lasting=False)
        test_path = folder.write("census-test.csv", simulate(_N_TEST, _TEST_SEED), lasting=False)
        write(f"1. simulated {N_RECORDS} people -> {records}\n")
        write(f"   the public schema of its columns -> {schema_path}\n")
        plan = plan_regression(_FORMULA, schema=schema, **budget)
        write(f"2. planned, before a record is read:\n{plan.choice}\n")
        folder.release_path.unlink(missing_ok=True)
        fit = regression(_FORMULA, records, schema=schema, path=folder.path, progress=True, **budget)
        write(f"3. private run -> {folder.release_path}\n   {fit.release.guarantee}\n")
        with after_spending(folder):
            rows = estimates(fit.design, fit.coefficients(_LEVEL), true_coefficients(schema))
            text = write_regression(
                fit,
                _LEVEL,
                folder,
                test=test_path,
                title="Demonstration: income of simulated people",
                rows=rows,
                about="The records are simulated, so the truth is known and shown; nothing here is about a real "
                "person.",
            )
    write(f"4. noise-aware posterior\n\n{text}\n")
    write(f"{sum(row.covers for row in rows)} of {len(rows)} true values lie inside their {_LEVEL:.0%} intervals.\n")
    write(f"\nReport: {folder.path / 'report.html'}\n")
    write(
        "Do it yourself:\n"
        f"  dpinfer fit {records} --schema {schema_path} --epsilon {_EPSILON:g} --delta {_DELTA:g} "
        f"--n-records {N_RECORDS} --out my-fit\n"
        f"  dpinfer posterior {folder.release_path} --prior-scale 1\n"
    )
    return EXIT_DONE


def true_coefficients(schema: Schema) -> dict[str, float]:
    """Return the true coefficients of the simulation, in the units of the table and with a regression's names."""
    truth = dict(TRUE_PARAMETERS)
    for column in schema.columns:
        if isinstance(column, ContinuousColumn):
            offset, scale = column.offset_and_scale
            truth[column.name] /= scale
            truth["intercept"] -= truth[column.name] * offset
    return {name.replace("=", "[T.") + "]" * ("=" in name): float(np.float64(value)) for name, value in truth.items()}
