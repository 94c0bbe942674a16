"""``dpinfer fit``: a private fit of a file, with its report."""

import argparse
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpinfer._sinks import printable, terminal_text
from dpinfer.accounting import Event, LedgerAccount, PrivacyLedger, PrivacyPlan, plan_privacy, run_event
from dpinfer.cli.arguments import POSTERIORS, add_posterior_arguments, integer, interval, posterior_request
from dpinfer.cli.errors import EXIT_DONE, CommandError, UsageError, public_arguments
from dpinfer.cli.output import OutputFolder, files_text
from dpinfer.cli.pipeline import (
    FitRequest,
    after_spending,
    analyse,
    automatic_max_grad_norm,
    check_request,
    release_bytes,
    spend,
    tell_failures,
)
from dpinfer.cli.summary import as_comment, guarantee_text, to_text, verdict_text
from dpinfer.errors import PrivacyLeakWarning, SchemaError
from dpinfer.estimators.checks import RECIPES, SCALES
from dpinfer.fitting import FitPlan
from dpinfer.inference import PosteriorRequest
from dpinfer.tabular import (
    Schema,
    SchemaDraft,
    SharesPlan,
    UnknownPlan,
    UnreadTable,
    plan_unknown,
    plan_with_shares,
    release_shares,
    release_unknown,
    schema_from_data,
)

# Settings of the published gradient trace with their defaults; other mechanisms refuse them.
_OF_A_TRACE = {"sample_rate": 0.1, "steps": 10_000, "recipe": "plain", "accountant": "pld"}
COUNT_LEAK = "the number of records was read from the private records"
COUNT_FROM_DATA = (
    "The number of records was read from the data and appears in the published results; the privacy guarantee does "
    "not cover it under add/remove adjacency.  Give a public number with --n-records."
)


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "fit",
        help="fit a Bayesian regression privately",
        description="Bayesian regression of a CSV (also .csv.gz) or Parquet file, with differential privacy: logistic "
        "on all columns of the schema, or by --formula and --family. A plan from public numbers chooses the "
        "mechanism.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the private records, with a header line (see 'dpinfer check')"
    )
    parser.add_argument(
        "--schema", type=Path, metavar="SCHEMA.toml", help="public bounds and categories of every column"
    )
    _add_formula_arguments(parser)
    parser.add_argument("--target", metavar="COL", help="the column to predict; by default the schema's target")
    parser.add_argument("--epsilon", type=interval(0, float("inf")), required=True, metavar="E", help="budget")
    parser.add_argument("--delta", type=interval(0, 1), required=True, metavar="D", help="well below 1/N")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--overwrite", action="store_true", help="replace a release that DIR already holds")
    parser.add_argument(
        "--n-records", type=integer(2), metavar="N", help="public number of records; without it, a warning"
    )
    parser.add_argument(
        "--bounds-from-data",
        action="store_true",
        help="without a schema: read bounds and categories from the private records, which leaks them",
    )
    parser.add_argument(
        "--unknown",
        type=_names,
        metavar="NAMES",
        help="release these first, for a part of the budget: n_records, bounds, categories (comma-separated); bounds "
        "and categories of the columns that the schema declares without them",
    )
    parser.add_argument("--test", type=Path, metavar="FILE", help="records to check the calibration on, without noise")
    parser.add_argument(
        "--prior-scale",
        type=interval(*SCALES),
        metavar="S",
        help="prior sd of a weight, per sd of its column; default: 2.5, 10 for gaussian, 1 with --method dpvi",
    )
    _add_trace_arguments(parser)
    group = parser.add_argument_group("private run")
    group.add_argument("--threads", type=integer(1, 4096), metavar="K", help="number of threads (default: all)")
    group = parser.add_argument_group("privacy ledger")
    group.add_argument(
        "--ledger", type=Path, metavar="LEDGER", help="charge the run to this file, before the records are read"
    )
    group.add_argument("--dataset", metavar="NAME", help="the ledger's name for these records (see 'dpinfer ledger')")
    group.add_argument(
        "--refund-refused",
        action="store_true",
        help="take the charge back if the records are refused; the refusal reveals something about them that no "
        "guarantee covers",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="file to save the private run and to resume it after a crash; removed when the release is saved; SECRET: "
        "a reader of the file can remove the noise from the release",
    )
    add_posterior_arguments(parser, routes=True)
    parser.set_defaults(run=run)


def _add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "options of the published gradient trace (--method dpvi, or a posterior of such a trace)"
    )
    group.add_argument("--sample-rate", type=interval(0, 1, high_open=False), help="Poisson rate (default: 0.1)")
    group.add_argument("--steps", type=integer(1), help="number of steps (default: 10000)")
    group.add_argument(
        "--shares-budget",
        type=interval(0, 1),
        metavar="F",
        help="spend this share of the budget (0.05, say) on counts of the categories, for narrower and better "
        "calibrated results",
    )
    group.add_argument(
        "--max-grad-norm",
        type=interval(*SCALES),
        metavar="C",
        help="clipping norm; by default a typical norm of a record, computed from the schema alone",
    )
    group.add_argument("--recipe", choices=RECIPES, help="settings (default: plain)")
    group.add_argument("--accountant", choices=("pld", "prv", "rdp"), help="accountant (default: pld)")


def _add_formula_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--formula", metavar="F", help="formula, such as 'y ~ age + C(job)'; coefficients are in the table's units"
    )
    parser.add_argument(
        "--family",
        choices=("gaussian", "binomial", "multinomial", "poisson", "probit", "negativebinomial"),
        help="family of --formula (default: gaussian)",
    )
    parser.add_argument(
        "--weights",
        metavar="COL",
        help="with --formula: the column of survey weights, with the largest weight as a bound in the schema, and "
        "their mean and sd",
    )
    parser.add_argument(
        "--clusters",
        metavar="COL",
        help="with --formula: the column of clusters, within which rows may depend on each other; rows are protected",
    )


def run(args: argparse.Namespace) -> int:
    """Check all public arguments, charge, read the records, save the release, and analyse it."""
    check_options(args)
    # A missing file is reported before the accountant starts.
    for path in (args.file, args.test, args.schema):
        if path is not None:
            with path.open("rb"):
                pass
    if is_regression(args):
        # Parts of the formula route are imported on use.
        from dpinfer.cli.formula import run_regression

        return run_regression(args)
    for name, value in _OF_A_TRACE.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.prior_scale = args.prior_scale or 1.0
    draft = None if args.unknown is None else SchemaDraft.load(args.schema)
    declared = None if args.schema is None or draft is not None else Schema.load(args.schema)
    plan, shares, unknown = plan_of(args, draft)
    joint = shares or unknown
    account = account_of(args, plan, plan.event if joint is None else joint.event)
    notes: list[str] = []
    schema = draft.placeholder if draft is not None else declared or drafted_schema(args, notes)
    check_target(schema, args.target)
    table = UnreadTable(args.file, schema)
    test = None if args.test is None else UnreadTable(args.test, schema)
    request = FitRequest(
        plan=plan,
        n_records=args.n_records or 1,
        max_grad_norm=args.max_grad_norm or automatic_max_grad_norm(schema, args.recipe),
        prior_scale=args.prior_scale,
        recipe=args.recipe,
        n_threads=args.threads,
        ledger=account,
        checkpoint=args.checkpoint,
    )
    with public_arguments():
        posterior = posterior_request(args)
        check_request(schema, request, posterior)
    with OutputFolder(args.out, need_bytes=release_bytes(plan, schema), overwrite=args.overwrite) as folder:
        if draft is not None and unknown is not None:
            table, request = fill_gaps(args, draft, unknown, request, folder)
            test = None if test is None else UnreadTable(args.test, table.schema)
        elif args.n_records is None:
            # No ledger: nothing is charged, and everything that follows says that the number leaks.
            request = replace(request, n_records=len(table.read().X), leaks=(COUNT_LEAK,))
            notes.append(COUNT_FROM_DATA)
        for note in notes:
            sys.stderr.write(f"dpinfer: warning: {note}\n")
        write_results(table, shares, request, posterior, test, notes, folder)
    return EXIT_DONE


def is_regression(args: argparse.Namespace) -> bool:
    """Return whether the fit is a regression by the mechanism that a plan chooses, and not the published trace."""
    return args.formula is not None or args.method not in ("dpvi", *POSTERIORS)


def drafted_schema(args: argparse.Namespace, notes: list[str]) -> Schema:
    """Return a schema drafted from the private records, which leaks them; add its warnings to the notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrivacyLeakWarning)
        schema = schema_from_data(args.file, target=args.target)
    notes += [str(item.message) for item in caught]
    return schema


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that exclude or need each other; no file is opened."""
    if args.formula is not None or args.family or args.weights or args.clusters:
        from dpinfer.cli.formula import check_formula_options

        check_formula_options(args)
    if args.schema is None and not args.bounds_from_data:
        raise UsageError(
            "give --schema, a schema with public bounds, or --bounds-from-data to read them from the private records, "
            "which leaks them"
        )
    if args.schema is not None and args.bounds_from_data:
        raise UsageError("give either --schema or --bounds-from-data, not both")
    if args.bounds_from_data and args.target is None:
        raise UsageError("--bounds-from-data needs --target")
    if is_regression(args):
        for name in (*_OF_A_TRACE, "shares_budget", "max_grad_norm"):
            if getattr(args, name) is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} belongs to --method dpvi without --formula, the published gradient trace")
    if args.shares_budget is not None and args.checkpoint is not None:
        raise UsageError("give either --shares-budget or --checkpoint, not both: a resumed run would count twice")
    if args.unknown is not None:
        _check_unknown_options(args)
    if (args.ledger is None) != (args.dataset is None):
        raise UsageError("give --ledger and --dataset together")
    if args.refund_refused and args.ledger is None:
        raise UsageError("--refund-refused needs --ledger")
    counted = args.n_records is not None or "n_records" in (args.unknown or ())
    if args.ledger is not None and (args.schema is None or not counted):
        raise UsageError(
            "--ledger needs --schema and --n-records: otherwise they are read from the records before the charge, "
            "which no ledger counts"
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _check_unknown_options(args: argparse.Namespace) -> None:
    if args.schema is None:
        raise UsageError("--unknown needs --schema, without the bounds and categories to be released")
    if args.shares_budget is not None or args.checkpoint is not None:
        raise UsageError("give --unknown without --shares-budget and --checkpoint: a resumed run would release twice")
    if ("n_records" in args.unknown) == (args.n_records is not None):
        raise UsageError("give either --n-records or --unknown n_records, not both")


def plan_of(
    args: argparse.Namespace, draft: SchemaDraft | None = None
) -> tuple[PrivacyPlan, SharesPlan | None, UnknownPlan | None]:
    """Return the run's plan, with that of the counts or of unknown quantities; no data is read."""
    target: dict[str, Any] = {
        "target_epsilon": args.epsilon,
        "target_delta": args.delta,
        "sample_rate": args.sample_rate,
        "n_steps": args.steps,
        "accountant": args.accountant,
    }
    with public_arguments():
        if draft is not None:
            return _plan_of_unknown(args, draft)
        if args.shares_budget is None:
            return plan_privacy(**target), None, None
        both = plan_with_shares(**target, budget_share=args.shares_budget)
        return both.run, both, None


def _plan_of_unknown(args: argparse.Namespace, draft: SchemaDraft) -> tuple[PrivacyPlan, None, UnknownPlan]:
    def event(noise_multiplier: float) -> Event:
        return run_event(noise_multiplier, args.sample_rate, args.steps)

    terms: dict[str, Any] = {"accountant": args.accountant}
    unknown = plan_unknown(
        draft, args.unknown, target_epsilon=args.epsilon, target_delta=args.delta, make_event=event, **terms
    )
    plan = PrivacyPlan.from_noise_multiplier(
        unknown.noise_multiplier, args.sample_rate, args.steps, args.delta, adjacency=unknown.adjacency, **terms
    )
    return plan, None, unknown


def fill_gaps(
    args: argparse.Namespace, draft: SchemaDraft, plan: UnknownPlan, request: FitRequest, folder: OutputFolder
) -> tuple[UnreadTable, FitRequest]:
    """Release what is unknown, save it at once, and return the table with its schema and the request with its numbers.

    **Privacy.** Reads the records, through :func:`dpinfer.release_unknown` and when the ledger is charged.
    """
    release = release_unknown(args.file, draft, plan=plan, n_records=args.n_records, ledger=request.ledger)
    comment = "" if release.n_records is None else f"# n_records = {release.n_records}, with noise\n"
    _save_schema(folder, as_comment(release.guarantee) + comment + release.schema.to_toml())
    completed = replace(
        request,
        n_records=args.n_records or release.n_records or 1,
        max_grad_norm=args.max_grad_norm or automatic_max_grad_norm(release.schema, args.recipe),
    )
    return UnreadTable(args.file, release.schema), completed


def _save_schema(folder: OutputFolder, text: str) -> None:
    """Save the paid schema before the run."""
    try:
        folder.write("schema.toml", text)
    except CommandError as error:
        # The release of the run holds the earlier releases.
        sys.stderr.write(f"dpinfer: warning: {printable(error)}\n")


def account_of(args: argparse.Namespace, plan: PrivacyPlan | FitPlan, event: Event) -> LedgerAccount | None:
    """Return the ledger's account that the arguments name, if its budget still covers the plan; no data is read."""
    account = named_account(args)
    # An interrupted run is charged already, which the mechanism checks.
    if account is not None and (args.checkpoint is None or not args.checkpoint.exists()):
        with public_arguments():
            account.check(event, adjacency=plan.adjacency)
    return account


def named_account(args: argparse.Namespace) -> LedgerAccount | None:
    """Return the ledger's account that the arguments name; no data is read."""
    if args.ledger is None:
        return None
    with public_arguments():
        return PrivacyLedger(args.ledger).dataset(args.dataset, refund_refused=args.refund_refused)


def check_target(schema: Schema, target: str | None) -> None:
    """Raise unless the schema's target is that of --target."""
    if schema.target is None:
        raise SchemaError("the schema must declare one column of kind 'target'")
    if target is not None and target != schema.target.name:
        raise UsageError(f"--target must be the schema's target column {schema.target.name!r}, got {target!r}")


def write_results(
    table: UnreadTable,
    shares: SharesPlan | None,
    request: FitRequest,
    asked: PosteriorRequest,
    test: UnreadTable | None,
    notes: list[str],
    folder: OutputFolder,
) -> None:
    """Run the mechanisms, save their releases at once, then analyse them."""
    schema, plan = table.schema, request.plan
    if shares is not None:
        counts = release_shares(
            table,
            noise_multiplier=shares.noise_multiplier,
            delta=plan.delta,
            adjacency=plan.adjacency,
            ledger=request.ledger,
        )
        schema = counts.schema
        _save_schema(folder, as_comment(counts.guarantee) + schema.to_toml())
    release = spend(table, schema, request, folder)
    with after_spending(folder):
        schema_path = folder.write("schema.toml", as_comment(release.guarantee) + schema.to_toml())
        results = analyse(
            release,
            asked,
            folder=folder,
            title=f"Private fit of {'' if schema.target is None else schema.target.name}",
            release_name=folder.release_path.name,
            notes=notes,
            test=test,
        )
    tell_failures(results.failures)
    text = f"{guarantee_text(release.guarantee)}\n{to_text(results.rows, level=asked.level)}\n"
    text += f"{verdict_text(results.posterior)}\n"
    if results.calibration is not None:
        text += f"{results.calibration}\n(computed from the test labels without noise)\n"
    files = files_text((folder.release_path, schema_path, *results.files))
    sys.stdout.write(terminal_text(text) + files)
