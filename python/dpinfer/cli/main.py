"""Entry point of the ``dpinfer`` command."""

import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import dpinfer
from dpinfer._sinks import printable
from dpinfer.cli.arguments import (
    EXIT_BUDGET,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandError,
    OneLineParser,
    reason,
)
from dpinfer.errors import BudgetExceededError, DpinferError, LedgerError, LedgerFormatError, NumericalError, SiloError

# Each verb is a module of this package.
VERBS = (
    "demo",
    "schema",
    "check",
    "fit",
    "posterior",
    "plan",
    "account",
    "coverage",
    "audit",
    "ledger",
    "site",
    "silos",
)


def build_parser(verbs: Sequence[str] = VERBS) -> OneLineParser:
    """Return the parser of the command with these verbs: their modules alone are imported, with their dependencies."""
    parser = OneLineParser(
        prog="dpinfer",
        description="Bayesian inference under differential privacy, with posteriors that count the privacy noise.",
        epilog="exit codes: 0 done, 1 failed or a check failed, 2 wrong arguments or data, 3 budget refused, "
        "130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"dpinfer {dpinfer.__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="show the traceback of an error; it may quote private records"
    )
    parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in verbs:
        importlib.import_module(f"dpinfer.cli.{verb}").add_parser(parsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, with the arguments of the process by default, and return its exit code.

    **Privacy.** An error is one line that names arguments and columns, never a value of a record. The text of a
    foreign error is withheld, because it could quote one.
    """
    for stream in (sys.stdout, sys.stderr):
        # A name outside of the terminal's encoding must not end a command after the charge.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    args = build_parser(words[:1] if words and words[0] in VERBS else VERBS).parse_args(words)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of standard output is gone; discard the rest at exit without an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if args.traceback:
            traceback.print_exc()
        return _fail(*_describe(error))
    return code


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
    """Show a warning in one line; only dpinfer's own, since another's text could quote a record."""
    if category.__module__.startswith("dpinfer."):
        sys.stderr.write(f"dpinfer: warning: {printable(' '.join(str(message).split()))}\n")


def _describe(error: Exception) -> tuple[str, int]:
    # Notes added on the way, such as that the run stays charged.
    text = " ".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, BudgetExceededError):
        return f"budget refused: {text}", EXIT_BUDGET
    busy_or_full = isinstance(error, LedgerError) and not isinstance(error, LedgerFormatError)
    if busy_or_full or isinstance(error, (CommandError, NumericalError, SiloError)):
        return f"error: {text}", EXIT_FAILED
    if isinstance(error, DpinferError):
        return f"error: {text}", EXIT_USAGE
    if isinstance(error, OSError) and error.filename is not None:
        return f"error: cannot open {os.fspath(error.filename)!r}: {reason(error)}", EXIT_USAGE
    if isinstance(error, OSError) and error.errno is not None:
        # The system's text for the error number, not the error's own text.
        return f"error: the system refused to read or write: {os.strerror(error.errno)}", EXIT_FAILED
    return f"error: unexpected {type(error).__name__} (its text is withheld: it could quote a record)", EXIT_FAILED


def _fail(message: str, code: int) -> int:
    sys.stderr.write("dpinfer: " + printable(" ".join(message.split())) + "\n")
    sys.stderr.flush()
    return code
