"""The release of a private Newton run for the population's coefficients: noisy matrices, scores and shares of sizes."""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.release.fields import POSITIVE, Range, Shape
from dpinfer.release.newton.linear import RegressionSums, ScoreSums, no_means


def no_directions() -> FloatArray:
    """Return the moments of a release in which no direction was looked at."""
    return np.empty((0, 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class PopulationSums(ScoreSums):
    """What the releases for the population's coefficients share: bread, sizes, scores and meat; see the subclasses.

    **Privacy.** Post-processing: reads only what the release holds.
    """

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
    def n_coef(self) -> int:
        """Number of coefficients d: of a model of the user's own, of parameters."""
        return int(self.positions.shape[1])

    @property
    def n_scores(self) -> int:
        """Number of independent scores: records, or protected units."""
        return int(self.settings.get("unit", {}).get("n_units", self.n_records))


@dataclass(frozen=True, eq=False, kw_only=True)
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
    lengths : (m,) float64
        Noisy shares of the records by s**(1/2) times the norm of z = bread_transform x, between the edges of
        :data:`dpinfer.models.clipping.SIZE_EDGES` times `length_unit`.
    lengths_stddev, length_unit : float
    bread_transform, bread : (d, d) float64
    bread_stddev, bread_bound : float
    bread_position : (d,) float64
        Weights at which s is taken.
    score_transform : (d, d) float64
        Whitens the bread.
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
    meat : (d, d) float64
    meat_stddev : float
    meat_position : (d,) float64
    strata : (H, d + 1) float64, optional
        For each stratum the sum of its scores at `meat_position`, shortened with their counts to the norm
        `strata_bound`, and `strata_unit` times the number of its rows, units or clusters; both per row.  Empty without
        strata.
    strata_stddev, strata_unit, strata_bound : float, optional
    names : tuple of str
    n_records : int
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong type, shape or range, or `event` claims other sums or less noise than these.
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
    strata: Annotated[FloatArray, Shape("strata strata_d")] = field(default_factory=no_directions)
    strata_stddev: Annotated[float, POSITIVE] = 1.0
    strata_unit: Annotated[float, POSITIVE] = 1.0
    strata_bound: Annotated[float, POSITIVE] = 1.0

    format_name: ClassVar[str] = "dpinfer-population-release"

    def __post_init__(self) -> None:
        if not np.size(self.score_bounds):
            object.__setattr__(self, "score_bounds", np.full(len(self.positions), float(self.score_bound)))
        scales, along = np.size(self.scale_scores), len(self.rare)
        if scales not in (0, len(self.localise_scores)):
            raise ValueError(f"scale_scores must be empty, or one for each of localise_scores, got {scales}")
        weights, strata = np.shape(self.positions)[-1], len(self.strata)
        sizes = {"rare_d": weights if along else 0, "strata": strata, "strata_d": weights + 1 if strata else 0}
        d = self._check_regression(scales=scales, rare=along, **sizes)["d"]
        self._check_names(d + (scales > 0))
        self._check_event()
        self._check_guarantee()

    @property
    def _bread_sums(self) -> list[tuple[float, float]]:
        rare = [(self.rare_stddev, self.rare_bound**2)] if self.rare.size else []
        return [*rare, *super()._bread_sums]

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        begin = [
            *([(self.counts_stddev, 1.0)] if self.counts.size else []),
            *zip(self.means_stddev, self.means_bounds, strict=True),
            *zip(self.moment_stddev, np.square(self.moment_bounds), strict=True),
        ]
        localise = list(zip(self.localise_score_stddev, self.localise_bounds, strict=True))
        middle = [*self._bread_sums, *localise] if self.scale_scores.size else [*localise, *self._bread_sums]
        strata = [(self.strata_stddev, self.strata_bound)] if self.strata.size else []
        stddev, norms = np.array([*begin, *middle, *self._score_sums, *strata], dtype=np.float64).T
        return stddev * self.n_records, norms

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        return (
            f"PopulationRelease({model}, the population's coefficients: {self.n_passes} passes, {self.n_coef} weights)"
            f"\n  {self.guarantee}"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
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


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnPopulationRelease(PopulationSums):
    """Everything a private Newton run for the population's parameters of a user's own model has published.

    Sums are divided by the public number of records.  With s = grad log p(y | x, theta), the parameters of a point u
    are prior_mean + score_transform' u; score t is the mean of score_transform s at positions[t], each record's
    shortened to the norm score_bounds[t], and the meat the mean of the products of such a score with itself at
    `meat_position`, shortened to `score_bound`.  The bread is the mean of minus the derivatives of bread_transform s
    along the rows of bread_transform, at prior_mean + bread_position, each shortened to the norm bread_bound**2.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    localise_positions, localise_transforms, localise_scores, localise_stddev, localise_bounds
        As in :class:`OwnNewtonRelease`.
    matrices, matrix_stddev, matrix_bounds, score_share, prior_mean, prior_scale
        As in :class:`OwnNewtonRelease`.
    count_share : float
        The part of a localising pass's budget that is the counted norms'; 0 where nothing is counted.
    norm_edges, norm_shares, norm_stddev
        As in :class:`OwnNewtonRelease`, of the localising passes.
    lengths, lengths_stddev, length_unit, bread, bread_stddev, bread_bound, score_transform
        As in :class:`PopulationRelease`.
    sizes, sizes_stddev, size_unit, positions, scores, score_stddev, score_bound, score_bounds
        As in :class:`PopulationRelease`.
    meat, meat_stddev, meat_position
        As in :class:`PopulationRelease`.
    bread_transform : (n, n) float64
    bread_position : (n,) float64
        How far the parameters are from the prior's mean where the bread is taken.
    change_points : (T + 1, n) float64
        Half way from each of the positions to `meat_position`, and that.
    changes : (T + 1, n, n) float64
        By W the bread A is W A W there, as the model's own draws say; the identity without a sampler.
    likely_sizes : (m,) float64, or (0,)
        What the model's own draws have in the place of `sizes`; empty without a sampler.
    names : tuple of str
    n_records : int
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong type, shape or range, or `event` claims other sums or less noise than these.
    """

    format_name: ClassVar[str] = "dpinfer-own-population-release"

    localise_transforms: Annotated[FloatArray, Shape("L d d")]
    localise_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    matrices: Annotated[FloatArray, Shape("L d d")]
    matrix_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    matrix_bounds: Annotated[FloatArray, Shape("L", positive=True)]
    score_share: Annotated[float, Range(0.0, 1.0)]
    change_points: Annotated[FloatArray, Shape("T+1 d")]
    changes: Annotated[FloatArray, Shape("T+1 d d")]
    prior_mean: Annotated[FloatArray, Shape("d")]
    prior_scale: Annotated[FloatArray, Shape("d", positive=True)]
    likely_sizes: Annotated[FloatArray, Shape("likely")] = field(default_factory=no_means)
    count_share: Annotated[float, Range(0.0, 1.0, first=True)] = 0.0
    norm_edges: Annotated[FloatArray, Shape("edges")] = field(default_factory=no_means)
    norm_shares: Annotated[FloatArray, Shape("counted bins")] = field(default_factory=lambda: np.zeros((0, 1)))
    norm_stddev: Annotated[FloatArray, Shape("counted", positive=True)] = field(default_factory=no_means)

    def __post_init__(self) -> None:
        edges = np.size(self.norm_edges)
        sizes = {"edges": edges, "bins": edges + 1, "counted": len(self.localise_scores) if edges else 0}
        sizes |= {"T+1": len(self.scores) + 1, "likely": np.size(self.sizes) if np.size(self.likely_sizes) else 0}
        d = self._check_fields(sizes)["d"]
        if edges and not self.count_share > 0.0:
            raise ValueError("count_share must be positive where norms are counted")
        self._check_names(d)
        self._check_event()
        self._check_guarantee()

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order.

        A localising pass is one sum of (score / bound, matrix / bound, count), times the roots of their shares.
        """
        rest = 1.0 - self.count_share
        parts = [
            self.localise_stddev * np.sqrt(rest * self.score_share) / self.localise_bounds,
            self.matrix_stddev * np.sqrt(rest * (1.0 - self.score_share)) / self.matrix_bounds,
        ]
        if self.norm_edges.size:
            parts.append(self.norm_stddev * math.sqrt(self.count_share))
        stddev, norms = np.array([*self._bread_sums, *self._score_sums], dtype=np.float64).T
        first = np.min(parts, axis=0)
        return np.concatenate((first, stddev)) * self.n_records, np.concatenate((np.ones(first.size), norms))

    def __repr__(self) -> str:
        model = self.model_spec.get("name", "unknown model")
        return (
            f"OwnPopulationRelease({model}, the population's parameters: {self.n_passes} passes, {self.n_coef} "
            f"parameters)\n  {self.guarantee}"
        )
