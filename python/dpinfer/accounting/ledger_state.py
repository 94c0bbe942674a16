"""The state of a privacy ledger, computed from its entries."""

import contextlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpinfer._validate import check_interval
from dpinfer.accounting._ledger_file import LedgerEntry, run_of_token
from dpinfer.accounting.accountant import certify
from dpinfer.accounting.bound import PrivacyBound
from dpinfer.accounting.events import Adjacency, Composed, Event, as_adjacency, event_from_dict
from dpinfer.accounting.rdp import RenyiFilter
from dpinfer.errors import LedgerError, LedgerFormatError

FORMAT_NAME = "dpinfer-ledger"
FORMAT_VERSION = 1  # see docs/stability.md

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
COMPOSITIONS = ("pld", "filter")


@dataclass(frozen=True)
class LedgerRun:
    """One run on a data set.

    **Privacy.** Holds no record; safe to publish.

    Parameters
    ----------
    run : str
        Its identity, 64 hexadecimal digits.
    event : Event
        The charged event.
    mechanism : str
    started : str
        When it was charged, UTC, as the machine's clock had it.
    status : {"started", "finished", "cancelled"}
        "started" is running or died, and counts as "finished" does; only "cancelled" does not count.
    entry : int
        Number of the ledger's entry that charged it.
    digest : str
        That entry's hash, which depends on all entries before it.
    binding : str or None
        Which of the copies of its checkpoint may draw its noise, 64 hexadecimal digits; None for a run without a
        checkpoint, or one that has not begun.
    """

    run: str
    event: Event
    mechanism: str
    started: str
    status: str
    entry: int
    digest: str
    binding: str | None = None


@dataclass(frozen=True)
class DatasetState:
    """The entries of one data set."""

    adjacency: Adjacency
    budget: tuple[float, float] | None
    composition: str = "pld"
    runs: dict[str, LedgerRun] = field(default_factory=dict)

    def composed(self, more: Sequence[Event], delta: float, *, until: int | None = None) -> PrivacyBound:
        """Return the bound of all counted runs, up to entry `until`, and of `more` events."""
        events = [
            run.event
            for run in self.runs.values()
            if run.status != "cancelled" and (until is None or run.entry <= until)
        ]
        events += more
        if not events:
            return PrivacyBound(epsilon=0.0, delta=delta, adjacency=self.adjacency, accountant="pld", estimate=0.0)
        if self.composition == "filter" and self.budget is not None and delta == self.budget[1]:
            return RenyiFilter(*self.budget).bound(Composed(tuple(events)), self.adjacency)
        return certify(Composed(tuple(events)), delta=delta, adjacency=self.adjacency, accountant="pld")

    def fits(self, event: Event) -> bool:
        """Return whether the budget, if there is one, holds one more event."""
        return self.budget is None or self.composed([event], self.budget[1]).epsilon <= self.budget[0]


def check_name(name: Any) -> str:
    """Return a name that an entry may hold."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ValueError("name must be 1 to 200 characters without control characters")
    return name


def check_budget(budget: Any) -> tuple[float, float] | None:
    """Return a budget (epsilon, delta), or None."""
    if budget is None:
        return None
    if isinstance(budget, (str, bytes)) or not isinstance(budget, Sequence) or len(budget) != 2:
        raise TypeError(f"budget must be a pair (epsilon, delta), got {type(budget).__name__}")
    return check_interval("budget[0]", budget[0], 0.0), check_interval("budget[1]", budget[1], 0.0, 1.0)


# States of ledgers that were read, by the digest of the last entry, which determines all entries before it.
_KNOWN: OrderedDict[str, tuple[int, dict[str, DatasetState], dict[str, str]]] = OrderedDict()
_MOST_KNOWN = 16  # of a few hundred runs each: memory
_LOOKED_BACK = 8  # entries, more than a run adds: time


def read_state(entries: Sequence[LedgerEntry]) -> dict[str, DatasetState]:
    """Return the state after all entries; refuse entries that no version of this code writes.

    It goes on from a state that is known, so that a charge of a long ledger takes as long as one of a short ledger.
    """
    known = next((known for entry in entries[: -_LOOKED_BACK - 1 : -1] if (known := _KNOWN.get(entry.digest))), None)
    first, state, places = known or (0, {}, {})
    state = {name: replace(own, runs=dict(own.runs)) for name, own in state.items()}
    places = dict(places)
    try:
        head = entries[0]
        if head.kind != "ledger" or head.content["format"] != FORMAT_NAME:
            raise LedgerFormatError("path must name a privacy ledger, got another kind of file")
        if head.content["version"] != FORMAT_VERSION:
            raise LedgerFormatError("the ledger was written by a newer version of dpinfer")
        for entry in entries[max(1, first) :]:
            _apply(state, places, entry)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerFormatError("the ledger is damaged: an entry has no meaning") from error
    _KNOWN[entries[-1].digest] = len(entries), state, places
    while len(_KNOWN) > _MOST_KNOWN:
        with contextlib.suppress(KeyError):  # another thread was faster
            _KNOWN.popitem(last=False)
    return {name: replace(own, runs=dict(own.runs)) for name, own in state.items()}


def _apply(state: dict[str, DatasetState], places: dict[str, str], entry: LedgerEntry) -> None:
    content = entry.content
    if entry.kind == "dataset":
        name = check_name(content["dataset"])
        if name in state:
            raise ValueError("a data set is entered twice")
        limit, composition = check_budget(content["budget"]), content.get("composition", "pld")
        if composition not in COMPOSITIONS or (composition == "filter" and limit is None):
            raise ValueError("a data set has no known composition")
        state[name] = DatasetState(as_adjacency(content["adjacency"]), limit, composition)
        return
    run = content["run"]
    if not isinstance(run, str) or not _DIGEST.fullmatch(run):
        raise ValueError("a run has no identity")
    if entry.kind == "charge":
        if run in places:
            raise ValueError("a run is charged twice")
        name = content["dataset"]
        added = LedgerRun(
            run=run,
            event=event_from_dict(content["event"]),
            mechanism=check_name(content["mechanism"]),
            started=check_name(content["time"]),
            status="started",
            entry=entry.number,
            digest=entry.digest,
        )
        state[name].runs[run], places[run] = added, name
        return
    runs = state[places[run]].runs
    runs[run] = _changed(runs[run], entry)


def _changed(known: LedgerRun, entry: LedgerEntry) -> LedgerRun:
    if known.status != "started":
        raise ValueError("a run ends twice")
    if entry.kind == "finish":
        return replace(known, status="finished")
    if known.binding is not None:
        raise ValueError("a run that has begun is cancelled or begins once more")
    if entry.kind == "cancel":
        if run_of_token(bytes.fromhex(entry.content["token"])) != known.run:
            raise ValueError("a run is cancelled without its token")
        return replace(known, status="cancelled")
    if entry.kind != "begin" or not _DIGEST.fullmatch(entry.content["binding"]):
        raise ValueError("an entry is of no known kind")
    return replace(known, binding=entry.content["binding"])
