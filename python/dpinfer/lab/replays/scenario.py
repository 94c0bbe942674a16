"""Scenarios of a record-and-replay audit: private calls with simulated records, their neighbours, and their places.

**Privacy.** Made-up records only.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpinfer.accounting import (
    Adjacency,
    ApproximateEvent,
    Composed,
    GaussianEvent,
    LedgerAccount,
    PoissonSampled,
    PureEvent,
    SampledWithoutReplacement,
    SelfComposed,
)
from dpinfer.lab.replays.tape import NoisedSum

# How often each mechanism, or the epsilon of all that are pure, and the delta of those that may fail.
Mechanisms: TypeAlias = "Counter[tuple[Any, ...]]"

PURE, FAILURE = ("pure",), ("failure",)
# Of a scenario that is charged: the ledger's file in its folder, and the name of the records.
LEDGER, DATASET = "spent.ledger", "people"


@dataclass(frozen=True, eq=False)
class Neighbour:
    """A neighbouring data set.

    Parameters
    ----------
    name : str
        The difference.
    records : object
        As the scenario's.
    aligned : bool
        Whether the records that both have are at the same places, so that each is sampled in both or in neither; only
        then do the sums differ by one record.
    refused : str
        Empty, or why the records are outside of the declared domain: the call then has to refuse them with nothing
        drawn, and alike for all neighbours that give the same reason.
    """

    name: str
    records: Any
    aligned: bool = True
    refused: str = ""


@dataclass(eq=False)
class Place:
    """Where a scenario runs: an empty folder, a ledger on request, and an observer.

    Parameters
    ----------
    note : callable
        Adds a line to the log that must be equal.
    fault : callable
        Reports a forbidden action.
    """

    folder: Path
    note: Callable[[str], None]
    fault: Callable[[str], None]
    account: LedgerAccount | None = None
    _charged: Mechanisms = field(default_factory=Counter)
    _drawn: "_Drawn" = field(default_factory=lambda: _Drawn())

    def progress(self, done: int, total: int) -> None:
        """Note a report of progress."""
        self.note(f"progress {done} of {total}")

    def touched(self) -> None:
        """Report that records are read: with a ledger, something must have been charged."""
        if self.account is not None and not self._charged and not self.charged():
            self.fault("order: records are looked at before anything is charged")

    def drawn(self, sums: Sequence[NoisedSum]) -> None:
        """Report that a sum gets noise: with a ledger, it must have been charged."""
        if self.account is None:
            return
        for own in sums[self._drawn.n_sums :]:
            self._drawn.add(own)
        drawn = self._drawn.mechanisms
        # A ledger is read again only if its known entries do not suffice.
        if missing(drawn, self._charged) and missing(drawn, self.charged()):
            self.fault("order: noise is drawn that has not been charged")

    def watched(self, array: Any) -> "Watched":
        """Return an array that reports when it is read."""
        return Watched(np.asarray(array), self)

    def charged(self) -> Mechanisms:
        """Return the ledger's charges."""
        if self.account is not None:
            self._charged = charges_of(self.account)
        return self._charged


class Watched:
    """Records that report when they are read."""

    def __init__(self, array: np.ndarray[Any, Any], place: Place) -> None:
        self._array, self._place = array, place

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with a public number of columns."""
        return tuple(self._array.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self._place.touched()
        return np.array(self._array, dtype=dtype)

    def __len__(self) -> int:
        self._place.touched()
        return len(self._array)


def stated_by(result: Any, folder: Path) -> Any:
    """Return the event of everything that is in a release."""
    parts = getattr(result, "parts", ())
    return Composed(tuple(part.event for part in parts)) if parts else result.event


@dataclass(frozen=True, eq=False)
class Scenario:
    """A private entry point with settings, records and neighbours.

    Parameters
    ----------
    entry : str
        The public name of the called function.
    run : callable
        ``run(records, place)`` returns the call's result.
    adjacency : Adjacency
        Of the claim.
    ledger : bool
        Whether it is charged to a ledger.
    skipped : frozenset of str
        Files that are inputs or secrets.
    stated : callable
        From the result and the folder to the event, or the mechanisms, that the outputs state.
    """

    name: str
    entry: str
    run: Callable[[Any, Place], Any]
    records: Any
    neighbours: Sequence[Neighbour]
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    ledger: bool = False
    skipped: frozenset[str] = frozenset()
    stated: Callable[[Any, Path], Any] = stated_by


class _Drawn:
    """Noise of the sums so far."""

    def __init__(self) -> None:
        self.n_sums = 0
        self._found: Mechanisms = Counter()
        self._permuted: Counter[tuple[Any, ...]] = Counter()

    def add(self, own: NoisedSum) -> None:
        """Count one sum more."""
        self.n_sums += 1
        if own.mechanism[0] in ("laplace", "exponential", "threshold"):
            self._found[PURE] += own.mechanism[1]
            if own.mechanism[0] == "threshold":
                self._found[FAILURE] += own.mechanism[2]
        elif own.mechanism[2] == "permutation":
            self._permuted[("gaussian", own.mechanism[1], "all", 1.0), own.n_rows] += 1
        else:
            self._found[own.mechanism] += 1

    @property
    def mechanisms(self) -> Mechanisms:
        """How often each Gaussian mechanism, and the epsilon and delta of all others together."""
        drawn = self._found.copy()
        for (mechanism, n_rows), count in self._permuted.items():
            drawn[mechanism] += -(-count // n_rows)
        return drawn


def mechanisms_of(sums: Sequence[NoisedSum]) -> Mechanisms:
    """Return the drawn noise: counts of each Gaussian mechanism, and the epsilon and delta of all others together."""
    drawn = _Drawn()
    for own in sums:
        drawn.add(own)
    return drawn.mechanisms


def mechanisms_of_event(event: Any, count: int = 1, sampling: tuple[Any, ...] = ("all", 1.0)) -> Mechanisms:
    """Return the noise of an event, in the same terms."""
    found: Mechanisms = Counter()
    if isinstance(event, Counter):
        return event
    if isinstance(event, GaussianEvent):
        found[("gaussian", event.noise_multiplier, *sampling)] += count
    elif isinstance(event, PoissonSampled):
        drawn_from = ("all", 1.0) if event.sample_rate == 1.0 else ("poisson", event.sample_rate)
        found += mechanisms_of_event(event.event, count, drawn_from)
    elif isinstance(event, SampledWithoutReplacement):
        found += mechanisms_of_event(event.event, count, ("uniform", 1.0))
    elif isinstance(event, SelfComposed):
        found += mechanisms_of_event(event.event, count * event.count, sampling)
    elif isinstance(event, Composed):
        for part in event.events:
            found += mechanisms_of_event(part, count, sampling)
    elif isinstance(event, PureEvent):
        found[PURE] += event.epsilon * count  # type: ignore[assignment]
    elif isinstance(event, ApproximateEvent):
        found[PURE] += event.epsilon * count  # type: ignore[assignment]
        found[FAILURE] += event.delta * count  # type: ignore[assignment]
    else:
        raise TypeError(f"event must be of a kind known to the replay, got {type(event).__name__}")
    return found


def charges_of(account: LedgerAccount) -> Mechanisms:
    """Return the charges of a ledger that were not refunded."""
    found: Mechanisms = Counter()
    for run in account.runs():
        if run.status != "cancelled":
            found += mechanisms_of_event(run.event)
    return found


def missing(drawn: Mechanisms, stated: Mechanisms) -> list[str]:
    """Return mechanisms drawn more often than stated; plain Gaussians only where all of them cost more together."""
    spent, paid = (
        math.fsum(count / own[1] ** 2 for own, count in all_of.items() if _is_plain(own)) for all_of in (drawn, stated)
    )
    return [
        f"{mechanism}: {count:g} drawn, {stated[mechanism]:g} stated"
        for mechanism, count in drawn.items()
        if count > stated[mechanism] * (1.0 + 1e-12) and not (_is_plain(mechanism) and spent <= paid * (1.0 + 1e-9))
    ]


def _is_plain(mechanism: tuple[Any, ...]) -> bool:
    return mechanism[0] == "gaussian" and mechanism[2:] == ("all", 1.0)
