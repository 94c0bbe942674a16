"""The private side: records go in, a :class:`~dpinfer.release.Release` comes out.

**Privacy.** The only package that reads records.  Nothing that it computes from them leaves it without noise.
"""

from dpinfer.mechanism.dpvi import run_dpvi
from dpinfer.mechanism.random_source import OSRandomSource, RandomSource
from dpinfer.mechanism.scaling import FisherScaling

__all__ = ["FisherScaling", "OSRandomSource", "RandomSource", "run_dpvi"]
