"""The release of a private Newton run: noisy second moments, scores at a few points, and their known noise."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer, check_interval
from dpinfer.accounting import Composed, GaussianEvent, NonPrivateEvent
from dpinfer.release.fields import POSITIVE, Range, Shape
from dpinfer.release.guarantee import Release

# Of the pass for declared means, which not every run makes.
MEANS = ("means", "means_stddev", "means_bounds")
_OF_MEANS = (Shape("passes", positive=True), Shape("passes", positive=True))

_SPREAD_LEVEL = 0.68  # P(|r| < 1) of a standard normal r


def no_means() -> FloatArray:
    """Return each of the arrays of means of a run without a pass for them."""
    return np.empty(0)


class SumsOfPasses(Release):
    """Base of the releases of private Newton runs: their event must be one Gaussian sum for each pass.

    **Privacy.** Post-processing: reads only what the release holds.
    """

    n_records: int
    positions: FloatArray
    scores: FloatArray
    score_stddev: FloatArray
    _part_name: ClassVar[str] = "sums of a private Newton run"
    _released: ClassVar[str] = "all its sums"

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        raise NotImplementedError

    def _check_event(self) -> None:
        """Refuse an event with different sums, or with more noise than these have."""
        if isinstance(self.event, NonPrivateEvent):
            return
        passes = self.event.events if isinstance(self.event, Composed) else ()
        stddev, norms = self._sums()
        if len(passes) != stddev.size or not all(isinstance(item, GaussianEvent) for item in passes):
            raise ValueError(f"event must be the composition of {stddev.size} Gaussian sums, one for each pass")
        claimed = np.array([item.noise_multiplier for item in passes if isinstance(item, GaussianEvent)])
        if np.any(stddev < claimed * norms * (1.0 - 1e-9)):
            raise ValueError("event must not claim more noise than the sums have")

    @property
    def n_passes(self) -> int:
        """Number of passes over the records."""
        return int(self._sums()[0].size)

    @property
    def n_params(self) -> int:
        """Number of model parameters."""
        return len(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreSums(SumsOfPasses):
    """What all of them have: scores, see the subclasses.

    **Privacy.** Post-processing: reads only what the release holds.
    """

    n_records: int
    positions: Annotated[FloatArray, Shape("T d")]
    scores: Annotated[FloatArray, Shape("T d")]
    score_stddev: Annotated[FloatArray, Shape("T", positive=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionSums(ScoreSums):
    """What the releases of regressions share: counts of responses, means and second moments, see the subclasses.

    **Privacy.** Post-processing: reads only what the release holds.
    """

    counts: Annotated[FloatArray, Shape("m")]
    counts_stddev: float
    edges: Annotated[FloatArray, Shape("m-1")]
    transforms: Annotated[FloatArray, Shape("K d d")]
    moments: Annotated[FloatArray, Shape("K d d")]
    moment_stddev: Annotated[FloatArray, Shape("K", positive=True)]
    moment_bounds: Annotated[FloatArray, Shape("K", positive=True)]
    means: FloatArray = field(default_factory=no_means)
    means_stddev: FloatArray = field(default_factory=no_means)
    means_bounds: FloatArray = field(default_factory=no_means)

    def _check_regression(self, **sizes: int) -> dict[str, int]:
        """Check all fields, the means from one pass or none; return the lengths of axes."""
        bins = int(np.size(self.counts))
        found = self._check_fields({"m": bins, "m-1": max(bins - 1, 0)} | sizes)
        least = check_interval("counts_stddev", self.counts_stddev, 0.0, low_open=bins > 0)
        object.__setattr__(self, "counts_stddev", least)
        passes = {"passes": min(int(np.size(self.means)), 1), "d": found["d"]}
        for name, shape in zip(MEANS, (Shape("passes d" if passes["passes"] else "passes"), *_OF_MEANS), strict=True):
            object.__setattr__(self, name, shape.checked(name, getattr(self, name), passes))
        return found

    @property
    def n_coef(self) -> int:
        """Number of weights d."""
        return int(self.positions.shape[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class NewtonRelease(RegressionSums):
    """Everything a private Newton run of a linear regression has published.

    Sums are divided by the public number of records.  With z = transforms[-1] x, w = min(1, B**2 / z'z), B =
    moment_bounds[-1] and u the weights in the coordinates of z (weights = transforms[-1]' u), score t is the mean of
    w psi_c(r) z, r = y - u_t'z, with Huber's psi at c = clips[t], plus noise of standard deviation score_stddev[t] in
    every coordinate; scale score t is the mean of w (min(abs(r) / scale_units[t], 1) - scale_centre) plus noise.
    moments[k] is the mean of w z z' for transforms[k] and moment_bounds[k] with noise of standard deviation
    moment_stddev[k] on the diagonal and 1 / sqrt(2) of it beside the diagonal.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    counts : (m,) float64
        Noisy shares of the records with abs(y) between successive `edges`.
    counts_stddev : float
    edges : (m - 1,) float64
    transforms : (K, d, d) float64
    moments : (K, d, d) float64
    moment_stddev, moment_bounds : (K,) float64
    positions, scores : (T, d) float64
    score_stddev, clips, scale_scores, scale_stddev, scale_units : (T,) float64
    scale_centre : float
        In (0, 1).
    n_measured : int
        How many of the last scores are measurements at the point that the others have found.
    response_scale : float
        Public order of magnitude of the responses.
    names : tuple of str
    n_records : int
    means : (1, d) float64, or (0,)
        Of w z for z = x in units of the declared root mean squares, with noise of standard deviation means_stddev[0]
        and the weights of B = means_bounds[0]; empty where no moments are declared, or they are known.
    means_stddev, means_bounds : (1,) float64, or (0,)
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`; `event` is the composition of a Gaussian sum for each pass, in order.
    """

    clips: Annotated[FloatArray, Shape("T", positive=True)]
    scale_scores: Annotated[FloatArray, Shape("T")]
    scale_stddev: Annotated[FloatArray, Shape("T", positive=True)]
    scale_units: Annotated[FloatArray, Shape("T", positive=True)]
    scale_centre: Annotated[float, Range(0.0, 1.0)]
    n_measured: int
    response_scale: Annotated[float, POSITIVE]

    format_name: ClassVar[str] = "dpinfer-newton-release"

    def __post_init__(self) -> None:
        sizes = self._check_regression()
        if sizes["m"] < 2:
            raise ValueError("counts must hold at least two shares")
        if not np.all(np.diff(self.edges) > 0.0) or self.edges[0] <= 0.0:
            raise ValueError("edges must be positive and increase")
        object.__setattr__(self, "n_measured", check_integer("n_measured", self.n_measured, 1, sizes["T"]))
        self._check_names(sizes["d"] + 1)
        self._check_event()
        self._check_guarantee()

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        stddev = np.concatenate(([self.counts_stddev], self.means_stddev, self.moment_stddev, self.score_stddev))
        bounds = self.moment_bounds
        norms = np.concatenate(([1.0], self.means_bounds, np.square(bounds), self.clips * bounds[-1]))
        return stddev * self.n_records, norms

    @property
    def response_spread(self) -> float:
        """About the size below which 68% of the responses lie, from the noisy counts."""
        return spread_of_counts(self.counts, self.edges)

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        return f"NewtonRelease({model}: {self.n_passes} passes, {self.n_coef} weights)\n  {self.guarantee}"


def spread_of_counts(
    counts: FloatArray,  # (m,): noisy shares of abs(y) below edges[0], between successive edges, and above the last
    edges: FloatArray,  # (m - 1,): powers of two apart
) -> float:
    """Return about the size below which 68% of the responses lie, from noisy shares of their octaves."""
    cumulative = np.maximum.accumulate(np.cumsum(counts) / max(float(np.sum(counts)), 0.5))
    position = int(np.clip(np.searchsorted(cumulative, _SPREAD_LEVEL), 1, edges.size))
    if position == edges.size:
        return float(edges[-1])
    step = max(float(cumulative[position] - cumulative[position - 1]), 1e-6)
    part = np.clip((_SPREAD_LEVEL - cumulative[position - 1]) / step, 0.0, 1.0)
    return float(edges[position - 1] * 2.0**part)
