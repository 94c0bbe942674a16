"""An append-only list of JSON entries in one SQLite file: chained by hashes, on the disk before ``append`` returns.

Nothing but SQLite opens the file.  POSIX drops every lock that a process holds on a file when any of its threads closes
any descriptor of it; SQLite knows this and defers its own closing, which is of no use next to a plain ``open``.  Inside
one process one thread writes at a time, and no fork comes in the middle.
"""

import contextlib
import hashlib
import json
import os
import random
import secrets
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from dpinfer.errors import LedgerError, LedgerFormatError

APPLICATION_ID = 0x64704C31  # "dpL1"
_FORK_SECONDS = 60.0  # as long as a waiting charge (docs/derivations/ledger.md)
_LONGEST_PAUSE = 0.02  # seconds: far below the time of a composition
_NAME_SECONDS = 2.0  # a new ledger has a second name for a moment while it is put in place
_LOCK_SECONDS = 60.0  # how long a file may stay locked without a change to it before one who waits gives up
_LONGEST_VALUE = 2**22  # bytes: an entry is a few kB; a hostile file must not allocate more
_STEPS_PER_CALL = 100_000  # of a virtual machine, far more than an honest file needs for each of its bytes
_LEAST_CALLS = 100  # of SQLite's progress handler: an honest file of this size needs fewer

_SCHEMA = {
    ("table", "entries"): (
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL, "
        "digest TEXT NOT NULL)"
    ),
    ("trigger", "entries_are_not_changed"): (
        "CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END"
    ),
    ("trigger", "entries_are_not_deleted"): (
        "CREATE TRIGGER entries_are_not_deleted BEFORE DELETE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END"
    ),
    ("trigger", "entries_follow_one_another"): (
        "CREATE TRIGGER entries_follow_one_another BEFORE INSERT ON entries "
        "WHEN NEW.number IS NOT (SELECT COALESCE(MAX(number), -1) + 1 FROM entries) "
        "BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END"
    ),
}

_WHY = {
    sqlite3.SQLITE_BUSY: f"another process has kept it locked for {_LOCK_SECONDS:g} s",
    sqlite3.SQLITE_LOCKED: "another connection has locked it",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "permission denied",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk is full or fails",
    sqlite3.SQLITE_CANTOPEN: "it, or the folder for its journal, cannot be opened",
}


@dataclass(frozen=True)
class LedgerEntry:
    """One row of a ledger; `digest` depends on this row and on every row before it."""

    number: int
    kind: str
    content: Mapping[str, Any]
    digest: str


def _digest(previous: str, number: int, kind: str, content: str) -> str:
    text = json.dumps([previous, number, kind, content])
    return hashlib.sha256(text.encode()).hexdigest()


def new_cancel_token() -> bytes:
    """Return a fresh secret; :func:`run_of_token` gives the identity of the run that it can cancel."""
    return secrets.token_bytes(32)


def run_of_token(token: bytes) -> str:
    """Return the identity of the run that `token` can cancel."""
    return hashlib.sha256(token).hexdigest()


class EntryFile:
    """The file; every operation opens it again, so that the object can be copied, pickled and used after a fork.

    **Privacy.** Holds what callers append: descriptions of mechanisms, never records.

    Raises OSError if there is no such file. Raises LedgerError if it cannot be read. Raises LedgerFormatError if it is
    not a ledger or is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],  # an existing file
    ) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike[str], kind: str, content: Mapping[str, Any]) -> "EntryFile":
        """Make a file with one entry: whole, or not at all, and never in the place of another file.

        Raises FileExistsError if `path` exists. Raises OSError or LedgerError if it cannot be written.
        """
        target = Path(path)
        if target.exists():
            raise FileExistsError(17, "it exists", str(target))
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            with _connection(temporary) as connection, _explained(target):
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA.values():
                    connection.execute(statement)
                _insert(connection, [], kind, content)
                connection.execute("COMMIT")
            _put_in_place(temporary, target)
        finally:
            for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
                with contextlib.suppress(OSError):
                    leftover.unlink()
        return cls(target)

    def read(self) -> list[LedgerEntry]:
        """Return every entry, after checking the chain."""
        with _connection(self.path) as connection, _explained(self.path):
            _begin(connection, self.path, "BEGIN")
            return _entries(connection, self.path)

    @contextlib.contextmanager
    def appending(self) -> Iterator[tuple[list[LedgerEntry], Callable[[str, Mapping[str, Any]], LedgerEntry]]]:
        """Lock the file, and give its entries and a function that appends one.

        Appended entries are on the disk when the block ends; if it raises, none are.  Other threads and processes wait.
        """
        _check_file(self.path)
        with writing(self.path, _LOCK_SECONDS), _connection(self.path) as connection, _explained(self.path):
            opened = same_file(self.path)
            _begin(connection, self.path, "BEGIN IMMEDIATE")
            try:
                entries = _entries(connection, self.path)
                yield entries, lambda kind, content: _insert(connection, entries, kind, content)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            _check_place(self.path, opened)


def _check_file(path: Path) -> None:
    """Refuse files that SQLite must not open: other than regular files, or files with two names.

    SQLite finds the journal of a writer that died by the name of the file: under another name it would be missed.
    """
    since = time.monotonic()
    while (status := path.stat()).st_nlink > 1 and stat.S_ISREG(status.st_mode):
        if time.monotonic() - since > _NAME_SECONDS:
            raise LedgerError(
                f"the ledger {str(path)!r} must have one name, and has hard links: remove the others (a symbolic "
                "link does no harm)"
            )
        time.sleep(0.01)
    if not stat.S_ISREG(status.st_mode):
        raise LedgerFormatError(f"the ledger must be a regular file, got {str(path)!r}")


def _check_place(path: Path, opened: tuple[int, int]) -> None:
    """Refuse to continue if the written file no longer has this name."""
    with contextlib.suppress(OSError):
        if same_file(path) == opened:
            return
    raise LedgerError(f"the ledger {str(path)!r} was moved or replaced while it was written to; nothing may rely on it")


@contextlib.contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    _check_file(path)
    with using(path):
        with _explained(path):
            # "rw" makes no file, opens a read-only one for reading, and lets a reader undo a killed writer's journal.
            uri = f"{path.resolve().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_LOCK_SECONDS)
        try:
            with _explained(path):
                connection.text_factory = bytes
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
                calls = iter(range(_LEAST_CALLS + path.stat().st_size // 1000))
                connection.set_progress_handler(lambda: next(calls, None) is None, _STEPS_PER_CALL)
                # A ledger has no view and no function; in a file that somebody else made they must not run.
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                # EXTRA: the removal of the journal, which is the commit, is on the disk too.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")
            yield connection
        finally:
            connection.close()


def _begin(connection: sqlite3.Connection, path: Path, statement: str) -> None:
    """Begin a transaction that holds its lock, however many others wait for it too."""

    def attempt(pause: float) -> bool:
        try:
            connection.execute(statement)
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", -1) & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            time.sleep(pause)
            return False
        return True

    connection.execute("PRAGMA busy_timeout = 0")
    patiently(path, attempt, _LOCK_SECONDS)
    connection.execute(f"PRAGMA busy_timeout = {round(1000.0 * _LOCK_SECONDS)}")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        why = _WHY.get(getattr(error, "sqlite_errorcode", -1) & 0xFF)
        if why is None:
            raise LedgerFormatError(f"{str(path)!r} is not a privacy ledger, or is damaged") from error
        raise LedgerError(f"the ledger {str(path)!r} cannot be used: {why}; nothing was written to it") from error
    except UnicodeDecodeError as error:
        # SQLite's own message quotes the damaged bytes.
        raise LedgerFormatError(f"{str(path)!r} is not a privacy ledger, or is damaged") from error


# Checked rows and their entries, of the files that were read last.
_KNOWN: dict[tuple[int, int], tuple[list[tuple[Any, ...]], Sequence[LedgerEntry]]] = {}
_MOST_KNOWN = 16  # of a few kB for each run: memory


def _entries(connection: sqlite3.Connection, path: Path) -> list[LedgerEntry]:
    """Read and check everything inside the caller's transaction."""
    damaged = LedgerFormatError(f"the ledger {str(path)!r} is damaged or was changed by hand: its entries do not chain")
    try:
        if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            raise LedgerFormatError(f"{str(path)!r} is not a privacy ledger")
        if connection.execute("PRAGMA journal_mode").fetchone() != (b"delete",):
            raise LedgerFormatError(f"{str(path)!r} is damaged: its journal mode is not that of a ledger")
        schema = {
            (kind.decode(), name.decode()): sql.decode()
            for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master")
        }
        if schema != _SCHEMA:
            raise LedgerFormatError(f"{str(path)!r} is not a privacy ledger of a version that this dpinfer reads")
        if connection.execute("PRAGMA quick_check(1)").fetchall() != [(b"ok",)]:
            raise damaged
        place = same_file(path)
        known, checked = _KNOWN.get(place, ([], ()))
        cursor = connection.execute("SELECT number, kind, content, digest FROM entries ORDER BY number")
        rows = cursor.fetchmany(len(known)) if known else []
        # Rows that were checked, and are the same to the last byte, chain as they did.
        entries = list(checked) if rows == known else []
        previous = entries[-1].digest if entries else ""
        for row in chain([] if entries else list(rows), cursor):
            if len(entries) >= len(rows):
                rows.append(row)
            number = row[0]
            kind, content, digest = (value.decode() for value in row[1:])
            if number != len(entries) or digest != _digest(previous, number, kind, content):
                raise damaged
            parsed = json.loads(content)
            if not isinstance(parsed, dict):
                raise damaged
            entries.append(LedgerEntry(number, kind, parsed, digest))
            previous = digest
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, LedgerError):
            raise
        raise damaged from error
    if not entries:
        raise damaged
    _KNOWN[place] = rows, tuple(entries)
    while len(_KNOWN) > _MOST_KNOWN:
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
            _KNOWN.pop(next(iter(_KNOWN)))
    return entries


def _insert(
    connection: sqlite3.Connection, entries: list[LedgerEntry], kind: str, content: Mapping[str, Any]
) -> LedgerEntry:
    text = json.dumps(content, allow_nan=False, sort_keys=True)
    number = len(entries)
    digest = _digest(entries[-1].digest if entries else "", number, kind, text)
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (number, kind, text, digest))
    entry = LedgerEntry(number, kind, json.loads(text), digest)
    entries.append(entry)
    return entry


def _put_in_place(temporary: Path, target: Path) -> None:
    """Give the finished file its name, unless something has that name already."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links: claim the name first, with a file that is nobody's ledger yet.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        temporary.replace(target)


@dataclass
class _Process:
    """Threads of this process with a connection to a ledger.

    SQLite keeps the locks of a process in a table of its own, and a fork copies the table without the locks: the child
    would read and write as if it had them.  So a fork waits until no connection is open.
    """

    condition: threading.Condition = field(default_factory=threading.Condition)
    open: Counter[int] = field(default_factory=Counter)
    forks: int = 0
    cut: bool = False
    writers: dict[tuple[int, int], threading.RLock] = field(default_factory=dict)

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
        # The parent's other threads and their locks are not here.
        self.__init__(cut=self.cut or bool(self.open))  # type: ignore[misc]


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
