"""From an event to a certified epsilon or delta, by the tightest accountant, and from a target to the least noise."""

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

from dpinfer._surroundings import standard_arithmetic
from dpinfer._validate import check_choice, check_interval
from dpinfer.accounting._steps import (
    LARGEST_EPSILON,
    RESERVED_SHARES,
    Step,
    StepKind,
    pure_as_gaussian,
    reduce_event,
    reserve_suffices,
    split_failure,
    split_pure,
    total_variation_slack,
)
from dpinfer.accounting.bound import AccountantFallbackWarning, PrivacyBound
from dpinfer.accounting.events import Adjacency, Event, as_adjacency, check_event
from dpinfer.accounting.gaussian import bisected, gaussian_epsilon
from dpinfer.accounting.pld import PRVError, pld_delta, pld_epsilon, prv_epsilon
from dpinfer.accounting.rdp import rdp_epsilon
from dpinfer.errors import BudgetExceededError, UnfoundedEpsilonError

AccountantName: TypeAlias = Literal["pld", "prv", "rdp"]
ACCOUNTANTS: tuple[AccountantName, ...] = ("pld", "prv", "rdp")

MIN_NOISE_MULTIPLIER = 1e-2  # epsilon of one full-batch step is above 5000
MAX_NOISE_MULTIPLIER = 1e6  # more noise than 1e6 times the sensitivity leaves no use
_MAX_EVALUATIONS = 60  # bisection alone needs 60 for double precision
_MAX_INTERPOLATIONS = 16  # interpolation settles this search within about six evaluations; from here on it bisects

_PRV_NOTE = (
    "prv-accountant models the removal of a record only; epsilon is the larger of its upper end and the pld bound for "
    "the addition"
)
_EXACT_NOTE = (
    f"epsilon is above {LARGEST_EPSILON:g}: the noise's finite precision (docs/derivations/noise.md) is not counted"
)


def account(
    event: Event, *, delta: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE, accountant: AccountantName = "pld"
) -> PrivacyBound:
    """Return a certified epsilon of an event at a given delta: infinite wherever nothing can be certified.

    **Privacy.** Reads no records.  The described mechanism is (``epsilon``, ``delta``)-differentially private under
    ``adjacency``.

    Raises UnsupportedEventError if the accountant has no valid bound for the event under the relation. Raises
    FloatingPointError if another library has set a rounding mode or flush-to-zero, and this system offers no way to set
    it aside. Warns with an AccountantFallbackWarning if ``"prv"`` fails and ``"pld"`` answers in its place.

    Parameters
    ----------
    event : Event
        The mechanism's use of the records.
    delta : float in (0, 1)
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    accountant : {"pld", "prv", "rdp"}
        ``"pld"``: a pessimistic privacy loss distribution, tight to about 1e-4.  ``"prv"``: prv-accountant's upper
        end.  ``"rdp"``: a Rényi bound, rounded up.

    Notes
    -----
    The sources are named with ``pld_epsilon``, ``prv_epsilon`` and ``rdp_epsilon``.  A share of delta, 1e-9 of it in
    all but extreme cases, is set aside for the finite precision of the noise (docs/derivations/noise.md).

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent, PoissonSampled, SelfComposed
    >>> event = SelfComposed(PoissonSampled(0.1, GaussianEvent(20.0)), 10_000)
    >>> round(account(event, delta=1e-5).epsilon, 3)
    1.996
    """
    bound = certify(event, delta=delta, adjacency=adjacency, accountant=accountant)
    warn_of_fallback(bound)
    return bound


def warn_of_fallback(bound: PrivacyBound) -> None:
    """Warn the caller's caller if another accountant than the requested one answered."""
    if bound.fallback is not None:
        warnings.warn(bound.note, AccountantFallbackWarning, stacklevel=3)


@standard_arithmetic()
def certify(event: Event, *, delta: float, adjacency: Adjacency | str, accountant: str) -> PrivacyBound:
    """Like :func:`account`, recording a fallback in the result without a warning.

    Answers are cached: a release certifies the event of its plan again.
    """
    event = check_event("event", event)
    delta = check_interval("delta", delta, 0.0, 1.0)
    return _certify(event, delta, as_adjacency(adjacency), check_choice("accountant", accountant, ACCOUNTANTS))


def certify_at(event: Event, *, delta: float, adjacency: Adjacency | str, accountant: str) -> float:
    """Return the certified epsilon at `delta`, which may be 0: then that of pure guarantees, infinite for any other."""
    if delta > 0.0:
        return certify(event, delta=delta, adjacency=adjacency, accountant=accountant).epsilon
    steps = reduce_event(event, as_adjacency(adjacency))
    rest, pure = ({}, math.inf) if steps is None else split_pure(steps)
    # The rest may be a failure, which delta has to cover.
    return math.inf if rest else pure


_SAME = 1e-9  # relative difference between two machines' arithmetic: 1e4 units of double precision
STATED_TOLERANCE = 0.01  # relative excess of a stated epsilon that is accepted: a margin for tighter accountants
_PRV_BAND = 1.2  # relative excess of "prv" over "pld" that is accepted without running "prv", which takes seconds


def check_stated_epsilon(
    name: str,  # the argument that states it
    epsilon: float,  # in [0, inf]
    # event, delta, adjacency: event, delta and relation of the statement; a `delta` of 0 certifies nothing
    event: Event,
    *,
    delta: float,
    adjacency: Adjacency | str,
    accountant: str,  # {"pld", "prv", "rdp"}
    tolerance: float = math.inf,  # accepted relative excess; an epsilon below the certified one is never accepted
) -> float:
    """Return a stated epsilon that follows from the event, at least the epsilon certified here.

    Raises UnfoundedEpsilonError if it does not follow.
    """
    certified = certify_at(event, delta=delta, adjacency=adjacency, accountant="pld")
    if delta > 0.0:
        if accountant == "prv" and certified <= epsilon <= _PRV_BAND * certified < math.inf:
            return epsilon
        if accountant != "pld":
            certified = certify(event, delta=delta, adjacency=adjacency, accountant=accountant).epsilon
    if epsilon < certified * (1.0 - _SAME) or epsilon > certified * (1.0 + tolerance) + _SAME:
        raise UnfoundedEpsilonError(
            f"{name} must follow from the events: the accountant {accountant!r} certifies {certified:.6g} at "
            f"delta={delta:g}, got {epsilon:.6g}"
        )
    return max(epsilon, certified) if math.isfinite(certified) else math.inf


@lru_cache(maxsize=512)
def _certify(event: Event, delta: float, relation: Adjacency, accountant: str) -> PrivacyBound:
    steps = reduce_event(event, relation)
    if steps is None:
        note = "the event holds a part for which no guarantee is claimed, or can be"
        return _bound(math.inf, delta, relation, accountant, note=note)
    slack = total_variation_slack(event)
    for share in RESERVED_SHARES if slack else (0.0,):
        bound = _certify_exact(steps, delta * (1.0 - share), relation, accountant)
        if LARGEST_EPSILON < bound.epsilon < math.inf:
            note = f"{bound.note}; {_EXACT_NOTE}" if bound.note else _EXACT_NOTE
            return replace(bound, delta=delta, note=note)
        if math.isinf(bound.epsilon) or reserve_suffices(slack, bound.epsilon, share * delta):
            return replace(bound, delta=delta)
    note = "delta is too small to cover the finite precision of the noise (docs/derivations/noise.md)"
    return replace(bound, delta=delta, epsilon=math.inf, estimate=math.inf, note=note)


def _certify_exact(steps: Mapping[Step, int], delta: float, relation: Adjacency, accountant: str) -> PrivacyBound:
    """Certify a composition whose noise is exactly Gaussian or Laplace, by the better of two bounds on pure parts."""
    steps, failure = split_failure(steps)
    if failure > delta or (failure == delta and any(step.kind is not StepKind.PURE for step in steps)):
        note = f"delta must exceed the {failure:g} with which parts of the event fail"
        return _bound(math.inf, delta, relation, accountant, note=note)
    remaining = (delta - failure) * (1.0 - 1e-15)
    rest, pure = split_pure(steps)
    if failure and not remaining:
        return _bound(pure, delta, relation, accountant, note="")
    added = _certify_impure(rest, remaining, relation, accountant)
    if not pure:
        return replace(added, delta=delta)
    grown = pure * (1.0 + 1e-15) if rest else pure
    lower = None if added.lower is None else added.lower + pure
    added = replace(added, epsilon=added.epsilon + grown, estimate=added.estimate + grown, lower=lower)
    dominated = pure_as_gaussian(steps)
    # The least delta of a Gaussian is not worth a fallback of its own.
    squared = _certify_impure(dominated, remaining, relation, "pld" if accountant == "prv" else accountant)
    if squared.epsilon >= added.epsilon:
        return replace(added, delta=delta)
    return replace(squared, delta=delta, accountant=accountant)


def _bound(epsilon: float, delta: float, relation: Adjacency, accountant: str, *, note: str) -> PrivacyBound:
    return PrivacyBound(
        epsilon=epsilon, delta=delta, adjacency=relation, accountant=accountant, estimate=epsilon, note=note
    )


def _certify_impure(steps: Mapping[Step, int], delta: float, relation: Adjacency, accountant: str) -> PrivacyBound:
    """Certify a composition without pure guarantees."""
    lower, fallback, note = None, None, ""
    if not steps:
        epsilon = estimate = 0.0
    elif accountant == "prv":
        try:
            interval = prv_epsilon(steps, delta)
            epsilon, estimate, lower, note = interval.upper, interval.estimate, interval.lower, _PRV_NOTE
        except PRVError as failure:
            epsilon = estimate = pld_epsilon(steps, delta)
            fallback = "pld"
            note = f"accountant 'prv' failed ({failure}); the bound is that of accountant 'pld'"
    else:
        epsilon = estimate = (rdp_epsilon if accountant == "rdp" else pld_epsilon)(steps, delta)
    if math.isinf(epsilon) and not note:
        note = "no finite epsilon could be certified"
    bound = _bound(epsilon, delta, relation, accountant, note=note)
    return replace(bound, estimate=estimate, lower=lower, fallback=fallback)


@standard_arithmetic()
def delta_for(event: Event, *, epsilon: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> float:
    """Return a certified delta of an event at an epsilon in [0, inf), by the ``"pld"`` accountant; 1 is no guarantee.

    **Privacy.** Reads no records.  The guarantee is as for :func:`account`.

    Raises UnsupportedEventError if there is no valid bound for the event under the relation.

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent
    >>> round(delta_for(GaussianEvent(1.0), epsilon=1.0), 4)
    0.1269
    """
    event = check_event("event", event)
    epsilon = check_interval("epsilon", epsilon, 0.0, low_open=False)
    steps = reduce_event(event, as_adjacency(adjacency))
    if steps is None:
        return 1.0
    steps, failure = split_failure(steps)
    dominated = pure_as_gaussian(steps)
    rest, pure = split_pure(steps)
    delta = _delta(rest, pure, epsilon)
    if pure:
        delta = min(delta, pld_delta(dominated, epsilon))
    delta = min(1.0, delta + failure)
    if rest:
        # No delta of a Gaussian is 0, however far it is below the range of the arithmetic.
        delta = max(delta, sys.float_info.min)
    if epsilon > LARGEST_EPSILON:
        return delta
    return min(1.0, delta + total_variation_slack(event) * (1.0 + math.exp(epsilon)))


def _delta(steps: Mapping[Step, int], pure: float, epsilon: float) -> float:
    """Return delta at `epsilon` of `steps` composed with pure guarantees that add up to `pure`."""
    if not pure:
        return pld_delta(steps, epsilon)
    if epsilon >= pure:
        return pld_delta(steps, max(0.0, (epsilon - pure) * (1.0 - 1e-15))) if steps else 0.0
    # Randomised response has the largest divergence of all pure mechanisms (Kairouz, Oh and Viswanath, 2015).
    bound = min(1.0, -math.expm1(epsilon - pure) / (1.0 + math.exp(-pure)) * (1.0 + 1e-12))
    return min(1.0, bound + pld_delta(steps, 0.0)) if steps else bound


def calibrate_noise_multiplier(
    make_event: Callable[[float], Event],
    *,
    target_epsilon: float,
    target_delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: AccountantName = "pld",
    relative_tolerance: float = 1e-4,
) -> float:
    """Return the least noise multiplier, to a relative tolerance from above, that meets a privacy target.

    **Privacy.** Reads no records.  The event made with the returned multiplier was certified by the accountant to have
    epsilon at most ``target_epsilon`` at ``target_delta`` under ``adjacency``.

    Raises BudgetExceededError if not even a noise multiplier of 1e6 meets the target. Raises UnsupportedEventError if
    the accountant has no valid bound for the event under the relation. Warns with an AccountantFallbackWarning if
    ``"prv"`` failed at the result and ``"pld"`` certified it.

    Parameters
    ----------
    make_event : callable
        Maps a noise multiplier, in [1e-2, 1e6], to an event whose epsilon does not increase with it.
    target_epsilon : float in (0, inf)
    target_delta : float in (0, 1)
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    accountant : {"pld", "prv", "rdp"}
        Which certifies.
    relative_tolerance : float
        The result exceeds a multiplier that misses the target by at most this factor less one, in [1e-6, 0.1].

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent, PoissonSampled, SelfComposed
    >>> def make(noise_multiplier):
    ...     return SelfComposed(PoissonSampled(0.1, GaussianEvent(noise_multiplier)), 10_000)
    >>> round(calibrate_noise_multiplier(make, target_epsilon=1.0, target_delta=1e-5), 1)
    37.3
    """
    noise_multiplier, bound = calibrate(
        make_event, target_epsilon, target_delta, adjacency, accountant, relative_tolerance
    )
    warn_of_fallback(bound)
    return noise_multiplier


@standard_arithmetic()
def calibrate(
    make_event: Callable[[float], Event],
    target_epsilon: float,
    target_delta: float,
    adjacency: Adjacency | str,
    accountant: str,
    relative_tolerance: float = 1e-4,
) -> tuple[float, PrivacyBound]:
    """Like :func:`calibrate_noise_multiplier`, and also return the bound that certifies the result."""
    if not callable(make_event):
        raise TypeError(f"make_event must be callable, got {type(make_event).__name__}")
    target = check_interval("target_epsilon", target_epsilon, 0.0)
    delta = check_interval("target_delta", target_delta, 0.0, 1.0)
    relation = as_adjacency(adjacency)
    check_choice("accountant", accountant, ACCOUNTANTS)
    tolerance = check_interval("relative_tolerance", relative_tolerance, 1e-6, 0.1, low_open=False, high_open=False)

    search = _Search(tolerance)
    point = _first_guess(make_event, target, delta, relation)
    for evaluation in range(_MAX_EVALUATIONS):
        bound = certify(make_event(math.exp(point)), delta=delta, adjacency=relation, accountant=accountant)
        excess = math.log(bound.epsilon / target) if bound.epsilon > 0.0 else -math.inf
        search.add(point, excess, bound if bound.epsilon <= target else None)
        if search.certified is not None and search.converged():
            break
        if search.low >= search.top:
            raise BudgetExceededError(
                f"epsilon {target:g} at delta {delta:g} cannot be met with a noise multiplier of at most "
                f"{MAX_NOISE_MULTIPLIER:g}: use fewer steps, a smaller sample rate or a larger target"
            )
        point = search.propose(interpolate=evaluation < _MAX_INTERPOLATIONS)
    if search.certified is None:
        raise BudgetExceededError(f"no noise multiplier could be certified for epsilon {target:g} at delta {delta:g}")
    return math.exp(search.high), search.certified


class _Search:
    """A bracketing search for the zero of a decreasing function of the log noise multiplier.

    ``low`` is the greatest point known to miss the target and ``high`` the least known to meet it.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = math.log1p(tolerance)
        self.bottom, self.top = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
        self.low, self.high = -math.inf, math.inf
        self.certified: PrivacyBound | None = None
        self._seen: list[tuple[float, float]] = []

    def add(self, point: float, excess: float, certified: PrivacyBound | None) -> None:
        if certified is None:
            self.low = max(self.low, point)
        elif point < self.high:
            self.high, self.certified = point, certified
        if math.isfinite(excess):
            self._seen.append((point, excess))

    def converged(self) -> bool:
        return self.high - self.low <= self.tolerance or self.high <= self.bottom

    def propose(self, *, interpolate: bool) -> float:
        """Return the next point: just beside the estimated zero, on the side that is still wide."""
        low, high = max(self.low, self.bottom), min(self.high, self.top)
        root = self._root() if interpolate else None
        if root is None:
            if self.certified is None:
                return min(self.top, low + 2.0) if math.isfinite(self.low) else self.top
            if not math.isfinite(self.low):
                return max(self.bottom, high - 2.0)
            return 0.5 * (low + high)
        above_known = self.certified is not None and high - root <= 0.6 * self.tolerance
        point = root - 0.4 * self.tolerance if above_known else root + 0.4 * self.tolerance
        if math.isfinite(self.low) and self.certified is not None:
            edge = 0.1 * self.tolerance
            return point if low + edge < point < high - edge else 0.5 * (low + high)
        return min(max(point, self.bottom), self.top)

    def _root(self) -> float | None:
        """Extrapolate from the two points nearest the zero; epsilon falls about as 1 / noise to start with."""
        nearest = sorted(self._seen, key=lambda item: abs(item[1]))[:2]
        if not nearest:
            return None
        point, excess = nearest[0]
        slope = -1.0
        if len(nearest) == 2 and nearest[0][0] != nearest[1][0]:
            slope = (nearest[1][1] - excess) / (nearest[1][0] - point)
        if not -20.0 < slope < -0.1:
            slope = -1.0
        return point - min(max(excess / slope, -3.0), 3.0)


_limits = lru_cache(maxsize=1024)(gaussian_epsilon)  # plans for the same target ask again


def _first_guess(make_event: Callable[[float], Event], target: float, delta: float, adjacency: Adjacency) -> float:
    """Return a start from the central limit theorem (Bu, Dong, Long and Su, 2020); an estimate, never a bound."""

    def gaussian_limit(point: float) -> float:
        steps = reduce_event(check_event("what make_event returns", make_event(math.exp(point))), adjacency)
        if steps is None:
            raise BudgetExceededError("an event without any guarantee meets no target")
        total = math.fsum(
            count * step.rate**2 * math.expm1(min(step.shift**2, 700.0)) if step.rate < 1.0 else count * step.shift**2
            for step, count in steps.items()
        )
        return _limits(min(math.sqrt(total), 1e5), delta)

    ends = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
    return bisected(lambda point: not gaussian_limit(point) > target, *ends, halvings=24)[1]
