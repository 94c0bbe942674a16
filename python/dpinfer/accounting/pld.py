"""The default accountant, a privacy loss distribution that errs only toward more loss, and that of prv-accountant."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.accounting._steps import Direction, Step, StepKind, discretise
from dpinfer.accounting._tilted import ComposedLaw, Layout, compose, plan_layout
from dpinfer.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpinfer.errors import UnsupportedEventError

_MAX_MESH = 500_000  # the package's memory and time are proportional to the number of mesh points
_RELATIVE_ERROR = 0.01  # of epsilon: stated in the docstring
_DELTA_ERROR_SHARE = 1e-3  # of delta: small beside the error of epsilon
_TAIL_SHARE = 1e-5  # the share of delta that cutting the tails of the one-step laws may cost
_LEAST_TAIL = 1e-280  # above the least normal double, 2e-308, with room for products
_MAX_REFINEMENTS = 30  # the assumed delta falls by 10 or more in each
_MAX_SHIFT = 1e4  # steps with less noise have no useful guarantee; larger shifts overflow
_MIN_SHIFT = 1e-9  # below it the loss is lost in rounding
_BOTH = (Direction.REMOVE, Direction.ADD)

_ANCHORS = (1e-2, 1e-5, 1e-8)  # where the laws of a whole curve are made accurate: at epsilon 0, and at these deltas


def only_gaussian(steps: Mapping[Step, int]) -> Step | None:
    """Return the step of a composition of one plain Gaussian; None otherwise."""
    return next((step for step in steps if len(steps) == 1 and step.kind is StepKind.GAUSSIAN), None)


def _without_pure(steps: Mapping[Step, int]) -> None:
    if any(step.kind in (StepKind.PURE, StepKind.FAILURE) for step in steps):
        raise UnsupportedEventError(
            "pure guarantees and failures have no law on the grid: split them off with split_pure and split_failure"
        )


def _in_range(steps: Mapping[Step, int]) -> bool:
    return all(_MIN_SHIFT <= step.shift <= _MAX_SHIFT for step in steps)


def _relevant(steps: Mapping[Step, int], directions: tuple[Direction, ...]) -> tuple[Direction, ...]:
    return directions[:1] if all(step.symmetric for step in steps) else directions


def _tail(steps: Mapping[Step, int], delta: float) -> float:
    return max(_LEAST_TAIL, _TAIL_SHARE * min(delta, 0.5) / sum(steps.values()))


def _largest_loss(steps: Mapping[Step, int], direction: Direction) -> float:
    """Return a bound that the composed loss never exceeds: only Poisson sampling has one, and only for ADD."""
    if direction is Direction.REMOVE or any(step.symmetric for step in steps):
        return math.inf
    return math.fsum(-count * math.log1p(-step.rate) for step, count in steps.items()) * (1.0 + 1e-12)


def _total_variation(steps: Mapping[Step, int]) -> float:
    """Return a bound on delta at every epsilon: the sum of the steps' total variation distances, REMOVE or ADD."""
    parts = (count * step.rate * math.erf(step.shift / math.sqrt(8.0)) for step, count in steps.items())
    return min(1.0, math.fsum(parts) * (1.0 + 1e-12))


def _compose(steps: Mapping[Step, int], direction: Direction, layout: Layout, tail: float) -> ComposedLaw | None:
    """Compose the steps, or return None when a one-step law fails its checks."""
    if not 0.0 < layout.width < math.inf:
        return None
    # Underflow is part of the plan, and an overflow or a NaN ends as an epsilon that is not certified.
    with np.errstate(all="ignore"):
        laws = [(discretise(step, direction, layout.width, tail), count) for step, count in steps.items()]
        return compose(laws, layout) if all(law.consistent for law, _ in laws) else None


def pld_epsilon(
    steps: Mapping[Step, int],  # distinct steps and their counts
    delta: float,  # in (0, 1)
    # the orders of the neighbouring data sets to cover; the result is the largest epsilon among them
    directions: tuple[Direction, ...] = _BOTH,
) -> float:  # epsilon in [0, inf]
    """Return a certified epsilon for a composition at `delta`; infinity when none can be certified.

    Connect-the-dots discretisation of Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022); composition by a tilted
    FFT with every error added to delta.  A composition of plain Gaussians is evaluated in closed form.
    """
    _without_pure(steps)
    gaussian = only_gaussian(steps)
    if gaussian is not None:
        return gaussian_epsilon(gaussian.shift, delta)
    if _total_variation(steps) <= delta:
        return 0.0
    if not _in_range(steps):
        return math.inf
    tail = _tail(steps, delta)
    worst = least_width = 0.0
    for direction in _relevant(steps, directions):
        largest = _largest_loss(steps, direction)
        if largest <= worst:
            continue
        layout = plan_layout(steps, direction, tail, delta=delta, epsilon=None, least_width=least_width)
        # The other direction need not be finer: the losses of ADD are bounded, and often far below the answer.
        least_width = layout.width
        law = _compose(steps, direction, layout, tail)
        epsilon = math.inf if law is None else law.epsilon(delta)
        worst = max(worst, min(largest, epsilon if math.isfinite(epsilon) else math.inf))
    return worst


def pld_delta(
    steps: Mapping[Step, int],  # distinct steps and their counts
    epsilon: float,  # in [0, inf)
    # the orders of the neighbouring data sets to cover; the result is the largest delta among them
    directions: tuple[Direction, ...] = _BOTH,
) -> float:  # delta in [0, 1]
    """Return a certified delta for a composition at `epsilon`; 1 when none can be certified.

    As for :func:`pld_epsilon`.  How much of the tails may be cut depends on the answer, so a small answer is computed
    again with a smaller cut.
    """
    _without_pure(steps)
    gaussian = only_gaussian(steps)
    if gaussian is not None:
        return gaussian_delta(gaussian.shift, epsilon)
    trivial = _total_variation(steps)
    if not _in_range(steps):
        return trivial
    worst = least_width = 0.0
    for direction in _relevant(steps, directions):
        if _largest_loss(steps, direction) <= epsilon:
            continue
        assumed, best = min(1e-6, trivial), trivial
        for _ in range(_MAX_REFINEMENTS):
            tail = _tail(steps, assumed)
            layout = plan_layout(steps, direction, tail, delta=None, epsilon=epsilon, least_width=least_width)
            law = _compose(steps, direction, layout, tail)
            value = 1.0 if law is None else law.delta(epsilon)
            best = min(best, value if math.isfinite(value) else 1.0)
            # The cut tails cost at most a small share of the assumed delta; below that they dominate the answer.
            if best >= 0.1 * assumed or assumed <= _LEAST_TAIL:
                break
            assumed = best
        worst, least_width = max(worst, best), layout.width
    return worst


def pld_deltas(
    steps: Mapping[Step, int],  # distinct steps and their counts
    # called once with an epsilon at which delta is about `least`; returns the epsilons, (k,), ascending from 0
    points: Callable[[float], FloatArray],
    least: float,  # in (0, 1)
) -> tuple[FloatArray, FloatArray]:  # epsilons and deltas, (k,) each
    """Return epsilons and certified deltas at them, valid for both orders of the neighbouring data sets.

    As for :func:`pld_epsilon`.  A law is accurate about the loss that its tilt was chosen for, and bounds delta at
    every other, so that the least of a few laws' bounds is taken at each point.
    """
    _without_pure(steps)
    trivial = _total_variation(steps)
    laws: list[tuple[float, list[ComposedLaw]]] = []
    top = 0.0
    for direction in _relevant(steps, _BOTH) if _in_range(steps) else ():
        curves = []
        for delta in (None, *_ANCHORS, least):
            tail = _tail(steps, 1e-2 if delta is None else delta)
            layout = plan_layout(steps, direction, tail, delta=delta, epsilon=0.0 if delta is None else None)
            law = _compose(steps, direction, layout, tail)
            if law is not None:
                curves.append(law)
        largest = _largest_loss(steps, direction)
        reach = curves[-1].epsilon(least) if curves else math.inf
        top = max(top, min(largest, reach))
        laws.append((largest, curves))
    epsilons = points(top)
    worst = np.zeros(epsilons.size) if laws else np.full(epsilons.size, trivial)
    for largest, curves in laws:
        best = np.full(epsilons.size, trivial)
        for law in curves:
            best = np.fmin(best, [law.delta(epsilon) for epsilon in epsilons.tolist()])
        worst = np.maximum(worst, np.where(epsilons >= largest, 0.0, best))
    return epsilons, worst


class PRVError(ArithmeticError):
    """prv-accountant raised, or returned something that contradicts a proven bound."""


@dataclass(frozen=True)
class PRVInterval:
    """Lower bound, estimate and upper bound on epsilon, the upper one covering both orders of the data sets."""

    lower: float
    estimate: float
    upper: float


def prv_epsilon(
    steps: Mapping[Step, int],  # distinct steps and their counts; plain and Poisson-sampled Gaussians
    delta: float,  # in (0, 1)
) -> PRVInterval:
    """Return prv-accountant's bounds on epsilon at `delta`.

    The package models one order of the data sets only (a record is removed), so the upper end returned here is the
    larger of its upper end and the ``"pld"`` bound of the other order.

    Raises UnsupportedEventError if a step samples without replacement. Raises PRVError if the package raises, as it
    does where a discretised mean differs from its quadrature of the mean, or if its interval does not hold the
    ``"pld"`` upper bound, which is the only one of the two whose roundings are counted.

    Gopi, Lee and Wutschitz (2021), Theorem 5.5.  The error in epsilon is set to one per cent of the answer, or to the
    least error with half a million mesh points.
    """
    if any(step.kind is StepKind.SUBSET for step in steps):
        raise UnsupportedEventError(
            "accountant 'prv' does not cover sampling without replacement; use accountant 'pld' or 'rdp'"
        )
    reference = pld_epsilon(steps, delta, (Direction.REMOVE,))
    if not math.isfinite(reference):
        raise PRVError("no finite reference to set the mesh from")
    delta_error = _DELTA_ERROR_SHARE * delta
    per_error = math.sqrt(0.5 * sum(steps.values()) * math.log(12.0 / delta_error))
    eps_error = max(_RELATIVE_ERROR * reference, 2.0 * (1.3 * reference + 3.0) * per_error / _MAX_MESH)
    lower, estimate, upper = _run(steps, delta, eps_error, delta_error)
    if not (math.isfinite(upper) and lower <= estimate <= upper):
        raise PRVError("its bounds are not an interval")
    if lower > reference:
        raise PRVError("its lower bound exceeds a proven upper bound")
    if upper < reference:
        # The package's rounding is not bounded: with many rare steps it loses the masses, and its interval is too low.
        raise PRVError("its upper bound is below the certified one, and is not certified itself")
    if not all(step.symmetric for step in steps):
        upper = max(upper, pld_epsilon(steps, delta, (Direction.ADD,)))
    return PRVInterval(max(0.0, lower), max(0.0, estimate), max(0.0, upper))


def _run(steps: Mapping[Step, int], delta: float, eps_error: float, delta_error: float) -> tuple[float, float, float]:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    def random_variable(step: Step) -> Any:
        if step.kind is StepKind.GAUSSIAN:
            return GaussianMechanism(noise_multiplier=1.0 / step.shift)
        return PoissonSubsampledGaussianMechanism(sampling_probability=step.rate, noise_multiplier=1.0 / step.shift)

    counts = list(steps.values())
    try:
        # The package divides by zero on the way to some correct results, and its quadrature warns where it fails.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            accountant = PRVAccountant(
                prvs=[random_variable(step) for step in steps],
                max_self_compositions=counts,
                eps_error=eps_error,
                delta_error=delta_error,
            )
            lower, estimate, upper = accountant.compute_epsilon(delta=delta, num_self_compositions=counts)
    except (ArithmeticError, AssertionError, IndexError, MemoryError, RuntimeError, ValueError) as error:
        raise PRVError(f"{type(error).__name__}: {error}") from error
    return float(lower), float(estimate), float(upper)
