"""A privacy plan: what a private run will do and what it will cost, fixed before any record is read."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting.accountant import ACCOUNTANTS, AccountantName, certify
from dpinfer.accounting.adjacency import Adjacency, as_adjacency
from dpinfer.accounting.bound import AccountantFallbackWarning, PrivacyBound
from dpinfer.accounting.calibration import calibrate
from dpinfer.accounting.events import Event, GaussianEvent, PoissonSampled, SelfComposed

__all__ = ["PrivacyPlan", "plan_privacy"]


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Noise, sampling and length of a private run, with the guarantee that was certified for them.

    **Privacy.** Holds no records.  The guarantee is that ``n_steps`` Gaussian sums over Poisson samples, with noise of
    standard deviation ``noise_multiplier * max_grad_norm``, are (``epsilon``, ``delta``)-differentially private under
    ``adjacency``.  Build plans with :func:`plan_privacy` or :meth:`from_noise_multiplier`, which certify ``epsilon``;
    the constructor checks types and intervals only, and :meth:`certify` does the accounting again.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by ``max_grad_norm``, in (0, inf).
    epsilon : float
        Certified upper bound, in [0, inf]; infinity claims no guarantee.
    delta : float
        In (0, 1).
    sample_rate : float
        Probability with which a record takes part in a step, in (0, 1].
    n_steps : int
        Number of steps, at least 1.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
        The relation between neighbouring data sets.
    accountant : {"pld", "prv", "rdp"}
        The accountant asked for.
    target_epsilon : float or None
        The target the noise was calibrated to; None when the noise was given.
    fallback : str or None
        The accountant that answered when the one asked for failed.

    Raises
    ------
    TypeError, ValueError
        If a field is not of its type or outside its interval, or if ``epsilon`` exceeds ``target_epsilon``.

    Examples
    --------
    >>> plan = plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=10_000)
    >>> round(plan.noise_multiplier, 1), plan.epsilon <= 1.0
    (37.3, True)
    >>> PrivacyPlan.from_dict(plan.to_dict()) == plan
    True
    """

    noise_multiplier: float
    epsilon: float
    delta: float
    sample_rate: float
    n_steps: int
    adjacency: Adjacency
    accountant: AccountantName
    target_epsilon: float | None = None
    fallback: str | None = None

    def __post_init__(self) -> None:
        """Check the fields and store them in their types."""
        checked: dict[str, Any] = {
            "noise_multiplier": check_interval("noise_multiplier", self.noise_multiplier, 0.0),
            "epsilon": _check_epsilon(self.epsilon),
            "delta": check_interval("delta", self.delta, 0.0, 1.0),
            "sample_rate": check_interval("sample_rate", self.sample_rate, 0.0, 1.0, high_open=False),
            "n_steps": check_integer("n_steps", self.n_steps, minimum=1),
            "adjacency": as_adjacency(self.adjacency),
        }
        check_choice("accountant", self.accountant, ACCOUNTANTS)
        if self.fallback is not None:
            check_choice("fallback", self.fallback, ACCOUNTANTS)
        if self.target_epsilon is not None:
            target = check_interval("target_epsilon", self.target_epsilon, 0.0)
            if checked["epsilon"] > target:
                raise ValueError(f"epsilon must be at most target_epsilon={target:g}, got {checked['epsilon']:g}")
            checked["target_epsilon"] = target
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def event(self) -> Event:
        """The privacy event of the whole run."""
        return _event(self.noise_multiplier, self.sample_rate, self.n_steps)

    def certify(self) -> PrivacyBound:
        """Account the plan's event again with the plan's accountant.

        **Privacy.** Reads no records.

        Returns
        -------
        PrivacyBound
            The bound on the plan's event at the plan's delta.
        """
        return certify(self.event, delta=self.delta, adjacency=self.adjacency, accountant=self.accountant)

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        sample_rate: float,
        n_steps: int,
        delta: float,
        *,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        accountant: AccountantName = "pld",
    ) -> "PrivacyPlan":
        """Certify the epsilon of a given noise multiplier.

        **Privacy.** Reads no records.  The guarantee is the class's.

        Parameters
        ----------
        noise_multiplier : float
            Standard deviation of the noise divided by ``max_grad_norm``, in (0, inf).
        sample_rate : float
            Probability with which a record takes part in a step, in (0, 1].
        n_steps : int
            Number of steps, at least 1.
        delta : float
            In (0, 1).
        adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
            The relation between neighbouring data sets.
        accountant : {"pld", "prv", "rdp"}
            Which accountant certifies.

        Returns
        -------
        PrivacyPlan
            The plan; its epsilon is infinite where nothing could be certified.

        Raises
        ------
        UnsupportedEventError
            If the accountant has no valid bound for the event under the relation.
        TypeError, ValueError
            If an argument is not of its type or outside its interval.

        Warns
        -----
        AccountantFallbackWarning
            If ``"prv"`` failed and ``"pld"`` answered.

        Examples
        --------
        >>> round(PrivacyPlan.from_noise_multiplier(20.0, 0.1, 10_000, 1e-5).epsilon, 3)
        1.996
        """
        event = _event(noise_multiplier, sample_rate, check_integer("n_steps", n_steps, minimum=1))
        bound = certify(event, delta=delta, adjacency=adjacency, accountant=accountant)
        _warn_of_fallback(bound)
        return cls(
            noise_multiplier=noise_multiplier,
            epsilon=bound.epsilon,
            delta=delta,
            sample_rate=sample_rate,
            n_steps=n_steps,
            adjacency=bound.adjacency,
            accountant=accountant,
            fallback=bound.fallback,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for :meth:`from_dict`; an infinite epsilon is stored as None.

        **Privacy.** Holds no records.
        """
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        data["adjacency"] = self.adjacency.value
        data["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrivacyPlan":
        """Rebuild a plan from what :meth:`to_dict` returned; refuse missing and unknown fields.

        **Privacy.** Reads no records.  The stored epsilon is taken as it is; :meth:`certify` checks it.

        Parameters
        ----------
        data : mapping
            Plain data with exactly the plan's fields.

        Returns
        -------
        PrivacyPlan
            A plan equal to the one that was stored.

        Raises
        ------
        ValueError
            If a field is missing, unknown, of a wrong type or outside its interval.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"a plan must be a mapping, got {type(data).__name__}")
        wanted = {field.name for field in fields(cls)}
        if set(data) != wanted:
            missing, unknown = sorted(wanted - set(data)), sorted(str(key) for key in set(data) - wanted)
            raise ValueError(f"a plan must have exactly the fields {sorted(wanted)}; {missing=}, {unknown=}")
        arguments = dict(data)
        if arguments["epsilon"] is None:
            arguments["epsilon"] = math.inf
        try:
            return cls(**arguments)
        except TypeError as error:
            raise ValueError(f"the plan is malformed: {error}") from error


def plan_privacy(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    n_steps: int,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: AccountantName = "pld",
) -> PrivacyPlan:
    """Find the least noise with which a run of Poisson-sampled Gaussian steps meets a privacy target.

    **Privacy.** Reads no records.  The guarantee is that of :class:`PrivacyPlan`, with ``epsilon`` at most
    ``target_epsilon``.

    Parameters
    ----------
    target_epsilon : float
        In (0, inf).
    target_delta : float
        In (0, 1).
    sample_rate : float
        Probability with which a record takes part in a step, in (0, 1]; 1 uses every record in every step.
    n_steps : int
        Number of steps, at least 1.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
        The relation between neighbouring data sets; ``"replace_one"`` needs a ``sample_rate`` of 1.
    accountant : {"pld", "prv", "rdp"}
        Which accountant certifies.

    Returns
    -------
    PrivacyPlan
        The plan; its noise multiplier exceeds one that misses the target by at most a relative 1e-4.

    Raises
    ------
    BudgetExceededError
        If no noise multiplier up to 1e6 meets the target.
    UnsupportedEventError
        If the accountant has no valid bound for the event under the relation.
    TypeError, ValueError
        If an argument is not of its type or outside its interval.

    Warns
    -----
    AccountantFallbackWarning
        If ``"prv"`` failed and ``"pld"`` certified the plan.

    Examples
    --------
    >>> plan = plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=100)
    >>> round(plan.noise_multiplier, 2)
    37.31
    """
    target = check_interval("target_epsilon", target_epsilon, 0.0)
    delta = check_interval("target_delta", target_delta, 0.0, 1.0)
    rate = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    steps = check_integer("n_steps", n_steps, minimum=1)
    noise_multiplier, bound = calibrate(_event_maker(rate, steps), target, delta, adjacency, accountant)
    _warn_of_fallback(bound)
    return PrivacyPlan(
        noise_multiplier=noise_multiplier,
        epsilon=bound.epsilon,
        delta=delta,
        sample_rate=rate,
        n_steps=steps,
        adjacency=bound.adjacency,
        accountant=cast("AccountantName", bound.accountant),
        target_epsilon=target,
        fallback=bound.fallback,
    )


def _event(noise_multiplier: float, sample_rate: float, n_steps: int) -> Event:
    return SelfComposed(PoissonSampled(sample_rate, GaussianEvent(noise_multiplier)), n_steps)


def _event_maker(sample_rate: float, n_steps: int) -> Callable[[float], Event]:
    return lambda noise_multiplier: _event(noise_multiplier, sample_rate, n_steps)


def _warn_of_fallback(bound: PrivacyBound) -> None:
    if bound.fallback is not None:
        warnings.warn(bound.note, AccountantFallbackWarning, stacklevel=3)


def _check_epsilon(value: Any) -> float:
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return check_interval("epsilon", value, 0.0, low_open=False)
