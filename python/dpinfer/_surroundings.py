"""What surrounds a computation: its arithmetic, rounding to nearest with subnormal numbers; a BLAS thread; progress."""

import contextlib
import ctypes
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from threadpoolctl import ThreadpoolController

ProgressCallback = Callable[[int, int], None]

_QUIET_SECONDS = 2.0  # shorter work shows no bar by default: chosen as a wait that users notice


def one_blas_thread() -> AbstractContextManager[Any]:
    """Let BLAS use one thread, in the whole process, while the block runs.

    A sampler multiplies small matrices thousands of times.  Threads of BLAS wait for one another by spinning, which is
    slower than one thread for matrices of this size, and slower without bound where other processes want the cores.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


@cache
def _controller() -> ThreadpoolController:
    # The controller finds the libraries loaded so far: NumPy's, and SciPy's with this import.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()


_QUARTER_UNIT = 2.0**-54  # out of the reach of constant folding: the process's own arithmetic must answer
_LEAST_NORMAL = sys.float_info.min
_LEAST = 5e-324  # the least subnormal double
# glibc and musl: the address that stands for the default environment, and more room than a saved one takes.
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)
_ENVIRONMENT_BYTES = 256  # a fenv_t has 32 bytes on x86-64, 8 on ARM


def is_standard() -> bool:
    """Return whether this thread's arithmetic rounds to nearest and keeps subnormal numbers."""
    nearest = 1.0 + _QUARTER_UNIT == 1.0 and -1.0 - _QUARTER_UNIT == -1.0 and 1.0 - 0.5 * _QUARTER_UNIT == 1.0
    # The flags in hardware work on each operation: a half of the least normal number is flushed, or its double is.
    half = _LEAST_NORMAL * 0.5
    return nearest and half + half == _LEAST_NORMAL and _LEAST * 2.0**60 > 0.0


@contextlib.contextmanager
def standard_arithmetic() -> Iterator[None]:
    """Set this thread's arithmetic to the standard within the block or the decorated function, then restore it.

    Any library in the process may have set another: a directed rounding mode, or flush-to-zero by code linked with
    ``-ffast-math``.  Bounds that count roundings to nearest would silently be wrong.

    Raises FloatingPointError if the mode differs and cannot be set on this system.
    """
    if is_standard():
        yield
        return
    library = _library()
    saved = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    if library is not None:
        library.fegetenv(saved)
        library.fesetenv(_DEFAULT_ENVIRONMENT)
    try:
        if not is_standard():
            raise FloatingPointError(
                "floating-point arithmetic must round to nearest and keep subnormal numbers in this thread, and does "
                "not: a library in the process has set another mode; reset it (fesetenv(FE_DFL_ENV)), or use a process "
                "without that library"
            )
        yield
    finally:
        if library is not None:
            library.fesetenv(saved)


def _library() -> ctypes.CDLL | None:
    """Return the C library if this code knows the address of its default environment."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return None
    for name in ("libm.so.6", None):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            _ = library.fegetenv, library.fesetenv
            return library
    return None


def note(text: str, *public: object, detail: bool = False) -> None:
    """Log a line of public facts, formatted with ``%``, to the logger "dpinfer": at INFO, a `detail` at DEBUG.

    A process that has not loaded `logging` has nobody who listens.
    """
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger("dpinfer").log(logging.DEBUG if detail else logging.INFO, text, *public)


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

    True draws a bar where stderr is a terminal, and in a notebook; it is silent elsewhere.  None draws it there when
    the work has gone on for two seconds.

    Raises TypeError if `progress` is neither.
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
