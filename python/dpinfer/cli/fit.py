"""``dpinfer fit``: a private fit of a file, with its report."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dpinfer.cli.arguments import EXIT_DONE, POSTERIORS, UsageError, add_posterior_arguments, integer, interval
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import Route, after_spending, interruptible, named_account
from dpinfer.estimators.logistic import RECIPES, SCALES

_BINARY = ("binomial", "probit")
# Options of the published gradient trace: other mechanisms refuse them.
_OF_A_TRACE = ("sample_rate", "steps", "recipe", "accountant", "shares_budget", "max_grad_norm")


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "fit",
        help="fit a Bayesian regression privately",
        description="Bayesian regression of a CSV (also .csv.gz) or Parquet file, with differential privacy: logistic "
        "on all columns of the schema, or by --formula and --family. A plan from public numbers chooses the "
        "mechanism.",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="the private records, with a header line (see 'dpinfer check')")
    add("--schema", type=Path, metavar="SCHEMA.toml", help="public bounds and categories of every column")
    _add_formula_arguments(parser)
    add("--target", metavar="COL", help="the column to predict; by default the schema's target")
    add("--epsilon", type=interval(0, float("inf")), required=True, metavar="E", help="budget")
    add("--delta", type=interval(0, 1), required=True, metavar="D", help="well below 1/N")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    add("--overwrite", action="store_true", help="replace a release that DIR already holds")
    add("--n-records", type=integer(2), metavar="N", help="public number of records; without it, a warning")
    add(
        "--bounds-from-data",
        action="store_true",
        help="without a schema: read bounds and categories from the private records, which leaks them",
    )
    add(
        "--unknown",
        type=_names,
        metavar="NAMES",
        help="release these first, for a part of the budget: n_records, bounds, categories (comma-separated); bounds "
        "and categories of the columns that the schema declares without them",
    )
    add("--test", type=Path, metavar="FILE", help="records to check the calibration on, without noise")
    add(
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
    add(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="file to save the private run and to resume it after a crash; removed when the release is saved; SECRET: "
        "a reader of the file can remove the noise from the release",
    )
    add_posterior_arguments(parser, routes=True)
    parser.set_defaults(run=run)


def _add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("options of the published gradient trace (--method dpvi)").add_argument
    add("--sample-rate", type=interval(0, 1, high_open=False), help="Poisson rate (default: 0.1)")
    add("--steps", type=integer(1), help="number of steps (default: 10000)")
    add(
        "--shares-budget",
        type=interval(0, 1),
        metavar="F",
        help="spend this share of the budget (0.05, say) on counts of the categories, for narrower and better "
        "calibrated results",
    )
    add(
        "--max-grad-norm",
        type=interval(*SCALES),
        metavar="C",
        help="clipping norm; by default a typical norm of a record, computed from the schema alone",
    )
    add("--recipe", choices=RECIPES, help="settings (default: plain)")
    add("--accountant", choices=("pld", "prv", "rdp"), help="accountant (default: pld)")


def _add_formula_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--formula", metavar="F", help="formula, such as 'y ~ age + C(job)'; coefficients are in the table's units")
    add(
        "--family",
        choices=("gaussian", "binomial", "multinomial", "poisson", "probit", "negativebinomial"),
        help="family of --formula (default: gaussian)",
    )
    add(
        "--weights",
        metavar="COL",
        help="with --formula: the column of survey weights, with the largest weight as a bound in the schema, and "
        "their mean and sd",
    )
    add(
        "--clusters",
        metavar="COL",
        help="with --formula: the column of clusters, within which rows may depend on each other; rows are protected",
    )
    add(
        "--strata",
        metavar="COL",
        help="with --formula: the column of strata, each sampled by itself, with its categories in the schema",
    )


def run(args: argparse.Namespace) -> int:
    """Check all public arguments, charge, read the records, save the release, and analyse it."""
    check_options(args)
    # A missing file is reported before the accountant starts.
    for path in (args.file, args.test, args.schema):
        if path is not None:
            path.open("rb").close()
    route = _route(args)
    with OutputFolder(args.out, need_bytes=route.need_bytes, overwrite=args.overwrite) as folder:
        with interruptible(folder, args.checkpoint, named_account(args)):
            result = route.spend(folder)
        with after_spending(folder):
            text = route.write(result, folder)
        sys.stdout.write(text)
    return EXIT_DONE


def _route(args: argparse.Namespace) -> Route:
    """Return the route of the fit; each is imported on use."""
    if is_regression(args):
        from dpinfer.cli.formula import RegressionRoute

        return RegressionRoute(args)
    from dpinfer.cli.trace import TraceRoute

    return TraceRoute(args)


def is_regression(args: argparse.Namespace) -> bool:
    """Return whether the fit is a regression by the mechanism that a plan chooses, and not the published trace."""
    return args.formula is not None or args.method != "dpvi"


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that exclude or need each other; no file is opened."""
    if args.formula is not None or args.family or _of_survey(args):
        _check_formula_options(args)
    elif args.method in POSTERIORS:
        sys.stderr.write(f"--method {args.method} is now --method dpvi --approximation {args.method}\n")
        args.approximation, args.method = args.method, "dpvi"
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
        for name in _OF_A_TRACE:
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


def _of_survey(args: argparse.Namespace) -> bool:
    return bool(args.weights or args.clusters or args.strata)


def _check_formula_options(args: argparse.Namespace) -> None:
    """Refuse options that belong to fits without a formula; no file is opened."""
    if args.formula is None:
        raise UsageError("--family, --weights, --clusters and --strata need --formula")
    if args.schema is None or (args.n_records is None and args.unknown is None):
        raise UsageError("--formula needs --schema and --n-records: the design and the plan follow from them")
    if args.method in POSTERIORS:
        raise UsageError(f"--method must be a mechanism with --formula, such as auto or newton, got {args.method}")
    if args.target is not None:
        raise UsageError("--target cannot be given with --formula")
    if (args.weights or args.strata) and args.test is not None:
        raise UsageError("--test cannot be given with --weights or --strata: its calibration counts every record once")
    if args.unknown is not None and _of_survey(args):
        raise UsageError("--weights, --clusters and --strata cannot be given with --unknown")
    if args.test is not None and args.family not in _BINARY:
        raise UsageError("--test needs a response of two categories: --family binomial or probit")
