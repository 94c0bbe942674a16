"""``dpinfer audit``: the privacy audit, with its verdict."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dpinfer import plots
from dpinfer.auditing import audit
from dpinfer.cli.arguments import integer, interval
from dpinfer.cli.errors import EXIT_DONE, EXIT_FAILED, public_arguments
from dpinfer.cli.output import files_text, output_folder
from dpinfer.cli.pictures import draw_picture

__all__ = ["add_parser", "run"]

_PICTURE_BYTES = 2**21


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "audit",
        help="test the private mechanism against its claim",
        description="Run the code of private fits on made-up records and test clipping, sampling and noise against the "
        "claim. No data is read. Exits with 1 when a check fails.",
    )
    parser.add_argument(
        "--runs", type=integer(1000), default=20_000, metavar="N", help="trials per data set (default: %(default)s)"
    )
    parser.add_argument(
        "--noise-multiplier", type=interval(0, 1e3), default=1.0, metavar="S", help="default: %(default)s"
    )
    parser.add_argument("--checks", action="store_true", help="list every check, not only those that failed")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the checks and their picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Audit, print and, with ``--out``, write."""
    with output_folder(args.out, need_bytes=_PICTURE_BYTES) as folder:
        with public_arguments():
            result = audit(args.runs, noise_multiplier=args.noise_multiplier, progress=True)
        files = []
        if folder is not None:
            files.append(folder.write("audit.json", json.dumps(result.to_dict(), indent=1) + "\n"))
            picture = draw_picture(lambda ax: plots.audit(result, ax=ax), (6.4, 8.0), "")
            files.append(folder.write("audit.png", picture[1]))
    sys.stdout.write(f"{result}\n")
    if args.checks:
        for check in result.checks:
            mark = "ok    " if check.passed else "FAILED"
            sys.stdout.write(f"  {mark} {check.kind}: {check.name}: {check.detail}\n")
    sys.stdout.write(files_text(files))
    return EXIT_DONE if result.passed else EXIT_FAILED
