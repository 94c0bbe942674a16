"""A cheap, approximate look at a composition, from which the tilt, the window and the grid step are chosen.

Nothing here enters a bound: a poor choice costs tightness or time, never validity.

Legend: ``theta`` is the exponential tilt, ``K`` the cumulant generating function of the composed loss.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.accounting._loss_grid import Direction, loss, noise_range
from dpinfer.accounting._normal import ndtr
from dpinfer.accounting._steps import Step, StepKind

__all__ = ["Layout", "plan_layout"]

FloatArray = npt.NDArray[np.float64]

_N_POINTS = 1201  # of a rough first grid; the certified bound does not depend on it
# Tilted mass that may fall outside the window on either side; it comes back as relative looseness of about this size.
_OUTSIDE = 1e-8
_RELATIVE_ERROR = 3e-5  # aim for epsilon of the discretisation; the excess is part of the certified bound
_MIN_POINTS = 2**12  # below it the transform costs nothing
_MAX_POINTS = 2**19  # memory and time of a transform
_MAX_STEP_POINTS = 2**20  # the same for a single step's law
# How much coarser than its own choice a layout may be made, so that its errors stay below a per cent.
_COARSEST = 16.0
_MAX_THETA = 1e12  # tilts beyond it overflow with any loss
# A tilt toward events rarer than exp of minus this leaves the range of the arithmetic.
_LARGEST_LEVEL = 640.0


@dataclass(frozen=True)
class Layout:
    """Where and how finely to compose.

    ``tilt`` is theta, ``far_tilt`` a larger one that bounds the mass above the window, ``width`` the grid step,
    ``low`` and ``high`` the window of composed losses.
    """

    tilt: float
    far_tilt: float
    width: float
    low: float
    high: float


class _Points:
    """Loss laws of a few thousand points each, one per distinct step."""

    def __init__(self, steps: Mapping[Step, int], direction: Direction, tail: float) -> None:
        self.counts = list(steps.values())
        laws = [_point_law(step, direction, tail) for step in steps]
        self.values = [values for values, _ in laws]
        self.logs = [np.log(weights) for _, weights in laws]

    def cgf(self, thetas: FloatArray) -> FloatArray:
        total = np.zeros(thetas.size)
        for values, logs, count in zip(self.values, self.logs, self.counts, strict=True):
            exponents = np.outer(thetas, values) + logs
            top = exponents.max(axis=1)
            total += count * (top + np.log(np.sum(np.exp(exponents - top[:, None]), axis=1)))
        return total

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """Return K and its first two derivatives."""
        first = second = cgf = 0.0
        for values, logs, count in zip(self.values, self.logs, self.counts, strict=True):
            exponents = theta * values + logs
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            mass = float(weights.sum())
            mean = float(weights @ values) / mass
            cgf += count * (top + math.log(mass))
            first += count * mean
            second += count * float(weights @ (values - mean) ** 2) / mass
        return cgf, first, second

    def support(self) -> tuple[float, float]:
        low = sum(count * float(values.min()) for values, count in zip(self.values, self.counts, strict=True))
        high = sum(count * float(values.max()) for values, count in zip(self.values, self.counts, strict=True))
        return low, high


def _point_law(step: Step, direction: Direction, tail: float) -> tuple[FloatArray, FloatArray]:
    low, high = noise_range(step.shift, step.rate, tail)
    if step.kind is StepKind.SUBSET:
        low = 0.5 * step.shift
    edges = np.linspace(low, max(high, low + 1.0), _N_POINTS + 1)
    middle = 0.5 * (edges[1:] + edges[:-1])
    near = np.maximum(-np.diff(ndtr(-edges)), np.diff(ndtr(edges)))
    far = np.maximum(-np.diff(ndtr(step.shift - edges)), np.diff(ndtr(edges - step.shift)))
    mixed = (1.0 - step.rate) * near + step.rate * far
    values = loss(step.shift, step.rate, middle)
    if step.kind is StepKind.SUBSET:
        atom = (1.0 - step.rate) * math.erf(step.shift / math.sqrt(8.0))
        values = np.concatenate([-values[::-1], [0.0], values])
        weights = np.concatenate([near[::-1], [atom], mixed])
    elif direction is Direction.REMOVE:
        weights = mixed
    else:
        values, weights = -values[::-1], near[::-1]
    keep = weights > 1e-300
    return values[keep], weights[keep] / float(weights[keep].sum())


def _solve_tilt(points: _Points, delta: float | None, epsilon: float | None) -> float:
    """Return the theta whose Chernoff bound on delta is least at `delta`, or with K'(theta) = epsilon.

    The bound is log delta <= K - theta epsilon - c with c = (1 + theta) log(1 + theta) - theta log(theta), from the
    greatest value of (1 - e^-x) e^(-theta x); at its least over theta, epsilon = K'(theta) - c'(theta).
    """
    _, mean, variance = points.cumulants(0.0)
    if variance <= 0.0:
        return 1.0
    if delta is not None:
        level = math.log(1.0 / delta)
        theta = math.sqrt(2.0 * level / variance)
    else:
        # No tilt reaches the top of the support, where the tails were cut.
        level = min(epsilon if epsilon is not None else 0.0, mean + 0.98 * (points.support()[1] - mean))
        if level <= mean:
            return 0.0
        theta = (level - mean) / variance
    low, high = 0.0, _MAX_THETA
    for _ in range(60):
        cgf, first, second = points.cumulants(theta)
        if delta is not None:
            gap = theta * first - cgf + math.log1p(theta) - level
            slope = theta * second + 1.0 / (1.0 + theta)
        else:
            gap, slope = first - level, second
        if delta is None and theta * first - cgf > _LARGEST_LEVEL:
            gap = math.inf
        if gap > 0.0:
            high = theta
        else:
            low = theta
        if abs(gap) <= 1e-3 * max(level, 1e-300):
            break
        step = theta - gap / slope if slope > 0.0 else math.inf
        theta = step if low < step < high else (math.sqrt(low * high) if low > 0.0 else 0.5 * high)
        if not high - low > 1e-6 * high:
            break
    return theta


def plan_layout(
    steps: Mapping[Step, int],
    direction: Direction,
    tail: float,
    *,
    delta: float | None,
    epsilon: float | None,
    least_width: float = 0.0,
) -> Layout:
    """Choose tilt, window and grid step for a given `delta` or, when that is None, a given `epsilon`."""
    with np.errstate(all="ignore"):
        return _plan_layout(steps, direction, tail, delta, epsilon, least_width)


def _plan_layout(
    steps: Mapping[Step, int],
    direction: Direction,
    tail: float,
    delta: float | None,
    epsilon: float | None,
    least_width: float,
) -> Layout:
    points = _Points(steps, direction, tail)
    theta = _solve_tilt(points, delta, epsilon)
    cgf, mean, variance = points.cumulants(theta)
    spread = math.sqrt(max(variance, 1e-300))
    offsets = np.geomspace(0.3, 100.0, 16) / spread
    level = math.log(1.0 / _OUTSIDE)
    above = (points.cgf(theta + offsets) - cgf + level) / offsets
    below = -(points.cgf(theta - offsets) - cgf + level) / offsets
    least, most = points.support()
    best = int(np.argmin(above))
    high, low = min(float(above[best]), most), max(float(np.max(below)), least)
    if delta is not None and theta > 0.0:
        low = max(least, min(low, mean - math.log1p(1.0 / theta) - spread))
    low = min(low, high - 1e-3 * spread)

    count = sum(steps.values())
    scale = max(mean, 0.1 * spread) if epsilon is None else max(epsilon, 0.1 * spread)
    # Splitting a bin's mass raises K by about theta (theta + 1) h^2 / 12 per step, hence epsilon by that over theta.
    width = math.sqrt(12.0 * _RELATIVE_ERROR * scale / (count * (theta + 1.0)))
    width = min(width, (high - low) / _MIN_POINTS)
    reach = max(float(values.max() - values.min()) for values in points.values)
    width = max(width, (high - low) / _MAX_POINTS, reach / _MAX_STEP_POINTS, min(least_width, _COARSEST * width))
    return Layout(theta, theta + float(offsets[best]), _few_bits(width), low, high)


def _few_bits(value: float) -> float:
    """Round to 20 significant bits, so that integer multiples below 2**33 are exact."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2.0**20), exponent - 20)
