"""Exit codes and errors of the command."""

from collections.abc import Iterator
from contextlib import contextmanager

from dpinfer.errors import DpinferError

__all__ = [
    "EXIT_BUDGET",
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "CommandError",
    "UsageError",
    "public_arguments",
    "reason",
]

EXIT_DONE = 0  # codes are documented in `dpinfer --help`
EXIT_FAILED = 1  # codes are documented in `dpinfer --help`
EXIT_USAGE = 2  # as argparse
EXIT_BUDGET = 3  # codes are documented in `dpinfer --help`
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class UsageError(DpinferError):
    """The arguments of the command line are wrong or contradict each other."""


class CommandError(DpinferError):
    """The command could not finish for a reason outside its arguments, such as a full disk."""


@contextmanager
def public_arguments() -> Iterator[None]:
    """Turn a ValueError or TypeError about public arguments into a :class:`UsageError`.

    Outside such a block the text of an unforeseen error is not shown, because it could quote a record.
    """
    try:
        yield
    except DpinferError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def reason(error: OSError) -> str:
    """Return the operating system's reason, without Python's decoration."""
    return error.strerror or type(error).__name__
