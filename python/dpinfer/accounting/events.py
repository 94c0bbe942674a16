"""Privacy events: plain, immutable descriptions of a mechanism's use of the records.

An event holds the noise and the sampling of records, in units in which the bound on one record's contribution
(``max_grad_norm``) is 1. It holds nothing about data; a guarantee follows from it by an accountant under an adjacency
relation.  The meaning of a field never changes once released: a new meaning gets a new event.

Adjacency relations define neighbouring data sets; there is one conversion between them.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias, get_args

from dpinfer._validate import check_integer, check_interval


class Adjacency(enum.Enum):
    """The relation between data sets that a guarantee protects.

    Attributes
    ----------
    ADD_REMOVE
        One record is present in one data set and absent from the other; the number of records is private.
    ZERO_OUT
        One record is replaced with a null record, a row that holds NaN and nothing else, whose contribution is zero;
        the number of records is public.  A row of zeros is not null: docs/derivations/dpvi-mechanism.md.
    REPLACE_ONE
        Neighbours differ in one record; the number of records is public.

    Notes
    -----
    **Privacy.** Reads no records.  With a bound ``max_grad_norm`` on each record's contribution, the sum's L2
    sensitivity is once that bound under ``ADD_REMOVE`` and ``ZERO_OUT`` and twice that bound under ``REPLACE_ONE``.

    Examples
    --------
    >>> Adjacency("add_remove")
    <Adjacency.ADD_REMOVE: 'add_remove'>
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"

    @property
    def sensitivity_factor(self) -> float:
        """L2 sensitivity of a sum of contributions, in units of the bound on one contribution."""
        return 2.0 if self is Adjacency.REPLACE_ONE else 1.0


def as_adjacency(value: "Adjacency | str") -> Adjacency:
    """Return `value` as an :class:`Adjacency`: a member, or the value of one.

    Examples
    --------
    >>> as_adjacency("zero_out") is Adjacency.ZERO_OUT
    True
    """
    if isinstance(value, Adjacency):
        return value
    if not isinstance(value, str):
        raise TypeError(f"adjacency must be a string or an Adjacency, got {type(value).__name__}")
    try:
        return Adjacency(value)
    except ValueError:
        listed = ", ".join(repr(member.value) for member in Adjacency)
        raise ValueError(f"adjacency must be one of {listed}; got {value!r}") from None


def add_remove_to_replace_one(epsilon: float, delta: float) -> tuple[float, float]:
    """Turn an add/remove guarantee into a replace-one guarantee (epsilon, delta), by group privacy.

    **Privacy.** Reads no records.  A replacement is one removal followed by one addition, so an (epsilon, delta)
    guarantee under ``ADD_REMOVE``, epsilon in [0, inf) and delta in [0, 1], is a (2 epsilon, (1 + e^epsilon) delta)
    guarantee under ``REPLACE_ONE``; a delta of 1 is none.  No accountant of this package applies the conversion on its
    own.

    Dwork and Roth (2014), Theorem 2.2, with the delta of two steps written out.

    Examples
    --------
    >>> add_remove_to_replace_one(0.0, 1e-6)
    (0.0, 2e-06)
    """
    epsilon = check_interval("epsilon", epsilon, 0.0, low_open=False)
    delta = check_interval("delta", delta, 0.0, 1.0, low_open=False, high_open=False)
    factor = 1.0 + math.exp(min(epsilon, 700.0))
    return 2.0 * epsilon, min(1.0, factor * delta)


MAX_NESTING = 32  # the library nests 4 levels; a hostile file must not exhaust the stack


class _Described:
    """Base of events: frozen dataclasses of numbers and events."""

    type_name: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data for :func:`event_from_dict`."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return {"type": self.type_name} | {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, _Described):
        return value.to_dict()
    return [event.to_dict() for event in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class GaussianEvent(_Described):
    """A sum of bounded contributions, released with Gaussian noise.

    **Privacy.** Describes a mechanism; reads no records.  The noise's standard deviation is ``noise_multiplier`` times
    the bound C on one record's L2 norm.  The L2 sensitivity is therefore 1 in these units under ``ADD_REMOVE`` and
    ``ZERO_OUT`` and 2 under ``REPLACE_ONE``; the accountants apply that factor, the event does not contain it.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by ``max_grad_norm``, in (0, inf).

    Examples
    --------
    >>> GaussianEvent(1.5).to_dict()
    {'type': 'gaussian', 'noise_multiplier': 1.5}
    """

    type_name: ClassVar[str] = "gaussian"
    noise_multiplier: float

    def __post_init__(self) -> None:
        value = check_interval("noise_multiplier", self.noise_multiplier, 0.0)
        object.__setattr__(self, "noise_multiplier", value)


@dataclass(frozen=True)
class NonPrivateEvent(_Described):
    """Something about which no guarantee is claimed: epsilon is infinite.

    **Privacy.** Describes a mechanism; reads no records.  Every accountant returns infinity for it, alone or composed.

    Examples
    --------
    >>> NonPrivateEvent().to_dict()
    {'type': 'non_private'}
    """

    type_name: ClassVar[str] = "non_private"


@dataclass(frozen=True)
class PureEvent(_Described):
    """A release that is epsilon-differentially private with delta = 0, by any noise: Laplace noise on sums, say.

    **Privacy.** Describes a mechanism; reads no records.  Pure guarantees under two relations are not multiples of each
    other, so the event names its own, and accountants refuse it under another.

    Parameters
    ----------
    epsilon : float in (0, inf)
    adjacency : {"add_remove", "zero_out", "replace_one"}

    Examples
    --------
    >>> PureEvent(0.5, "add_remove").to_dict()
    {'type': 'pure', 'epsilon': 0.5, 'adjacency': 'add_remove'}
    """

    type_name: ClassVar[str] = "pure"
    epsilon: float
    adjacency: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_interval("epsilon", self.epsilon, 0.0))
        object.__setattr__(self, "adjacency", as_adjacency(self.adjacency).value)


@dataclass(frozen=True)
class ApproximateEvent(_Described):
    """A release that is (epsilon, delta)-differentially private, by any noise: names above a threshold, say.

    **Privacy.** Describes a mechanism; reads no records.  Guarantees under two relations are not multiples of each
    other: the event names its relation, and accountants refuse it under another.

    Parameters
    ----------
    epsilon : float in (0, inf)
    delta : float in (0, 1)
    adjacency : {"add_remove", "zero_out", "replace_one"}

    Examples
    --------
    >>> ApproximateEvent(0.5, 1e-6, "add_remove").to_dict()
    {'type': 'approximate', 'epsilon': 0.5, 'delta': 1e-06, 'adjacency': 'add_remove'}
    """

    type_name: ClassVar[str] = "approximate"
    epsilon: float
    delta: float
    adjacency: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_interval("epsilon", self.epsilon, 0.0))
        object.__setattr__(self, "delta", check_interval("delta", self.delta, 0.0, 1.0))
        object.__setattr__(self, "adjacency", as_adjacency(self.adjacency).value)


@dataclass(frozen=True)
class PoissonSampled(_Described):
    """An event run on a Poisson sample: each record takes part independently with probability ``sample_rate``.

    **Privacy.** Describes a mechanism; reads no records.  Covered under ``ADD_REMOVE`` and ``ZERO_OUT``.  The rate, in
    (0, 1], may overstate the true one, never understate it.

    Examples
    --------
    >>> PoissonSampled(0.1, GaussianEvent(2.0))
    PoissonSampled(sample_rate=0.1, event=GaussianEvent(noise_multiplier=2.0))
    """

    type_name: ClassVar[str] = "poisson_sampled"
    sample_rate: float
    event: "Event"

    def __post_init__(self) -> None:
        rate = check_interval("sample_rate", self.sample_rate, 0.0, 1.0, high_open=False)
        object.__setattr__(self, "sample_rate", rate)
        check_event("event", self.event)


@dataclass(frozen=True)
class SampledWithoutReplacement(_Described):
    """An event run on ``n_sampled`` of ``n_records`` records, drawn uniformly and afresh without replacement.

    **Privacy.** Describes a mechanism; reads no records.  ``n_records`` is public, so this is covered under
    ``REPLACE_ONE`` and ``ZERO_OUT`` and refused under ``ADD_REMOVE``.  A permutation that is reused over an epoch is
    *not* this event: condition on it and account one plain Gaussian per epoch.

    Parameters
    ----------
    n_records : int
        Public, at least 1.
    n_sampled : int
        In [1, n_records].
    event : Event
        The event on the sample.

    Examples
    --------
    >>> SampledWithoutReplacement(1000, 10, GaussianEvent(2.0)).to_dict()["n_sampled"]
    10
    """

    type_name: ClassVar[str] = "sampled_without_replacement"
    n_records: int
    n_sampled: int
    event: "Event"

    def __post_init__(self) -> None:
        n_records = check_integer("n_records", self.n_records, minimum=1)
        object.__setattr__(self, "n_records", n_records)
        object.__setattr__(self, "n_sampled", check_integer("n_sampled", self.n_sampled, minimum=1, maximum=n_records))
        check_event("event", self.event)


@dataclass(frozen=True)
class SelfComposed(_Described):
    """The same event run ``count`` >= 1 times on the same records, each time chosen adaptively.

    Examples
    --------
    >>> SelfComposed(GaussianEvent(2.0), 100).count
    100
    """

    type_name: ClassVar[str] = "self_composed"
    event: "Event"
    count: int

    def __post_init__(self) -> None:
        check_event("event", self.event)
        object.__setattr__(self, "count", check_integer("count", self.count, minimum=1))


@dataclass(frozen=True)
class Composed(_Described):
    """Several events, at least one, run one after the other on the same records.

    Examples
    --------
    >>> len(Composed([GaussianEvent(2.0), GaussianEvent(3.0)]).events)
    2
    """

    type_name: ClassVar[str] = "composed"
    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, Sequence) or isinstance(self.events, (str, bytes)):
            raise TypeError(f"events must be a sequence of events, got {type(self.events).__name__}")
        if len(self.events) == 0:
            raise ValueError("events must hold at least one event, got none")
        for event in self.events:
            check_event("events", event)
        object.__setattr__(self, "events", tuple(self.events))


Event: TypeAlias = (
    GaussianEvent
    | NonPrivateEvent
    | PureEvent
    | ApproximateEvent
    | PoissonSampled
    | SampledWithoutReplacement
    | SelfComposed
    | Composed
)

_EVENT_TYPES: tuple[type[Event], ...] = get_args(Event)
_BY_NAME: dict[str, type[Event]] = {kind.type_name: kind for kind in _EVENT_TYPES}


def check_event(name: str, value: Any) -> Event:
    """Return `value` when it is a privacy event, and raise a TypeError that names the argument otherwise.

    A subclass may be equal to anything and account for less than it says: it is none.
    """
    if type(value) not in _EVENT_TYPES:
        raise TypeError(f"{name} must be a privacy event, got {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Rebuild an event, equal to the stored one, from the result of ``to_dict``; refuse anything else.

    Plain data are ``type`` and exactly the fields of that event, nested events likewise, at most 32 levels deep.

    Raises ValueError if the type is unknown, a field is missing, unknown, of a wrong type or outside its interval.

    Examples
    --------
    >>> event = SelfComposed(PoissonSampled(0.1, GaussianEvent(2.0)), 10)
    >>> event_from_dict(event.to_dict()) == event
    True
    """
    return _from_dict(data, 0)


def _from_dict(data: Any, depth: int) -> Event:
    if depth > MAX_NESTING:
        raise ValueError(f"an event must be nested at most {MAX_NESTING} levels deep")
    if not isinstance(data, Mapping):
        raise ValueError(f"an event must be a mapping, got {type(data).__name__}")
    name = data.get("type")
    kind = _BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        listed = ", ".join(repr(known) for known in _BY_NAME)
        raise ValueError(f"event type must be one of {listed}; got {name!r}")
    names = {field.name for field in fields(kind)}
    present = set(data) - {"type"}
    if present != names:
        missing, unknown = sorted(names - present), sorted(str(key) for key in present - names)
        raise ValueError(f"event {name!r} must have exactly the fields {sorted(names)}; {missing=}, {unknown=}")
    arguments = {key: data[key] for key in names}
    if "event" in names:
        arguments["event"] = _from_dict(data["event"], depth + 1)
    if "events" in names:
        if not isinstance(data["events"], (list, tuple)):
            raise ValueError(f"events must be a list, got {type(data['events']).__name__}")
        arguments["events"] = tuple(_from_dict(item, depth + 1) for item in data["events"])
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ValueError(f"event {name!r} is malformed: {error}") from error


def run_event(
    noise_multiplier: float, sample_rate: float, n_steps: int, sampling: str = "poisson", n_records: int | None = None
) -> Event:
    """Return the event of a run of `n_steps` Gaussian sums over samples of the records.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of each sum's noise divided by the clipping norm.
    sample_rate : float
        For "poisson".
    n_steps : int
    sampling : {"poisson", "uniform", "permutation"}
        Each record with probability `sample_rate`; one of `n_records`, drawn afresh; or the next of a permutation that
        is drawn for every epoch of `n_records` steps, which amplifies nothing: one step of each epoch touches a record.
    n_records : int, optional
        For the last two.

    Examples
    --------
    >>> run_event(2.0, 0.1, 5)
    SelfComposed(event=PoissonSampled(sample_rate=0.1, event=GaussianEvent(noise_multiplier=2.0)), count=5)
    """
    noise = GaussianEvent(noise_multiplier)
    if n_records is None:
        return SelfComposed(PoissonSampled(sample_rate, noise), n_steps)
    if sampling == "uniform":
        return SelfComposed(SampledWithoutReplacement(n_records, 1, noise), n_steps)
    # The last epoch counts when it is not a whole one, too.
    return SelfComposed(noise, -(-n_steps // n_records))
