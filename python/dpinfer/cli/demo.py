"""``dpinfer demo``: the whole pipeline on simulated people, in seconds."""

import argparse
import csv
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.cli.arguments import EXIT_DONE
from dpinfer.cli.formula import write_regression
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import after_spending
from dpinfer.formulas import plan_regression, regression
from dpinfer.formulas.report import estimates
from dpinfer.tabular import ContinuousColumn, Schema

N_RECORDS = 8000  # the demonstration runs in seconds, and its intervals show the noise

SCHEMA_TOML = """\
# The public schema, written without looking at the records: bounds come from the questionnaire, `mean` and `sd` from an
# earlier census.  Every column of the file must be declared.

[table]
missing = "drop"                    # a record without a value is left out
missing_values = ["", "?"]

[columns.household]                 # an identifier: never used
kind = "ignore"

[columns.age]                       # years; a value outside the bounds is clamped to them
kind = "continuous"
bounds = [18, 90]
scaling = "standard"                # (x - mean) / sd
mean = 45
sd = 15

[columns.schooling]                 # years
kind = "continuous"
bounds = [0, 20]
scaling = "standard"
mean = 12
sd = 3

[columns.hours]                     # worked per week
kind = "continuous"
bounds = [0, 80]
scaling = "standard"
mean = 38
sd = 10

[columns.employer]                  # one 0/1 feature for each category but the reference
kind = "categorical"
categories = ["private", "public", "self-employed"]
reference = "private"

[columns.region]
kind = "categorical"
categories = ["north", "south", "overseas"]
reference = "north"
other = "overseas"                  # any other value becomes this one

[columns.married]                   # one 0/1 feature
kind = "binary"
positive = ["yes"]
negative = ["no"]

[columns.income]                    # 1 for a positive spelling, 0 for a negative one
kind = "target"
positive = ["above median"]
negative = ["below median"]
"""

TRUE_PARAMETERS = {
    "age": 0.35,
    "schooling": 0.8,
    "hours": 0.55,
    "employer=public": -0.3,
    "employer=self-employed": 0.4,
    "region=south": -0.3,
    "region=overseas": -0.5,
    "married=yes": 0.5,
    "intercept": -0.4,
}

_SEED = 20_260_101  # a date
_MISSING_SHARE = 0.02  # a usual share of missing values in a census
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


def simulate(n_records: int = N_RECORDS, seed: int = _SEED) -> str:
    """Return a CSV table of simulated people whose income follows a logistic regression with `TRUE_PARAMETERS`.

    **Privacy.** The people do not exist.
    """
    rng = np.random.default_rng(seed)
    schema = Schema.from_toml(SCHEMA_TOML)
    numbers = {
        "age": np.clip(rng.normal(45.0, 15.0, n_records), 18.0, 95.0).round(),
        "schooling": np.clip(rng.normal(12.0, 3.0, n_records), 0.0, 20.0).round(),
        "hours": np.clip(rng.normal(38.0, 10.0, n_records), 0.0, 90.0).round(),
    }
    employer = rng.choice(["private", "public", "self-employed"], n_records, p=[0.5, 0.3, 0.2])
    region = rng.choice(["north", "south", "islands"], n_records, p=[0.4, 0.35, 0.25])
    married = rng.choice(["yes", "no"], n_records, p=[0.55, 0.45])

    truth = TRUE_PARAMETERS
    eta: npt.NDArray[np.float64] = np.full(n_records, truth["intercept"])
    for column in schema.columns:
        if isinstance(column, ContinuousColumn):
            offset, scale = column.offset_and_scale
            eta += truth[column.name] * (np.clip(numbers[column.name], *column.bounds) - offset) / scale
    # The references, "private" and "north", have weight 0; "islands" is the schema's "overseas".
    eta += np.array([truth.get(f"employer={value}", 0.0) for value in employer])
    eta += np.select([region == "south", region == "islands"], [truth["region=south"], truth["region=overseas"]], 0.0)
    eta += truth["married=yes"] * (married == "yes")
    above = rng.random(n_records) < 1.0 / (1.0 + np.exp(-eta))
    shown = np.where(rng.random(n_records) < _MISSING_SHARE, "?", employer)

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in schema.columns])
    households = [f"H{rng.integers(10**6):06d}" for _ in range(n_records)]
    rounded = ([f"{value:.0f}" for value in values] for values in numbers.values())
    income = np.where(above, "above median", "below median")
    writer.writerows(zip(households, *rounded, shown, region, married, income, strict=True))
    return text.getvalue()
