"""``dpinfer fit``: a private fit of a file, with its report."""

import argparse
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpinfer.accounting import LedgerAccount, PrivacyLedger, PrivacyPlan, plan_privacy
from dpinfer.cli.arguments import add_posterior_arguments, integer, interval
from dpinfer.cli.errors import EXIT_DONE, UsageError, public_arguments
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import (
    FitRequest,
    PosteriorRequest,
    analyse,
    automatic_max_grad_norm,
    explain_failed_analysis,
    release_bytes,
    spend,
)
from dpinfer.cli.summary import as_comment, guarantee_text, to_text, verdict_text
from dpinfer.errors import DpinferError, PrivacyLeakWarning, SchemaError
from dpinfer.tabular import (
    Schema,
    SharesPlan,
    Table,
    plan_with_shares,
    read_table,
    release_shares,
    schema_from_data,
)

__all__ = ["COUNT_FROM_DATA", "add_parser", "run"]

_COUNT_LEAK = "the number of records was read from the private records"
COUNT_FROM_DATA = (
    "The number of records was read from the data and appears in what is published, which the privacy guarantee does "
    "not cover under add/remove adjacency.  Give a public number with --n-records."
)


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "fit",
        help="fit a Bayesian logistic regression privately",
        description="Bayesian logistic regression of a CSV (also .csv.gz) or Parquet file, with differential privacy.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the private records, with a header line")
    parser.add_argument(
        "--schema", type=Path, metavar="SCHEMA.toml", help="public bounds and categories of every column"
    )
    parser.add_argument("--target", metavar="COL", help="the column to predict; by default the schema's target")
    parser.add_argument("--epsilon", type=interval(0, float("inf")), required=True, metavar="E")
    parser.add_argument("--delta", type=interval(0, 1), required=True, metavar="D")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--overwrite", action="store_true", help="replace a release that DIR already holds")
    parser.add_argument(
        "--n-records", type=integer(2), metavar="N", help="a public number of records; without it, a warning"
    )
    parser.add_argument(
        "--bounds-from-data",
        action="store_true",
        help="without a schema: take bounds and categories from the private records, which leaks them",
    )
    parser.add_argument("--test", type=Path, metavar="FILE", help="records to check the calibration on, without noise")
    group = parser.add_argument_group("private run")
    group.add_argument("--sample-rate", type=interval(0, 1, high_open=False), default=0.1, help="default: %(default)s")
    group.add_argument("--steps", type=integer(1), default=10_000, help="default: %(default)s")
    group.add_argument(
        "--shares-budget",
        type=interval(0, 1),
        metavar="F",
        help="spend this share of the budget (0.05, say) on counting the categories: a narrower posterior, and "
        "predictions that are better calibrated",
    )
    group.add_argument(
        "--max-grad-norm",
        type=interval(0, float("inf")),
        metavar="C",
        help="clipping norm; by default a typical norm of a record, guessed from the schema alone",
    )
    group.add_argument("--prior-scale", type=interval(0, float("inf")), default=1.0, help="default: %(default)s")
    group.add_argument("--recipe", choices=("plain", "paper", "tied"), default="plain", help="default: %(default)s")
    group.add_argument("--accountant", choices=("pld", "prv", "rdp"), default="pld", help="default: %(default)s")
    group.add_argument("--threads", type=integer(1), metavar="K", help="by default all cores")
    group = parser.add_argument_group("privacy ledger")
    group.add_argument(
        "--ledger", type=Path, metavar="LEDGER", help="charge the run to this file, before the records are read"
    )
    group.add_argument("--dataset", metavar="NAME", help="the ledger's name for these records (see 'dpinfer ledger')")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="save the private run here, go on from it after a crash, and remove it when the release is saved; SECRET: "
        "whoever reads it can take the noise out of the release",
    )
    add_posterior_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked, then spend the privacy budget, then analyse."""
    if args.schema is None and not args.bounds_from_data:
        raise UsageError(
            "a schema with public bounds is needed: give --schema, or --bounds-from-data to take them from the private "
            "records, which leaks them"
        )
    if args.schema is not None and args.bounds_from_data:
        raise UsageError("give either --schema or --bounds-from-data, not both")
    if args.bounds_from_data and args.target is None:
        raise UsageError("--bounds-from-data needs --target")
    if args.shares_budget is not None and args.checkpoint is not None:
        raise UsageError(
            "give either --shares-budget or --checkpoint, not both: a run taken up again would count twice"
        )
    # A missing file shows before the accountant starts to work.
    for path in (args.file, args.test, args.schema):
        if path is not None:
            with path.open("rb"):
                pass
    plan, shares = plan_of(args)
    account = account_of(args, plan, shares)
    notes: list[str] = []
    if args.schema is not None:
        schema = Schema.load(args.schema)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyLeakWarning)
            schema = schema_from_data(args.file, target=args.target)
        notes += [str(item.message) for item in caught]
    check_target(schema, args.target)
    table = read_table(args.file, schema)
    test = None if args.test is None else read_table(args.test, schema)
    n_records = args.n_records
    if n_records is None:
        n_records = len(table.X)
        notes.append(COUNT_FROM_DATA)
    for note in notes:
        sys.stderr.write(f"dpinfer: warning: {note}\n")
    folder = OutputFolder(args.out, need_bytes=release_bytes(plan, schema), overwrite=args.overwrite)
    try:
        write_results(args, plan, shares, account, table, test, n_records, notes, folder)
    except BaseException:
        folder.discard_if_empty()
        raise
    return EXIT_DONE


def plan_of(args: argparse.Namespace) -> tuple[PrivacyPlan, SharesPlan | None]:
    """Return the run's plan, and that of the counts with it where they are asked for; no data is read."""
    target: dict[str, Any] = {
        "target_epsilon": args.epsilon,
        "target_delta": args.delta,
        "sample_rate": args.sample_rate,
        "n_steps": args.steps,
        "accountant": args.accountant,
    }
    with public_arguments():
        if args.shares_budget is None:
            return plan_privacy(**target), None
        both = plan_with_shares(**target, budget_share=args.shares_budget)
        return both.run, both


def account_of(args: argparse.Namespace, plan: PrivacyPlan, shares: SharesPlan | None) -> LedgerAccount | None:
    """Return the ledger's account that the arguments name, if its budget still covers the plan; no data is read."""
    if (args.ledger is None) != (args.dataset is None):
        raise UsageError("give --ledger and --dataset together")
    if args.ledger is None:
        return None
    with public_arguments():
        account = PrivacyLedger(args.ledger).dataset(args.dataset)
        # An interrupted run is charged already; the mechanism checks that it is.
        if args.checkpoint is None or not args.checkpoint.exists():
            account.check(plan.event if shares is None else shares.event, adjacency=plan.adjacency)
    return account


def check_target(schema: Schema, target: str | None) -> None:
    """Raise unless the schema's target is the one asked for."""
    if schema.target is None:
        raise SchemaError("the schema must declare one column of kind 'target'")
    if target is not None and target != schema.target.name:
        raise UsageError(f"--target must be the schema's target column {schema.target.name!r}, got {target!r}")


def write_results(
    args: argparse.Namespace,
    plan: PrivacyPlan,
    shares: SharesPlan | None,
    account: LedgerAccount | None,
    table: Table,
    test: Table | None,
    n_records: int,
    notes: list[str],
    folder: OutputFolder,
) -> None:
    """Run the mechanisms, save their releases at once, then analyse them."""
    max_grad_norm = args.max_grad_norm or automatic_max_grad_norm(table.schema, args.recipe)
    if shares is not None:
        counts = release_shares(
            table, noise_multiplier=shares.noise_multiplier, delta=plan.delta, adjacency=plan.adjacency, ledger=account
        )
        table = replace(table, schema=counts.schema)
        # It has been paid for, whatever becomes of the run.
        folder.write("schema.toml", as_comment(counts.guarantee) + table.schema.to_toml())
    schema = table.schema
    request = FitRequest(
        plan=plan,
        n_records=n_records,
        max_grad_norm=max_grad_norm,
        prior_scale=args.prior_scale,
        recipe=args.recipe,
        n_threads=args.threads,
        ledger=account,
        checkpoint=args.checkpoint,
        leaks=() if args.n_records is not None else (_COUNT_LEAK,),
    )
    release = spend(table, request, folder)
    schema_path = folder.write("schema.toml", as_comment(release.guarantee) + schema.to_toml())
    asked = PosteriorRequest(
        method=args.method, hessian=args.hessian, prior=args.prior, burn_in=args.burn_in, level=args.level
    )
    target = schema.target.name if schema.target is not None else ""
    try:
        results = analyse(
            release,
            asked,
            folder=folder,
            title=f"Private fit of {target}",
            release_name=folder.release_path.name,
            notes=notes,
            test=test,
        )
    except DpinferError as error:
        raise explain_failed_analysis(error, folder) from error
    except KeyboardInterrupt:
        sys.stderr.write(f"dpinfer: the release is saved and paid for: {folder.release_path}\n")
        raise
    write = sys.stdout.write
    write(f"{guarantee_text(release.guarantee)}\n{to_text(results.rows, level=args.level)}\n")
    write(f"{verdict_text(results.posterior)}\n")
    if results.calibration is not None:
        write(f"{results.calibration}\n(computed from the test labels without noise)\n\n")
    write("files:\n" + "".join(f"  {path}\n" for path in (folder.release_path, schema_path, *results.files)))
