"""The first step used: where the linear trace model begins to hold."""

from dataclasses import dataclass

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.request import parse_burn_in
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.statistics import TraceStatistics, merge_segments, segment_statistics

_BLOCKS = 64  # B of docs/derivations/noise-aware-posterior.md, "Burn-in"
_FEWEST_BLOCKS = 16  # fewer leave a regression too few degrees of freedom
_CANDIDATES = (0, 1, 2, 4, 8, 16, 24, 32)  # starts in blocks, up to half of the trace: tolerance


@dataclass(frozen=True)
class BurnIn:
    """Result of :func:`choose_burn_in`."""

    start: int  # first step used
    statistics: TraceStatistics  # of the steps used
    # (watched,): p-values of the trend test from `start` on; nan when the trace is too short for it
    linearity_pvalue: FloatArray
    # whether the linear model holds from there on, at the false-positive rate of the test; True when it is too short
    holds: bool


def choose_burn_in(
    # "auto", float in [0, 1), or int: a float is a share of the steps, an int a number of steps; at least two steps
    # must remain
    burn_in: str | float | int,
    # positions, gradients: (T, k) float64
    positions: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,  # (k,) or (T, k) float64
    *,
    watched: int | None = None,  # how many of the coordinates, the first ones, must be linear; all by default
    n_threads: int = 0,
) -> BurnIn:
    """Find the first step of the trace that the posterior uses, and the statistics from there on, in one pass.

    **Privacy.** Post-processing of a Release; it may look at the trace as often as it likes.

    Raises TypeError or ValueError if `burn_in` is none of these or leaves fewer than two steps.

    "auto" cuts the trace into 64 blocks and, for starts at 0, 1, 2, 4, 8, 16, 24 and 32 of them, regresses the block
    means of the gradient on those of the position.  If the linear model holds with the known noise, the weighted
    residual sum is at most the sum at the true parameters, which is chi-square with as many degrees of freedom as there
    are blocks; so a stationary or linearly converging trace is cut with probability at most 0.01 (Bonferroni over the
    coordinates).  The first start that passes is taken.  Misfit that is there in the second half too (correlated
    parameters, noise beyond the privacy noise) is no burn-in: where the second half fails the same test by itself,
    statistics are divided by its own and referred to the F distribution.
    """
    steps = positions.shape[0]
    watched = positions.shape[1] if watched is None else watched
    start = parse_burn_in(burn_in, steps)
    used = steps - (start or 0)
    blocks = min(_BLOCKS, used // 2) if used >= _FEWEST_BLOCKS else 1
    boundaries = np.linspace(start or 0, steps, blocks + 1).astype(np.int64)
    segments, reference = segment_statistics(positions, gradients, noise_stddev, boundaries, n_threads=n_threads)

    allowed = tuning.TUNING.level / watched

    def result(first: int, pvalue: FloatArray) -> BurnIn:
        begin = int(boundaries[first])
        statistics = TraceStatistics(steps - begin, reference, *merge_segments(segments[first:]))
        return BurnIn(begin, statistics, pvalue, not np.any(pvalue < allowed))

    def excess(first: int) -> FloatArray:
        return _excess(segments[first:, :, :watched], reference[:watched])

    if blocks == 1:
        return result(0, np.full(watched, np.nan))
    if start is not None:
        return result(0, special.chdtrc(blocks, excess(0)))
    half = blocks // 2
    later = excess(half)
    misfit = special.chdtrc(blocks - half, later) < allowed
    level = np.where(misfit, later / (blocks - half), 1.0)
    for candidate in _CANDIDATES:
        first = candidate * blocks // _BLOCKS
        size = blocks - first
        excesses = excess(first)
        pvalue = special.chdtrc(size, excesses)
        relative = special.fdtrc(size, blocks - half, excesses / size / level)
        if np.all(np.where(misfit, relative, pvalue) >= allowed):
            return result(first, pvalue)
    return result(half, special.chdtrc(blocks - half, later))


def _excess(segments: FloatArray, reference: FloatArray) -> FloatArray:
    """Return the weighted residual sums, in units of tau**2, of block means of g regressed on block means of x."""
    weight, mean_x, mean_g = segments[:, 0], segments[:, 1], segments[:, 2]
    between = segments.copy()
    between[:, 3:] = 0.0
    _, _, _, xx, xg, _ = merge_segments(between)
    slope = np.where(xx > 0.0, xg / np.where(xx > 0.0, xx, 1.0), 0.0)
    centred_x = mean_x - (weight * mean_x).sum(axis=0) / weight.sum(axis=0)
    centred_g = mean_g - (weight * mean_g).sum(axis=0) / weight.sum(axis=0)
    return np.asarray((weight * (centred_g - slope * centred_x) ** 2).sum(axis=0) / reference**2)
