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


def add_in_place(total: _native.PartialSum, part: _native.PartialSum, first: int, behind: int) -> None:
    """Add a partial sum of the same lattice step to the entries of `total` from `first` on, and a number behind them.

    **Privacy.** One record moves `total` by at most the norm of its contribution to entries and number together.

    Raises ValueError if the steps differ: integers would then mean other numbers.
    """
    if part.lattice_step != total.lattice_step:
        raise ValueError("part must have the lattice of the total")
    integers = np.zeros(total.length, dtype=np.int64)
    integers[first : first + part.length] = integers_of_part(part)
    integers[first + part.length] = behind
    total.merge(integers)
