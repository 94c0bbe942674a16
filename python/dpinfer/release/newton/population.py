"""Releases of private Newton runs for the population's coefficients: breads, sizes, scores, meat, their noise."""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import POSITIVE, Shape, check_integer
from dpinfer.release.newton.regression import RegressionSums, ScoreSums, no_directions, no_means

NO_WEIGHTS = 1e300  # longer than any score


def no_breads() -> FloatArray:
    """Return the breads of a release without any on the way to the scores' zero."""
    return np.empty((0, 0, 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class PopulationSums(ScoreSums):
    """What the releases for the population's coefficients share: bread, sizes, scores and meat; see the subclasses."""

    lengths: Annotated[FloatArray, Shape("cells")]
    lengths_stddev: Annotated[float, POSITIVE]
    length_unit: Annotated[float, POSITIVE]
    bread_transform: Annotated[FloatArray, Shape("d d")]
    bread: Annotated[FloatArray, Shape("d d")]
    bread_stddev: Annotated[float, POSITIVE]
    bread_bound: Annotated[float, POSITIVE]
    bread_position: Annotated[FloatArray, Shape("d")]
    score_transform: Annotated[FloatArray, Shape("d d")]
    localise_positions: Annotated[FloatArray, Shape("L d")]
    localise_scores: Annotated[FloatArray, Shape("L d")]
    localise_bounds: Annotated[FloatArray, Shape("L", positive=True)]
    sizes: Annotated[FloatArray, Shape("cells")]
    sizes_stddev: Annotated[float, POSITIVE]
    size_unit: Annotated[float, POSITIVE]
    score_bound: Annotated[float, POSITIVE]
    score_bounds: Annotated[FloatArray, Shape("T", positive=True)]
    weight_bound: Annotated[float, POSITIVE] = NO_WEIGHTS
    meat: Annotated[FloatArray, Shape("d d")]
    meat_stddev: Annotated[float, POSITIVE]
    meat_position: Annotated[FloatArray, Shape("d")]

    @property
    def _bread_sums(self) -> list[tuple[float, float]]:
        return [(self.lengths_stddev, 1.0), (self.bread_stddev, self.bread_bound**2)]

    @property
    def _score_sums(self) -> list[tuple[float, float]]:
        measure = list(zip(self.score_stddev.tolist(), self.score_bounds.tolist(), strict=True))
        return [(self.sizes_stddev, 1.0), *measure, (self.meat_stddev, self.score_bound**2)]

    @property
    def n_scores(self) -> int:
        """Number of independent scores: records, or protected units."""
        return int(self.settings.get("unit", {}).get("n_units", self.n_records))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PopulationRelease(RegressionSums, PopulationSums):
    """Everything a private Newton run for the population's coefficients has published.

    Sums are divided by the public number of records.  With x the features, r = y - E[y | x] at the weights of a point u
    and s the derivative of E[y | x] in the linear predictor, the bread is the mean of s z z' for z = bread_transform x,
    each record's matrix shortened to the Frobenius norm bread_bound**2; with z = score_transform x score t is the mean
    of r z at positions[t], each shortened to the norm `score_bound`, and the meat is the mean of r**2 z z' at
    `meat_position`, each shortened to score_bound**2.  The weights of a point u are score_transform' u.  Matrices have
    noise of the named standard deviation on the diagonal and 1 / sqrt(2) of it beside the diagonal.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Raises TypeError or ValueError if a field has the wrong type, shape or range, or `event` claims other sums or less
    noise than these.

    Parameters
    ----------
    counts, edges, counts_stddev
        Shares of the responses by size, as in :class:`NewtonRelease`; empty for responses of 0 and 1.
    means, means_stddev, means_bounds, transforms, moments, moment_stddev, moment_bounds
        As in :class:`NewtonRelease`.
    rare_transform : (k, d) float64, optional
        Stretched directions, of unit length where moments are the identity; empty in a release of earlier versions.
    rare : (k, k) float64, optional
        Mean of w t t' for t = rare_transform x, w = min(1, rare_bound**2 / t't).
    rare_stddev, rare_bound : float, optional
    reach, frame, frame_transform : (m,), (d, d), (d, d) float64, optional
        Without a scale: as `lengths`, `bread` and `bread_transform`, at the weights `frame_position`, (d,), before the
        coordinates of the scores are known; empty in a release of earlier versions, and of a linear regression.
    reach_stddev, reach_unit, frame_stddev, frame_bound : float, optional
    n_approach : int, optional
        How many of the scores precede the bread; 0 without a frame.
    approach_breads : (n_approach - 1, d, d) float64, optional
        As `bread`, in the same coordinates: after each of these scores but the last, where the next one is.
    approach_stddev, approach_bound : (n_approach - 1,) float64, float, optional
        `approach_bound` is the largest Frobenius norm.
    lengths : (m,) float64
        Noisy shares of the records by s**(1/2) times the norm of z = bread_transform x, between the edges of
        :data:`dpinfer.models.clipping.SIZE_EDGES` times `length_unit`.
    lengths_stddev, length_unit : float
    bread_transform, bread : (d, d) float64
    bread_stddev, bread_bound : float
    bread_position : (d,) float64
        Weights at which s is taken.
    score_transform : (d, d) float64
        Whitens the bread, or the frame.
    localise_positions, localise_scores : (L, d) float64
    localise_score_stddev, localise_bounds : (L,) float64
        Noise, and the largest norm of a record's score.
    scale_scores, scale_stddev, scale_units : (L,) float64, or (0,)
        As in :class:`NewtonRelease`.
    sizes : (m,) float64
        Noisy shares of the records by the norm of r z, between the same edges times `size_unit`.
    sizes_stddev, size_unit : float
    positions, scores : (T, d) float64
    score_stddev : (T,) float64
    score_bound : float
        The largest norm of a record's last score.
    score_bounds : (T,) float64, optional
        Of each score; `score_bound` where it is not given.
    weight_bound : float, optional
        Of responses of 0 and 1: a record's r and s, in scores, bread and meat, are times the largest weight, at most 1,
        with which r z is at most this long for both responses; 1e300 where there are no such weights.
    meat : (d, d) float64
    meat_stddev : float
    meat_position : (d,) float64
    strata : (H, d + 1) float64, optional
        For each stratum the sum of its scores at `meat_position`, shortened with their counts to the norm
        `strata_bound`, and `strata_unit` times the number of its rows, units or clusters; both per row.  Empty without
        strata.
    strata_stddev, strata_unit, strata_bound : float, optional
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`, like `names` and `n_records`.
    """

    localise_score_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    score_bounds: Annotated[FloatArray, Shape("T", positive=True)] = field(default_factory=no_means)
    scale_scores: Annotated[FloatArray, Shape("scales")] = field(default_factory=no_means)
    scale_stddev: Annotated[FloatArray, Shape("scales")] = field(default_factory=no_means)
    scale_units: Annotated[FloatArray, Shape("scales")] = field(default_factory=no_means)
    rare_transform: Annotated[FloatArray, Shape("rare rare_d")] = field(default_factory=no_directions)
    rare: Annotated[FloatArray, Shape("rare rare")] = field(default_factory=no_directions)
    rare_stddev: Annotated[float, POSITIVE] = 1.0
    rare_bound: Annotated[float, POSITIVE] = 1.0
    reach: Annotated[FloatArray, Shape("reach")] = field(default_factory=no_means)
    reach_stddev: Annotated[float, POSITIVE] = 1.0
    reach_unit: Annotated[float, POSITIVE] = 1.0
    frame_transform: Annotated[FloatArray, Shape("frame frame")] = field(default_factory=no_directions)
    frame: Annotated[FloatArray, Shape("frame frame")] = field(default_factory=no_directions)
    frame_stddev: Annotated[float, POSITIVE] = 1.0
    frame_bound: Annotated[float, POSITIVE] = 1.0
    frame_position: Annotated[FloatArray, Shape("frame")] = field(default_factory=no_means)
    n_approach: int = 0
    approach_breads: Annotated[FloatArray, Shape("breads breads_d breads_d")] = field(default_factory=no_breads)
    approach_stddev: Annotated[FloatArray, Shape("breads", positive=True)] = field(default_factory=no_means)
    approach_bound: Annotated[float, POSITIVE] = 1.0
    strata: Annotated[FloatArray, Shape("strata strata_d")] = field(default_factory=no_directions)
    strata_stddev: Annotated[float, POSITIVE] = 1.0
    strata_unit: Annotated[float, POSITIVE] = 1.0
    strata_bound: Annotated[float, POSITIVE] = 1.0

    format_name: ClassVar[str] = "dpinfer-population-release"
    _target: ClassVar[str] = ", the population's coefficients"

    def __post_init__(self) -> None:
        if not np.size(self.score_bounds):
            object.__setattr__(self, "score_bounds", np.full(len(self.positions), float(self.score_bound)))
        scales, along = np.size(self.scale_scores), len(self.rare)
        if scales not in (0, len(self.localise_scores)):
            raise ValueError(f"scale_scores must be empty, or one for each of localise_scores, got {scales}")
        weights, strata = np.shape(self.positions)[-1], len(self.strata)
        sizes = {"rare_d": weights if along else 0, "strata": strata, "strata_d": weights + 1 if strata else 0}
        framed = bool(np.size(self.frame))
        sizes |= {"frame": weights if framed else 0, "reach": np.size(self.lengths) if framed else 0}
        breads = len(self.approach_breads)
        sizes |= {"breads": breads, "breads_d": weights if breads else 0}
        d = self._check_regression(scales=scales, rare=along, **sizes)["d"]
        least, most = (1, len(self.scores) - 1) if framed else (0, 0)
        object.__setattr__(self, "n_approach", check_integer("n_approach", self.n_approach, least, most))
        self._check_claims(d + (scales > 0))

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        begin = [
            *([(self.counts_stddev, 1.0)] if self.counts.size else []),
            *zip(self.means_stddev, self.means_bounds, strict=True),
            *zip(self.moment_stddev, np.square(self.moment_bounds), strict=True),
        ]
        localise = list(zip(self.localise_score_stddev, self.localise_bounds, strict=True))
        rare = [(self.rare_stddev, self.rare_bound**2)] if self.rare.size else []
        bread, scores = self._bread_sums, self._score_sums
        if self.frame.size:
            frame, last = [(self.reach_stddev, 1.0), (self.frame_stddev, self.frame_bound**2)], self.n_approach
            ways = [(noise, self.approach_bound) for noise in self.approach_stddev.tolist()]
            steps = [part for pair in zip(scores[1:last], ways, strict=True) for part in pair]
            middle = [*localise, *rare, *frame, scores[0], *steps, scores[last], *bread, *scores[last + 1 :]]
        elif self.scale_scores.size:
            middle = [*rare, *bread, *localise, *scores]
        else:
            middle = [*localise, *rare, *bread, *scores]
        strata = [(self.strata_stddev, self.strata_bound)] if self.strata.size else []
        stddev, norms = np.array([*begin, *middle, *strata], dtype=np.float64).T
        return stddev * self.n_records, norms


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ClusteredPopulationRelease(PopulationRelease):
    """A :class:`PopulationRelease` of rows in clusters, which are not protected.

    The meat is the mean over rows of the products of the clusters' summed scores, each shortened to `cluster_bound`.

    **Privacy.** As that: a row moves one cluster's sum.

    Parameters
    ----------
    cluster_sizes : (m,) float64
        Noisy number of clusters per row by the norm of their scores' sums, between the edges of `sizes`.
    cluster_sizes_stddev, cluster_bound : float
    """

    format_name: ClassVar[str] = "dpinfer-clustered-population-release"

    cluster_sizes: Annotated[FloatArray, Shape("cells")]
    cluster_sizes_stddev: Annotated[float, POSITIVE]
    cluster_bound: Annotated[float, POSITIVE]

    @property
    def _score_sums(self) -> list[tuple[float, float]]:
        # A row moves a cluster from interval to interval, and its product by twice the product of both bounds.
        products = (self.meat_stddev, 2.0 * self.score_bound * self.cluster_bound)
        return [*super()._score_sums[:-1], (self.cluster_sizes_stddev, math.sqrt(2.0)), products]
