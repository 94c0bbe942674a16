"""Releases of private Newton runs of a user's own model: noisy scores, slopes or matrices, and their known noise."""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import AT_LEAST_ZERO, POSITIVE, Range, Shape
from dpinfer.release.newton.population import PopulationSums
from dpinfer.release.newton.regression import ScoreSums, no_means


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnNewtonRelease(ScoreSums):
    """Everything a private Newton run of a user's own model has published.

    Sums are divided by the public number of records.  With T = transform and s = T grad log p(y | x, theta), score t is
    the mean of the centred clipped score h(s) at positions[t] plus noise of standard deviation score_stddev[t] in every
    coordinate, and no record's h has a norm above score_bounds[t]; the slope is the mean of E[clip(s) s' | x] at
    `slope_position`, with noise of standard deviation `slope_stddev` on the diagonal and 1 / sqrt(2) of it beside the
    diagonal.  Localising passes release both in one sum: docs/derivations/any-model.md.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    localise_positions, localise_scores : (L, n) float64
    localise_transforms, matrices : (L, n, n) float64
    localise_stddev, localise_bounds, matrix_stddev, matrix_bounds : (L,) float64
    score_share : float in (0, 1)
        Part of a localising pass's budget that is the score's.
    transform : (n, n) float64
        Of the slope and of the measurements.
    slope : (n, n) float64
    slope_stddev, slope_bound : float
    slope_spread : float
        By how much its entries are expected to differ from a multiple of the identity's: the error of the whitening.
    slope_position : (n,) float64
    positions, scores : (T, n) float64
    score_stddev, score_bounds : (T,) float64
    variance_ratio : float
        Variance of the clipped score over its slope, simulated under the model; without a sampler its bound, 1.
    squared_shift : float
        Mean square by which curvature shifts the centre of the posterior, in its variances, simulated under the model:
        0 if the posterior is near normal, or without a sampler.
    centre_share : float
        Largest norm of a measured score's centre, in units of the clip: 0 without a sampler.
    prior_mean, prior_scale : (n,) float64
        Of the normal priors of the unconstrained parameters.
    count_shares : (3,) float64
        The parts of the budgets of the localising passes, the slope's and the measurements that are the counted norms',
        or the tallies' of a model with a sampler; zeros where nothing is counted.
    norm_edges : (K,) float64
        In units of each pass's bound of the scores.
    norm_shares : (P, K + 1) float64
        Noisy shares of the records whose transformed score has a norm below, between and above the edges, pass by pass.
    norm_stddev : (P,) float64
    tallies : (T, 2) float64
        Of each measurement of a model with a sampler, noisy: how much more the squared norms of the records' clipped
        scores are than those of the model's draws, in units of the squared clip; and how many records there are.
    tally_stddev : (T,) float64
    expected_slopes : (L + 1,) float64
        Mean eigenvalue of each matrix, and of the slope, for records like the made-up ones.
    square, square_variance : float
        Expectation of the first tally under the model, and a record's variance around it.
    square_slope : (n,) float64
        By how much the first tally changes with the parameters that the responses are drawn with.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`, like `names` and `n_records`.
    """

    # Not near normal from here on: a fifth of a standard deviation, at which 90% intervals would cover 0.893.
    large_shift: ClassVar[float] = 0.2**2
    # A matrix is bounded by this times the squared score that a record's weight allows.
    matrix_factor: ClassVar[float] = 1.5

    localise_positions: Annotated[FloatArray, Shape("L d")]
    localise_transforms: Annotated[FloatArray, Shape("L d d")]
    localise_scores: Annotated[FloatArray, Shape("L d")]
    localise_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    localise_bounds: Annotated[FloatArray, Shape("L", positive=True)]
    matrices: Annotated[FloatArray, Shape("L d d")]
    matrix_stddev: Annotated[FloatArray, Shape("L", positive=True)]
    matrix_bounds: Annotated[FloatArray, Shape("L", positive=True)]
    score_share: Annotated[float, Range(0.0, 1.0)]
    transform: Annotated[FloatArray, Shape("d d")]
    slope: Annotated[FloatArray, Shape("d d")]
    slope_stddev: Annotated[float, POSITIVE]
    slope_bound: Annotated[float, POSITIVE]
    slope_spread: Annotated[float, POSITIVE]
    slope_position: Annotated[FloatArray, Shape("d")]
    score_bounds: Annotated[FloatArray, Shape("T", positive=True)]
    variance_ratio: Annotated[float, POSITIVE]
    squared_shift: Annotated[float, AT_LEAST_ZERO] = 0.0
    centre_share: Annotated[float, AT_LEAST_ZERO] = 0.0
    prior_mean: Annotated[FloatArray, Shape("d")]
    prior_scale: Annotated[FloatArray, Shape("d", positive=True)]
    count_shares: Annotated[FloatArray, Shape("3")] = field(default_factory=lambda: np.zeros(3))
    norm_edges: Annotated[FloatArray, Shape("edges")] = field(default_factory=lambda: np.zeros(0))
    norm_shares: Annotated[FloatArray, Shape("counted bins")] = field(default_factory=lambda: np.zeros((0, 1)))
    norm_stddev: Annotated[FloatArray, Shape("counted")] = field(default_factory=lambda: np.zeros(0))
    tallies: Annotated[FloatArray, Shape("tallied 2")] = field(default_factory=lambda: np.zeros((0, 2)))
    tally_stddev: Annotated[FloatArray, Shape("tallied", positive=True)] = field(default_factory=lambda: np.zeros(0))
    expected_slopes: Annotated[FloatArray, Shape("matrices")] = field(default_factory=lambda: np.zeros(0))
    square: Annotated[float, AT_LEAST_ZERO] = 0.0
    square_slope: Annotated[FloatArray, Shape("slopes")] = field(default_factory=lambda: np.zeros(0))
    square_variance: Annotated[float, AT_LEAST_ZERO] = 0.0

    format_name: ClassVar[str] = "dpinfer-own-newton-release"

    def __post_init__(self) -> None:
        found, steps, edges = (len(np.atleast_1d(x)) for x in (self.matrices, self.scores, self.norm_edges))
        sizes = {"edges": edges, "bins": edges + 1, "counted": found + 1 + steps if edges else 0}
        of_tallies = {"tallied": steps, "matrices": found + 1, "slopes": np.size(self.slope_position)}
        n = self._check_fields(sizes | (of_tallies if self.tallied else dict.fromkeys(of_tallies, 0)))["d"]
        if np.any(self.count_shares < 0.0) or np.any(self.count_shares >= 1.0):
            raise ValueError("count_shares must be in [0, 1)")
        if not (np.all(self.norm_edges > 0.0) and np.all(np.diff(self.norm_edges) > 0.0)):
            raise ValueError("norm_edges must be positive and increase")
        self._check_claims(n)

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order.

        A pass is one sum of (score / bound, matrix / bound, count), times the roots of their shares, of norm 1.
        """
        counted, measured = self.count_shares, 1.0 - self.count_shares
        parts = [
            self.localise_stddev * np.sqrt(measured[0] * self.score_share) / self.localise_bounds,
            self.matrix_stddev * np.sqrt(measured[0] * (1.0 - self.score_share)) / self.matrix_bounds,
        ]
        others = np.concatenate(
            (
                [self.slope_stddev * np.sqrt(measured[1]) / self.slope_bound],
                self.score_stddev * np.sqrt(measured[2]) / self.score_bounds,
            )
        )
        noise = np.concatenate((np.minimum(*parts), others)) * self.n_records
        if self.clipped:
            share = np.repeat(counted, (len(self.matrices), 1, len(self.scores)))
            noise = np.minimum(noise, self.norm_stddev * np.sqrt(share) * self.n_records)
        elif self.tallied:
            # Two numbers of norm at most sqrt(2) together.
            tallied = self.tally_stddev * np.sqrt(0.5 * counted[2]) * self.n_records
            noise[-tallied.size :] = np.minimum(noise[-tallied.size :], tallied)
        return noise, np.ones(noise.size)

    @property
    def clipped(self) -> bool:
        """Whether the model had no sampler: scores are clipped, and no draws centre them."""
        return bool(self.norm_edges.size)

    @property
    def tallied(self) -> bool:
        """Whether the measurements released the variance of scores and the number of records."""
        return not self.clipped and bool(np.size(self.tally_stddev))

    @property
    def largest_trace(self) -> float:
        """Trace of the first matrix if every record had the largest score that its weight allows."""
        return float(self.matrix_bounds[0]) / self.matrix_factor

    def clipped_share(self) -> tuple[float, float]:
        """Return the share of the scores that the measurements have clipped, and its noise's standard deviation.

        Raises ValueError if nothing was counted.
        """
        if not self.clipped:
            raise ValueError("nothing was counted: the model has a sampler")
        steps = len(self.scores)
        above = self.norm_edges.searchsorted(1.0, side="left") + 1
        shares = self.norm_shares[-steps:, above:].sum(axis=1)
        weight = 1.0 / self.norm_stddev[-steps:] ** 2
        bins = self.norm_shares.shape[1] - above
        return float(weight @ shares / weight.sum()), float(np.sqrt(bins / weight.sum()))

    def __repr__(self) -> str:
        model = self.model_spec.get("name", "unknown model")
        return f"OwnNewtonRelease({model}: {self.n_passes} passes, {self.n_params} parameters)\n  {self.guarantee}"


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

    Raises TypeError or ValueError if a field has the wrong type, shape or range, or `event` claims other sums or less
    noise than these.

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
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`, like `names` and `n_records`.
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
        self._check_claims(d)

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
