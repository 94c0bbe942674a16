"""Who may use a ledger's file inside one process: one writing thread at a time, and no fork in the middle."""

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from dpinfer.errors import LedgerError

_FORK_SECONDS = 60.0  # as long as a waiting charge (docs/derivations/ledger.md)
_LONGEST_PAUSE = 0.02  # seconds: far below the time of a composition


class _Process:
    """The threads of this process that have a connection to a ledger.

    SQLite keeps the locks of a process in a table of its own, and a fork copies the table without the locks: the child
    would read and write as if it had them.  So a fork waits until no connection is open.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.open: Counter[int] = Counter()
        self.forks = 0
        self.cut = False
        self.writers: dict[tuple[int, int], threading.RLock] = {}

    def before_fork(self) -> None:
        self.condition.acquire()
        self.forks += 1
        # For this thread's own connection there is nothing to wait for: the child is marked.
        thread = threading.get_ident()
        self.condition.wait_for(lambda: not self.open.keys() - {thread}, timeout=_FORK_SECONDS)

    def after_fork_in_parent(self) -> None:
        self.forks -= 1
        self.condition.notify_all()
        self.condition.release()

    def after_fork_in_child(self) -> None:
        cut = self.cut or bool(self.open)
        self.__init__()  # type: ignore[misc]  # the parent's other threads and their locks are not here
        self.cut = cut


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _process.before_fork(),
        after_in_parent=lambda: _process.after_fork_in_parent(),
        after_in_child=lambda: _process.after_fork_in_child(),
    )


@contextlib.contextmanager
def using(path: Path) -> Iterator[None]:
    """Hold off forks while the block has a connection open.

    Raises LedgerError if this process was forked in the middle of its parent's use of a ledger.
    """
    thread = threading.get_ident()
    with _process.condition:
        _process.condition.wait_for(lambda: _process.forks == 0 or thread in _process.open)
        if _process.cut:
            raise LedgerError(
                f"the ledger {str(path)!r} cannot be used in this process: it was forked while its parent was using a "
                "ledger; start it anew"
            )
        _process.open[thread] += 1
    try:
        yield
    finally:
        with _process.condition:
            _process.open[thread] -= 1
            _process.open += Counter()  # drops zeros
            _process.condition.notify_all()


@contextlib.contextmanager
def writing(path: Path, limit: float) -> Iterator[None]:
    """Let one thread of this process at a time wait for the file's lock, which processes contend for.

    Raises LedgerError if another thread keeps it for `limit` seconds while nothing is written.
    """
    with _process.condition:
        lock = _process.writers.setdefault(same_file(path), threading.RLock())
    patiently(path, lambda pause: lock.acquire(timeout=pause), limit)
    try:
        yield
    finally:
        lock.release()


def same_file(path: Path) -> tuple[int, int]:
    """Return an identifier of this file that does not depend on its name."""
    status = path.stat()
    return status.st_dev, status.st_ino


def patiently(path: Path, attempt: Callable[[float], bool], limit: float) -> None:
    """Call `attempt` until it returns true; give up when the file has not changed for `limit` seconds.

    Waiting callers are admitted one after the other: only a file that is locked without progress is given up.

    Raises LedgerError if it is given up.
    """
    seen, since = _last_change(path), time.monotonic()
    # Not all at once: they would stay in step.
    while not attempt(random.uniform(0.1, 1.0) * _LONGEST_PAUSE):  # noqa: S311
        now = _last_change(path)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > limit:
            raise LedgerError(
                f"the ledger {str(path)!r} cannot be used: another process or thread has kept it locked for "
                f"{limit:g} s; nothing was written to it"
            )


def _last_change(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
