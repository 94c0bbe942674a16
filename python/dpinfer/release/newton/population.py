"""The release of a private Newton run for the population's coefficients: noisy matrices, scores and shares of sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_float_array, check_interval
from dpinfer.accounting import Adjacency, Event, NonPrivateEvent
from dpinfer.release.guarantee import DERIVED
from dpinfer.release.newton.linear import SumsOfPasses, no_means
from dpinfer.release.parts import Part

__all__ = ["PopulationRelease"]

FloatArray = npt.NDArray[np.float64]

_POSITIVE = (
    "moment_stddev",
    "moment_bounds",
    "localise_score_stddev",
    "localise_bounds",
    "score_stddev",
    "score_bounds",
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


@dataclass(frozen=True, eq=False, kw_only=True)
class PopulationRelease(SumsOfPasses):
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
    lengths : (m,) float64
        Noisy shares of the records by s**(1/2) times the norm of z = bread_transform x, between the edges of
        :data:`dpinfer.models.size_shares.SIZE_EDGES` times `length_unit`.
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
        As in :class:`dpinfer.GradientTrace`.

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
    means: FloatArray = field(default_factory=no_means)
    means_stddev: FloatArray = field(default_factory=no_means)
    means_bounds: FloatArray = field(default_factory=no_means)
    event: Event = field(default_factory=NonPrivateEvent)
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    delta: float = 0.0
    certified_epsilon: float = DERIVED
    accountant: str = "pld"
    secure: bool = True
    other_parts: tuple[Part, ...] = ()
    leaks: tuple[str, ...] = ()
    model_spec: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    format_name: ClassVar[str] = "dpinfer-population-release"

    def __post_init__(self) -> None:
        rounds, d, _ = check_float_array("transforms", self.transforms, (None, None, None)).shape
        steps = check_float_array("positions", self.positions, (None, d)).shape[0]
        found = check_float_array("localise_positions", self.localise_positions, (None, d)).shape[0]
        if rounds < 1 or steps < 1 or found < 1:
            raise ValueError("a release must hold at least one matrix and one score of each kind")
        if not check_float_array("score_bounds", self.score_bounds, (None,)).size:
            object.__setattr__(self, "score_bounds", np.full(steps, float(self.score_bound)))
        shares = check_float_array("counts", self.counts, (None,)).size
        cells = check_float_array("sizes", self.sizes, (None,)).size
        scales = check_float_array("scale_scores", self.scale_scores, (None,)).size
        shapes: dict[str, tuple[int, ...]] = {
            "counts": (shares,),
            "edges": (max(shares - 1, 0),),
            "transforms": (rounds, d, d),
            "moments": (rounds, d, d),
            "moment_stddev": (rounds,),
            "moment_bounds": (rounds,),
            "lengths": (cells,),
            "bread_transform": (d, d),
            "bread": (d, d),
            "bread_position": (d,),
            "score_transform": (d, d),
            "localise_positions": (found, d),
            "localise_scores": (found, d),
            "localise_score_stddev": (found,),
            "localise_bounds": (found,),
            "scale_scores": (scales,),
            "scale_stddev": (scales,),
            "scale_units": (scales,),
            "sizes": (cells,),
            "positions": (steps, d),
            "scores": (steps, d),
            "score_stddev": (steps,),
            "score_bounds": (steps,),
            "meat": (d, d),
            "meat_position": (d,),
        }
        if scales not in (0, found):
            raise ValueError(f"scale_scores must be empty, or one for each of {found} localise_scores, got {scales}")
        self._check_arrays(shapes, _POSITIVE)
        self._check_means(self.means, d)
        for name in _POSITIVE_NUMBERS:
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0))
        least = check_interval("counts_stddev", self.counts_stddev, 0.0, low_open=shares > 0)
        object.__setattr__(self, "counts_stddev", least)
        self._check_names(d + (scales > 0))
        self._check_event()
        self._check_guarantee()

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        begin = [
            *([(self.counts_stddev, 1.0)] if self.counts.size else []),
            *zip(self.means_stddev, self.means_bounds, strict=True),
            *zip(self.moment_stddev, np.square(self.moment_bounds), strict=True),
        ]
        bread = [(self.lengths_stddev, 1.0), (self.bread_stddev, self.bread_bound**2)]
        localise = list(zip(self.localise_score_stddev, self.localise_bounds, strict=True))
        middle = [*bread, *localise] if self.scale_scores.size else [*localise, *bread]
        measure = list(zip(self.score_stddev, self.score_bounds, strict=True))
        end = [(self.sizes_stddev, 1.0), *measure, (self.meat_stddev, self.score_bound**2)]
        stddev, norms = np.array([*begin, *middle, *end], dtype=np.float64).T
        return stddev * self.n_records, norms

    @property
    def n_coef(self) -> int:
        """Number of weights d."""
        return int(self.positions.shape[1])

    @property
    def n_scores(self) -> int:
        """Number of independent scores: records, or protected units."""
        return int(self.settings.get("unit", {}).get("n_units", self.n_records))

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        return (
            f"PopulationRelease({model}, the population's coefficients: {self.n_passes} passes, {self.n_coef} weights)"
            f"\n  {self.guarantee}"
        )
