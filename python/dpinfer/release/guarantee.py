"""The guarantee of a release, common to all kinds, and the private parts from which it is derived."""

import math
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

import numpy as np

from dpinfer._sinks import printable
from dpinfer._validate import check_integer, check_interval
from dpinfer.accounting import (
    Adjacency,
    Composed,
    Event,
    Guarantee,
    NonPrivateEvent,
    as_adjacency,
    event_from_dict,
)
from dpinfer.accounting.events import check_event
from dpinfer.accounting.guarantee import rounded_up
from dpinfer.errors import InsecureReleaseError

# The default of `certified_epsilon`, which is a number in every release.
DERIVED: float = None  # type: ignore[assignment]
_LONGEST_TEXT = 1000  # characters; a hostile file must not fill a page


@dataclass(frozen=True)
class Part:
    """One private part of a release: a name, an event and an adjacency relation.

    **Privacy.** A description of a mechanism; holds no records.

    Parameters
    ----------
    name : str
        Name of the part, such as "category shares".
    event : Event
        The part's event; ``NonPrivateEvent()`` claims no guarantee, for this part and so for all.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}

    Examples
    --------
    >>> from dpinfer.accounting import GaussianEvent
    >>> Part("category shares", GaussianEvent(20.0), "add_remove").to_dict()["name"]
    'category shares'
    """

    name: str
    event: Event
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_text("name", self.name))
        check_event("event", self.event)
        object.__setattr__(self, "adjacency", as_adjacency(self.adjacency))

    def to_dict(self) -> dict[str, Any]:
        """Return the part as plain data for :func:`part_from_dict`."""
        return {"name": self.name, "event": self.event.to_dict(), "adjacency": self.adjacency.value}


def part_from_dict(data: Mapping[str, Any]) -> Part:
    """Rebuild a part from the result of ``to_dict``; raise TypeError or ValueError if it is anything else."""
    if not isinstance(data, Mapping) or set(data) != {"name", "event", "adjacency"}:
        raise ValueError("a part must have exactly the fields 'name', 'event' and 'adjacency'")
    return Part(data["name"], event_from_dict(data["event"]), Adjacency(data["adjacency"]))


def compose(parts: Sequence[Part]) -> Event:
    """Return the event of all parts together, or of the only part."""
    return parts[0].event if len(parts) == 1 else Composed(tuple(part.event for part in parts))


def check_parts(name: str, parts: Any, adjacency: Adjacency | None = None) -> tuple[Part, ...]:
    """Return `parts` as a tuple, all under `adjacency`, or under one common relation by default.

    Raises TypeError or ValueError if one is not a part, or under another relation: their guarantees would not compose.
    """
    if isinstance(parts, (str, Part)) or not isinstance(parts, Sequence):
        raise TypeError(f"{name} must be a sequence of parts, got {type(parts).__name__}")
    for part in parts:
        if not isinstance(part, Part):
            raise TypeError(f"{name} must be a sequence of parts, got one of type {type(part).__name__}")
        adjacency = part.adjacency if adjacency is None else adjacency
        if part.adjacency is not adjacency:
            raise ValueError(f"{name} must be under {adjacency.value!r} adjacency, got {part.adjacency.value!r}")
    return tuple(parts)


def check_leaks(leaks: Any) -> tuple[str, ...]:
    """Return `leaks` as a tuple of distinct texts, in their order.

    Raises TypeError or ValueError if one is not a short text.
    """
    if isinstance(leaks, str) or not isinstance(leaks, Sequence):
        raise TypeError(f"leaks must be a sequence of strings, got {type(leaks).__name__}")
    return tuple(dict.fromkeys(_check_text("leaks", text) for text in leaks))


def _check_text(name: str, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text, got {type(text).__name__}")
    # It is shown in terminals, pages and headers of tables.
    if not text.strip() or len(text) > _LONGEST_TEXT or not text.isprintable():
        raise ValueError(f"{name} must be one line of printable text, at most {_LONGEST_TEXT} characters long")
    return text


class _Certified(float):
    """A certified epsilon with the marks of its release.

    Copies field by field carry it along: so the checks of the copy refuse
    ``dataclasses.replace(release, secure=True)``, which ignores marks.
    """

    secure: bool
    leaks: tuple[str, ...]
    other_parts: tuple[Part, ...]

    @classmethod
    def derived(cls, epsilon: float, release: "Guaranteed") -> "_Certified":
        """Return the epsilon of a release, with its marks."""
        value = cls(epsilon)
        value.secure, value.leaks, value.other_parts = release.secure, release.leaks, release.other_parts
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)

    def check_marks(self, release: "Guaranteed") -> None:
        """Refuse a release that has lost a mark; raise ValueError if one was lost."""
        if release.secure and not self.secure:
            raise ValueError("secure must stay False: the noise came from a seeded generator")
        for name in ("leaks", "other_parts"):
            if not Counter(getattr(self, name)) <= Counter(getattr(release, name)):
                raise ValueError(f"{name} can only be added to: marks of a release are permanent")


class Guaranteed:
    """Base of releases with an (epsilon, delta) guarantee, frozen dataclasses: parts, marks and statements.

    A release consists of its own part, `event`, and of `other_parts`: earlier releases that it, or a file saved beside
    it, also holds. The guarantee covers all parts: ``certified_epsilon`` is derived from the composition of their
    events, and a given value must follow from it.

    Marks (`secure`, `leaks`, `other_parts`) hold facts outside of events. A copy that lacks a mark is refused, as
    is a statement of a release whose marks were changed in place. This prevents the loss of marks; it is no signature:
    a release made of bare arrays can claim anything.

    **Privacy.** Post-processing: reads only the release.
    """

    event: Event
    adjacency: Adjacency
    delta: float
    certified_epsilon: float
    secure: bool
    accountant: str = "pld"
    other_parts: tuple[Part, ...] = ()
    leaks: tuple[str, ...] = ()
    _part_name: ClassVar[str] = "trace"
    _released: ClassVar[str] = "the whole trace"
    # Fields that are mappings, which nobody can write to.
    _frozen: ClassVar[tuple[str, ...]] = ()

    def _check_guarantee(self) -> None:
        """Check the fields about the mechanism, and derive the epsilon of all parts."""
        from dpinfer.accounting.accountant import ACCOUNTANTS, STATED_TOLERANCE, certify_at, check_stated_epsilon

        put = object.__setattr__
        if not isinstance(self.secure, (bool, np.bool_)):
            raise TypeError(f"secure must be a bool, got {type(self.secure).__name__}")
        put(self, "secure", bool(self.secure))
        put(self, "adjacency", as_adjacency(self.adjacency))
        put(self, "delta", check_interval("delta", self.delta, 0.0, 1.0, low_open=False))
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {self.accountant!r}")
        put(self, "other_parts", check_parts("other_parts", self.other_parts, self.adjacency))
        put(self, "leaks", check_leaks(self.leaks))
        terms: dict[str, Any] = {"delta": self.delta, "adjacency": self.adjacency, "accountant": self.accountant}
        if isinstance(self.certified_epsilon, _Certified):
            self.certified_epsilon.check_marks(self)
        if self.certified_epsilon is DERIVED:
            epsilon = certify_at(self.joint_event, **terms)
        else:
            stated = float(self.certified_epsilon)
            if math.isnan(stated) or stated < 0.0:
                raise ValueError(f"certified_epsilon must be at least 0, got {stated}")
            if any(isinstance(part.event, NonPrivateEvent) for part in self.parts) and math.isfinite(stated):
                raise ValueError("certified_epsilon must be infinite for an event that claims no guarantee")
            epsilon = check_stated_epsilon(
                "certified_epsilon", stated, self.joint_event, **terms, tolerance=STATED_TOLERANCE
            )
        put(self, "certified_epsilon", _Certified.derived(epsilon, self))
        for name in self._frozen:
            put(self, name, MappingProxyType(dict(getattr(self, name))))

    def _stated(self) -> float:
        """Return the certified epsilon, if the release has the marks that it was derived for."""
        stated = self.certified_epsilon
        if not isinstance(stated, _Certified):
            raise ValueError("certified_epsilon must be the release's derived value, and was replaced")
        stated.check_marks(self)
        return float(stated)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All private parts, in the order in which they were released; the last is this release's own."""
        return (*self.other_parts, Part(self._part_name, self.event, self.adjacency))

    @property
    def joint_event(self) -> Event:
        """The composition of the parts' events, which the guarantee is derived from."""
        return compose(self.parts)

    @property
    def epsilon(self) -> float:
        """The certified epsilon at `delta` of everything in it.

        Infinity if no guarantee is claimed, or `leaks` names contents without one.

        Raises InsecureReleaseError if the noise came from a seeded generator.
        """
        stated = self._stated()
        if not self.secure:
            raise InsecureReleaseError(
                "this release is NOT PRIVATE: its noise came from a seeded generator, so it has no epsilon"
            )
        return math.inf if self.leaks else stated

    @property
    def guarantee(self) -> Guarantee:
        """The privacy guarantee of everything in the release: a sentence, with conversions to other terms."""
        before = " and ".join(part.name for part in self.other_parts)
        return Guarantee(
            self.joint_event,
            epsilon=self._stated(),
            delta=self.delta,
            adjacency=self.adjacency,
            accountant=self.accountant,
            secure=self.secure,
            leaks=self.leaks,
            released=self._released + self._taken_as_public() + (f" together with {before}" if before else ""),
        )

    def _taken_as_public(self) -> str:
        """Return contents of the release that only the caller can know to be public, as a clause; may be empty."""
        return ""

    def _values(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return values | {name: dict(values[name]) for name in self._frozen}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked like the original.

        Marks of missing privacy stay: `leaks` and `other_parts` may be added to, and `secure` may become False. The
        epsilon is derived again if its inputs have changed.

        Raises TypeError if there is no such field. Raises ValueError if a field is out of range, or a mark would be
        lost.
        """
        values = self._values()
        unknown = set(changes) - set(values)
        if unknown:
            raise TypeError(f"replace() got unknown fields {sorted(unknown)}")
        if set(changes) & {"event", "adjacency", "delta", "accountant", "other_parts"}:
            values["certified_epsilon"] = DERIVED
        copy = type(self)(**(values | changes))
        _Certified.derived(self.certified_epsilon, self).check_marks(copy)
        return copy

    __replace__ = replace

    def with_parts(self, *parts: Part) -> Self:
        """Return a copy that counts further private parts, released before it, in its guarantee."""
        return self.replace(other_parts=(*self.other_parts, *parts)) if parts else self

    def with_leaks(self, *leaks: str) -> Self:
        """Return a copy with a permanent mark of contents that were taken from the records without noise.

        Each is one clause, such as "bounds were read from the private records".
        """
        return self.replace(leaks=(*self.leaks, *leaks)) if leaks else self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._values())


@dataclass(frozen=True, eq=False, kw_only=True)
class Stated(Guaranteed):
    """A base with the fields of a guarantee.

    Parameters
    ----------
    event : Event
        The event of its sums; ``NonPrivateEvent()`` claims no guarantee.
    delta : float
        The delta at which `certified_epsilon` holds; 0 when no guarantee is claimed, and for pure noise alone.
    certified_epsilon : float, optional
        The accountant's upper bound for all parts together; infinity when no guarantee is claimed.  Derived by
        default, and refused if it does not follow from the events.
    accountant : {"pld", "prv", "rdp"}
    secure : bool
        False when a seeded generator drew the noise: then nothing private was protected and `epsilon` raises.
    other_parts : tuple of Part
        Private parts that were released before it and belong to it; counted in the guarantee.
    leaks : tuple of str
        Contents that were taken from the records without noise; permanent.
    """

    event: Event = field(default_factory=NonPrivateEvent)
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    delta: float = 0.0
    certified_epsilon: float = DERIVED
    accountant: str = "pld"
    secure: bool = True
    other_parts: tuple[Part, ...] = ()
    leaks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_guarantee()

    def _check_fields(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Check and store every field with a :class:`Shape` or a :class:`Range`; return the lengths of all axes."""
        found = dict(sizes)
        for item in fields(self):
            for rule in getattr(item.type, "__metadata__", ()):
                object.__setattr__(self, item.name, rule.checked(item.name, getattr(self, item.name), found))
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Release(Stated):
    """The base of every release: what a mechanism has published, as a frozen dataclass that can be saved and pickled.

    Calling it makes a :class:`dpinfer.GradientTrace`, with a :class:`DeprecationWarning`: in version 0.1 the trace had
    this name.  A field of a wrong type, shape or range is refused, and so is an event of other sums or less noise.

    **Privacy.** Post-processing: reads only the release.

    Parameters
    ----------
    names : tuple of str
        Names of the model's parameters, or of the sums.
    n_records : int or None
        The *public* number of records.
    model_spec : mapping
        The model as plain data (``model.to_dict()``); empty when unknown.
    settings : mapping
        Further public settings as JSON values.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks
        What the guarantee says and rests on: see the base, :class:`dpinfer.release.guarantee.Stated`.
    """

    names: tuple[str, ...]
    n_records: int | None
    model_spec: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    _frozen: ClassVar[tuple[str, ...]] = ("model_spec", "settings")
    # Of its files; one without cannot be saved.
    format_name: ClassVar[str] = ""
    # How another package's kind is asked for its posterior: see `dpinfer.inference.request.Room`.
    room: ClassVar[Any] = None

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Make a trace where the base is called, as code written for version 0.1 does."""
        if cls is not Release:
            return super().__new__(cls)
        from dpinfer.release.trace import GradientTrace

        warnings.warn("Release(...) is now GradientTrace(...); it ends in 0.3", DeprecationWarning, stacklevel=2)
        return super().__new__(cast(type[Self], GradientTrace))

    @property
    def n_params(self) -> int | None:
        """Number of model parameters n; None if only the model has it."""
        return None

    def _check_names(self, size: int) -> None:
        """Check the names of `size` parameters and the number of records."""
        object.__setattr__(self, "n_records", check_integer("n_records", self.n_records, 1))
        names = tuple(self.names)
        if not all(isinstance(name, str) for name in names) or len(names) != size or len(set(names)) != size:
            raise ValueError(f"names must be {size} distinct strings")
        object.__setattr__(self, "names", names)

    def _taken_as_public(self) -> str:
        """Return clauses: the unit of privacy, moments that no part accounts for, the package of a foreign method."""
        units = " (a record being a unit with all its rows)" if "unit" in self.settings else ""
        moments_known = self.model_spec.get("feature_moments_known") is True and not self.other_parts
        return (
            units
            + _against(self.settings.get("silos"))
            + (" (given its model's feature moments, taken as public)" if moments_known else "")
            + _by_method(self.settings.get("method_of"))
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to `path`: no record, no seed, nothing without noise.  See :func:`dpinfer.release.save_release`."""
        from dpinfer.release.files import save_release

        save_release(self, path)

    def certificate(self, *, ledger: str | os.PathLike[str] | None = None, key: bytes | None = None) -> str:
        """Return :func:`dpinfer.release.certificate`: claims as JSON that others can check without this library."""
        from dpinfer.release.certificate import certificate

        return certificate(self, ledger=ledger, key=key)


def _against(silos: Any) -> str:
    """Return a clause with the epsilon of each adversary of a release over silos; empty for any other."""
    epsilon = silos.get("epsilon") if isinstance(silos, Mapping) else None
    if not isinstance(epsilon, Mapping):
        return ""
    numbers = {
        str(name): rounded_up(value) if isinstance(value, float) else "not known" for name, value in epsilon.items()
    }
    return (
        f" (of {silos.get('n_sites')} sites: epsilon {numbers.get('outsider')} against a recipient, "
        f"{numbers.get('coordinator')} against the coordinator with {silos.get('may_collude')} of the sites, "
        f"{numbers.get('one site')} against one site)"
    )


def _by_method(method: Any) -> str:
    """Return whose method has run where another package brought it."""
    if not isinstance(method, Mapping):
        return ""
    name, package = (printable(method.get(key)) for key in ("name", "package"))
    return f" (by the method {name!r} of {package})"


def _rebuild(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**values)
