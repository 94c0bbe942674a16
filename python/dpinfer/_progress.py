"""Progress of long work: a one-line bar on a terminal, or whatever the caller passes."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["ProgressCallback", "resolve_progress"]

ProgressCallback = Callable[[int, int], None]

_WIDTH = 30
_REFRESH_SECONDS = 0.1


class _Bar:
    """Draws ``label [#####.....] 50%  3 s left`` on stderr, at most ten times a second."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label = label
        self._stream = stream
        self._start = time.monotonic()
        self._last = -_REFRESH_SECONDS

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic() - self._start
        finished = done >= total
        if not finished and now - self._last < _REFRESH_SECONDS:
            return
        self._last = now
        share = done / total if total else 1.0
        filled = round(_WIDTH * share)
        left = f"{now:.1f} s" if finished else f"{now * (1.0 - share) / share:.0f} s left" if share else ""
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._stream.write(f"\r{self._label} [{bar}] {100.0 * share:3.0f}%  {left:<12}" + ("\n" if finished else ""))
        self._stream.flush()


def resolve_progress(progress: bool | ProgressCallback, label: str) -> ProgressCallback:
    """Return a callback ``(done, total)``: silent, a bar on a terminal's stderr, or the caller's own.

    Parameters
    ----------
    progress : bool or callable
        True draws a bar where stderr is a terminal and is silent elsewhere.
    label : str

    Raises
    ------
    TypeError
        If `progress` is neither.
    """
    if callable(progress):
        return progress
    if not isinstance(progress, bool):
        raise TypeError(f"progress must be a bool or a callable, got {type(progress).__name__}")
    if progress and sys.stderr.isatty():
        return _Bar(label, sys.stderr)
    return lambda done, total: None
