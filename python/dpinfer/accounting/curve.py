"""Privacy curves: all (epsilon, delta) pairs of an event, and their conversion to other terms.

Legend: delta(epsilon) is the privacy curve, f the trade-off curve (least false negative rate at a false positive rate),
G_mu the trade-off curve of N(0, 1) against N(mu, 1).  Proofs: docs/derivations/accounting.md, section 6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import standard_arithmetic
from dpinfer._validate import check_float_array, check_interval
from dpinfer.accounting._steps import (
    LARGEST_EPSILON,
    Step,
    StepKind,
    pure_as_gaussian,
    reduce_event,
    split_failure,
    split_pure,
    total_variation_slack,
)
from dpinfer.accounting.events import Adjacency, Event, as_adjacency, check_event
from dpinfer.accounting.gaussian import bisected, gaussian_delta, gaussian_epsilon, ndtr, pure_mu
from dpinfer.accounting.pld import only_gaussian, pld_deltas

_LEAST_DELTA = 1e-12  # the curve is known down to about this delta; below it the last value is used
_N_POINTS = 513  # points of the table; between them the certified chord lies above the curve
_ROUNDING = 1e-14  # more than the rounding of the formulas below, sums of a few terms of size at most 1
_ROUND_UP = 1.0 + 1e-9  # more than the rounding of the formulas, which are sums of a few terms


@dataclass(frozen=True, eq=False)
class PrivacyCurve:
    """Certified points of delta(epsilon): an event is (``epsilons[i]``, ``deltas[i]``)-private for every i.

    **Privacy.** Computed from an event, which holds no records.

    Parameters
    ----------
    epsilons : (k,) float64
        Ascending, from 0.
    deltas : (k,) float64
        In [0, 1], non-increasing; 1 is no guarantee.
    adjacency : Adjacency
    """

    epsilons: FloatArray
    deltas: FloatArray
    adjacency: Adjacency

    def __post_init__(self) -> None:
        self.epsilons.flags.writeable = False
        self.deltas.flags.writeable = False

    def __reduce__(self) -> tuple[type["PrivacyCurve"], tuple[FloatArray, FloatArray, Adjacency]]:
        # Made anew, so that the arrays of copies cannot be written to either.
        return type(self), (self.epsilons, self.deltas, self.adjacency)

    @standard_arithmetic()
    def delta(self, epsilon: npt.ArrayLike) -> FloatArray:
        """Return a certified delta at each `epsilon` in [0, inf), of the same shape.

        delta is convex in e**epsilon, so that the chord between two certified points lies above it; beyond the last
        point delta is at most its value there.
        """
        at = check_float_array("epsilon", epsilon)
        if not np.all(at >= 0.0):
            raise ValueError("epsilon must be at least 0")
        # Measured from the least epsilon of each interval, so that nothing overflows and nothing cancels.
        place = np.clip(np.searchsorted(self.epsilons, at, side="right") - 1, 0, self.epsilons.size - 2)
        low, high = self.epsilons[place], self.epsilons[place + 1]
        share = np.clip(np.expm1(np.minimum(at, high) - low) / np.expm1(high - low) * (1.0 - _ROUNDING), 0.0, 1.0)
        chord = self.deltas[place] + (self.deltas[place + 1] - self.deltas[place]) * share
        return np.asarray(np.clip(chord * (1.0 + _ROUNDING), 0.0, 1.0)).reshape(np.shape(epsilon))

    @standard_arithmetic()
    def true_positive_rate(self, false_positive_rate: npt.ArrayLike) -> FloatArray:
        """Return the largest power of any test between one data set and a neighbour, of the same shape.

        A membership attack is such a test: an attacker who sees the release, knows all other records and the mechanism,
        and claims "the record is in" wrongly with probability `false_positive_rate`, in [0, 1], claims it rightly with
        at most the returned probability.

        Kairouz, Oh and Viswanath (2015), Theorem 2.1: TPR <= delta + e**epsilon FPR, and 1 - FPR <= delta + e**epsilon
        (1 - TPR), for each of the points.
        """
        alpha = check_float_array("false_positive_rate", false_positive_rate)
        if not np.all((alpha >= 0.0) & (alpha <= 1.0)):
            raise ValueError("false_positive_rate must lie in [0, 1]")
        flat = alpha.reshape(-1, 1)
        growth = np.exp(np.minimum(self.epsilons, 700.0))
        direct = np.min(self.deltas + growth * flat, axis=1)
        reverse = 1.0 - np.max((1.0 - self.deltas - flat) / growth, axis=1)
        best = np.minimum(np.minimum(direct, reverse) * (1.0 + _ROUNDING) + _ROUNDING, 1.0)
        # Guessing reaches the false positive rate itself.
        return np.asarray(np.maximum(best, flat[:, 0])).reshape(np.shape(false_positive_rate))

    def trade_off(self, alpha: npt.ArrayLike) -> FloatArray:
        """Return the trade-off curve f: the least false negative rate at each false positive rate alpha in [0, 1]."""
        return np.asarray(1.0 - self.true_positive_rate(alpha))

    @standard_arithmetic()
    def mu(self, slack: float) -> float:
        """Return the least mu found with delta(epsilon) <= delta of G_mu + `slack` at every epsilon >= 0.

        :func:`gaussian_dp_mu` explains the bound; `slack` is in (0, 1).
        """
        slack = check_interval("slack", slack, 0.0, 1.0)
        below = np.flatnonzero(self.deltas <= slack)
        if below.size == 0:
            return math.inf
        # From the first point at or below the slack on, there is nothing to cover.
        count = max(2, int(below[0]) + 1)
        epsilons, deltas = self.epsilons[:count], self.deltas[:count]
        low, high = 0.0, 1.0
        while not _covers(high, slack, epsilons, deltas):
            low, high = high, 2.0 * high
            if high > 1e6:
                return math.inf
        return bisected(lambda mu: _covers(mu, slack, epsilons, deltas), low, high, tolerance=1e-9)[1] * _ROUND_UP


def _covers(mu: float, slack: float, epsilons: FloatArray, deltas: FloatArray) -> bool:
    """Whether the chords through the points lie below the curve of G_mu plus `slack`, everywhere between them.

    In x = e**epsilon that curve is convex, so that its tangents at the ends of an interval lie below it; the chord less
    the larger of the two is greatest where the tangents meet, or at an end.
    """
    tail = ndtr(-0.5 * mu - epsilons / mu)
    x = np.exp(epsilons)
    curve = ndtr(0.5 * mu - epsilons / mu) - x * tail - _ROUNDING
    room = slack * (1.0 - 1e-9) + curve - deltas
    if np.any(room < 0.0):
        return False
    gap = np.diff(x)
    bend = tail[:-1] - tail[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Tangents y0 - t0 (x - x0) and y1 - t1 (x - x1) meet where x - x0 = (y0 - y1 - t1 gap) / (t0 - t1).
        meet = (curve[:-1] - curve[1:] - tail[1:] * gap) / bend
    meet = np.clip(np.where(bend > 0.0, meet, 0.0), 0.0, gap)
    tangent = np.maximum(curve[:-1] - tail[:-1] * meet, curve[1:] + tail[1:] * (gap - meet))
    chord = deltas[:-1] + np.diff(deltas) * (meet / gap)
    return bool(np.all(chord <= slack * (1.0 - 1e-9) + tangent - _ROUNDING))


@standard_arithmetic()
def privacy_curve(event: Event, *, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> PrivacyCurve:
    """Return the certified privacy curve of an event, which bounds every test of membership.

    It has 513 points, down to a delta of about 1e-12 or an epsilon of 40; all deltas are 1 where no guarantee is
    claimed or none could be certified.

    **Privacy.** Reads no records.  Every point is a guarantee of the described mechanism under `adjacency`, in both
    orders of the neighbouring data sets, certified by the ``"pld"`` accountant.

    Raises UnsupportedEventError if there is no valid bound for the event under the relation.

    Dong, Roth and Su (2022), Proposition 2.12: the pairs (epsilon, delta(epsilon)) for all epsilon >= 0 are
    equivalent to the trade-off curve.

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent
    >>> curve = privacy_curve(GaussianEvent(1.0))
    >>> float(curve.true_positive_rate(0.05).round(4))
    0.2595
    """
    return _curve(check_event("event", event), as_adjacency(adjacency))


@lru_cache(maxsize=128)
def _curve(event: Event, adjacency: Adjacency) -> PrivacyCurve:
    steps = reduce_event(event, adjacency)
    nothing = PrivacyCurve(np.array([0.0, 1.0]), np.ones(2), adjacency)
    if steps is None:
        return nothing
    steps, failure = split_failure(steps)
    dominated = pure_as_gaussian(steps)
    steps, pure = split_pure(steps)
    reach = min(_reach(steps) if steps else 0.0, LARGEST_EPSILON)
    if pure:
        epsilons = _spaced(min(reach + pure, LARGEST_EPSILON))
        shifted = np.unique(np.concatenate(([0.0], np.abs(epsilons - pure), epsilons + pure)))
        deltas = _with_pure(epsilons, pure, shifted, _deltas(steps, lambda top: shifted)[1])
        deltas = np.fmin(deltas, _deltas(dominated, lambda top: epsilons)[1])
    else:
        epsilons, deltas = _deltas(steps, lambda top: _spaced(min(top, reach)))
    deltas = deltas + failure + total_variation_slack(event) * (1.0 + np.exp(epsilons))
    deltas = np.minimum.accumulate(np.clip(np.where(np.isfinite(deltas), deltas, 1.0), 0.0, 1.0))
    return PrivacyCurve(epsilons, deltas, adjacency)


def _reach(steps: Mapping[Step, int]) -> float:
    """Return an epsilon at which delta is at most the least of a curve; for one Gaussian, the least such epsilon."""
    mu = min(_plain_mu(steps), 1e4)
    return (gaussian_epsilon if only_gaussian(steps) is not None else _concentrated_epsilon)(mu, _LEAST_DELTA)


def _concentrated_epsilon(mu: float, delta: float) -> float:
    """Return an epsilon at which a Gaussian mechanism meets `delta`: Bun and Steinke (2016), Proposition 1.3."""
    return (0.5 * mu * mu + mu * math.sqrt(2.0 * math.log(1.0 / delta))) * (1.0 + 1e-14)


def _deltas(steps: Mapping[Step, int], points: Callable[[float], FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return epsilons and deltas of steps without pure guarantees."""
    gaussian = only_gaussian(steps)
    if steps and gaussian is None:
        return pld_deltas(steps, points, _LEAST_DELTA)
    epsilons = points(LARGEST_EPSILON)
    if gaussian is None:
        return epsilons, np.zeros(epsilons.size)
    return epsilons, np.array([gaussian_delta(gaussian.shift, epsilon) for epsilon in epsilons.tolist()])


def _with_pure(epsilons: FloatArray, pure: float, at: FloatArray, deltas: FloatArray) -> FloatArray:
    """Return deltas of a composition with a pure guarantee, whose loss is that of randomised response, +-pure.

    Below 0, delta(-x) = 1 - e**-x (1 - delta(x)) of the reverse order, and `deltas` hold for both.
    """
    delta_of = dict(zip(at.tolist(), deltas.tolist(), strict=True))
    share = 1.0 / (1.0 + math.exp(-pure))
    total = []
    for epsilon in epsilons.tolist():
        gap = abs(epsilon - pure)
        less = delta_of[gap] if epsilon >= pure else 1.0 - math.exp(-gap) * (1.0 - delta_of[gap])
        total.append(min(1.0, (share * less + (1.0 - share) * delta_of[epsilon + pure]) * (1.0 + 1e-12) + 1e-15))
    return np.array(total)


def _spaced(top: float) -> FloatArray:
    """Return the points, closer together near 0, where the curve bends most."""
    return max(top, 1e-6) * np.linspace(0.0, 1.0, _N_POINTS) ** 1.5


def _plain_mu(steps: Mapping[Step, int]) -> float:
    """Return a mu of Gaussian differential privacy of the composition when every record takes part in every step.

    A failure has none.
    """
    shifts = (
        math.inf if step.kind is StepKind.FAILURE else pure_mu(step.shift) if step.kind is StepKind.PURE else step.shift
        for step in steps
    )
    return math.hypot(*(shift * math.sqrt(count) for shift, count in zip(shifts, steps.values(), strict=True))) * (
        1.0 + 1e-14
    )


@standard_arithmetic()
def gaussian_dp_mu(event: Event, *, slack: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> float:
    """Return an upper bound on mu with which an event is Gaussian differentially private, up to `slack`; may be inf.

    **Privacy.** Reads no records.  The guarantee: telling one data set from a neighbour is, at every false positive
    rate, at most `slack` easier than telling N(0, 1) from N(mu, 1) by one draw.

    Raises UnsupportedEventError if there is no valid bound for the event under the relation.

    Parameters
    ----------
    event : Event
    slack : float
        In (0, 1); the delta of the guarantee is the natural choice.  See the notes on why it is not 0.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}

    Notes
    -----
    Gaussian differential privacy: Dong, Roth and Su (2022).  For plain Gaussians mu is sensitivity over standard
    deviation, and tight.  With Poisson sampling and `slack` 0 no mu below that of the same run *without* sampling is
    valid: with probability q**T the record is in every step, and far enough out only that counts.  A slack leaves such
    events out, as delta does.

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent, PoissonSampled, SelfComposed
    >>> round(gaussian_dp_mu(GaussianEvent(2.0), slack=1e-5), 6)
    0.5
    >>> run = SelfComposed(PoissonSampled(0.1, GaussianEvent(37.3)), 10_000)
    >>> round(gaussian_dp_mu(run, slack=1e-5), 3)
    0.268
    """
    event, relation = check_event("event", event), as_adjacency(adjacency)
    slack = check_interval("slack", slack, 0.0, 1.0)
    steps = reduce_event(event, relation)
    if steps is None:
        return math.inf
    steps, failure = split_failure(steps)
    plain = _plain_mu(steps)
    if failure >= slack or not _plain_holds(event, plain, slack - failure):
        return _curve(event, relation).mu(slack)
    return plain if only_gaussian(steps) is not None else min(plain, _curve(event, relation).mu(slack))


def _plain_holds(event: Event, plain: float, slack: float) -> bool:
    """Whether `slack` covers the noise's finite precision, at every epsilon where exact noise needs more than half."""
    if plain >= 1e6:
        return False
    # The first is larger, quickly had, and mostly enough.
    for bound in (_concentrated_epsilon, gaussian_epsilon):
        epsilon = bound(plain, 0.5 * slack)
        if epsilon < 700.0 and total_variation_slack(event) * (1.0 + math.exp(epsilon)) <= 0.5 * slack:
            return True
    return False


@standard_arithmetic()
def zcdp_rho(event: Event, *, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> float:
    """Return an upper bound on rho with which an event is zero-concentrated differentially private; may be inf.

    **Privacy.** Reads no records.  The guarantee: the Rényi divergence of every order alpha > 1 between neighbours is
    at most rho alpha, for exactly Gaussian noise (for the noise's finite precision see
    docs/derivations/noise.md).

    Raises UnsupportedEventError if there is no valid bound for the event under the relation.

    Bun and Steinke (2016).  The bound counts every step as if every record took part.  For Poisson sampling it is
    tight nevertheless: large orders depend only on the probability q**T that the record is in every step. For
    sampled records, mu and epsilon are more informative.

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent
    >>> round(zcdp_rho(GaussianEvent(2.0)), 6)
    0.125
    """
    steps = reduce_event(check_event("event", event), as_adjacency(adjacency))
    # A failure has no rho.
    if steps is None or any(step.kind is StepKind.FAILURE for step in steps):
        return math.inf
    # The root of 2 rho; a pure e has rho = e**2 / 2.
    shift = math.hypot(*(step.shift * math.sqrt(count) for step, count in steps.items())) * (1.0 + 1e-14)
    return 0.5 * shift**2 * (1.0 + 1e-15)
