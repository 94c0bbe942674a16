"""What crosses the privacy boundary: what a private mechanism has published.

**Privacy.** A :class:`Release` (a gradient trace), :class:`SiteRelease` (the trace of DP-SEP), :class:`NetworkRelease`
(that of a network), :class:`NewtonRelease` (the sums of a private Newton run) or :class:`StatisticRelease` (one noisy
sum) holds noisy quantities and public settings only; everything computed from it is post-processing and costs nothing.
"""

from dpinfer.release.external import release_from_arrays
from dpinfer.release.files import load_release, save_release
from dpinfer.release.guarantee import AnyRelease
from dpinfer.release.network_trace import NetworkRelease
from dpinfer.release.newton_glm import GlmNewtonRelease
from dpinfer.release.newton_own import OwnNewtonRelease
from dpinfer.release.newton_population import PopulationRelease
from dpinfer.release.newton_trace import NewtonRelease, SumsOfPasses
from dpinfer.release.parts import Part
from dpinfer.release.site_trace import SiteRelease
from dpinfer.release.statistic import StatisticRelease
from dpinfer.release.trace import Release
from dpinfer.release.unknowns import BoundsRelease, CategoriesRelease, CountRelease

__all__ = [
    "AnyRelease",
    "BoundsRelease",
    "CategoriesRelease",
    "CountRelease",
    "GlmNewtonRelease",
    "NetworkRelease",
    "NewtonRelease",
    "OwnNewtonRelease",
    "Part",
    "PopulationRelease",
    "Release",
    "SiteRelease",
    "StatisticRelease",
    "SumsOfPasses",
    "load_release",
    "release_from_arrays",
    "save_release",
]
