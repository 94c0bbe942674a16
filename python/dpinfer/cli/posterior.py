"""``dpinfer posterior``: analyse a saved release again."""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpinfer._sinks import terminal_text
from dpinfer.cli.arguments import (
    EXIT_DONE,
    UsageError,
    add_posterior_arguments,
    interval,
    posterior_request,
    public_arguments,
)
from dpinfer.cli.output import OutputFolder, files_text, output_folder
from dpinfer.cli.pipeline import analyse, results_text, tell_failures
from dpinfer.errors import ReleaseFormatError
from dpinfer.fitting.result import RELEASE_FILE
from dpinfer.formulas.design_files import DESIGN_FILE
from dpinfer.inference import noise_aware_posterior
from dpinfer.release import GradientTrace, Release, SumsOfPasses, load_release
from dpinfer.tabular import Schema, UnreadTable

_PICTURE_BYTES = 2**22  # room for the pictures


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "posterior",
        help="the noise-aware posterior of a saved release",
        description="Compute the noise-aware posterior of a saved release; spends no privacy.",
    )
    add = parser.add_argument
    add("release", type=Path, metavar="RELEASE", help="file written by 'dpinfer fit' or Release.save")
    add(
        "--test",
        type=Path,
        metavar="FILE",
        help="records to check the calibration on, without noise; needs --schema for a gradient trace",
    )
    add("--schema", type=Path, metavar="SCHEMA.toml", help="the schema of --test, as in 'dpinfer fit'")
    add("--out", type=Path, metavar="DIR", help="folder for the table, the pictures and the report")
    add("--prior-scale", type=interval(1e-30, 1e30), metavar="S", help="another prior sd of a weight, in scaled units")
    add_posterior_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, compute, print and, with ``--out``, write."""
    if args.test is not None:
        args.test.open("rb").close()  # a missing file is named before the posterior is computed
    release = load_release(args.release)
    if (args.release.parent / DESIGN_FILE).exists() and args.release.name == RELEASE_FILE:
        return _regression(args, release)
    if not isinstance(release, (GradientTrace, SumsOfPasses)):
        raise ReleaseFormatError(
            "RELEASE must be of a gradient trace or of a private Newton run: for others use noise_aware_posterior"
        )
    test = _test(args, release)
    with public_arguments():
        request = replace(posterior_request(args), prior_scale=args.prior_scale)
        request.check(release)
    name = args.release.name
    with output_folder(args.out, need_bytes=_PICTURE_BYTES) as folder, public_arguments():
        results = analyse(release, request, folder=folder, title=f"Posterior from {name}", release_name=name, test=test)
    tell_failures(results.failures)
    sys.stdout.write(terminal_text(results_text(results, release.guarantee, args.level)) + files_text(results.files))
    return EXIT_DONE


def _regression(args: argparse.Namespace, release: Release) -> int:
    """Report in the units of the table: the design of the regression is saved beside its release."""
    from dpinfer.cli.formula import write_regression
    from dpinfer.formulas import load_regression

    fit = load_regression(args.release.parent)
    if args.test is not None and fit.design.family not in ("binomial", "probit"):
        raise UsageError("--test needs a response of two categories")
    with public_arguments():
        request = replace(posterior_request(args), prior_scale=args.prior_scale)
        request.check(release)
        updated = fit.with_posterior(noise_aware_posterior(release, request))
    if args.out is None and args.test is None:
        sys.stdout.write(terminal_text(f"{updated.summary(args.level)}\n"))
        return EXIT_DONE
    with tempfile.TemporaryDirectory() as scratch:
        place = args.out or Path(scratch)
        with OutputFolder(place, need_bytes=_PICTURE_BYTES) as folder:
            text = write_regression(
                updated, args.level, folder, test=args.test, title=f"Posterior from {args.release.name}"
            )
        sys.stdout.write(text if args.out is not None else text.partition("\nfiles:\n")[0])
    return EXIT_DONE


def _test(args: argparse.Namespace, release: GradientTrace | SumsOfPasses) -> UnreadTable | None:
    if (args.test is None) != (args.schema is None):
        raise UsageError("give --test and --schema together")
    if args.test is None:
        return None
    schema = Schema.load(args.schema)
    if schema.target is None or (*schema.feature_names, "intercept") != release.names:
        raise UsageError("--schema must be the schema of the release: its features differ, or it has no target")
    return UnreadTable(args.test, schema)
