"""Progress of long work: a bar on a terminal and in a notebook, or the caller's callback."""

import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

ProgressCallback = Callable[[int, int], None]

# Shorter work shows no bar by default: chosen as a wait that users notice.
_QUIET_SECONDS = 2.0


class _Bar:
    """Draws with tqdm, from the first report on: on stderr, or as a widget in a notebook that has them."""

    def __init__(self, label: str, delay: float) -> None:
        # tqdm is loaded here, before a run is charged.
        self._start = _starter(label, delay)
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            # A run resumed from a checkpoint begins in the middle: the bar counts time from there.
            self._bar = self._start(total=total, initial=done)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()


def resolve_progress(progress: bool | ProgressCallback | None, label: str) -> ProgressCallback:
    """Return a callback ``(done, total)``: silent, a visible bar, or the caller's own.

    Raises TypeError if `progress` is neither.

    Parameters
    ----------
    progress : bool or callable, optional
        True draws a bar where stderr is a terminal, and in a notebook; it is silent elsewhere.  None draws it there
        when the work has gone on for two seconds.
    """
    if callable(progress):
        return progress
    if progress is not None and not isinstance(progress, bool):
        raise TypeError(f"progress must be a bool or a callable, got {type(progress).__name__}")
    if progress is not False and (sys.stderr.isatty() or _in_notebook()):
        return _Bar(label, _QUIET_SECONDS if progress is None else 0.0)
    return lambda done, total: None


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _starter(label: str, delay: float) -> Callable[..., Any]:
    """Return a function that starts a tqdm bar without tqdm's thread and its lock between processes."""
    options: dict[str, Any] = {"desc": label, "delay": delay}
    if _in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

        # On a terminal of unknown size tqdm would draw nothing.
        options["ncols"], options["nrows"] = shutil.get_terminal_size()
    kind: Any = type("Bar", (tqdm,), {"monitor_interval": 0})
    kind.set_lock(threading.RLock())
    return partial(kind, **options)
