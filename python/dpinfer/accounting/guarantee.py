"""A guarantee in words and in the other terms that people ask for."""

import math
import warnings
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_interval
from dpinfer.accounting.events import Adjacency, Event, as_adjacency, check_event, event_from_dict
from dpinfer.errors import WeakGuaranteeWarning


def caution_of_delta(delta: float, n_records: int, *, stacklevel: int = 3) -> None:
    """Warn with a WeakGuaranteeWarning when delta is at least 1 / n_records, the *public* number of records.

    Publishing one record, drawn at random, as it is would be (0, 1 / n_records)-differentially private: a delta of that
    size allows it (Dwork and Roth 2014, section 2.3).
    """
    if delta * n_records >= 1.0:
        warnings.warn(
            f"delta = {delta:g} is at least 1 / n_records = {1.0 / n_records:.3g}: publishing a whole record, drawn at "
            "random, would meet such a guarantee; choose a delta well below 1 / n_records",
            WeakGuaranteeWarning,
            stacklevel=stacklevel,
        )


NOT_PRIVATE = "NOT PRIVATE: the noise came from a seeded generator (for studies only)."
NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "adding or removing one record",
    Adjacency.ZERO_OUT: "blanking one record",
    Adjacency.REPLACE_ONE: "replacing one record",
}
_ATTACKS = (0.01, 0.05)  # false positive rates of the membership attacks in the text: usual levels of tests


def rounded_up(value: float, digits: int = 4) -> str:
    """Return `value` with at most `digits` significant digits, rounded up, so that a bound stays one in print.

    Examples
    --------
    >>> rounded_up(0.52651), rounded_up(1.0), rounded_up(float("inf"))
    ('0.5266', '1', 'inf')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    # To the nearest first, so that the rounding of the arithmetic does not make 0.1 + 0.2 more than 0.3.
    upward = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(f"{value:.12g}"))
    return f"{float(upward):.{digits}g}"


def guarantee_in_words(
    certified_epsilon: float,
    delta: float,
    adjacency: Adjacency,
    *,
    secure: bool,  # whether the noise came from a secure generator
    released: str = "the whole trace",  # the object of the guarantee
    leaks: Sequence[str] = (),  # contents of the result that were taken from the records without noise
) -> str:
    """Return the guarantee as one or two sentences, which state `leaks` and an insecure generator."""
    leaked = f" NOT PRIVATE either way: {'; '.join(leaks)}." if leaks else ""
    if not secure:
        return NOT_PRIVATE + leaked
    if math.isinf(certified_epsilon):
        return "No privacy guarantee is claimed for this release." + leaked
    terms = f"({rounded_up(certified_epsilon)}, {rounded_up(delta, 3)})-differentially private"
    if delta == 0.0:
        terms = f"{rounded_up(certified_epsilon)}-differentially private (delta = 0)"
    neighbours = NEIGHBOURS[adjacency]
    if leaks:
        return (
            f"NOT PRIVATE as a whole: {'; '.join(leaks)}. If that had been public, {released} would be {terms} with "
            f"respect to {neighbours}."
        )
    return f"{terms} with respect to {neighbours}; this holds for {released} and for everything computed from it."


class Guarantee(str):
    """A privacy guarantee: a sentence that also answers in other terms.

    As a string it is the guarantee in words; epsilon at any delta, mu of Gaussian differential privacy, rho of zCDP,
    the trade-off curve and the bound on membership attacks are computed on request.

    **Privacy.** Computed from an event, which holds no records; safe to publish.  Every number is an upper bound on the
    privacy loss (the trade-off curve a lower bound on an attacker's errors); without a guarantee, because of `leaks`, a
    seeded generator or an event without one, epsilon, mu and rho are infinite, the trade-off is 0 and an attack may
    reach 1.

    Parameters
    ----------
    event : Event
        Everything that was done with the records, composed.
    epsilon : float
        Certified for `event` at `delta` under `adjacency`.  The attribute of this name is infinite without a
        guarantee; `certified_epsilon` is the given value.
    delta : float in [0, 1)
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    accountant : {"pld", "prv", "rdp"}
        Which certified it.
    secure : bool
        Whether the noise came from a secure generator.
    leaks : sequence of str
        Contents of the result that were taken from the records without noise.
    released : str
        The object of the guarantee.

    Examples
    --------
    >>> from dpinfer import plan_privacy
    >>> guarantee = plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=10_000).guarantee
    >>> print(guarantee[:40])
    (1, 1e-05)-differentially private with r
    >>> round(guarantee.mu, 3), round(guarantee.epsilon_at(1e-6), 2)
    (0.268, 1.14)
    >>> bool(guarantee.true_positive_rate(0.01) < 0.02)
    True
    """

    event: Event
    epsilon: float
    certified_epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    secure: bool
    leaks: tuple[str, ...]
    released: str

    def __new__(
        cls,
        event: Event,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency | str,
        accountant: str = "pld",
        secure: bool = True,
        leaks: Sequence[str] = (),
        released: str = "the whole trace",
    ) -> Self:
        """Write the sentence, and keep the inputs of the other terms."""
        relation = as_adjacency(adjacency)
        words = guarantee_in_words(epsilon, delta, relation, secure=secure, released=released, leaks=leaks)
        self = super().__new__(cls, words)
        self.event = check_event("event", event)
        self.secure, self.leaks, self.released = bool(secure), tuple(leaks), released
        self.delta, self.adjacency, self.accountant = float(delta), relation, accountant
        self.certified_epsilon = float(epsilon)
        self.epsilon = self.certified_epsilon if self.holds else math.inf
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in _FIELDS} | {"epsilon": self.certified_epsilon}
        return _rebuild, (type(self), self.event, values)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for :meth:`from_dict`, with an infinite epsilon as None."""
        return {
            "event": self.event.to_dict(),
            "epsilon": self.certified_epsilon if math.isfinite(self.certified_epsilon) else None,
            "delta": self.delta,
            "adjacency": self.adjacency.value,
            "accountant": self.accountant,
            "secure": self.secure,
            "leaks": list(self.leaks),
            "released": self.released,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Guarantee":
        """Rebuild a guarantee from the result of :meth:`to_dict`, if its epsilon follows from its event.

        Raises UnfoundedEpsilonError if the epsilon differs from the certified one.
        """
        from dpinfer.accounting.accountant import ACCOUNTANTS, STATED_TOLERANCE, check_stated_epsilon

        if not isinstance(data, Mapping) or set(data) != {"event", *_FIELDS}:
            raise ValueError(f"a guarantee must have exactly the fields {sorted(('event', *_FIELDS))}")
        values = dict(data)
        event, leaks = event_from_dict(values.pop("event")), values.pop("leaks")
        if not isinstance(values["secure"], bool) or not isinstance(values["released"], str):
            raise TypeError("secure must be a bool and released text")
        if not isinstance(leaks, (list, tuple)) or not all(isinstance(text, str) for text in leaks):
            raise TypeError("leaks must be a list of texts")
        check_choice("accountant", values["accountant"], ACCOUNTANTS)
        terms = {
            "delta": check_interval("delta", values.pop("delta"), 0.0, 1.0, low_open=False),
            "adjacency": as_adjacency(values.pop("adjacency")),
            "accountant": values.pop("accountant"),
        }
        stated = values.pop("epsilon")
        stated = math.inf if stated is None else check_interval("epsilon", stated, 0.0, low_open=False)
        epsilon = check_stated_epsilon("epsilon", stated, event, **terms, tolerance=STATED_TOLERANCE)
        return cls(event, epsilon=epsilon, leaks=leaks, **terms, **values)

    @property
    def holds(self) -> bool:
        """Whether anything is promised at all: secure noise, and nothing in the result that has none."""
        return self.secure and not self.leaks

    def epsilon_at(self, delta: float) -> float:
        """Return a certified epsilon at another `delta` in (0, 1), by the ``"pld"`` accountant."""
        from dpinfer.accounting.accountant import certify

        delta = check_interval("delta", delta, 0.0, 1.0)
        if not self.holds:
            return math.inf
        return certify(self.event, delta=delta, adjacency=self.adjacency, accountant="pld").epsilon

    def delta_at(self, epsilon: float) -> float:
        """Return a certified delta at an `epsilon` in [0, inf)."""
        from dpinfer.accounting.accountant import delta_for

        epsilon = check_interval("epsilon", epsilon, 0.0, low_open=False)
        return delta_for(self.event, epsilon=epsilon, adjacency=self.adjacency) if self.holds else 1.0

    @property
    def mu(self) -> float:
        """Mu of Gaussian differential privacy up to a slack of `delta`; see :func:`gaussian_dp_mu`."""
        from dpinfer.accounting.curve import gaussian_dp_mu

        if not self.holds or self.delta == 0.0:
            return math.inf
        return gaussian_dp_mu(self.event, slack=self.delta, adjacency=self.adjacency)

    @property
    def rho(self) -> float:
        """Rho of zero-concentrated differential privacy, at every order; see :func:`zcdp_rho`."""
        from dpinfer.accounting.curve import zcdp_rho

        return zcdp_rho(self.event, adjacency=self.adjacency) if self.holds else math.inf

    def trade_off(self, alpha: npt.ArrayLike) -> FloatArray:
        """Return the least false negative rate of any test for one record, at each false positive rate in [0, 1]."""
        return np.asarray(1.0 - self.true_positive_rate(alpha))

    def true_positive_rate(self, false_positive_rate: npt.ArrayLike) -> FloatArray:
        """Return the most that a membership attack can reach; see :meth:`PrivacyCurve.true_positive_rate`."""
        from dpinfer.accounting.curve import privacy_curve

        best = privacy_curve(self.event, adjacency=self.adjacency).true_positive_rate(false_positive_rate)
        return best if self.holds else np.ones_like(best)

    def terms(self) -> list[tuple[str, str]]:
        """Return the guarantee in other terms, as pairs of a name and a text; empty without a guarantee."""
        if not self.holds or math.isinf(self.epsilon):
            return []
        rows = [("epsilon", f"{rounded_up(self.epsilon)} at delta {rounded_up(self.delta, 3)}")]
        if self.delta > 0.0:
            rows.append(("mu (Gaussian DP)", f"{rounded_up(self.mu)}, up to delta {rounded_up(self.delta, 3)}"))
        rows.append(("rho (zCDP)", f"{rounded_up(self.rho)}, without credit for sampling records"))
        for rate in _ATTACKS:
            reached = rounded_up(100.0 * float(self.true_positive_rate(rate)), 3)
            rows.append((f"membership attack with {rate:.0%} false positives", f"at most {reached}% true positives"))
        return rows

    def in_other_terms(self) -> str:
        """Return :meth:`terms` as one sentence; empty without a guarantee."""
        rows = self.terms()[1:]
        return f"In other terms: {'; '.join(f'{name}: {text}' for name, text in rows)}." if rows else ""


_FIELDS = ("epsilon", "delta", "adjacency", "accountant", "secure", "leaks", "released")


def _rebuild(kind: type[Guarantee], event: Event, values: dict[str, Any]) -> Guarantee:
    return kind(event, **values)
