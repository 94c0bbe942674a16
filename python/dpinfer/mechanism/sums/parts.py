"""Parts of a sum: integers that go from one exact sum into another, and nowhere else."""

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism import _native


def integers_of_part(part: _native.PartialSum) -> npt.NDArray[np.int64]:  # (length,) int64
    """Return the integers of a partial sum, for addition to another sum.

    **Privacy.** Exact: as private as the records.  Only code that adds them to a sum with noise may call this; record
    and replay reports any other reading of a sum's integers as a leak (docs/derivations/audit.md).
    """
    return part.integers
