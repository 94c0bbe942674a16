"""What crosses the privacy boundary: what a private mechanism has published.

**Privacy.** A :class:`Release` (a gradient trace), :class:`SiteRelease` (the trace of DP-SEP), :class:`NetworkRelease`
(that of a network), :class:`StatisticRelease` (noisy sums), :class:`NewtonRelease` or :class:`LogisticNewtonRelease`
(the sums of a private Newton run of a linear or logistic regression) holds noisy quantities and public
settings only; everything computed from it is post-processing and costs nothing.
"""

from dpinfer.release.external import release_from_arrays
from dpinfer.release.files import load_release, save_release
from dpinfer.release.network_trace import NetworkRelease
from dpinfer.release.newton_logistic import LogisticNewtonRelease
from dpinfer.release.newton_trace import NewtonRelease
from dpinfer.release.parts import Part
from dpinfer.release.site_trace import SiteRelease
from dpinfer.release.statistic import StatisticRelease
from dpinfer.release.trace import Release

__all__ = [
    "LogisticNewtonRelease",
    "NetworkRelease",
    "NewtonRelease",
    "Part",
    "Release",
    "SiteRelease",
    "StatisticRelease",
    "load_release",
    "release_from_arrays",
    "save_release",
]
