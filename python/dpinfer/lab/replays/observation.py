"""Outputs of a call: its result, messages, files and system requests, with fixed randomness and clocks.

**Privacy.** For made-up records.
"""

import contextlib
import dataclasses
import datetime
import enum
import io
import itertools
import logging
import os
import random
import re
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer.lab.replays.tape import show

_NOW = datetime.datetime(2001, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)  # an arbitrary fixed time
_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_FILE_EVENTS = frozenset(
    f"os.{name}" for name in ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate")
) | {"open", "sqlite3.connect"}
_OTHER_EVENTS = frozenset(("os.exec", "os.fork", "os.posix_spawn", "socket.connect", "subprocess.Popen"))


@dataclasses.dataclass(eq=False)
class Observation:
    """The outputs of one call.

    Parameters
    ----------
    outcome : mapping
        Type and parts of the result, or of the error; from path to value.
    messages : mapping
        Standard output, standard error, warnings and log records.
    files : mapping
        Name to mode, size and content.
    result : object
        As it was returned; None after an error.
    """

    outcome: Mapping[str, str]
    messages: Mapping[str, str]
    files: Mapping[str, str]
    result: Any = None
    error: BaseException | None = None


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names whose entries differ, or that only one of the two has."""
    return [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]


def observe(
    call: Callable[[], Any], folder: Path, note: Callable[[str], None], *, skipped: frozenset[str] = frozenset()
) -> Observation:
    """Call, and collect all outputs.

    Parameters
    ----------
    folder : Path
        Folder for writing. File operations there are noted, in order.
    note : callable
        Takes a line for each request to the system.
    skipped : frozenset of str
        Files whose content is ignored: the records, and secrets.
    """
    out, err, logged = io.StringIO(), io.StringIO(), _LogLines()
    result: Any = None
    error: BaseException | None = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(_still(note))
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        logging.getLogger().addHandler(logged)
        stack.callback(logging.getLogger().removeHandler, logged)
        stack.enter_context(_watching(folder, note))
        try:
            result = call()
            if hasattr(result, "save"):
                result.save(folder / "saved.release")
        except (Exception, SystemExit) as raised:
            error = raised
    place = str(folder)
    messages = {"standard output": out.getvalue(), "standard error": err.getvalue(), "log": "\n".join(logged.lines)}
    for index, item in enumerate(caught):
        messages[f"warning {index}"] = f"{item.category.__name__}: {item.message}"
    outcome: dict[str, str] = {}
    if error is None:
        _describe(result, "result", outcome, place, set())
        outcome |= {name: str(getattr(result, name)) for name in ("guarantee",) if hasattr(result, name)}
    else:
        outcome["error"] = f"{type(error).__name__}: {error}"
        outcome["notes"] = "\n".join(getattr(error, "__notes__", ()))
        outcome["exit"] = str(getattr(error, "code", ""))
    return Observation(outcome, messages, _files(folder, skipped), result, error)


class _LogLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("dpinfer"):
            self.lines.append(f"{record.levelname} {record.getMessage()}")


def _describe(value: Any, path: str, into: dict[str, str], place: str, seen: set[int]) -> None:
    """Write every part of a value under its path, bit for bit."""
    if isinstance(value, (type(None), bool, int, float, str, bytes, np.generic, enum.Enum, type)):
        into[path] = show(value.item() if isinstance(value, np.generic) else value)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray) and value.dtype != object:
        into[path] = show(value)
    elif isinstance(value, Mapping):
        # In their order, which could be that of something private.
        into[path] = f"{type(value).__name__} of {len(value)}: {', '.join(map(repr, value))}"
        for key, item in value.items():
            _describe(item, f"{path}[{key!r}]", into, place, seen)
    elif isinstance(value, (tuple, list, set, frozenset, np.ndarray)):
        into[path] = f"{type(value).__name__} of {len(value)}"
        for index, item in enumerate(value):
            _describe(item, f"{path}[{index}]", into, place, seen)
    else:
        into[path] = re.sub(r"0x[0-9a-f]+", "", repr(value)).replace(place, "")
        parts = vars(value) if hasattr(value, "__dict__") and not callable(value) else {}
        if dataclasses.is_dataclass(value):
            parts = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        for name, item in parts.items():
            _describe(item, f"{path}.{name}", into, place, seen)


def _files(folder: Path, skipped: frozenset[str]) -> dict[str, str]:
    contents = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in skipped:
            continue
        about = stat.filemode(path.lstat().st_mode)
        contents[name] = about if path.is_dir() else f"{about} {show(path.read_bytes())}"
    return contents


@contextlib.contextmanager
def _still(note: Callable[[str], None]) -> Iterator[None]:
    """Fix the operating system's generator and every clock for all runs."""
    drawn = itertools.count()

    def urandom(size: int) -> bytes:
        note(f"{size} bytes from the operating system's generator")
        return random.Random(f"dpinfer replay {next(drawn)}").randbytes(size)  # noqa: S311

    def clock(name: str) -> Callable[[], float | int]:
        ticks = itertools.count(1)

        def read() -> float | int:
            if str(sys._getframe(1).f_globals.get("__name__", "")).startswith("dpinfer"):
                note(f"time.{name}()")
            return next(ticks) * (1000 if name.endswith("_ns") else 1e-6)

        return read

    class Still(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Still":
            note("datetime.now()")
            return cls.fromtimestamp(_NOW.timestamp(), tz)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_set(os, "urandom", urandom))
        stack.enter_context(_set(random, "_urandom", urandom))
        # Files made here are removed at once: only the request and its time count.
        stack.enter_context(_set(os, "fsync", lambda handle: note("os.fsync()")))
        stack.enter_context(_set(tempfile, "_name_sequence", (f"{index:08d}" for index in itertools.count())))
        for name in _CLOCKS:
            stack.enter_context(_set(time, name, clock(name)))
        for name, module in list(sys.modules.items()):
            if name.startswith("dpinfer.") and module.__dict__.get("datetime") is datetime.datetime:
                stack.enter_context(_set(module, "datetime", Still))
        yield


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# A hook of the interpreter stays for ever: there is one, which does nothing while nobody watches.
_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watcher in _watchers:
        watcher(event, arguments)


@contextlib.contextmanager
def _watching(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Note operations on the files of a folder, and every new process and connection."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OTHER_EVENTS:
            note(event)
        elif event in _FILE_EVENTS:
            texts = [os.fsdecode(item) if isinstance(item, (bytes, os.PathLike)) else item for item in arguments]
            if any(isinstance(item, str) and item.startswith(str(folder)) for item in texts):
                note(f"{event} {show(texts)}")

    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)
