"""Releases: the published results of private mechanisms.

**Privacy.** Every :class:`Release` holds noisy quantities and public settings only: a :class:`GradientTrace`, a
:class:`SiteRelease` (the trace of DP-SEP), a :class:`NetworkRelease` (that of a network), a :class:`NewtonRelease` (the
sums of a private Newton run), a :class:`StatisticRelease` (a model's noisy statistic) or a :class:`SumRelease` (noisy
sums of any query).  Everything computed from it is post-processing and costs nothing.
"""

import warnings
from typing import Any

from dpinfer.release.external import release_from_arrays
from dpinfer.release.files import load_release, save_release
from dpinfer.release.guarantee import Part, Release
from dpinfer.release.newton.own import OwnNewtonRelease, OwnPopulationRelease
from dpinfer.release.newton.population import ClusteredPopulationRelease, PopulationRelease
from dpinfer.release.newton.regression import GlmNewtonRelease, NewtonRelease, SumsOfPasses
from dpinfer.release.sites.trace import NetworkRelease, SiteRelease
from dpinfer.release.statistic import StatisticRelease
from dpinfer.release.sums import SumRelease
from dpinfer.release.trace import GradientTrace
from dpinfer.release.unknowns import BoundsRelease, CategoriesRelease, CountRelease

__all__ = [
    "BoundsRelease",
    "CategoriesRelease",
    "ClusteredPopulationRelease",
    "CountRelease",
    "GlmNewtonRelease",
    "GradientTrace",
    "NetworkRelease",
    "NewtonRelease",
    "OwnNewtonRelease",
    "OwnPopulationRelease",
    "Part",
    "PopulationRelease",
    "Release",
    "SiteRelease",
    "StatisticRelease",
    "SumRelease",
    "SumsOfPasses",
    "load_release",
    "release_from_arrays",
    "save_release",
]

_DEPRECATED = {"AnyRelease": Release}


def __getattr__(name: str) -> Any:
    """Return the base class of releases by its name of version 0.1."""
    if name in _DEPRECATED:
        warnings.warn(f"{name} is now Release; the old name ends in 0.3", DeprecationWarning, stacklevel=2)
        return _DEPRECATED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
