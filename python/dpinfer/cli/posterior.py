"""``dpinfer posterior``: analyse a saved release again."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dpinfer.cli.arguments import add_posterior_arguments
from dpinfer.cli.errors import EXIT_DONE, public_arguments
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import PosteriorRequest, analyse
from dpinfer.cli.summary import guarantee_text, to_text, verdict_text
from dpinfer.errors import ReleaseFormatError
from dpinfer.release import Release, load_release

__all__ = ["add_parser", "run"]

_PICTURE_BYTES = 2**22


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "posterior",
        help="the noise-aware posterior of a saved release",
        description="Compute the noise-aware posterior of a saved release; no records are read, no privacy is spent.",
    )
    parser.add_argument("release", type=Path, metavar="RELEASE", help="a file that 'dpinfer fit' or Release.save wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the table, the pictures and the report")
    add_posterior_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, compute, print and, with ``--out``, write."""
    release = load_release(args.release)
    if not isinstance(release, Release):
        raise ReleaseFormatError("RELEASE must be a gradient trace: for site traces use noise_aware_posterior")
    folder = None if args.out is None else OutputFolder(args.out, need_bytes=_PICTURE_BYTES)
    request = PosteriorRequest(
        method=args.method, hessian=args.hessian, prior=args.prior, burn_in=args.burn_in, level=args.level
    )
    try:
        with public_arguments():
            name = args.release.name
            results = analyse(release, request, folder=folder, title=f"Posterior from {name}", release_name=name)
    except BaseException:
        if folder is not None:
            folder.discard_if_empty()
        raise
    sys.stdout.write(f"{guarantee_text(release.guarantee)}\n{to_text(results.rows, level=args.level)}\n")
    sys.stdout.write(verdict_text(results.posterior))
    if results.files:
        sys.stdout.write("\nfiles:\n" + "".join(f"  {path}\n" for path in results.files))
    return EXIT_DONE
