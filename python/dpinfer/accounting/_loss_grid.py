"""The loss law of one step on a grid, rounded toward more loss: connect-the-dots from per-bin masses.

Legend: ``shift`` is mu, ``rate`` is q, ``width`` is the grid's step h, u the unit roundoff.  Losses live on the points
k h.  The direction REMOVE has numerator P = (1 - q) N(0, 1) + q N(mu, 1) and denominator Q = N(0, 1); ADD exchanges
them.  docs/derivations/accounting.md proves that the returned law dominates the true one, rounding included.
"""

import enum
import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.accounting._steps import Step, StepKind
from dpinfer.accounting.gaussian import ndtr, upper_quantile

UNIT = 2.0**-53  # unit roundoff of double precision
# Below this the arithmetic comes near the subnormal range, and relative error bounds would stop holding.
_TINY = 1e-280
_MAX_EXPONENT = 600.0  # exp(600) is still far from overflow, and a bound at exp(-600) is 0 for any delta
_TOLERANCE = 1e-7  # far above the rounding of the sums, far below a fault of a bin
# Only for tail masses, which are small beside delta already.
_ROUND_UP = 1.0 + 1e-9


class Direction(enum.Enum):
    """Which of the two neighbouring data sets is the one the loss is drawn under."""

    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True)
class GridLaw:
    """Masses of a dominating loss law on the points ``(start + i) * width``, and the mass at infinity.

    ``margin`` is an addition to the loss that covers the rounding of the bins' edges; ``consistent``: whether the
    masses passed the checks on their sum and on E exp(-loss).
    """

    start: int
    masses: FloatArray
    infinite: float
    margin: float
    consistent: bool


def loss(shift: float, rate: float, noise: FloatArray) -> FloatArray:
    """Return log(dP/dQ) of the REMOVE direction at `noise`, in noise standard deviations."""
    exponent = shift * (noise - 0.5 * shift)
    if rate == 1.0:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def noise_range(shift: float, rate: float, tail: float) -> tuple[float, float]:
    """Return where to cut the noise axis so that P above and Q below hold at most `tail` each."""
    reach = upper_quantile(0.5 * tail)
    high = max(reach, shift + upper_quantile(min(0.5, 0.5 * tail / rate)))
    return -reach, high


def _edge_noise(shift: float, rate: float, edges: FloatArray) -> FloatArray:
    """Return the noise at which the REMOVE loss equals each edge; -inf at and below the least loss.

    Three forms of log((e^edge - 1 + q) / q), so that each answer is exact for an edge that is off by a few roundings:
    one for edges far below 0, which exist only at a rate above one third, one around 0, and one that cannot overflow.
    """
    ratio = edges
    if rate < 1.0:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.log1p(np.maximum(np.expm1(np.minimum(edges, 1.0)) / rate, -1.0))
            if edges[0] < -0.5:
                low = np.log(np.maximum(np.exp(np.minimum(edges, 0.0)) - (1.0 - rate), 0.0) / rate)
                ratio = np.where(edges < -0.5, low, ratio)
            if edges[-1] > 1.0:
                large = np.maximum(edges, 1.0)
                high = large - math.log(rate) + np.log1p((rate - 1.0) * np.exp(-large))
                ratio = np.where(edges > 1.0, high, ratio)
    result: FloatArray = 0.5 * shift + ratio / shift
    return result


@dataclass(frozen=True)
class _Bins:
    """Masses of N(0, 1) (``near``) and N(mu, 1) (``far``) in each bin of the REMOVE loss, and beyond the ends.

    The errors bound the rounding of each bin's mass; ``mixed`` is the mixture.
    """

    rate: float
    edges: FloatArray
    near: FloatArray
    near_error: FloatArray
    far: FloatArray
    far_error: FloatArray
    mixed: FloatArray
    near_below: float
    near_above: float
    mixed_below: float
    mixed_above: float
    margin: float


def _gaussian_masses(noise: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the standard Gaussian mass between neighbouring points and a bound on its rounding error."""
    lower, upper = ndtr(noise), ndtr(-noise)
    right = noise[:-1] > 0.0
    mass = np.where(right, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    # The smaller tail keeps relative accuracy; a bin that contains 0 has both tails near one half and no cancellation.
    scale = np.where(right, upper[:-1], lower[1:])
    squared = np.minimum(np.maximum(noise[:-1] ** 2, noise[1:] ** 2), 1500.0)
    return np.maximum(mass, 0.0), 8.0 * UNIT * (4.0 + squared) * scale


def _bins(shift: float, rate: float, edges: FloatArray) -> _Bins:
    noise = _edge_noise(shift, rate, edges)
    reach = float(np.max(np.abs(noise[np.isfinite(noise)]), initial=0.0))
    near, near_error = _gaussian_masses(noise)
    far, far_error = _gaussian_masses(noise - shift)
    near_below, near_above = _ROUND_UP * float(ndtr(noise[0])), _ROUND_UP * float(ndtr(-noise[-1]))
    far_below, far_above = _ROUND_UP * float(ndtr(noise[0] - shift)), _ROUND_UP * float(ndtr(shift - noise[-1]))
    # The loss's slope in the noise grows with the loss; at the top it is mu (1 - (1 - q) e^-loss).
    steepest = shift if rate == 1.0 else -shift * math.expm1(math.log1p(-rate) - max(0.0, float(edges[-1])))
    extent = max(abs(float(edges[0])), abs(float(edges[-1])))
    return _Bins(
        rate=rate,
        edges=edges,
        near=near,
        near_error=near_error,
        far=far,
        far_error=far_error,
        mixed=(1.0 - rate) * near + rate * far,
        near_below=near_below,
        near_above=near_above,
        mixed_below=(1.0 - rate) * near_below + rate * far_below,
        mixed_above=(1.0 - rate) * near_above + rate * far_above,
        margin=32.0 * UNIT * (extent + (reach + shift) * steepest),
    )


def _split(bins: _Bins, width: float, *, remove: bool) -> tuple[FloatArray, float]:
    """Split each bin's numerator mass between the bin's ends so that the denominator's mass is kept, rounding upward.

    Returns the masses on the edges, in ascending order of the loss, and the denominator mass of the bins that were
    split; a bin too far out for the arithmetic goes to its upper end whole.
    """
    rate = bins.rate
    edge = bins.edges[:-1] if remove else bins.edges[1:]
    gap = np.expm1(np.clip(edge, -_MAX_EXPONENT, _MAX_EXPONENT))
    sign = 1.0 if remove else -1.0
    mixed_error = (1.0 - rate) * bins.near_error + rate * bins.far_error + 8.0 * UNIT * bins.mixed
    # Two ways to round mixed - e^edge near: the first is sharp where the rate and the loss are small, the second where
    # the loss is near its least.  Both bound the same number, so the smaller bound holds.
    slack = rate * (bins.far_error + 8.0 * UNIT * bins.far)
    slack += (rate + np.abs(gap)) * (bins.near_error + 8.0 * UNIT * bins.near)
    first = sign * (rate * bins.far - (rate + gap) * bins.near) + slack
    growth = np.exp(np.clip(edge, -_MAX_EXPONENT, _MAX_EXPONENT))
    slack = mixed_error + growth * (bins.near_error + 8.0 * UNIT * bins.near)
    second = sign * (bins.mixed - growth * bins.near) + slack
    share = np.minimum(first, second) + 4.0 * bins.margin * (bins.mixed + growth * bins.near)
    if remove:
        numerator, denominator = bins.mixed + mixed_error, bins.near
    else:
        # The bin [k h, (k + 1) h] of the REMOVE loss is [-(k + 1) h, -k h] of the ADD loss: the arrays run backwards.
        numerator, denominator = (bins.near + bins.near_error)[::-1], bins.mixed[::-1]
        share, edge = (share / growth)[::-1], edge[::-1]
    splittable = (np.abs(edge) < _MAX_EXPONENT) & (denominator > _TINY) & (numerator > _TINY)
    upper = np.where(splittable, np.clip(share / -math.expm1(-width), 0.0, numerator), numerator)
    masses = np.zeros(bins.edges.size)
    masses[:-1] = numerator - upper
    masses[1:] += upper
    return masses, float(np.sum(denominator[splittable]))


def discretise(step: Step, direction: Direction, width: float, tail: float) -> GridLaw:
    """Return a loss law on the grid of step `width` that dominates `step`'s, cutting about `tail` off each side.

    Parameters
    ----------
    step : Step
        The step.
    direction : Direction
        Which pair; it makes no difference to a symmetric step.
    width : float
        Grid step, positive, with at most 24 significant bits, so that its multiples are exact.
    tail : float
        Probability that may be moved to infinity, in (0, 1).

    Returns
    -------
    GridLaw
        The law; ``consistent`` must be checked by the caller.
    """
    shift, rate = step.shift, step.rate
    ends = loss(shift, rate, np.array(noise_range(shift, rate, tail)))
    first = math.floor(ends[0] / width)
    if rate < 1.0:
        first = max(first, math.floor(math.log1p(-rate) / width))
    if step.kind is StepKind.SUBSET:
        first = 0
    last = max(first + 1, math.ceil(ends[1] / width))
    bins = _bins(shift, rate, np.arange(first, last + 1, dtype=np.float64) * width)

    if step.kind is StepKind.SUBSET:
        # Zhu, Dong and Wang (2022): positive losses of REMOVE, negative losses of ADD, the rest an atom at zero.
        positive, kept_positive = _split(bins, width, remove=True)
        negative, kept_negative = _split(bins, width, remove=False)
        negative[0] += bins.near_above
        atom = (1.0 - rate) * math.erf(shift / math.sqrt(8.0)) * (1.0 + 32.0 * UNIT)
        masses = np.concatenate([negative[:-1], [negative[-1] + atom + positive[0]], positive[1:]])
        start, infinite, kept = -last, bins.mixed_above, kept_positive + kept_negative + atom
    elif direction is Direction.REMOVE:
        masses, kept = _split(bins, width, remove=True)
        masses[0] += bins.mixed_below
        start, infinite = first, bins.mixed_above
    else:
        masses, kept = _split(bins, width, remove=False)
        masses[0] += bins.near_above
        start, infinite = -last, bins.near_below
    grid = (start + np.arange(masses.size)) * width
    total = float(np.sum(masses)) + infinite
    inverse = float(np.sum(masses * np.exp(-np.clip(grid, -_MAX_EXPONENT, _MAX_EXPONENT))))
    consistent = abs(total - 1.0) <= _TOLERANCE and kept - _TOLERANCE <= inverse <= 1.0 + _TOLERANCE
    return GridLaw(start, masses, infinite, bins.margin, consistent)
