"""A bound that an accountant certified."""

from dataclasses import dataclass

from dpinfer.accounting.events import Adjacency


class AccountantFallbackWarning(UserWarning):
    """The requested accountant failed on this event, and the default one replaced it."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBound:
    """A certified (epsilon, delta) guarantee of an event under an adjacency relation.

    **Privacy.** Computed from an event, which holds no records; safe to publish.

    Parameters
    ----------
    epsilon : float
        Certified upper bound, in [0, inf]; infinity without a certified bound.
    delta : float
        The delta it holds for, in (0, 1).
    adjacency : Adjacency
        The relation it holds under.
    accountant : str
        The requested accountant: ``"pld"``, ``"prv"`` or ``"rdp"``.
    estimate : float
        The accountant's central value, at most `epsilon`.  Not a guarantee.
    lower : float or None
        A lower bound on epsilon where the accountant has one (``"prv"``), in [0, estimate].
    fallback : str or None
        The accountant that replaced the requested one after a failure, else None.
    note : str
        A remark about this bound; may be empty.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    estimate: float
    lower: float | None = None
    fallback: str | None = None
    note: str = ""

    def __repr__(self) -> str:
        parts = [
            f"epsilon={self.epsilon!r}",
            f"delta={self.delta!r}",
            f"adjacency={self.adjacency.value!r}",
            f"accountant={self.accountant!r}",
        ]
        if self.lower is not None:
            parts += [f"estimate={self.estimate!r}", f"lower={self.lower!r}"]
        if self.fallback is not None:
            parts.append(f"fallback={self.fallback!r}")
        return f"PrivacyBound({', '.join(parts)})"
