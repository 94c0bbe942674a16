"""Arguments, exit codes and errors that several verbs share."""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Never

from dpinfer._sinks import printable
from dpinfer.errors import DpinferError

if TYPE_CHECKING:
    from dpinfer.inference import PosteriorRequest

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


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> Never:
        """Exit with status 2 and one line on standard error."""
        self.exit(2, f"{self.prog}: error: {printable(message)} (see '{self.prog} --help')\n")


def interval(low: float, high: float, *, high_open: bool = True) -> Callable[[str], float]:
    """Return an argument type: a number above `low`, and below `high` (or equal to it, unless `high_open`)."""
    bound = f"({low:g}, {high:g}{')' if high_open else ']'}"

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (low < value < high or (value == high and not high_open)):
            raise argparse.ArgumentTypeError(f"must be a number in {bound}, got {text!r}")
        return value

    return convert


positive = interval(0, math.inf)


def integer(minimum: int, maximum: float = math.inf) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least `minimum`, and at most `maximum`."""
    bound = f"at least {minimum}" + (f" and at most {maximum:g}" if math.isfinite(maximum) else "")

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"must be a whole number of {bound}, got {text!r}")
        return value

    return convert


def share_or_steps(text: str) -> str | float | int:
    """Return a burn-in: ``auto``, a number of steps or a share of them."""
    if text == "auto":
        return text
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value >= 0 and (kind is int or value < 1.0):
            return value
    raise argparse.ArgumentTypeError(f"must be 'auto', a number of steps, or a share in [0, 1), got {text!r}")


POSTERIORS = ("exact", "laplace", "naive", "averaged")


def method(text: str) -> str:
    """Return the name of a method, or of an approximation (which `fit --method` took before 0.2), as it is."""
    if text not in ("auto", *POSTERIORS):
        from dpinfer.methods import find_method  # a second to import, and not every command needs it

        try:
            find_method(text)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_posterior_arguments(parser: argparse.ArgumentParser, *, routes: bool = False) -> None:
    """Add the options of :func:`dpinfer.noise_aware_posterior`; `routes`: and the methods of fits."""
    add = parser.add_argument_group("posterior (post-processing; costs no privacy)").add_argument
    if routes:
        add(
            "--method",
            type=method,
            metavar="METHOD",
            default="auto",
            help="'auto' chooses the mechanism by predicted width, 'newton' makes a few full passes over the records, "
            "'dpvi' is the published gradient trace, and any other name is the method of an installed package "
            "(default: %(default)s)",
        )
    add(
        *(("--approximation",) if routes else ("--approximation", "--method")),  # one name for both before 0.2
        choices=POSTERIORS,
        default="exact",
        help="posterior of a gradient trace: 'laplace' approximates the exact one, 'naive' and 'averaged' ignore the "
        "noise (default: %(default)s)",
    )
    add(
        "--hessian",
        choices=("auto", "diagonal", "full", "tied"),
        default="auto",
        help="form of the loss's Hessian; 'auto' allows correlated parameters if the method supports them "
        "(default: %(default)s)",
    )
    add(
        "--prior",
        choices=("auto", "weak", "model", "empirical"),
        default="auto",
        help="prior of the trace model; 'model' bounds directions that the trace does not identify by the model's own "
        "prior (default: %(default)s)",
    )
    add(
        "--burn-in",
        type=share_or_steps,
        default="auto",
        metavar="B",
        help="steps to leave out: 'auto', a share in [0, 1) or a number (default: %(default)s)",
    )
    add(
        "--n-samples",
        type=integer(20),
        metavar="S",
        help="steps of each chain for a sampled posterior of a gradient trace; unused for private Newton runs",
    )
    add("--level", type=interval(0, 1), default=0.9, help="credibility of the intervals (default: %(default)s)")


def posterior_request(args: argparse.Namespace) -> "PosteriorRequest":
    """Return the posterior request from the options of :func:`add_posterior_arguments`."""
    from dpinfer.inference import PosteriorRequest  # a second to import, and not every verb needs it

    return PosteriorRequest(
        approximation=args.approximation,
        hessian=args.hessian,
        prior=args.prior,
        burn_in=args.burn_in,
        n_samples=args.n_samples,
        level=args.level,
    )
