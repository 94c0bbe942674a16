"""Sums over the records of a model: compiled kernels and NumPy code.

A model names its kind of sum (``gradient_sum``, ``site_sum``); a registry holds functions that open a session of that
kind. A new kernel or source registers here and changes nothing else.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism.
"""

from dpinfer.mechanism.sources.held import CodedRows
from dpinfer.mechanism.sources.named import open_source
from dpinfer.mechanism.sources.row_source import RowSource
from dpinfer.mechanism.sources.shards import ShardedRows, rows_of_dask
from dpinfer.mechanism.sums import numpy_sums
from dpinfer.mechanism.sums.gradients import GradientSession, SessionSettings, open_gradients
from dpinfer.mechanism.sums.registry import find_sum, sums

__all__ = [
    "CodedRows",
    "GradientSession",
    "RowSource",
    "SessionSettings",
    "ShardedRows",
    "find_sum",
    "numpy_sums",
    "open_gradients",
    "open_source",
    "rows_of_dask",
    "sums",
]
