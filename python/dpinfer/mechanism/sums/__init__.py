"""Sums over the records of a model: compiled kernels and NumPy code.

A model names its kind of sum (``gradient_sum``, ``site_sum``); `gradients.py` and `sites.py` open a session of that
kind.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism.
"""

from dpinfer.mechanism.records import CodedRows
from dpinfer.mechanism.sources.row_source import RowSource, open_source
from dpinfer.mechanism.sources.shards import ShardedRows, rows_of_dask
from dpinfer.mechanism.sums.gradients import GradientSession, SessionSettings, open_gradients

__all__ = [
    "CodedRows",
    "GradientSession",
    "RowSource",
    "SessionSettings",
    "ShardedRows",
    "open_gradients",
    "open_source",
    "rows_of_dask",
]
