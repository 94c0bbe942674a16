"""A privacy plan: settings and cost of a private run, fixed before any record is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, cast

from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting.accountant import (
    ACCOUNTANTS,
    AccountantName,
    calibrate,
    certify,
    check_stated_epsilon,
    warn_of_fallback,
)
from dpinfer.accounting.bound import PrivacyBound
from dpinfer.accounting.events import Adjacency, Event, as_adjacency, run_event
from dpinfer.accounting.guarantee import Guarantee, caution_of_delta

SAMPLINGS = ("poisson", "uniform", "permutation")


class StoredPlan:
    """A plan as plain data, and back.

    **Privacy.** Holds no records.
    """

    epsilon: float
    adjacency: Adjacency
    # Fields that were not always stored, with the values that they had then.
    _not_always: ClassVar[Mapping[str, Any]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for :meth:`from_dict`; an infinite epsilon is stored as None."""
        stored = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        data = {name: list(value) if isinstance(value, tuple) else value for name, value in stored.items()}
        epsilon = self.epsilon if math.isfinite(self.epsilon) else None
        return data | {"adjacency": self.adjacency.value, "epsilon": epsilon}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a plan from the result of :meth:`to_dict`; refuse missing and unknown fields.

        **Privacy.** Reads no records.  The constructor checks a stored epsilon.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"a plan must be a mapping, got {type(data).__name__}")
        names = {field.name for field in fields(cast(Any, cls))}
        arguments = {**cls._not_always, **data}
        if set(arguments) != names:
            missing, unknown = sorted(names - set(arguments)), sorted(str(key) for key in set(arguments) - names)
            raise ValueError(f"a plan must have exactly the fields {sorted(names)}; {missing=}, {unknown=}")
        if arguments["epsilon"] is None:
            arguments["epsilon"] = math.inf
        try:
            return cls(**arguments)
        except TypeError as error:
            raise ValueError(f"the plan is malformed: {error}") from error


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan(StoredPlan):
    """Noise, sampling and length of a private run, with the guarantee that was certified for them.

    **Privacy.** Holds no records.  The guarantee is that ``n_steps`` Gaussian sums over samples of the records, with
    noise of standard deviation ``noise_multiplier * max_grad_norm``, are (``epsilon``, ``delta``)-differentially
    private under ``adjacency``.  The composed event follows the sampling: ``n_steps`` Poisson-sampled or uniformly
    sampled Gaussians, or, for permutations, one plain Gaussian per epoch, as one step of each reads a record and the
    order amplifies nothing.  Build plans with :func:`plan_privacy` or :meth:`from_noise_multiplier`, which certify
    ``epsilon``; the constructor refuses an ``epsilon`` below what its accountant certifies.

    Raises TypeError or ValueError if a field is not of its type or outside its interval, if ``epsilon`` exceeds
    ``target_epsilon``, or if it is below the certified one.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by ``max_grad_norm``, in (0, inf).
    epsilon : float
        Certified upper bound, in [0, inf]; infinity claims no guarantee.
    delta : float in (0, 1)
    sample_rate : float
        Probability with which a record takes part in a step, in (0, 1].
    n_steps : int
        Number of steps, at least 1.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    accountant : {"pld", "prv", "rdp"}
        The requested accountant.
    target_epsilon : float or None
        The target the noise was calibrated to; None when the noise was given.
    fallback : str or None
        The accountant that replaced the requested one after a failure.
    sampling : {"poisson", "uniform", "permutation"}
        Which records take part in a step: each with probability ``sample_rate``; one, drawn uniformly and afresh; or
        the next one in an order drawn afresh for every epoch of ``n_records`` steps.
    n_records : int or None
        The public number of records of "uniform" and "permutation", whose ``sample_rate`` is its inverse; None for
        "poisson".

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
    sampling: str = "poisson"
    n_records: int | None = None
    _not_always: ClassVar[Mapping[str, Any]] = {"sampling": "poisson", "n_records": None}

    def __post_init__(self) -> None:
        """Check the fields and store them in their types."""
        rate, n_records = _sampling(self.sampling, self.sample_rate, self.n_records)
        checked: dict[str, Any] = {
            "n_records": n_records,
            "noise_multiplier": check_interval("noise_multiplier", self.noise_multiplier, 0.0),
            "epsilon": _check_epsilon(self.epsilon),
            "delta": check_interval("delta", self.delta, 0.0, 1.0),
            "sample_rate": rate,
            "n_steps": check_integer("n_steps", self.n_steps, minimum=1),
            "adjacency": _relation(as_adjacency(self.adjacency), self.sampling),
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
        check_stated_epsilon(
            "epsilon", self.epsilon, self.event, delta=self.delta, adjacency=self.adjacency, accountant=self.accountant
        )

    @property
    def event(self) -> Event:
        """The privacy event of the whole run."""
        return run_event(self.noise_multiplier, self.sample_rate, self.n_steps, self.sampling, self.n_records)

    @property
    def guarantee(self) -> Guarantee:
        """The run's guarantee: a sentence with conversions to other terms."""
        return Guarantee(
            self.event,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            accountant=self.accountant,
            released="all that the run releases",
        )

    def certify(self) -> PrivacyBound:
        """Account the plan's event again, at the plan's delta, with the plan's accountant."""
        return certify(self.event, delta=self.delta, adjacency=self.adjacency, accountant=self.accountant)

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        sample_rate: float | None,
        n_steps: int,
        delta: float,
        *,
        adjacency: Adjacency | str | None = None,
        accountant: AccountantName = "pld",
        sampling: str = "poisson",
        n_records: int | None = None,
    ) -> "PrivacyPlan":
        """Certify the epsilon of a given noise multiplier; infinite without a certified bound.

        **Privacy.** Reads no records.  The guarantee is the class's.

        Raises UnsupportedEventError if the accountant has no valid bound for the event under the relation. Warns with
        an AccountantFallbackWarning if ``"prv"`` failed and ``"pld"`` answered.

        Parameters
        ----------
        noise_multiplier : float
            Standard deviation of the noise divided by ``max_grad_norm``, in (0, inf).
        delta : float in (0, 1)
        sample_rate, n_steps, adjacency, accountant, sampling, n_records
            As in :func:`plan_privacy`.

        Examples
        --------
        >>> round(PrivacyPlan.from_noise_multiplier(20.0, 0.1, 10_000, 1e-5).epsilon, 3)
        1.996
        """
        rate, n_records = _sampling(sampling, sample_rate, n_records)
        steps = check_integer("n_steps", n_steps, minimum=1)
        if n_records is not None:
            caution_of_delta(check_interval("delta", delta, 0.0, 1.0), n_records)
        event = run_event(noise_multiplier, rate, steps, sampling, n_records)
        bound = certify(event, delta=delta, adjacency=_relation(adjacency, sampling), accountant=accountant)
        warn_of_fallback(bound)
        return cls(
            sampling=sampling,
            n_records=n_records,
            noise_multiplier=noise_multiplier,
            epsilon=bound.epsilon,
            delta=delta,
            sample_rate=rate,
            n_steps=n_steps,
            adjacency=bound.adjacency,
            accountant=accountant,
            fallback=bound.fallback,
        )


def plan_privacy(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float | None = None,
    n_steps: int,
    adjacency: Adjacency | str | None = None,
    accountant: AccountantName = "pld",
    sampling: str = "poisson",
    n_records: int | None = None,
) -> PrivacyPlan:
    """Find the least noise, to a relative 1e-4, with which a run of sampled Gaussian steps meets a privacy target.

    **Privacy.** Reads no records.  The guarantee is that of :class:`PrivacyPlan`, with ``epsilon`` at most
    ``target_epsilon``.

    Raises BudgetExceededError if no noise multiplier up to 1e6 meets the target. Raises UnsupportedEventError if the
    accountant has no valid bound for the event under the relation. Warns with an AccountantFallbackWarning if ``"prv"``
    failed and ``"pld"`` certified the plan.

    Parameters
    ----------
    target_epsilon : float in (0, inf)
    target_delta : float in (0, 1)
    sample_rate : float, optional
        Probability with which a record takes part in a step, in (0, 1]; 1 uses every record in every step.  For, and
        only for, Poisson sampling.
    n_steps : int
        Number of steps, at least 1.  With "uniform" and "permutation" a step reads one record.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}, optional
        "add_remove" by default for Poisson sampling, "replace_one" for the others, whose number of records is public.
        ``"replace_one"`` with Poisson sampling needs a ``sample_rate`` of 1.
    accountant : {"pld", "prv", "rdp"}
        Which certifies.
    sampling : {"poisson", "uniform", "permutation"}
        See :class:`PrivacyPlan`.
    n_records : int, optional
        The *public* number of records; for, and only for, "uniform" and "permutation".

    Examples
    --------
    >>> plan = plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=100)
    >>> round(plan.noise_multiplier, 2)
    37.31
    >>> single = {"target_epsilon": 1.0, "target_delta": 1e-5, "n_steps": 100_000, "n_records": 1000}
    >>> round(plan_privacy(**single, sampling="uniform").noise_multiplier / 2.0, 3)
    1.588
    >>> round(plan_privacy(**single, sampling="permutation").noise_multiplier / 2.0, 1)
    37.3
    """
    target = check_interval("target_epsilon", target_epsilon, 0.0)
    delta = check_interval("target_delta", target_delta, 0.0, 1.0)
    rate, n_records = _sampling(sampling, sample_rate, n_records)
    steps = check_integer("n_steps", n_steps, minimum=1)
    if n_records is not None:
        caution_of_delta(delta, n_records)

    def event(noise: float) -> Event:
        return run_event(noise, rate, steps, sampling, n_records)

    noise_multiplier, bound = calibrate(event, target, delta, _relation(adjacency, sampling), accountant)
    warn_of_fallback(bound)
    return PrivacyPlan(
        sampling=sampling,
        n_records=n_records,
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


def _sampling(sampling: str, sample_rate: Any, n_records: Any) -> tuple[float, int | None]:
    """Return (sample rate, number of records or None), checked against the sampling, which is checked too."""
    check_choice("sampling", sampling, SAMPLINGS)
    if sampling == "poisson":
        if n_records is not None:
            raise ValueError("n_records must not be given with sampling='poisson'")
        return check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False), None
    if n_records is None:
        raise ValueError(f"n_records must be given with sampling={sampling!r}")
    count = check_integer("n_records", n_records, minimum=1)
    if sample_rate is not None and sample_rate != 1.0 / count:
        raise ValueError(f"sample_rate must not be given with sampling={sampling!r}: it is 1 / n_records")
    return 1.0 / count, count


def _relation(adjacency: Adjacency | str | None, sampling: str) -> Adjacency:
    if adjacency is None:
        return Adjacency.ADD_REMOVE if sampling == "poisson" else Adjacency.REPLACE_ONE
    relation = as_adjacency(adjacency)
    if sampling != "poisson" and relation is Adjacency.ADD_REMOVE:
        raise ValueError(f"adjacency must not be 'add_remove' with sampling={sampling!r}: its n_records is public")
    return relation


def _check_epsilon(value: Any) -> float:
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return check_interval("epsilon", value, 0.0, low_open=False)
