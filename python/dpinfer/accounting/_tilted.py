"""Compose grid laws by an exponentially tilted FFT, every rounding and truncation counted as more loss.

Legend: ``theta`` the tilt, ``width`` the grid step h, g the tilted one-step law, z its transform, T its count, n the
transform's length, u the unit roundoff.  docs/derivations/accounting.md has the proof.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.accounting._steps import UNIT, Direction, GridLaw, Step, StepKind, loss, noise_range
from dpinfer.accounting.gaussian import ndtr

_N_POINTS = 1201  # of a rough first grid; the certified bound does not depend on it
_OUTSIDE = 1e-8  # tilted mass outside the window on either side; looseness is of about this size
_RELATIVE_ERROR = 3e-5  # aim for epsilon of the discretisation; the excess is part of the certified bound
_MIN_POINTS = 2**12  # below it the transform costs nothing
_MAX_POINTS = 2**19  # memory and time of a transform
_MAX_STEP_POINTS = 2**20  # the same for a single step's law
_COARSEST = 16.0  # how much coarser than its own choice a layout may be made, so that its errors stay below a per cent
_MAX_THETA = 1e12  # tilts beyond it overflow with any loss
_LARGEST_LEVEL = 640.0  # a tilt toward events rarer than exp of minus this leaves the range of the arithmetic


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


@np.errstate(all="ignore")
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


# The normwise relative error of a transform of length n is at most this times u log2(n) (Higham 2002, section 24.1,
# gives about 7 for radix 2; the transforms used here also have factors 3 and 5).
_FFT_CONSTANT = 16.0
_MAX_EXPONENT = 650.0  # below the 709 of the largest double
_MAX_LOG_MASS = 250.0  # "more than any mass", with room for sums and products: 1e60 squared is below 1e308
_ATOM = 0.1  # at most ten atoms can be larger than this
_NEGLIGIBLE_LOG = -700.0  # about the least normal double; smaller masses are counted as missed


@dataclass(frozen=True)
class ComposedLaw:
    """An upper bound on delta at the grid points ``(start + i) * width``, non-increasing in i.

    ``margin`` has to be added to epsilon.
    """

    start: int
    width: float
    deltas: FloatArray
    margin: float

    def epsilon(self, delta: float) -> float:
        """Return an epsilon at which the bound meets `delta`; infinity when there is none on the grid."""
        met = np.flatnonzero(self.deltas <= delta)
        if met.size == 0:
            return math.inf
        index = int(met[0])
        at_point = (self.start + index) * self.width
        if index > 0 and self.width < _MAX_EXPONENT:
            # Between grid points delta is linear in e^epsilon, and so is the bound through the two points.
            above, below = float(self.deltas[index - 1]), float(self.deltas[index])
            fraction = min(1.0, (above - delta) / (above - below) * (1.0 + 4.0 * UNIT))
            inside = at_point - self.width + math.log1p(math.expm1(self.width) * fraction) * (1.0 + 8.0 * UNIT)
            at_point = min(at_point, inside)
        return max(0.0, at_point + self.margin + 8.0 * UNIT * abs(at_point))

    def delta(self, epsilon: float) -> float:
        """Return a bound on delta at `epsilon`; 1 below the grid."""
        position = math.floor((epsilon - self.margin) * (1.0 - 8.0 * UNIT) / self.width) - self.start
        if position < 0:
            return 1.0
        if position >= self.deltas.size - 1:
            return float(min(1.0, self.deltas[-1]))
        above, below = float(self.deltas[position]), float(self.deltas[position + 1])
        offset = max(0.0, epsilon - self.margin - (self.start + position) * self.width)
        # The quotient of expm1 at the two, written so that nothing overflows.
        share = math.expm1(-offset) / math.expm1(-self.width) * math.exp(min(0.0, offset - self.width))
        fraction = min(1.0, share) * (1.0 - 1e-9)
        return min(1.0, above - (above - below) * fraction)


def _grid(law: GridLaw, width: float) -> FloatArray:
    return np.arange(law.start, law.start + law.masses.size, dtype=np.float64) * width


def _log_moment(law: GridLaw, width: float, theta: float) -> float:
    """Return log of the sum of mass * exp(theta * loss) over the finite losses."""
    exponents = theta * _grid(law, width)
    top = float(exponents.max())
    return top + math.log(float(np.sum(law.masses * np.exp(exponents - top))))


def compose(laws: Sequence[tuple[GridLaw, int]], layout: Layout) -> ComposedLaw:
    """Compose each law `count` times with itself and all of them with each other; an upper bound at every point."""
    width, theta = layout.width, layout.tilt
    least = sum(count * law.start for law, count in laws)
    most = sum(count * (law.start + law.masses.size - 1) for law, count in laws)
    start = max(least, math.floor(layout.low / width) - 1)
    stop = min(most, math.ceil(layout.high / width) + 1)
    size = _fast_length(max(16, stop - start + 1))

    moments = [_log_moment(law, width, theta) for law, _ in laws]
    total_moment = math.fsum(count * moment for moment, (_, count) in zip(moments, laws, strict=True))
    tilted = _tilted_power(laws, moments, width, theta, size)
    index = start + np.arange(size)
    values = np.roll(tilted, -(start % size))

    # Undo the tilt.  Exponents above the cap belong to losses at which the bound exceeds 1 anyway.
    exponents = total_moment - theta * width * index
    slack = 8.0 * UNIT * (1.0 + abs(total_moment) + theta * width * float(np.max(np.abs(index[[0, -1]]))))
    masses = values * np.exp(np.minimum(exponents, _MAX_LOG_MASS)) * (1.0 + slack)

    infinite = math.fsum(count * law.infinite for law, count in laws)
    if start + size - 1 < most:
        infinite += _mass_above(laws, layout.far_tilt, width, start + size - 1)
    margin = math.fsum(count * law.margin for law, count in laws)
    return ComposedLaw(start, width, _deltas(masses, width, infinite), margin)


def _fast_length(least: int) -> int:
    """Return the least length from `least` on that has no other prime factors than 2, 3 and 5."""
    best = 1 << (least - 1).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << max(0, (-(-least // odd) - 1).bit_length()))
            odd *= 3
        fives *= 5
    return best


def _norm(values: FloatArray) -> float:
    """Return the 2-norm; not by the linear algebra library, whose threads wait for one another by spinning."""
    return math.sqrt(float(np.sum(np.square(values))))


def _tilted_power(
    laws: Sequence[tuple[GridLaw, int]], moments: Sequence[float], width: float, theta: float, size: int
) -> FloatArray:
    """Return an upper bound on each entry of the cyclic convolution power of the tilted laws."""
    log_size = math.log2(size)
    half = size // 2 + 1
    log_modulus, log_bound = np.zeros(half), np.zeros(half)
    phase, relative = np.zeros(half), np.zeros(half)
    for (law, count), moment in zip(laws, moments, strict=True):
        exponents = theta * _grid(law, width) - moment
        inflate = 1.0 + UNIT * (16.0 + 4.0 * np.abs(exponents))
        tilted = law.masses * np.exp(exponents) * inflate
        places = (law.start + np.arange(tilted.size)) % size
        folded: FloatArray = np.bincount(places, weights=tilted, minlength=size).astype(np.float64)
        folded *= 1.0 + UNIT * (2.0 + tilted.size / size)
        transform, error = _transform(folded)
        modulus = np.abs(transform)
        bound = modulus + error
        with np.errstate(divide="ignore"):
            log_modulus += count * np.log(modulus)
        log_bound += count * np.log(bound)
        phase += count * np.angle(transform)
        relative += count * (error / bound + UNIT * (16.0 + 2.0 * np.abs(np.log(bound))))
    log_bound = np.minimum(log_bound, _MAX_LOG_MASS)
    live = log_bound > _NEGLIGIBLE_LOG
    power = np.zeros(half, dtype=np.complex128)
    size_live = np.exp(np.minimum(log_modulus[live], _MAX_LOG_MASS))
    power[live] = size_live * np.cos(phase[live]) + 1j * (size_live * np.sin(phase[live]))
    # First order with a tenth in hand; where that is no longer small, both values are at most the bound itself.
    share = np.where(relative[live] < 0.1, 1.1 * relative[live], 3.0)
    missed = float(np.sum(np.exp(log_bound[live]) * share))
    missed += float(np.count_nonzero(~live)) * math.exp(_NEGLIGIBLE_LOG)
    result: FloatArray = np.fft.irfft(power, size)
    uncertainty = 2.0 * missed / size
    uncertainty += _FFT_CONSTANT * UNIT * log_size * _norm(result)
    padded: FloatArray = np.maximum(result, 0.0) + uncertainty
    return padded


def _transform(values: FloatArray) -> tuple[npt.NDArray[np.complex128], float]:
    """Return the real-input transform of non-negative values and a bound on the error of each of its entries.

    Large atoms are transformed by their formula: where a few points have most of the mass, as when a step rarely
    samples the record, they would otherwise dominate the error.
    """
    size = values.size
    atoms = np.flatnonzero(values > _ATOM)
    rest = values
    if atoms.size:
        rest = values.copy()
        rest[atoms] = 0.0
    transform = np.fft.rfft(rest)
    # Each entry's error is at most the 2-norm of all of them, which is sqrt(n) times a relative one.
    error = _FFT_CONSTANT * UNIT * math.log2(size) * math.sqrt(size) * _norm(rest)
    frequencies = np.arange(transform.size)
    for atom in atoms:
        # The product is reduced in integers, so that the angle keeps its relative accuracy.
        angle = (-2.0 * math.pi / size) * ((frequencies * int(atom)) % size)
        transform += float(values[atom]) * np.exp(1j * angle)
        error += 32.0 * UNIT * float(values[atom])
    return transform, error


def _mass_above(laws: Sequence[tuple[GridLaw, int]], theta: float, width: float, last: int) -> float:
    """Return Chernoff's bound on the composed mass above the window."""
    parts = [count * _log_moment(law, width, theta) for law, count in laws]
    exponent = math.fsum(parts) - theta * width * last
    rounding = 64.0 * UNIT * (1.0 + math.fsum(abs(part) for part in parts) + theta * width * abs(last))
    rounding += sum(count for _, count in laws) * 1e-13
    return math.exp(min(0.0, exponent + rounding))


def _deltas(masses: FloatArray, width: float, infinite: float) -> FloatArray:
    """Return the bound on delta at each point: mass above, less e^epsilon times its mass under the other law."""
    offsets = np.arange(masses.size) * width
    inverse = np.where(offsets < _MAX_EXPONENT, np.exp(-offsets), 0.0)
    above = np.cumsum(masses[::-1])[::-1]
    other = np.cumsum((masses * inverse)[::-1])[::-1]
    growth = np.exp(np.minimum(offsets, _MAX_EXPONENT))
    deltas = above - growth * other
    deltas += 4.0 * UNIT * (masses.size + 8.0) * above
    # A true trade-off is non-increasing; the running minimum from the left of valid bounds is valid too.
    return np.minimum.accumulate(np.clip(deltas, 0.0, None) + infinite)
