"""The noisy number of records that a release's sums were over, beside the number that was declared.

**Privacy.** Post-processing of a release: nothing is asked for it.  Histograms of responses, lengths and sizes have
every record in one interval, so that their noisy shares sum to the number of records over the declared one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from dpinfer.inference.newton import tuning
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.models.clipping import mallows_mean
from dpinfer.release import GlmNewtonRelease, OwnNewtonRelease, OwnPopulationRelease, Release
from dpinfer.release.newton.population import PopulationSums
from dpinfer.release.newton.regression import ScoreSums

Kind = TypeVar("Kind", bound=Release)
_HISTOGRAMS = ("counts", "reach", "lengths", "sizes")
# Means over the declared number of records, beside the standard deviations of their noise.
_MEANS = (
    *_HISTOGRAMS,
    *("means", "moments", "rare", "frame", "approach_breads", "bread", "meat", "slope", "matrices", "strata"),
    *("cluster_sizes",),
    *("scores", "localise_scores", "scale_scores", "norm_shares", "tallies"),
)


@dataclass(frozen=True)
class UsedRecords:
    """How many records the sums of a release were over, as far as noise lets it be known.

    **Privacy.** Post-processing of a release.

    Parameters
    ----------
    count : float
    stddev : float
        Of the noise.
    declared : int
        The public number of records of the run.
    units : bool
        Whether these are protected units with all of their rows.
    """

    count: float
    stddev: float
    declared: int
    units: bool = False

    @property
    def differs(self) -> bool:
        """Whether the declared number is not that of the sums, by three standard deviations of the noise."""
        return abs(self.count - self.declared) > tuning.TUNING.sure * self.stddev

    @property
    def contradicts(self) -> bool:
        """Whether it differs by enough to warn: public numbers of records are often rounded."""
        return self.differs and abs(self.count - self.declared) > tuning.TUNING.records_apart * self.declared

    @property
    def warning(self) -> str:
        """Both numbers, and what to do; empty without a contradiction."""
        if not self.contradicts:
            return ""
        return (
            f"the run used {self}: are values missing or unreadable, or does n_records count something else? The "
            "posterior is that of the released number; the run's own bounds were chosen for n_records"
        )

    def __str__(self) -> str:
        what = "units" if self.units else "records"
        return f"about {max(round(self.count), 0)} {what} (noise {self.stddev:.2g}), n_records says {self.declared}"


def used_records(release: Release) -> UsedRecords | None:
    """Return the noisy number of records of a private Newton run, None where no sum tells it.

    **Privacy.** Post-processing of a release.

    Notes
    -----
    Sums by precision: docs/derivations/private-newton.md, "The number of records".
    """
    if isinstance(release, PopulationSums) and "unit" in release.settings:
        return _summed([_histogram(release, "sizes")], release.n_scores, units=True)
    return _summed(list(_shares(release)), release.n_records) if isinstance(release, ScoreSums) else None


def _summed(found: list[tuple[float, float]], declared: int, *, units: bool = False) -> UsedRecords | None:
    if not found:
        return None
    share, noise = np.array(found).T
    precision = noise**-2.0
    count, stddev = float(precision @ share / precision.sum()), float(precision.sum() ** -0.5)
    return UsedRecords(count * declared, stddev * declared, declared, units)


def _histogram(release: ScoreSums, name: str) -> tuple[float, float]:
    shares = np.asarray(getattr(release, name))
    return float(shares.sum()), float(getattr(release, f"{name}_stddev")) * math.sqrt(shares.size)


def _shares(release: ScoreSums) -> Iterator[tuple[float, float]]:
    """Yield each sum's number of records over the declared one, and its standard deviation."""
    for name in _HISTOGRAMS:
        if np.size(getattr(release, name, ())):
            yield _histogram(release, name)
    if isinstance(release, (OwnNewtonRelease, OwnPopulationRelease)) and release.norm_edges.size:
        shares = release.norm_shares
        yield from zip(shares.sum(axis=1), release.norm_stddev * math.sqrt(shares.shape[1]), strict=True)
    if isinstance(release, OwnNewtonRelease) and release.tallied:
        yield from zip(release.tallies[:, 1], release.tally_stddev, strict=True)
    if isinstance(release, GlmNewtonRelease) and not release.counts.size and release.model_spec.get("fit_intercept"):
        yield _share_of_the_constant(release)


def _share_of_the_constant(release: GlmNewtonRelease) -> tuple[float, float]:
    """Return the mean weight of the rows, over that of normal features, from their second moments.

    With a'z the constant feature 1, a'Ma is the mean of the weights.
    """
    constant, found = np.eye(release.n_coef)[-1], []
    geometry = (release.transforms, release.moments, release.moment_stddev, release.moment_bounds)
    for transform, matrix, noise, bound in zip(*geometry, strict=True):
        a = np.linalg.solve(transform.T, constant)
        weight = mallows_mean(release.n_coef, float(bound))
        found.append((float(noise * (a @ a)) / weight, float(a @ matrix @ a) / weight))
    stddev, share = min(found)
    return share, math.hypot(stddev, tuning.TUNING.constant_weight * max(share, 0.0))


def as_counted(release: Kind) -> Kind:
    """Return the release with the noisy number of records as its own, and its sums per record of these.

    The release itself where the declared number does not differ from it, or units are protected.  Only the unit of the
    sums changes: their noise, and what they cost, are those of the release.

    **Privacy.** Post-processing of a release.
    """
    used = used_records(release)
    if used is None or used.units or not used.differs:
        return release
    # Without records there is no number to divide by, and noise tells of none below its own size.
    number = max(round(used.count), round(used.stddev), 1)
    changed: dict[str, Any] = {
        item.name: getattr(release, item.name) * (used.declared / number)
        for item in fields(release)
        if item.name in _MEANS or item.name.endswith("stddev")
    }
    return replace(release, n_records=number, **changed)


def with_used_records(release: Kind, infer: Callable[[Kind], Posterior]) -> Posterior:
    """Return the posterior of a release with its noisy number of records; its diagnostics tell both numbers.

    **Privacy.** Post-processing of a release.
    """
    used = used_records(release)
    found = infer(as_counted(release))
    if used is None:
        return found
    known = found.diagnostics
    told: dict[str, Any] = {"records_used": used.count, "records_noise": used.stddev, "records_declared": used.declared}
    if used.contradicts:
        told["warnings"] = tuple(dict.fromkeys((*known.warnings, "n_records")))
        told["verdict"] = f"{known.verdict}  {used.warning[0].upper()}{used.warning[1:]}."
    return replace(found, diagnostics=replace(known, **told))
