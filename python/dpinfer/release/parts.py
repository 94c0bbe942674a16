"""The private parts of a release, from which its guarantee is derived."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpinfer.accounting import Adjacency, Composed, Event, as_adjacency, event_from_dict
from dpinfer.accounting.events import check_event

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

    Raises
    ------
    TypeError, ValueError
        If a field is not of its type.

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
    """Rebuild a part from the result of ``to_dict``.

    **Privacy.** Reads no records.

    Raises TypeError or ValueError if it is anything else.
    """
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
