"""The least noise that meets a privacy target, found from above."""

import math
import warnings
from collections.abc import Callable

from dpinfer._float_environment import standard_arithmetic
from dpinfer._validate import check_choice, check_interval
from dpinfer.accounting._steps import reduce_event
from dpinfer.accounting.accountant import ACCOUNTANTS, AccountantName, certify
from dpinfer.accounting.adjacency import Adjacency, as_adjacency
from dpinfer.accounting.bound import AccountantFallbackWarning, PrivacyBound
from dpinfer.accounting.events import Event, check_event
from dpinfer.accounting.gaussian import gaussian_epsilon
from dpinfer.errors import BudgetExceededError

MIN_NOISE_MULTIPLIER = 1e-2  # epsilon of one full-batch step is above 5000
MAX_NOISE_MULTIPLIER = 1e6  # more noise than 1e6 times the sensitivity leaves no use
_MAX_EVALUATIONS = 60  # bisection alone needs 60 for double precision
# Interpolation settles this search within about six evaluations; from here on it bisects.
_MAX_INTERPOLATIONS = 16


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

    Parameters
    ----------
    make_event : callable
        Maps a noise multiplier, in [1e-2, 1e6], to an event whose epsilon does not increase with it.
    target_epsilon : float
        In (0, inf).
    target_delta : float
        In (0, 1).
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
        The relation between neighbouring data sets.
    accountant : {"pld", "prv", "rdp"}
        Which accountant certifies.
    relative_tolerance : float
        The result exceeds a multiplier that misses the target by at most this factor less one, in [1e-6, 0.1].

    Returns
    -------
    float
        The noise multiplier, in [1e-2, 1e6].

    Raises
    ------
    BudgetExceededError
        If not even a noise multiplier of 1e6 meets the target.
    UnsupportedEventError
        If the accountant has no valid bound for the event under the relation.
    TypeError, ValueError
        If an argument is not of its type or outside its interval.

    Warns
    -----
    AccountantFallbackWarning
        If ``"prv"`` failed at the result and ``"pld"`` certified it.

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
    if bound.fallback is not None:
        warnings.warn(bound.note, AccountantFallbackWarning, stacklevel=2)
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

    def evaluate(noise_multiplier: float) -> PrivacyBound:
        return certify(make_event(noise_multiplier), delta=delta, adjacency=relation, accountant=accountant)

    search = _Search(tolerance)
    point = _first_guess(make_event, target, delta, relation)
    for evaluation in range(_MAX_EVALUATIONS):
        bound = evaluate(math.exp(point))
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
        return gaussian_epsilon(min(math.sqrt(total), 1e5), delta)

    low, high = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
    for _ in range(24):
        middle = 0.5 * (low + high)
        if gaussian_limit(middle) > target:
            low = middle
        else:
            high = middle
    return high
