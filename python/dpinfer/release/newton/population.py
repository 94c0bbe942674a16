"""The release of a private Newton run for the population's coefficients: noisy matrices, scores and shares of sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_interval
from dpinfer.release.newton.linear import SumsOfPasses, no_means

_POSITIVE = (
    "moment_stddev",
    "moment_bounds",
    "localise_score_stddev",
    "localise_bounds",
    "score_stddev",
    "score_bounds",
)
_OWN_POSITIVE = (
    "localise_stddev",
    "localise_bounds",
    "matrix_stddev",
    "matrix_bounds",
    "score_stddev",
    "score_bounds",
    "prior_scale",
)
_POSITIVE_NUMBERS = (
    "lengths_stddev",
    "length_unit",
    "bread_stddev",
    "bread_bound",
    "sizes_stddev",
    "size_unit",
    "score_bound",
    "meat_stddev",
)


def no_directions() -> FloatArray:
    """Return the moments of a release in which no direction was looked at."""
    return np.empty((0, 0))


class PopulationSums(SumsOfPasses):
    """What the releases for the population's coefficients share: bread, sizes, scores and meat.

    **Privacy.** Post-processing: reads only what the release holds.
    """

    lengths: FloatArray
    lengths_stddev: float
    length_unit: float
    bread_transform: FloatArray
    bread: FloatArray
    bread_stddev: float
    bread_bound: float
    bread_position: FloatArray
    score_transform: FloatArray
    sizes: FloatArray
    sizes_stddev: float
    size_unit: float
    score_bound: float
    meat: FloatArray
    meat_stddev: float
    meat_position: FloatArray
    score_bounds: FloatArray
    settings: Mapping[str, Any]

    def _shapes(self, d: int, steps: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is shared."""
        cells = check_float_array("sizes", self.sizes, (None,)).size
        return {
            "lengths": (cells,),
            "bread_transform": (d, d),
            "bread": (d, d),
            "bread_position": (d,),
            "score_transform": (d, d),
            "sizes": (cells,),
            "positions": (steps, d),
            "scores": (steps, d),
            "score_stddev": (steps,),
            "score_bounds": (steps,),
            "meat": (d, d),
            "meat_position": (d,),
        }

    def _check_numbers(self) -> None:
        for name in _POSITIVE_NUMBERS:
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0))

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
class PopulationRelease(PopulationSums):
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
    names : tuple of str
    n_records : int
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong type, shape or range, or `event` claims other sums or less noise than these.
    """

    counts: FloatArray
    counts_stddev: float
    edges: FloatArray
    transforms: FloatArray
    moments: FloatArray
    moment_stddev: FloatArray
    moment_bounds: FloatArray
    lengths: FloatArray
    lengths_stddev: float
    length_unit: float
    bread_transform: FloatArray
    bread: FloatArray
    bread_stddev: float
    bread_bound: float
    bread_position: FloatArray
    score_transform: FloatArray
    localise_positions: FloatArray
    localise_scores: FloatArray
    localise_score_stddev: FloatArray
    localise_bounds: FloatArray
    sizes: FloatArray
    sizes_stddev: float
    size_unit: float
    positions: FloatArray
    scores: FloatArray
    score_stddev: FloatArray
    score_bound: float
    meat: FloatArray
    meat_stddev: float
    meat_position: FloatArray
    names: tuple[str, ...]
    n_records: int
    score_bounds: FloatArray = field(default_factory=no_means)
    scale_scores: FloatArray = field(default_factory=no_means)
    scale_stddev: FloatArray = field(default_factory=no_means)
    scale_units: FloatArray = field(default_factory=no_means)
    rare_transform: FloatArray = field(default_factory=no_directions)
    rare: FloatArray = field(default_factory=no_directions)
    rare_stddev: float = 1.0
    rare_bound: float = 1.0
    means: FloatArray = field(default_factory=no_means)
    means_stddev: FloatArray = field(default_factory=no_means)
    means_bounds: FloatArray = field(default_factory=no_means)

    format_name: ClassVar[str] = "dpinfer-population-release"

    def __post_init__(self) -> None:
        rounds, d, _ = check_float_array("transforms", self.transforms, (None, None, None)).shape
        steps = check_float_array("positions", self.positions, (None, d)).shape[0]
        localise = check_float_array("localise_positions", self.localise_positions, (None, d)).shape[0]
        if rounds < 1 or steps < 1 or localise < 1:
            raise ValueError("a release must hold at least one matrix and one score of each kind")
        if not check_float_array("score_bounds", self.score_bounds, (None,)).size:
            object.__setattr__(self, "score_bounds", np.full(steps, float(self.score_bound)))
        shares = check_float_array("counts", self.counts, (None,)).size
        scales = check_float_array("scale_scores", self.scale_scores, (None,)).size
        shapes: dict[str, tuple[int, ...]] = {
            "counts": (shares,),
            "edges": (max(shares - 1, 0),),
            "transforms": (rounds, d, d),
            "moments": (rounds, d, d),
            "moment_stddev": (rounds,),
            "moment_bounds": (rounds,),
            "localise_positions": (localise, d),
            "localise_scores": (localise, d),
            "localise_score_stddev": (localise,),
            "localise_bounds": (localise,),
            "scale_scores": (scales,),
            "scale_stddev": (scales,),
            "scale_units": (scales,),
        }
        along = check_float_array("rare", self.rare, (None, None)).shape[0]
        shapes |= {"rare": (along, along), "rare_transform": (along, d if along else 0)}
        for name in ("rare_stddev", "rare_bound"):
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0))
        if scales not in (0, localise):
            raise ValueError(f"scale_scores must be empty, or one for each of {localise} localise_scores, got {scales}")
        self._check_arrays(shapes | self._shapes(d, steps), _POSITIVE)
        self._check_means(self.means, d)
        self._check_numbers()
        least = check_interval("counts_stddev", self.counts_stddev, 0.0, low_open=shares > 0)
        object.__setattr__(self, "counts_stddev", least)
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
        stddev, norms = np.array([*begin, *middle, *self._score_sums], dtype=np.float64).T
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

    cluster_sizes: FloatArray
    cluster_sizes_stddev: float
    cluster_bound: float

    def __post_init__(self) -> None:
        for name in ("cluster_sizes_stddev", "cluster_bound"):
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0))
        self._check_arrays({"cluster_sizes": (np.size(self.sizes),)}, ())
        super().__post_init__()

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

    localise_positions: FloatArray
    localise_transforms: FloatArray
    localise_scores: FloatArray
    localise_stddev: FloatArray
    localise_bounds: FloatArray
    matrices: FloatArray
    matrix_stddev: FloatArray
    matrix_bounds: FloatArray
    score_share: float
    lengths: FloatArray
    lengths_stddev: float
    length_unit: float
    bread_transform: FloatArray
    bread: FloatArray
    bread_stddev: float
    bread_bound: float
    bread_position: FloatArray
    score_transform: FloatArray
    sizes: FloatArray
    sizes_stddev: float
    size_unit: float
    positions: FloatArray
    scores: FloatArray
    score_stddev: FloatArray
    score_bound: float
    score_bounds: FloatArray
    meat: FloatArray
    meat_stddev: float
    meat_position: FloatArray
    change_points: FloatArray
    changes: FloatArray
    prior_mean: FloatArray
    prior_scale: FloatArray
    names: tuple[str, ...]
    n_records: int
    likely_sizes: FloatArray = field(default_factory=no_means)
    count_share: float = 0.0
    norm_edges: FloatArray = field(default_factory=no_means)
    norm_shares: FloatArray = field(default_factory=lambda: np.zeros((0, 1)))
    norm_stddev: FloatArray = field(default_factory=no_means)

    def __post_init__(self) -> None:
        steps, n = check_float_array("positions", self.positions, (None, None)).shape
        localise = check_float_array("localise_positions", self.localise_positions, (None, n)).shape[0]
        if steps < 1 or localise < 1:
            raise ValueError("a release must hold at least one score of each kind")
        shared = self._shapes(n, steps)
        edges = check_float_array("norm_edges", self.norm_edges, (None,)).size
        counted = localise if edges else 0
        likely = shared["sizes"] if np.size(self.likely_sizes) else (0,)
        own: dict[str, tuple[int, ...]] = {
            "localise_positions": (localise, n),
            "localise_transforms": (localise, n, n),
            "localise_scores": (localise, n),
            "localise_stddev": (localise,),
            "localise_bounds": (localise,),
            "matrices": (localise, n, n),
            "matrix_stddev": (localise,),
            "matrix_bounds": (localise,),
            "norm_edges": (edges,),
            "norm_shares": (counted, edges + 1),
            "norm_stddev": (counted,),
            "change_points": (steps + 1, n),
            "changes": (steps + 1, n, n),
            "likely_sizes": likely,
            "prior_mean": (n,),
            "prior_scale": (n,),
        }
        self._check_arrays(own | shared, (*_OWN_POSITIVE, *(("norm_stddev",) if counted else ())))
        self._check_numbers()
        for name, least in (("score_share", True), ("count_share", edges > 0)):
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0, 1.0, low_open=least))
        self._check_names(n)
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
