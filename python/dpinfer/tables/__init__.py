"""Noisy tables beside regressions: counts, cross-tables and means of a table of records, with intervals.

**Privacy.** :func:`counts`, :func:`crosstab` and :func:`means` read the records, each for one charge; what they return,
and :func:`table` and :func:`load`, are post-processing.
"""

from dpinfer.tables.noisy_table import NoisyTable, load, table
from dpinfer.tables.queries import counts, crosstab, means

__all__ = ["NoisyTable", "counts", "crosstab", "load", "means", "table"]
