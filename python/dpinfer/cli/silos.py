"""``dpinfer silos``: a regression over sites that keep their records; the coordinator has none."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from dpinfer._sinks import terminal_text
from dpinfer.cli.arguments import EXIT_DONE, integer, interval, positive, public_arguments
from dpinfer.cli.formula import write_regression
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pipeline import after_spending, interruptible, tell_failures
from dpinfer.cli.site import add_line_arguments, address
from dpinfer.errors import FallbackWarning
from dpinfer.formulas import plan_regression, regression
from dpinfer.formulas.design import FAMILIES
from dpinfer.tabular import Schema


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "silos",
        help="fit a Bayesian regression over sites that keep their records",
        description="Ask sites ('dpinfer site serve') for masked, noisy sums, and fit a regression.  Each charges a "
        "ledger of its own.",
    )
    add = parser.add_argument
    add("--formula", required=True, metavar="F", help="formula, such as 'y ~ age + C(job)'")
    add("--family", choices=FAMILIES, default="gaussian", help="family (default: %(default)s)")
    add("--schema", type=Path, required=True, metavar="SCHEMA.toml", help="schema of all sites")
    add("--site", type=address, action="append", required=True, metavar="HOST:PORT", help="address; once for each site")
    add("--may-vanish", type=integer(0), default=0, metavar="L", help="sites it may lose (default: 0)")
    add("--may-collude", type=integer(1), default=1, metavar="C", help="colluding sites (default: 1)")
    add("--epsilon", type=positive, required=True, metavar="E", help="budget")
    add("--delta", type=interval(0, 1), required=True, metavar="D", help="well below 1/N")
    add("--n-records", type=integer(2), required=True, metavar="N", help="public total of all sites")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    add("--level", type=interval(0, 1), default=0.9, help="credibility (default: %(default)s)")
    add("--timeout", type=positive, default=600.0, metavar="S", help="seconds for an answer")
    add(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="file to save the session and to resume it after a crash while the sites still run; removed when the "
        "release is saved; it holds no secret of a site",
    )
    add_line_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, ask the sites, save the release, then analyse it."""
    from dpinfer.mechanism.silos import Silos, TcpLine, tls_context

    context = tls_context(args.certificate, args.key, args.authority, serves=False)
    with public_arguments(), TcpLine(args.site, context, timeout=args.timeout) as line:
        silos = Silos(line, may_vanish=args.may_vanish, may_collude=args.may_collude, log=args.log)
        schema = Schema.load(args.schema)
        common = {
            "family": args.family,
            "schema": schema,
            "epsilon": args.epsilon,
            "delta": args.delta,
            "n_records": args.n_records,
            "method": "newton",
        }
        plan = plan_regression(args.formula, **common)
        size = 64 * len(plan.model.names) ** 2 + (1 << 20)
        with OutputFolder(args.out, need_bytes=size, overwrite=False) as folder:
            going = interruptible(folder, args.checkpoint, None, at_sites=True)
            with going, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", FallbackWarning)
                fit = regression(
                    args.formula, silos, path=folder.path, checkpoint=args.checkpoint, progress=True, **common
                )
            tell_failures([str(item.message) for item in caught])
            with after_spending(folder):
                text = write_regression(fit, args.level, folder)
            sys.stdout.write(f"{terminal_text(str(fit.choice))}\n\n{text}")
    return EXIT_DONE
