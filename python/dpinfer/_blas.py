"""One thread of the linear algebra library while many small matrices are multiplied."""

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
