"""The private side: records go in, a :class:`~dpinfer.release.Release` comes out.

**Privacy.** The only package that reads records.  Nothing that it computes from them leaves it without noise.
"""

import os

# GNU OpenMP lets idle threads spin for milliseconds.  A step takes a fraction of one, so on a machine with other work
# the spinning thread would keep its own step's other thread from running: spin for some microseconds, then sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from dpinfer.mechanism.checkpoint import RunCheckpoint
from dpinfer.mechanism.dpvi import run_dpvi
from dpinfer.mechanism.random_source import OSRandomSource, RandomSource
from dpinfer.mechanism.scaling import FisherScaling, largest_natural_rate

__all__ = [
    "FisherScaling",
    "OSRandomSource",
    "RandomSource",
    "RunCheckpoint",
    "largest_natural_rate",
    "run_dpvi",
]
