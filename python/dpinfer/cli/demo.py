"""``dpinfer demo``: the whole pipeline on simulated people, in seconds."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from dpinfer.accounting import plan_privacy
from dpinfer.cli.errors import EXIT_DONE
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import (
    FitRequest,
    after_spending,
    analyse,
    automatic_max_grad_norm,
    release_bytes,
    spend,
    tell_failures,
)
from dpinfer.cli.simulated import N_RECORDS, SCHEMA_TOML, TRUE_PARAMETERS, simulate
from dpinfer.cli.summary import to_text, verdict_text
from dpinfer.inference import PosteriorRequest
from dpinfer.tabular import Schema, UnreadTable

__all__ = ["add_parser", "run"]

_EPSILON, _DELTA, _SAMPLE_RATE, _N_STEPS = 1.0, 1e-5, 0.1, 10_000
_TEST_SEED = 20_260_102
_N_TEST = 4000
_LEVEL = 0.9
# A step of the demonstration touches 800 records of 8 features: too little to share between threads.
_N_THREADS = 1


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
    """Write the simulated files, then do with them what ``fit`` does."""
    write = sys.stdout.write
    path = Path(tempfile.mkdtemp(prefix="dpinfer-demo-")) if args.out is None else args.out
    plan = plan_privacy(target_epsilon=_EPSILON, target_delta=_DELTA, sample_rate=_SAMPLE_RATE, n_steps=_N_STEPS)
    schema = Schema.from_toml(SCHEMA_TOML)
    with OutputFolder(path, need_bytes=release_bytes(plan, schema), release_name="census.release") as folder:
        records = folder.write("census.csv", simulate(), lasting=False)
        schema_path = folder.write("census.toml", SCHEMA_TOML, lasting=False)
        test_path = folder.write("census-test.csv", simulate(_N_TEST, _TEST_SEED), lasting=False)
        write(f"1. simulated {N_RECORDS} people -> {records}\n")
        write(f"   what is publicly known about the columns -> {schema_path}\n")
        write(
            f"2. planned: epsilon {plan.epsilon:.4g} at delta {plan.delta:g} over {plan.n_steps} steps "
            f"needs a noise multiplier of {plan.noise_multiplier:.4g}\n"
        )
        schema = Schema.load(schema_path)
        norm = automatic_max_grad_norm(schema, FitRequest.recipe)
        request = FitRequest(plan=plan, n_records=N_RECORDS, max_grad_norm=norm, n_threads=_N_THREADS)
        release = spend(UnreadTable(records, schema), schema, request, folder)
        write(f"3. private run -> {folder.release_path}\n   {release.guarantee}\n")
        with after_spending(folder):
            results = analyse(
                release,
                PosteriorRequest(level=_LEVEL),
                folder=folder,
                title="Demonstration: income of simulated people",
                release_name=folder.release_path.name,
                about="The records are simulated, so the truth is known and shown; nothing here is about a real "
                "person.",
                test=UnreadTable(test_path, schema),
                reference=TRUE_PARAMETERS,
            )
    tell_failures(results)
    rows = results.rows
    posterior = results.posterior
    write(f"4. noise-aware posterior ({posterior.method})\n\n{to_text(rows, level=_LEVEL)}\n")
    write(f"{verdict_text(posterior)}\n")
    write(f"{sum(row.covers for row in rows)} of {len(rows)} true values lie inside their {_LEVEL:.0%} intervals.\n")
    if results.calibration is not None:
        write(f"Calibration of predictions on {_N_TEST} fresh people: RMSE {results.calibration.rmse:.4f}.\n")
    write(f"\nReport: {results.files[-1]}\n")
    write(
        "Do it yourself:\n"
        f"  dpinfer fit {records} --schema {schema_path} --epsilon {_EPSILON:g} --delta {_DELTA:g} "
        f"--n-records {N_RECORDS} --out my-fit\n"
        f"  dpinfer posterior {folder.release_path} --method laplace\n"
    )
    return EXIT_DONE
