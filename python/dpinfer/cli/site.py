"""``dpinfer site serve``: a site of silos, run by the curator of its records."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dpinfer._sinks import terminal_text
from dpinfer.accounting import LedgerAccount, PrivacyLedger
from dpinfer.cli.arguments import EXIT_DONE, UsageError, integer, public_arguments
from dpinfer.formulas import SiloTable
from dpinfer.tabular import Schema


def address(text: str) -> tuple[str, int]:
    """Return an argument HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, got {text!r}")
    return host, int(port)


def add_line_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both ends of a line: certificates and a log."""
    add = parser.add_argument_group("connection").add_argument
    for option, words in (
        ("--certificate", "certificate of this end, PEM"),
        ("--key", "key of this certificate, PEM"),
        ("--authority", "certificate of the authority that signed those of both ends, PEM"),
    ):
        add(option, type=Path, required=True, metavar="FILE", help=words)
    add("--log", type=Path, metavar="PATH", help="file for kinds, sizes and hashes of all messages")


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "site",
        help="take part in fits over silos with local records",
        description="Answer a coordinator ('dpinfer silos') with masked sums over a local file.  Shows each request, "
        "and answers if the curator consents and the ledger has the budget.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser("serve", help="listen for a coordinator", description=parser.description)
    add = serve.add_argument
    add("file", type=Path, metavar="FILE", help="the private records, with a header line")
    add("--schema", type=Path, required=True, metavar="SCHEMA.toml", help="schema of all sites")
    add("--ledger", type=Path, required=True, metavar="LEDGER", help="charged before records are read")
    add("--dataset", required=True, metavar="NAME", help="the ledger's name for these records")
    add("--listen", type=address, required=True, metavar="HOST:PORT", help="address to listen at")
    add("--yes", action="store_true", help="consent to every request within the ledger's budget")
    add("--sessions", type=integer(1), metavar="K", help="number of coordinators before it stops")
    add("--threads", type=integer(1, 4096), metavar="K", help="number of threads (default: all)")
    add_line_arguments(serve)
    serve.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Listen, show requests, and answer."""
    from dpinfer.mechanism.silos import Site, listening, serve, tls_context

    with public_arguments():
        schema = Schema.load(args.schema)
        account = PrivacyLedger(args.ledger).dataset(args.dataset)
        if account.budget is None and args.yes:
            raise UsageError("--yes needs a data set with a budget: enter it with 'dpinfer ledger --add --epsilon'")
    context = tls_context(args.certificate, args.key, args.authority, serves=True)

    def tell(text: str) -> None:
        sys.stdout.write(terminal_text(text) + "\n")
        sys.stdout.flush()

    site = Site(
        SiloTable(args.file, schema),
        ledger=account,
        approve=None if args.yes else lambda request: _agreed(account),
        tell=tell,
        n_threads=args.threads,
        log=args.log,
    )
    with listening(*args.listen) as server:
        tell(f"listening on {args.listen[0]}:{server.getsockname()[1]}")
        serve(site, server, context, sessions=args.sessions, tell=tell)
    return EXIT_DONE


def _agreed(account: LedgerAccount) -> bool:
    """Ask the curator; no answer means no."""
    sys.stdout.write(f"take part, and charge {account.dataset!r}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
