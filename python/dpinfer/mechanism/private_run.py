"""The guard of every private run: its charge in the ledger, its key, and its checkpoint, in a proved order.

The order, and why a process may die between any two of its steps: docs/derivations/checkpoint.md.
"""

import contextlib
import hmac
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, note, resolve_progress
from dpinfer._validate import check_integer
from dpinfer.accounting import Adjacency, Charge, Event, LedgerAccount, charge_run
from dpinfer.accounting._ledger_file import new_cancel_token, run_of_token
from dpinfer.accounting.ledger import check_account
from dpinfer.errors import CheckpointError, LedgerError, RecordError, RepeatedSpendingWarning
from dpinfer.mechanism.checkpoint import RunCheckpoint, RunRecord, begun, binding, tag_of_records
from dpinfer.mechanism.noise_keys import OSRandomSource, RandomSource
from dpinfer.mechanism.questions import Question, read_question

_MAX_THREADS = 4096  # more than any machine has: formula

CheckpointArgument = str | os.PathLike[str] | RunCheckpoint | None


class PrivacyTerms(Protocol):
    """Terms of a run's charge: a :class:`dpinfer.PrivacyPlan`, or a :class:`ReleaseTerms`."""

    @property
    def event(self) -> Event:
        """All that the run does."""

    @property
    def adjacency(self) -> Adjacency:
        """The relation its guarantee is stated under."""

    @property
    def delta(self) -> float:
        """Where epsilon is reported if the data set has no budget."""


@dataclass(frozen=True)
class ReleaseTerms:
    """Terms of the charge of a single release."""

    event: Event
    adjacency: Adjacency
    delta: float


class PrivateRun:
    """A run between its charge and its release, with its key."""

    def __init__(
        self,
        charge: Charge,
        record: RunRecord,  # state of the run
        source: RandomSource,  # of the key, where `record` has none yet
        checkpoint: RunCheckpoint | None,
        *,
        read: Callable[[], Question],  # reads what is asked of the records
        question: Question,  # what it was at first
        keeps: bool,  # whether the checkpoint stays after the run
    ) -> None:
        self._charge, self._record, self._source = charge, record, source
        self._checkpoint, self._keeps, self._read, self._question = checkpoint, keeps, read, question
        self._complete = record.complete
        self._process = os.getpid()
        self.begun = False

    @property
    def forked(self) -> bool:
        """Whether this is another process than the one that was charged."""
        return os.getpid() != self._process

    def refuse_fork(self) -> None:
        """Raise RuntimeError in a process other than the charged one.

        **Privacy.** The child of a fork has the run's key: its draws would repeat the parent's noise. Before the key is
        taken, its release would be a second one for one charge.
        """
        if self.forked:
            raise RuntimeError("a private run cannot continue in a forked process: its noise would be drawn twice")

    def before_draw(self) -> None:
        """Raise before a draw that must not be made.

        **Privacy.** A forked process, and a run that was complete when it was taken up, draw nothing.

        Raises RuntimeError in a process other than the charged one, CheckpointError if the run was complete.
        """
        self.refuse_fork()
        if self._complete:
            raise CheckpointError("the checkpoint is of a complete run, and lacks a part of it: nothing more is drawn")

    @property
    def key(self) -> bytes:
        """The run's key; a new run takes it on first use, after the records are checked."""
        self.refuse_fork()
        if not self._record.key:
            self._record = replace(self._record, key=self._source.take_key())
        return self._record.key

    @property
    def saved(self) -> Mapping[str, FloatArray]:
        """The last argument of :meth:`save` before an interruption; empty for a new run."""
        return self._record.arrays

    @property
    def ledger_settings(self) -> dict[str, Any]:
        """The release's record of its charge; empty without a ledger."""
        return self._charge.settings

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the charge after any error of the block but an interrupt: it reads records, perhaps by a user's code."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._charge.refused = True
            raise

    def begin(self, records: Iterable[npt.NDArray[Any]]) -> tuple[int, Mapping[str, FloatArray]]:
        """Bind the run to its records, as the kernels read them, before the first draw.

        Returns how many steps have been made, and the arrays that were saved: 0 and none for a new run.

        **Privacy.** Reads the records. From here on the charge stands after any event.

        Raises RecordError if the run is resumed with other records. Raises RuntimeError in a process other than the
        charged one. Raises LedgerError if the run has begun from another copy of the checkpoint, or the ledger cannot
        be written. Raises OSError if the checkpoint cannot be written; nothing was drawn.
        """
        self.refuse_fork()
        if self._checkpoint is None:
            self._charge.begin()
        else:
            self._bind(self._checkpoint, records)
            self._charge.begin(binding(self._record))
        self.begun = True
        return self._record.step, self._record.arrays

    def _bind(self, checkpoint: RunCheckpoint, records: Iterable[npt.NDArray[Any]]) -> None:
        if self._record.tag is None:
            with self.reading():
                self._record = replace(begun(self._record, self.key, records), whole=self._same)
            checkpoint.save(self._record)
            return
        if not (self._complete or self._same):
            raise CheckpointError("checkpoint must be of this run, whose code changes when it is called: remove it")
        with self.reading():
            same = hmac.compare_digest(tag_of_records(self._record.tag_key, records), self._record.tag)
        if not same:
            raise RecordError(
                "the records must be those of the interrupted run, and are not: to go on with others would reuse its "
                "noise; remove the checkpoint to begin a new run"
            )

    @property
    def _same(self) -> bool:
        """Whether the question was read whole, and no call of a user's code has changed what is read."""
        return self._question.whole and self._read() == self._question

    def save(self, step: int, arrays: Callable[[], Mapping[str, FloatArray]], *, last: bool, now: bool = False) -> None:
        """Save the state after `step` steps: when it is time, `now`, or at the last if the file or a ledger stays.

        Raises OSError if the checkpoint cannot be written; the one before stays.
        """
        # The ledger records the end of the run: then only a complete file may be read again.
        due = now or (last and (self._keeps or bool(self._charge.settings)))
        if self._checkpoint is not None and (self._checkpoint.due or due):
            # A later process begins with the state that the code had at first.
            whole = self._record.whole and self._same
            self._record = replace(self._record, step=step, complete=last, whole=whole, arrays=arrays())
            self._checkpoint.save(self._record)


@contextlib.contextmanager
def private_run(
    terms: PrivacyTerms,  # whose event is charged: a plan, or those of a single release
    *,
    # mechanism, ledger: as in :func:`dpinfer.accounting.charge_run`
    mechanism: str,
    source: RandomSource,
    ledger: LedgerAccount | None,
    checkpoint: CheckpointArgument = None,
    # returns every public setting that the output depends on, as JSON values; called with a checkpoint only
    description: Callable[[], Mapping[str, Any]] = dict,
    read: Callable[[], Question] = Question,  # reads the question, if a user's code is in it; as `description`
) -> Iterator[PrivateRun]:
    """Charge a run, give it its key, and resume it from a checkpoint.

    **Privacy.** The block reads the records; before it is entered they are not read, and the charge is on the disk.
    The block must call :meth:`PrivateRun.begin` before anything is drawn.

    Raises CheckpointError if the checkpoint is of a run with other settings, is damaged, is in use, or is an older copy
    of one whose run has finished. Raises OSError if it cannot be read or written.
    """
    if ledger is not None:
        check_account(ledger)
    place = checkpoint if isinstance(checkpoint, RunCheckpoint) or checkpoint is None else RunCheckpoint(checkpoint)
    with contextlib.nullcontext() if place is None else place.held():
        keeps = isinstance(checkpoint, RunCheckpoint)
        record = resumed = None
        described: Mapping[str, Any] = {}
        question = Question()
        if place is not None:
            question = read()
            dataset = None if ledger is None else ledger.dataset
            settings = {"mechanism": mechanism, "secure": source.secure, "dataset": dataset, **description()}
            settings |= {"asked": question.digest} if question.digest else {}
            described = json.loads(json.dumps(settings, allow_nan=False))
            record = resumed = _resumed_record(place, described, question, ledger)
        if record is None:
            if ledger is not None and place is not None:
                # A refused run makes no file.
                ledger.check(terms.event, adjacency=terms.adjacency)
            # Without a ledger or a checkpoint there is no charge to cancel.
            token = None if ledger is None and place is None else new_cancel_token()
            run_name = "" if token is None else run_of_token(token)
            record = RunRecord(description=described, key=b"", tag_key=b"", token=token, run=run_name)
            if place is not None and ledger is not None:
                # So that a charge whose process died is found again; without a ledger there is nothing to find.
                place.save(record)
        run = None
        try:
            with charge_run(
                ledger,
                terms.event,
                adjacency=terms.adjacency,
                mechanism=mechanism,
                secure=source.secure,
                delta=terms.delta,
                token=record.token,
                run=record.run,
            ) as charge:
                run = PrivateRun(charge, record, source, place, read=read, question=question, keeps=keeps)
                where = "without a ledger" if ledger is None else f"charged to {ledger.dataset!r}"
                note("%s: a private run %s, delta %g%s", mechanism, where, terms.delta, ", resumed" if resumed else "")
                try:
                    yield run
                except BaseException:
                    if run.forked:
                        # The parent may still draw if the child of a fork does not: the charge is the parent's.
                        charge.begin()
                    raise
        except BaseException as error:
            # A ledger that could not be opened or written may still hold the charge: the file identifies it.
            unused = resumed is None if run is None else not (run.begun or run.forked)
            if place is not None and record.token is not None and unused and not isinstance(error, LedgerError):
                place.discard()
            raise
        note("%s: the run is finished", mechanism)
        if place is not None and not keeps:
            place.discard()


def _resumed_record(
    place: RunCheckpoint, described: Mapping[str, Any], question: Question, ledger: LedgerAccount | None
) -> RunRecord | None:
    """Return the state of the run in `place`, or None if no run can resume."""
    if not place.exists():
        return None
    record = place.load()
    if record.description != described:
        there = record.description
        differing = sorted(key for key in there.keys() | described.keys() if there.get(key) != described.get(key))
        raise CheckpointError(
            f"checkpoint must be a new file or one of this run, got {str(place.path)!r}: it differs in "
            f"{', '.join(differing)}"
        )
    # Whether something may have been drawn under a key that must not be used again.
    stopped = record.tag is not None and not record.complete and not (record.whole and question.whole)
    unread = ", ".join(question.unread) or "a state that calls change"
    if ledger is None:
        if stopped:
            raise CheckpointError(
                f"checkpoint must be of a question that can be read whole, for its run to go on, and "
                f"{str(place.path)!r} is not: its code has {unread}; remove it to begin a new run, which costs as much "
                "again"
            )
        # An unbound file has no key and no charge.
        return record if record.tag is not None else None
    status = ledger.status(record.run)
    if status == "finished" and not record.complete:
        raise CheckpointError(
            f"checkpoint must be the last file of its run, and {str(place.path)!r} is an older copy: the ledger "
            "records the end of the run; remove this copy to begin a new run"
        )
    if stopped:
        warnings.warn(
            f"the run in {str(place.path)!r} cannot go on, for its code has {unread}, which cannot be read: a new run "
            "begins, with a charge and noise of its own",
            RepeatedSpendingWarning,
            stacklevel=6,
        )
        return None
    # Only a run that drew nothing can be cancelled: its key is unused, and is not used.
    return None if status == "cancelled" else record


def reader_of(model: Any, control: "RunControl") -> Callable[[], Question]:
    """Return the reading of what a run of many steps asks, if a user's code is in it.

    Warns before a run which its checkpoint will not let go on.
    """
    question = Question() if control.checkpoint is None else read_question(model)
    if question.unread:
        warnings.warn(
            f"checkpoint will keep the complete run alone: the code has {', '.join(question.unread)}, which cannot be "
            "read, so that a run that is interrupted cannot go on and must be paid for again",
            RepeatedSpendingWarning,
            stacklevel=4,
        )
    return partial(read_question, model) if question.own or question.unread else Question


def _noted(report: ProgressCallback) -> ProgressCallback:
    """Return the callback, with a line of the log for each step."""

    def told(done: int, total: int) -> None:
        note("step %d of %d", done, total, detail=True)
        report(done, total)

    return told


def check_source(source: RandomSource | None) -> RandomSource:
    """Return the source of the run's key, the operating system's by default."""
    if source is None:
        return OSRandomSource()
    if not isinstance(source, RandomSource):
        raise TypeError(f"random_source must be a RandomSource, got {type(source).__name__}")
    return source


@dataclass(frozen=True, eq=False)
class RunControl:
    """Arguments common to all private entry points: ledger, source of randomness, checkpoint."""

    source: RandomSource
    ledger: LedgerAccount | None
    checkpoint: CheckpointArgument
    report: ProgressCallback  # gets (done, total)
    n_threads: int  # 0: all cores

    @classmethod
    def checked(
        cls,
        *,
        random_source: RandomSource | None = None,
        ledger: LedgerAccount | None = None,
        checkpoint: CheckpointArgument = None,
        progress: bool | ProgressCallback = False,
        n_threads: int | None = None,
    ) -> "RunControl":
        """Return the control of a run from the arguments of its public function."""
        return cls(
            source=check_source(random_source),
            ledger=ledger,
            checkpoint=checkpoint,
            report=_noted(resolve_progress(progress, "private steps")),
            n_threads=0 if n_threads is None else check_integer("n_threads", n_threads, 1, _MAX_THREADS),
        )
