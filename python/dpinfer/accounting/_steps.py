"""From an event tree to the multiset of one-step loss laws that an accountant composes, and each law on a grid.

Every covered step but the pure ones is one of three, all built from a unit-variance Gaussian at 0 and one at ``shift``
(the sensitivity divided by the noise's standard deviation), mixed with probability ``rate``.

On a grid, losses are rounded toward more: connect-the-dots from per-bin masses.  ``shift`` is mu, ``rate`` is q,
``width`` is the grid's step h, u the unit roundoff.  Losses live on the points k h.  The direction REMOVE has numerator
P = (1 - q) N(0, 1) + q N(mu, 1) and denominator Q = N(0, 1); ADD exchanges them.  docs/derivations/accounting.md proves
that the returned law dominates the true one, rounding included.

Accountants treat the noise as exactly Gaussian.  The library's draws are, outside an event of a bounded probability,
the exact rounding of an exact Gaussian: the slack is that part of delta (docs/derivations/noise.md).
"""

import enum
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.accounting.decimals import at_least, decimal_of
from dpinfer.accounting.events import (
    Adjacency,
    ApproximateEvent,
    Composed,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    PureEvent,
    SampledWithoutReplacement,
    SelfComposed,
)
from dpinfer.accounting.gaussian import ndtr, pure_mu, upper_quantile
from dpinfer.errors import UnsupportedEventError

UNIT = 2.0**-53  # unit roundoff of double precision
_TINY = 1e-280  # below this the arithmetic comes near the subnormal range, and relative error bounds would stop holding
_MAX_EXPONENT = 600.0  # exp(600) is still far from overflow, and a bound at exp(-600) is 0 for any delta
_TOLERANCE = 1e-7  # far above the rounding of the sums, far below a fault of a bin
_UP_TAIL = 1.0 + 1e-9  # only for tail masses, which are small beside delta already
# The probability that one coordinate of one step, with noise multiplier s, differs from exact noise is at
# most s 2**-131 + 2**-138; a step has at most 2**20 coordinates.
_PER_NOISE_MULTIPLIER = 2.0**-111
_PER_STEP = 2.0**-118  # 2**-138 times 2**20 coordinates

# Shares of delta to set aside, tried in turn: the first moves epsilon by less than its tenth digit.
RESERVED_SHARES = (2.0**-30, 2.0**-20, 2.0**-10, 2.0**-5, 2.0**-3, 0.5)

LARGEST_EPSILON = 40.0  # beyond it a guarantee is void, and the slack, which grows as e**epsilon, is not counted
_COVERED = (
    "Covered are: GaussianEvent under every adjacency; PoissonSampled(GaussianEvent) under add_remove and zero_out; "
    "SampledWithoutReplacement(GaussianEvent) under replace_one and zero_out; PureEvent and ApproximateEvent under "
    "their own relation; and compositions of these"
)

_MOST_STEPS = 10**300  # shifts and rates are rounded up by more than the rounding of computing them
_ROUND_UP = 1.0 + 1e-14  # more than the rounding of the few operations that it covers (100 units)


class StepKind(enum.Enum):
    """Which pair of distributions dominates one step."""

    GAUSSIAN = "gaussian"
    POISSON = "poisson"
    SUBSET = "subset"
    PURE = "pure"
    FAILURE = "failure"


@dataclass(frozen=True)
class Step:
    """One step of a composition."""

    # plain Gaussian, Poisson-sampled Gaussian, a Gaussian on a subset drawn without replacement, a pure guarantee, or
    # a failure that gives the record away
    kind: StepKind
    # L2 sensitivity divided by the noise's standard deviation, positive; epsilon, for the kind PURE; the probability,
    # for FAILURE
    shift: float
    # probability with which one record takes part, in (0, 1]; below 1 exactly when the kind is POISSON or SUBSET
    rate: float

    @property
    def symmetric(self) -> bool:
        """Whether both orders of the neighbouring data sets have the same loss law."""
        return self.kind is not StepKind.POISSON


def reduce_event(event: Event, adjacency: Adjacency) -> dict[Step, int] | None:
    """Return each distinct step with its count, or None when a part of the event is not private at all.

    A part that is repeated more often than floating-point numbers go counts as not private.

    All plain Gaussians become one step of count 1, exactly: their losses are Gaussian and squared shifts add.

    Raises UnsupportedEventError if a part of the event has no valid bound under `adjacency`.
    """
    counts: Counter[Step] = Counter()
    if not _collect(event, adjacency, 1, counts):
        return None
    if max(counts.values(), default=0) > _MOST_STEPS:
        return None
    gaussians = [step for step in counts if step.kind is StepKind.GAUSSIAN]
    if gaussians:
        # hypot of every shift would overflow no earlier than the answer does, and loses no small term.
        shift = math.hypot(*(step.shift * math.sqrt(counts.pop(step)) for step in gaussians))
        counts[Step(StepKind.GAUSSIAN, shift * _ROUND_UP, 1.0)] = 1
    return dict(counts)


def split_pure(steps: Mapping[Step, int]) -> tuple[dict[Step, int], float]:
    """Return the steps without pure guarantees, and the sum of those, which adds to the epsilon of the rest.

    For any order of the steps, the loss of the pure ones is at most their sum e, so that the hockey-stick
    divergence of all at epsilon + e is at most that of the rest at epsilon.  Epsilons are decimals, and add as these.
    """
    return _split(steps, StepKind.PURE)


def split_failure(steps: Mapping[Step, int]) -> tuple[dict[Step, int], float]:
    """Return the steps without failures, and the sum of their probabilities, which adds to the delta of the rest.

    An (epsilon, delta) guarantee is dominated by a pure one beside a failure of probability delta (Kairouz, Oh and
    Viswanath 2015), and the probability of any failure is at most the sum.
    """
    return _split(steps, StepKind.FAILURE)


def _split(steps: Mapping[Step, int], kind: StepKind) -> tuple[dict[Step, int], float]:
    rest = {step: count for step, count in steps.items() if step.kind is not kind}
    chosen = {step: count for step, count in steps.items() if step.kind is kind}
    if not chosen:
        return rest, 0.0
    return rest, at_least(sum((decimal_of(step.shift) * count for step, count in chosen.items()), Fraction(0)))


def pure_as_gaussian(steps: Mapping[Step, int]) -> dict[Step, int]:
    """Return the steps with a plain Gaussian that dominates the pure guarantees in place of these.

    Squared shifts add where epsilons would: for guarantees that are small beside the rest that costs far less.
    """
    shifts = [
        (pure_mu(step.shift) if step.kind is StepKind.PURE else step.shift) * math.sqrt(count)
        for step, count in steps.items()
        if step.kind in (StepKind.PURE, StepKind.GAUSSIAN)
    ]
    rest = {step: count for step, count in steps.items() if step.kind not in (StepKind.PURE, StepKind.GAUSSIAN)}
    return rest | ({Step(StepKind.GAUSSIAN, math.hypot(*shifts) * _ROUND_UP, 1.0): 1} if shifts else {})


def _collect(event: Event, adjacency: Adjacency, count: int, counts: Counter[Step]) -> bool:
    if isinstance(event, NonPrivateEvent):
        return False
    if isinstance(event, Composed):
        # Every part is visited, so that an unsupported part is refused even next to one without a guarantee.
        private = [_collect(part, adjacency, count, counts) for part in event.events]
        return all(private)
    if isinstance(event, SelfComposed):
        return _collect(event.event, adjacency, count * event.count, counts)
    if isinstance(event, (PureEvent, ApproximateEvent)):
        if event.adjacency != adjacency.value:
            name = f"{type(event).__name__} under {event.adjacency!r}"
            raise UnsupportedEventError(f"a {name} is not covered under {adjacency.value!r}. {_COVERED}")
        counts[Step(StepKind.PURE, event.epsilon, 1.0)] += count
        if isinstance(event, ApproximateEvent):
            counts[Step(StepKind.FAILURE, event.delta, 1.0)] += count
        return True
    if not isinstance(event, GaussianEvent) and isinstance(event.event, NonPrivateEvent):
        return False
    counts[_step(event, adjacency)] += count
    return True


def _step(event: GaussianEvent | PoissonSampled | SampledWithoutReplacement, adjacency: Adjacency) -> Step:
    if isinstance(event, GaussianEvent):
        return Step(StepKind.GAUSSIAN, adjacency.sensitivity_factor / event.noise_multiplier, 1.0)
    if not isinstance(event.event, GaussianEvent):
        raise UnsupportedEventError(
            f"sampling of a {type(event.event).__name__} is not covered. {_COVERED}; compose outside the sampling"
        )
    if isinstance(event, PoissonSampled):
        if event.sample_rate == 1.0:
            return _step(event.event, adjacency)
        if adjacency is Adjacency.REPLACE_ONE:
            raise UnsupportedEventError(
                "Poisson sampling is not covered under replace_one: account it under add_remove and convert explicitly "
                f"with add_remove_to_replace_one. {_COVERED}"
            )
        return Step(StepKind.POISSON, _ROUND_UP / event.event.noise_multiplier, event.sample_rate)
    if adjacency is Adjacency.ADD_REMOVE:
        raise UnsupportedEventError(
            "sampling without replacement is not covered under add_remove, because its number of records is public: "
            f"use replace_one. {_COVERED}"
        )
    if event.n_sampled == event.n_records:
        return _step(event.event, adjacency)
    # A zeroed record is one particular replacement, so the replace-one bound (sensitivity 2) covers zero_out too.
    shift = Adjacency.REPLACE_ONE.sensitivity_factor / event.event.noise_multiplier
    return Step(StepKind.SUBSET, shift * _ROUND_UP, min(1.0, event.n_sampled / event.n_records * _ROUND_UP))


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
    near_below, near_above = _UP_TAIL * float(ndtr(noise[0])), _UP_TAIL * float(ndtr(-noise[-1]))
    far_below, far_above = _UP_TAIL * float(ndtr(noise[0] - shift)), _UP_TAIL * float(ndtr(shift - noise[-1]))
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


def _split_bins(bins: _Bins, width: float, *, remove: bool) -> tuple[FloatArray, float]:
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


def discretise(
    step: Step,
    direction: Direction,  # which pair; it makes no difference to a symmetric step
    width: float,  # grid step, positive, with at most 24 significant bits, so that its multiples are exact
    tail: float,  # probability that may be moved to infinity, in (0, 1)
) -> GridLaw:  # the law; ``consistent`` must be checked by the caller
    """Return a loss law on the grid of step `width` that dominates `step`'s, cutting about `tail` off each side."""
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
        positive, kept_positive = _split_bins(bins, width, remove=True)
        negative, kept_negative = _split_bins(bins, width, remove=False)
        negative[0] += bins.near_above
        atom = (1.0 - rate) * math.erf(shift / math.sqrt(8.0)) * (1.0 + 32.0 * UNIT)
        masses = np.concatenate([negative[:-1], [negative[-1] + atom + positive[0]], positive[1:]])
        start, infinite, kept = -last, bins.mixed_above, kept_positive + kept_negative + atom
    elif direction is Direction.REMOVE:
        masses, kept = _split_bins(bins, width, remove=True)
        masses[0] += bins.mixed_below
        start, infinite = first, bins.mixed_above
    else:
        masses, kept = _split_bins(bins, width, remove=False)
        masses[0] += bins.near_above
        start, infinite = -last, bins.near_below
    grid = (start + np.arange(masses.size)) * width
    total = float(np.sum(masses)) + infinite
    inverse = float(np.sum(masses * np.exp(-np.clip(grid, -_MAX_EXPONENT, _MAX_EXPONENT))))
    consistent = abs(total - 1.0) <= _TOLERANCE and kept - _TOLERANCE <= inverse <= 1.0 + _TOLERANCE
    return GridLaw(start, masses, infinite, bins.margin, consistent)


def total_variation_slack(event: Event) -> float:  # in [0, inf); parts without a guarantee count nothing
    """Return a bound on the total variation distance between an event with exact noise and with the library's."""
    if isinstance(event, (NonPrivateEvent, PureEvent, ApproximateEvent)):
        # These are drawn exactly, by integers.
        return 0.0
    if isinstance(event, Composed):
        return math.fsum(total_variation_slack(part) for part in event.events)
    if isinstance(event, SelfComposed):
        return event.count * total_variation_slack(event.event)
    if isinstance(event, GaussianEvent):
        return event.noise_multiplier * _PER_NOISE_MULTIPLIER + _PER_STEP
    return total_variation_slack(event.event)


def reserve_suffices(
    slack: float,  # total variation distance between the two
    epsilon: float,  # in [0, inf]
    reserve: float,  # in (0, 1)
) -> bool:
    """Whether delta + `reserve` covers a mechanism within `slack` of an (epsilon, delta)-private one.

    P'(A) <= P(A) + s <= e**epsilon Q(A) + delta + s <= e**epsilon Q'(A) + delta + (1 + e**epsilon) s.
    """
    if slack == 0.0:
        return True
    return math.log(slack) + max(epsilon, 0.0) + math.log1p(math.exp(-epsilon)) <= math.log(reserve)
