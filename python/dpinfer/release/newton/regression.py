"""Releases of private Newton runs of regressions: noisy matrices, scores at a few points, and their known noise."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import POSITIVE, Range, Shape, check_integer, check_interval
from dpinfer.accounting import Composed, GaussianEvent, NonPrivateEvent
from dpinfer.release.guarantee import Release

# Of the pass for declared means, which not every run makes.
MEANS = ("means", "means_stddev", "means_bounds")
_OF_MEANS = (Shape("passes", positive=True), Shape("passes", positive=True))

_SPREAD_LEVEL = 0.68  # P(|r| < 1) of a standard normal r


def no_means() -> FloatArray:
    """Return each of the arrays of means of a run without a pass for them."""
    return np.empty(0)


def no_directions() -> FloatArray:
    """Return the moments of a release in which no direction was looked at."""
    return np.empty((0, 0))


class SumsOfPasses(Release):
    """Base of the releases of private Newton runs: their event must be Gaussian sums that cost what the passes cost."""

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
        """Refuse an event with other parts than Gaussian sums, or that costs less than the released ones."""
        if isinstance(self.event, NonPrivateEvent):
            return
        passes = self.event.events if isinstance(self.event, Composed) else ()
        stddev, norms = self._sums()
        claimed = np.array([item.noise_multiplier for item in passes if isinstance(item, GaussianEvent)])
        if claimed.size != len(passes) or claimed.size < stddev.size:
            raise ValueError(f"event must be a composition of Gaussian sums, at least {stddev.size}: one for each pass")
        spent, paid = np.square(norms / stddev), claimed**-2.0
        if claimed.size > stddev.size:  # shares of rounds that were left out are in later passes: squared shifts add
            spent, paid = np.sum(spent, keepdims=True), np.sum(paid, keepdims=True)
        if np.any(spent > paid * (1.0 + 2e-9)):
            raise ValueError("event must not claim more noise than the sums have")

    def _check_claims(self, n_params: int) -> None:
        """Check names, event and guarantee, once the fields of the sums are checked."""
        self._check_names(n_params)
        self._check_event()
        self._check_guarantee()

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
    """What all of them have: scores, see the subclasses."""

    n_records: int
    positions: Annotated[FloatArray, Shape("T d")]
    scores: Annotated[FloatArray, Shape("T d")]
    score_stddev: Annotated[FloatArray, Shape("T", positive=True)]

    @property
    def n_coef(self) -> int:
        """Number of weights d: of a model of the user's own, of parameters."""
        return int(self.positions.shape[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionSums(ScoreSums):
    """What the releases of regressions share: counts of responses, means and second moments, see the subclasses."""

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
    _target: ClassVar[str] = ""

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

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model") + self._target
        return f"{type(self).__name__}({model}: {self.n_passes} passes, {self.n_coef} weights)\n  {self.guarantee}"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
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
    means : (1, d) float64, or (0,)
        Of w z for z = x in units of the declared root mean squares, with noise of standard deviation means_stddev[0]
        and the weights of B = means_bounds[0]; empty where no moments are declared, or they are known.
    means_stddev, means_bounds : (1,) float64, or (0,)
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`, like `names` and `n_records`; `event` is the plan's: a Gaussian sum for each
        pass, and for each round of geometry that was left out.
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
        self._check_claims(sizes["d"] + 1)

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


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GlmNewtonRelease(RegressionSums):
    """Everything a private Newton run of a logistic, probit or Poisson regression has published.

    Sums are divided by the public number of records.  With z, w, B and u as in :class:`NewtonRelease`, r = y - E[y | x]
    at u and psi = clip(r, -c, c) - E[clip(r, -c, c) | x], score t is the mean of w psi z at u_t plus noise of standard
    deviation score_stddev[t] in every coordinate, and the slope is the mean of w s z z' at `slope_position`, with s, an
    expected -d psi / d eta, cut off at `slope_bound`, and noise of standard deviation `slope_stddev` on the diagonal
    and 1 / sqrt(2) of it beside the diagonal.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    counts : (m,) float64
        Noisy shares of the records with a response between successive `edges`; empty for responses of 0 and 1.
    counts_stddev : float
    edges : (m - 1,) float64
    transforms, moments : (K, d, d) float64
    moment_stddev, moment_bounds : (K,) float64
    localise_positions, localise_scores : (L, d) float64
        Of the steps toward the zero of the score.
    localise_score_stddev : (L,) float64
    localise_clip, localise_residual_bound : float
        c of these steps, and the largest abs(psi).
    score_transform : (d, d) float64
        Takes the place of transforms[-1] in the slope and the measurements.
    score_radius : float
        Takes the place of moment_bounds[-1] there.
    slope : (d, d) float64
    slope_stddev : float
    slope_position : (d,) float64
    positions, scores : (T, d) float64
        Of the measurements near the zero.
    score_stddev : (T,) float64
    clip, residual_bound, slope_bound : float
        c of the measurements, the largest abs(psi), and the largest s.
    means, means_stddev, means_bounds
        As in :class:`NewtonRelease`.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`, like `names` and `n_records`.
    """

    localise_positions: Annotated[FloatArray, Shape("L d")]
    localise_scores: Annotated[FloatArray, Shape("L d")]
    localise_score_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    localise_clip: Annotated[float, POSITIVE]
    localise_residual_bound: Annotated[float, POSITIVE]
    score_transform: Annotated[FloatArray, Shape("d d")]
    score_radius: Annotated[float, POSITIVE]
    slope: Annotated[FloatArray, Shape("d d")]
    slope_stddev: Annotated[float, POSITIVE]
    slope_position: Annotated[FloatArray, Shape("d")]
    clip: Annotated[float, POSITIVE]
    residual_bound: Annotated[float, POSITIVE]
    slope_bound: Annotated[float, POSITIVE]

    format_name: ClassVar[str] = "dpinfer-glm-newton-release"

    def __post_init__(self) -> None:
        self._check_claims(self._check_regression()["d"])

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        bound = float(self.moment_bounds[-1])
        counted = [self.counts_stddev] if self.counts.size else []
        stddev = (
            counted,
            self.means_stddev,
            self.moment_stddev,
            self.localise_score_stddev,
            self.score_stddev,
            [self.slope_stddev],
        )
        norms = (
            np.ones(len(counted)),
            self.means_bounds,
            np.square(self.moment_bounds),
            np.full(self.localise_score_stddev.size, self.localise_residual_bound * bound),
            np.full(self.score_stddev.size, self.residual_bound * self.score_radius),
            [self.slope_bound * self.score_radius**2],
        )
        return np.concatenate(stddev) * self.n_records, np.concatenate(norms)
