"""Reduce an event tree to the multiset of one-step loss laws an accountant has to compose.

Every covered step but the pure ones is one of three, all built from a unit-variance Gaussian at 0 and one at ``shift``
(the sensitivity divided by the noise's standard deviation), mixed with probability ``rate``.
"""

import enum
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dpinfer.accounting.adjacency import Adjacency
from dpinfer.accounting.events import (
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
from dpinfer.accounting.gaussian import pure_mu
from dpinfer.errors import UnsupportedEventError

_COVERED = (
    "Covered are: GaussianEvent under every adjacency; PoissonSampled(GaussianEvent) under add_remove and zero_out; "
    "SampledWithoutReplacement(GaussianEvent) under replace_one and zero_out; PureEvent and ApproximateEvent under "
    "their own relation; and compositions of these"
)

# Shifts and rates are rounded up by more than the rounding error of computing them: a larger one dominates.
_MOST_STEPS = 10**300
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
    """One step of a composition.

    Parameters
    ----------
    kind : StepKind
        Plain Gaussian, Poisson-sampled Gaussian, a Gaussian on a subset drawn without replacement, a pure guarantee,
        or a failure that gives the record away.
    shift : float
        L2 sensitivity divided by the noise's standard deviation, positive; epsilon, for the kind PURE; the probability,
        for FAILURE.
    rate : float
        Probability with which one record takes part, in (0, 1]; below 1 exactly when the kind is POISSON or SUBSET.
    """

    kind: StepKind
    shift: float
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
    divergence of all at epsilon + e is at most that of the rest at epsilon.
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
    total = math.fsum(step.shift * count for step, count in chosen.items())
    return rest, total if sum(chosen.values()) <= 1 else total * _ROUND_UP


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
