"""What is allowed and hardly meant: a delta as large as one record's share, a public count far from the table's.

**Privacy.** Reads no records.  Neither is said where it would tell of a private number.
"""

import warnings

from dpinfer.accounting.adjacency import Adjacency
from dpinfer.errors import WeakGuaranteeWarning

__all__ = ["caution_of_count", "caution_of_delta"]

_FAR_OFF = 10.0


def caution_of_delta(delta: float, n_records: int, *, stacklevel: int = 3) -> None:
    """Warn when delta is at least 1 / n_records.

    Publishing one record, drawn at random, as it is would be (0, 1 / n_records)-differentially private: a delta of that
    size allows it (Dwork and Roth 2014, section 2.3).

    Parameters
    ----------
    delta : float
    n_records : int
        The *public* number of records.
    stacklevel : int

    Warns
    -----
    WeakGuaranteeWarning
    """
    if delta * n_records >= 1.0:
        warnings.warn(
            f"delta = {delta:g} is at least 1 / n_records = {1.0 / n_records:.3g}: publishing a whole record, drawn at "
            "random, would meet such a guarantee; choose a delta well below 1 / n_records",
            WeakGuaranteeWarning,
            stacklevel=stacklevel,
        )


def caution_of_count(adjacency: Adjacency, n_records: int, n_rows: int, *, stacklevel: int = 3) -> None:
    """Warn when the public number of records is ten times off the number of rows, where that number is public.

    Under "add_remove" the number of rows is private: whether the warning comes would depend on a single record, and a
    message is part of what leaves.  So nothing is said.  Neighbours under the other relations have as many rows.

    Parameters
    ----------
    adjacency : Adjacency
    n_records, n_rows : int
    stacklevel : int

    Warns
    -----
    WeakGuaranteeWarning
    """
    if adjacency is Adjacency.ADD_REMOVE:
        return
    if not n_rows / _FAR_OFF < n_records < n_rows * _FAR_OFF:
        warnings.warn(
            f"n_records = {n_records} is ten times off the number of rows, {n_rows}, which is public under "
            f"{adjacency.value!r}: results will be far off; give the number of rows",
            WeakGuaranteeWarning,
            stacklevel=stacklevel,
        )
