"""``dpinfer coverage``: a coverage study with its table and pictures."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpinfer.cli.arguments import EXIT_DONE, integer, positive, public_arguments
from dpinfer.cli.output import OutputFolder, files_text, output_folder
from dpinfer.cli.pictures import draw_picture

if TYPE_CHECKING:
    from dpinfer.lab.studies import CoverageResult

_PICTURE_BYTES = 2**22  # room for the pictures


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    from dpinfer.lab.studies import STUDY_NAMES

    parser = verbs.add_parser(
        "coverage",
        help="a coverage study over simulated runs",
        description="Simulate many private runs and test whether their posteriors are calibrated. Reads no data.",
    )
    add = parser.add_argument
    add("study", choices=STUDY_NAMES, metavar="STUDY", help=f"one of {', '.join(STUDY_NAMES)}")
    add("--runs", type=integer(2), default=500, metavar="K", help="number of runs (default: %(default)s)")
    add("--method", default="exact", metavar="M", help="method of the posteriors (default: exact)")
    add("--epsilon", type=positive, default=0.1, metavar="E", help="budget (default: %(default)s)")
    add("--recipe", metavar="R", help="settings of the mechanism (default: the study's own)")
    add("--seed", type=integer(0), default=0, help="seed of the whole study (default: %(default)s)")
    add("--out", type=Path, metavar="DIR", help="folder for the result, its table and the pictures")
    add("--resume", type=Path, metavar="DIR", help="folder of finished runs; a study with such runs resumes from it")
    add("--threads", type=integer(1), metavar="N", help="number of threads (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compute, print and, with ``--out``, write."""
    from dpinfer.lab.studies import coverage_study

    with output_folder(args.out, need_bytes=_PICTURE_BYTES) as folder:
        with public_arguments():
            result = coverage_study(
                args.study,
                method=args.method,
                n_runs=args.runs,
                epsilon=args.epsilon,
                recipe=args.recipe,
                seed=args.seed,
                n_threads=args.threads,
                checkpoint=args.resume,
                progress=True,
            )
        files = [] if folder is None else _write(result, folder)
    sys.stdout.write(f"{result}\n")
    sys.stdout.write(files_text(files))
    return EXIT_DONE


def _write(result: "CoverageResult", folder: OutputFolder) -> list[Path]:
    """Write the findings, their data and the pictures."""
    from dpinfer.lab import plots

    files = [
        folder.write("coverage.json", json.dumps(result.to_dict(), allow_nan=False, indent=1) + "\n"),
        folder.write("coverage.npz", result.to_bytes()),
    ]
    names, sbc, tarp = result.parameters, result.sbc, result.tarp
    drawers = {
        "ranks.png": (lambda ax: plots.ranks(sbc, ax=ax), (5.6, 3.4)),
        "rank-histogram.png": (lambda ax: plots.rank_histogram(sbc, names=names, ax=ax), (5.6, 3.4)),
        "z-scores.png": (lambda ax: plots.z_scores(sbc, names=names, ax=ax), (5.6, 3.4)),
    }
    if tarp is not None:
        drawers["coverage.png"] = (lambda ax: plots.coverage(tarp, ax=ax), (4.6, 4.4))
    for name, (drawer, size) in sorted(drawers.items()):
        files.append(folder.write(name, draw_picture(drawer, size, "")[1]))
    return files
