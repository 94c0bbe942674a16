"""Compose grid laws by an exponentially tilted FFT, every rounding and truncation counted as more loss.

Legend: ``theta`` the tilt, ``width`` the grid step h, g the tilted one-step law, z its transform, T its count, n the
transform's length, u the unit roundoff.  docs/derivations/accounting.md has the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.accounting._loss_grid import UNIT, GridLaw
from dpinfer.accounting._scout import Layout

__all__ = ["ComposedLaw", "compose"]

FloatArray = npt.NDArray[np.float64]

# The normwise relative error of a transform of length n is at most this times u log2(n) (Higham 2002, section 24.1,
# gives about 7 for radix 2; the transforms used here also have factors 3 and 5).
_FFT_CONSTANT = 16.0
_MAX_EXPONENT = 650.0  # below the 709 of the largest double
# Larger values mean "more than any mass", with room for sums and products: 1e60 squared is below 1e308.
_MAX_LOG_MASS = 250.0
# At most ten atoms can be larger than this.
_ATOM = 0.1
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

    Large atoms are transformed by their formula: where a few points have most of
    the mass, as when a step rarely samples the record, they would otherwise dominate the error.
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
