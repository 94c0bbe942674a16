"""``dpinfer ledger``: the privacy spent on each data set."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpinfer._sinks import aligned
from dpinfer.accounting import LedgerAccount, PrivacyLedger, account
from dpinfer.cli.arguments import EXIT_DONE, EXIT_FAILED, UsageError, interval, positive, public_arguments
from dpinfer.release import load_release

_DELTA = 1e-5  # the default of all commands


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "ledger",
        help="what has been spent on which data set",
        description="Show a privacy ledger, add a data set to it, or check that it counts a release.  Reads no "
        "records.",
    )
    add = parser.add_argument
    add("ledger", type=Path, metavar="FILE", help="the ledger; --add creates it if it does not exist")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--add", metavar="NAME", help="add a data set, with a budget if --epsilon is given")
    action.add_argument(
        "--check", type=Path, metavar="RELEASE", help="check that the ledger holds the charge of this release"
    )
    add("--epsilon", type=positive, metavar="E", help="with --add: the budget")
    add(
        "--delta",
        type=interval(0, 1),
        default=_DELTA,
        metavar="D",
        help="delta of the budget, or of the report for data sets without one (default: %(default)s)",
    )
    add(
        "--adjacency",
        choices=("add_remove", "zero_out", "replace_one"),
        default="add_remove",
        help="with --add: definition of neighbouring data sets (default: %(default)s)",
    )
    add(
        "--filter",
        action="store_true",
        help="with --add and --epsilon: a budget that also holds if runs are chosen after seeing earlier releases",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show, enter or check."""
    if args.epsilon is not None and args.add is None:
        raise UsageError("--epsilon needs --add")
    if args.filter and args.epsilon is None:
        raise UsageError("--filter needs --add and --epsilon")
    if args.add is not None:
        with public_arguments():
            ledger = PrivacyLedger(args.ledger) if args.ledger.exists() else PrivacyLedger.create(args.ledger)
            budget = None if args.epsilon is None else (args.epsilon, args.delta)
            composition = "filter" if args.filter else "pld"
            ledger.add_dataset(args.add, budget=budget, adjacency=args.adjacency, composition=composition)
    else:
        ledger = PrivacyLedger(args.ledger)
    if args.check is not None:
        return _check(ledger, args.check)
    names = ledger.datasets
    blocks = [_block(ledger.dataset(name), args.delta) for name in names]
    sys.stdout.write("\n\n".join(blocks) + "\n" if blocks else "no data set yet: add one with --add NAME\n")
    return EXIT_DONE


def _check(ledger: PrivacyLedger, path: Path) -> int:
    charge = load_release(path).settings.get("ledger")
    if not isinstance(charge, Mapping) or not isinstance(charge.get("entry"), int):
        sys.stdout.write("the release was not charged to any ledger\n")
        return EXIT_FAILED
    if ledger.holds(charge["entry"], str(charge.get("digest"))):
        sys.stdout.write(f"the ledger counts the release, as entry {charge['entry']}\n")
        return EXIT_DONE
    sys.stdout.write("the ledger does not count the release: it is another ledger, or an older copy was restored\n")
    return EXIT_FAILED


def _block(entry: LedgerAccount, delta: float) -> str:
    budget, relation = entry.budget, entry.adjacency
    if budget is not None:
        delta = budget[1]
    runs = entry.runs()
    rows = [("run", "entry", "charged (UTC)", "mechanism", "epsilon alone", "status")]
    for item in runs:
        alone = account(item.event, delta=delta, adjacency=relation).epsilon
        rows.append(
            (item.run[:12], str(item.entry), item.started[:19], item.mechanism, f"{alone:.4g}", _STATUS[item.status])
        )
    counted = sum(item.status != "cancelled" for item in runs)
    spent = entry.spent(delta).epsilon
    lines = [f"data set {entry.dataset!r} ({relation.value.replace('_', '/')}, delta = {delta:g})"]
    lines += aligned(rows) if runs else []
    lines.append(f"  {counted} {'run' if counted == 1 else 'runs'}, together epsilon <= {spent:.6g}")
    if budget is None:
        lines.append("  no budget")
    else:
        kind = " of a filter" if entry.composition == "filter" else ""
        lines.append(f"  budget{kind} epsilon = {budget[0]:g}, remaining {max(0.0, budget[0] - spent):.6g}")
    return "\n".join(lines)


_STATUS = {"finished": "finished", "started": "not finished, counted", "cancelled": "cancelled, drew nothing"}
