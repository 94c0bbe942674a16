"""``dpinfer audit``: the privacy audit, with its verdict."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpinfer import plots
from dpinfer.auditing import audit
from dpinfer.cli.arguments import EXIT_DONE, EXIT_FAILED, integer, interval, method, public_arguments
from dpinfer.cli.output import files_text, output_folder
from dpinfer.cli.pictures import draw_picture

_PICTURE_BYTES = 2**21  # room for the picture and the checks


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "audit",
        help="test the private mechanism against its claimed guarantee",
        description="Run the code of private fits on simulated records and test clipping, sampling and noise against "
        "the claimed guarantee. Reads no data. Exits with 1 when a check fails.",
    )
    add = parser.add_argument
    add("--runs", type=integer(1000), default=20_000, metavar="N", help="trials per data set (default: %(default)s)")
    add(
        "--noise-multiplier",
        type=interval(0, 1e3),
        default=1.0,
        metavar="S",
        help="audited noise (default: %(default)s)",
    )
    add(
        "--replay",
        action="store_true",
        help="instead: run every private call on neighbouring simulated records with the same noise, and compare all "
        "outputs",
    )
    add(
        "--method",
        action="append",
        default=[],
        type=method,
        metavar="NAME",
        help="audit the sums of this method of an installed package too; with --replay, its fits and calls alone",
    )
    add("--checks", action="store_true", help="list every check, not only those that failed")
    add("--out", type=Path, metavar="DIR", help="folder for the checks and their picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Audit, print and, with ``--out``, write."""
    return _replay(args) if args.replay else _audit(args)


def _audit(args: argparse.Namespace) -> int:
    with output_folder(args.out, need_bytes=_PICTURE_BYTES) as folder:
        with public_arguments():
            result = audit(args.runs, methods=args.method, noise_multiplier=args.noise_multiplier, progress=True)
        files = []
        if folder is not None:
            files.append(folder.write("audit.json", json.dumps(result.to_dict(), indent=1) + "\n"))
            picture = draw_picture(lambda ax: plots.audit(result, ax=ax), (6.4, 8.0), "")
            files.append(folder.write("audit.png", picture[1]))
    lines = [(check.passed, f"{check.kind}: {check.name}: {check.detail}") for check in result.checks]
    return _tell(result, lines if args.checks else [], files)


def _replay(args: argparse.Namespace) -> int:
    # The replay runs the command line itself.
    from dpinfer.lab.replays import replay_audit
    from dpinfer.lab.replays.calls import fit_scenarios
    from dpinfer.lab.replays.commands import all_scenarios

    with output_folder(args.out, need_bytes=_PICTURE_BYTES) as folder:
        result = replay_audit(tuple(fit_scenarios(args.method)) or all_scenarios(), progress=True)
        files = []
        if folder is not None:
            files.append(folder.write("replay.json", json.dumps(result.to_dict(), indent=1) + "\n"))
    lines = [(check.passed, f"{check.scenario}, {check.neighbour}") for check in result.checks]
    return _tell(result, lines if args.checks else [], files)


def _tell(result: Any, lines: Sequence[tuple[bool, str]], files: Sequence[Path]) -> int:
    """Print a result, the requested checks, and the names of written files."""
    sys.stdout.write(f"{result}\n")
    for passed, text in lines:
        sys.stdout.write(f"  {'ok    ' if passed else 'FAILED'} {text}\n")
    sys.stdout.write(files_text(files))
    return EXIT_DONE if result.passed else EXIT_FAILED
