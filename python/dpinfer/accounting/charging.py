"""Charging a private run to the ledger: before its records are touched, and for good once noise is drawn."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dpinfer._surroundings import standard_arithmetic
from dpinfer._validate import check_interval
from dpinfer.accounting._ledger_file import EntryFile, new_cancel_token, run_of_token
from dpinfer.accounting.events import Adjacency, Event, as_adjacency, check_event
from dpinfer.accounting.ledger import LedgerAccount, check_account, find_dataset, timestamp
from dpinfer.accounting.ledger_state import LedgerRun, read_state
from dpinfer.errors import BackendUnavailableError, CheckpointError, InsecureReleaseError, LedgerError

REFUSED_AND_CHARGED = (
    "The records had been read, and the charge of the run stands, although nothing was drawn: the refusal reveals "
    "something about them. refund_refused=True of PrivacyLedger.dataset (dpinfer fit --refund-refused) takes such "
    "charges back, which no guarantee covers."
)

# Errors that stop a run for reasons outside its records: the user, the disk, another process, the installation.
_NOT_ABOUT_RECORDS = (
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    OSError,
    LedgerError,
    CheckpointError,
    BackendUnavailableError,
)


@dataclass
class Charge:
    """A run's place in the ledger, while it runs.

    **Privacy.** `token` is a secret that cancels the charge; :meth:`begin` forgets it, before the first draw.
    `refused`: the reader of the records has stopped the run; then the charge stands for any error.
    """

    account: LedgerAccount | None
    run: str
    settings: dict[str, Any]
    token: bytes | None = field(repr=False)
    refused: bool = False

    def begin(self, binding: str | None = None) -> None:
        """Declare that noise will be drawn from here on: nobody can cancel the charge any more.

        With a checkpoint `binding` are 64 hexadecimal digits that identify the key and its records. The ledger accepts
        one entry for each run, so that only one of several copies of a checkpoint can begin.

        Raises LedgerError if the run has begun from another copy, or the ledger cannot be written; nothing was drawn.
        """
        if binding is not None and self.account is not None:
            with self._found() as (found, append):
                if found.status == "cancelled" or found.binding not in (None, binding):
                    raise LedgerError(
                        "checkpoint must be the one that this run began from, and is a copy: the run has begun from "
                        "another, or was cancelled; remove this copy to begin a new run"
                    )
                if found.binding is None and found.status == "started":
                    append("begin", {"run": self.run, "time": timestamp(), "binding": binding})
        self.token = None

    @contextlib.contextmanager
    def _found(self) -> Iterator[tuple[LedgerRun, Callable[[str, dict[str, Any]], Any]]]:
        """Lock the ledger, and give this run's state and a function that appends an entry."""
        assert self.account is not None  # noqa: S101
        with EntryFile(self.account.path).appending() as (entries, append):
            run = find_dataset(read_state(entries), self.account.dataset).runs.get(self.run)
            if run is None:
                raise LedgerError("the ledger must hold the run, and has lost it: an older copy is in its place")
            yield run, append

    def _cancel(self, error: BaseException) -> None:
        if self.token is None or self.account is None:
            return
        try:
            with self._found() as (found, append):
                if found.status == "started" and found.binding is None:
                    append("cancel", {"run": self.run, "time": timestamp(), "token": self.token.hex()})
        except (LedgerError, OSError):
            error.add_note("The ledger could not be written to, and still counts this run, which drew nothing.")

    def _finish(self) -> None:
        # This entry records the end of the run and changes no number: its failure must not lose the release.
        if self.account is None:
            return
        with contextlib.suppress(LedgerError, OSError), self._found() as (found, append):
            if found.status == "started":
                append("finish", {"run": self.run, "time": timestamp()})


@contextlib.contextmanager
def charge_run(
    ledger: LedgerAccount | None,
    event: Event,
    *,
    adjacency: Adjacency | str,
    mechanism: str,
    secure: bool,
    delta: float,
    token: bytes | None = None,
    run: str | None = None,
) -> Iterator[Charge]:
    """Charge a run to a ledger before its records are read: the context of every private mechanism.

    **Privacy.** Reads no records.  The charge is on the disk when the block is entered.  If the block raises before
    :meth:`Charge.begin`, nothing was drawn.  A cancellation is appended after an interrupt, or if the system
    refused something other than reading the records (`Charge.refused`); any other error may depend on the records, and
    the charge stands unless the account has `refund_refused`.  After :meth:`Charge.begin` nothing can undo the charge,
    and a process that dies at any point leaves it counted.

    Parameters
    ----------
    ledger : LedgerAccount or None
        None charges nothing.
    event : Event
        All that the run will do.
    adjacency : Adjacency or str
        The relation its guarantee is stated under.
    mechanism : str
    secure : bool
        Whether the noise comes from a secure source.
    delta : float
        Where the composed epsilon is reported if the data set has no budget.
    token : bytes, optional
        The cancel token of a run that has not begun, from :func:`new_cancel_token`: it is charged unless it is already,
        and refused if it has begun.
    run : str, optional
        Without `token`: a run that has begun, is resumed, and must be in the ledger.

    Raises
    ------
    BudgetExceededError
        If the budget would be exceeded; nothing was spent.
    InsecureReleaseError
        If the noise is not secure.
    TypeError, ValueError
        If an argument is wrong, or the adjacency is another than the data set's.
    LedgerError
        If the ledger cannot be written, `run` is not one of the data set's runs, or that of `token` has begun; nothing
        was spent.
    """
    if ledger is None:
        charge = Charge(None, "", {}, None)
    else:
        charge = _charge(ledger, event, as_adjacency(adjacency), mechanism, secure, delta, token, run)
    try:
        # The proofs of the mechanism's arithmetic around its compiled calls assume rounding to nearest.
        with standard_arithmetic():
            yield charge
    except BaseException as error:
        outside = isinstance(error, _NOT_ABOUT_RECORDS) and not charge.refused
        if ledger is None or ledger.refund_refused or outside:
            charge._cancel(error)
        elif charge.token is not None:
            error.add_note(REFUSED_AND_CHARGED)
        raise
    charge._finish()


def _charge(
    ledger: LedgerAccount,
    event: Event,
    relation: Adjacency,
    mechanism: str,
    secure: bool,
    delta: float,
    token: bytes | None,
    run: str | None,
) -> Charge:
    check_account(ledger)
    if not secure:
        raise InsecureReleaseError("a run with a seeded generator is NOT PRIVATE: ledger must be None for it")
    check_event("event", event)
    delta = check_interval("delta", delta, 0.0, 1.0)
    if token is None and run is None:
        token = new_cancel_token()
    if token is not None:
        run = run_of_token(token)
    with EntryFile(ledger.path).appending() as (entries, append):
        state = find_dataset(read_state(entries), ledger.dataset)
        earlier = state.runs.get(str(run))
        if earlier is None:
            if token is None:
                raise LedgerError(f"the ledger must hold the run that is resumed: data set {ledger.dataset!r} does not")
            after = ledger.admit(state, event, relation, delta)
            added = append(
                "charge",
                {
                    "dataset": ledger.dataset,
                    "run": run,
                    "mechanism": mechanism,
                    "event": event.to_dict(),
                    "time": timestamp(),
                },
            )
            entry, digest = added.number, added.digest
        else:
            if token is not None and (earlier.binding is not None or earlier.status == "finished"):
                raise LedgerError(
                    "checkpoint must be the one that this run began from, and is a copy made before: to go on from it "
                    "would release more than was charged; remove this copy to begin a new run"
                )
            if earlier.status == "cancelled" or earlier.event != event or relation is not state.adjacency:
                raise LedgerError("the ledger must hold the run that is resumed: it is cancelled, or has other terms")
            entry, digest = earlier.entry, earlier.digest
            # The totals at the time of the charge: other runs may have followed.
            after = state.composed([], state.budget[1] if state.budget else delta, until=entry)
    settings = {
        "dataset": ledger.dataset,
        "run": run,
        "entry": entry,
        "digest": digest,
        "composed_epsilon": after.epsilon if math.isfinite(after.epsilon) else None,
        "composed_delta": after.delta,
    }
    return Charge(ledger, str(run), settings, token)
