"""Rows that a GPU sums: an optional backend of the private Newton method.

**Privacy.** The GPU holds the records while a run lasts, and its memory is wiped after it.  It returns the integers of
the CPU's passes, bit for bit (docs/derivations/private-sum.md); noise is drawn on the CPU, as ever.
"""

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._records import as_record_array
from dpinfer.errors import BackendUnavailableError
from dpinfer.mechanism.sources.sparse import is_sparse
from dpinfer.mechanism.sums import CodedRows, RowSource, ShardedRows

# Memory of a pass besides the rows: its sums, and its public numbers.
_PASS_BYTES = 2**30


class CudaRows:
    """An array of features whose passes are made on a GPU, as `X` of ``run_newton``.

    The release has the bits of a run on the CPU.  The rows are copied to the GPU once; numbers of every kind are
    float64 or float32 there, as on the CPU.

    **Privacy.** Holds the records.

    Parameters
    ----------
    X : (N, n_features) array

    Raises
    ------
    BackendUnavailableError
        If the package was built without it (``-DDPINFER_CUDA=ON``), there is no GPU, or its free memory is less than
        the rows need.
    TypeError
        If X is sparse, a RowSource or ShardedRows.
    RecordError
        If X cannot be made an array.
    """

    def __init__(self, X: npt.ArrayLike) -> None:
        if is_sparse(X) or isinstance(X, (CodedRows, RowSource, ShardedRows)):
            raise TypeError(f"X must be an array for a GPU, got {type(X).__name__}")
        backend = _backend()
        self.array: npt.NDArray[Any] = as_record_array("X", X)
        # Types other than float64 and float32 become float64.
        size = self.array.itemsize if self.array.dtype == np.float32 else 8
        n_rows = self.array.shape[0] if self.array.ndim else 1
        if self.array.size * size + 8 * n_rows + _PASS_BYTES > backend.free_bytes():
            raise BackendUnavailableError("X needs more memory than is free on the GPU: pass the array itself")


def _backend() -> ModuleType:
    try:
        from dpinfer.mechanism import _cuda
    except ImportError as error:
        raise BackendUnavailableError(
            "passes on a GPU (backend='cuda', CudaRows) need a build of the package with -DDPINFER_CUDA=ON, and CUDA's "
            "library"
        ) from error
    if _cuda.device_count() == 0:
        raise BackendUnavailableError("passes on a GPU (backend='cuda', CudaRows) need a GPU, and CUDA finds none")
    return _cuda
