"""The arithmetic of a computation: rounding to nearest with subnormal numbers, as proofs assume; one BLAS thread."""

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


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


# Kept out of the reach of constant folding: the process's own arithmetic must answer.
_QUARTER_UNIT = 2.0**-54
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
