"""Warnings about settings that are allowed but rarely intended: a delta as large as one record's share.

**Privacy.** Reads no records. The warnings are functions of public numbers.
"""

import warnings

from dpinfer.errors import WeakGuaranteeWarning


def caution_of_delta(delta: float, n_records: int, *, stacklevel: int = 3) -> None:
    """Warn when delta is at least 1 / n_records.

    Publishing one record, drawn at random, as it is would be (0, 1 / n_records)-differentially private: a delta of that
    size allows it (Dwork and Roth 2014, section 2.3).

    Parameters
    ----------
    n_records : int
        The *public* number of records.

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
