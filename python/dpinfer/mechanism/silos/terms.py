"""Numbers of sites that may vanish or collude, sufficient noise shares, and epsilon against three adversaries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpinfer._validate import check_integer
from dpinfer.accounting import Adjacency, Composed, Event, GaussianEvent, PureEvent
from dpinfer.accounting.accountant import certify_at

SESSION = "session"  # the array of a checkpoint that holds the coordinator's end of a session: format
MAX_SITES = 200  # every pair of sites agrees on a key: 20 000 pairs; time
MAX_NUMBERS = 2**20 - 1  # of one pass times sites: the slack for the noise's finite precision covers as many draws


@dataclass(frozen=True)
class Terms:
    """Public terms of a session.

    Raises TypeError or ValueError if no honest site would be left.
    """

    n_sites: int
    may_vanish: int = 0  # so many may be lost while the run goes on: it ends if one more is
    may_collude: int = 1  # so many may share all their knowledge with the coordinator: at least 1

    def __post_init__(self) -> None:
        check_integer("n_sites", self.n_sites, 2, MAX_SITES)
        check_integer("may_vanish", self.may_vanish, 0)
        check_integer("may_collude", self.may_collude, 1)
        if self.noise_shares < 1:
            raise ValueError(
                f"may_vanish + may_collude must be less than the number of sites, {self.n_sites}, "
                f"got {self.may_vanish} + {self.may_collude}"
            )

    @property
    def fewest(self) -> int:
        """Sites that must be present in every pass, and shares that open a sum."""
        return self.n_sites - self.may_vanish

    @property
    def noise_shares(self) -> int:
        """Noise shares that suffice: each has this part of the variance."""
        return self.n_sites - self.may_vanish - self.may_collude

    @property
    def withstands_lies(self) -> bool:
        """Whether a coordinator gains nothing by sending sites different lists of present sites.

        Proof: docs/derivations/silos.md, "A coordinator that lies".
        """
        return self.n_sites - self.may_collude > self.may_vanish * (self.may_vanish + 1)

    def to_dict(self) -> dict[str, int]:
        """Return the terms as plain data."""
        return {"n_sites": self.n_sites, "may_vanish": self.may_vanish, "may_collude": self.may_collude}


def event_with_shares(event: Event, shares: Sequence[int], needed: int) -> Event:
    """Return the event for somebody who does not know so many noise shares of each pass.

    The event is of a Gaussian sum for each pass, with the noise of `needed` shares; or of a pure release, which more
    noise leaves so.
    """
    if isinstance(event, PureEvent):
        return event
    passes = event.events if isinstance(event, Composed) else (event,)
    scaled = []
    for own, count in zip(passes, shares, strict=True):
        if not isinstance(own, GaussianEvent):
            raise TypeError(f"event must be of Gaussian sums, got {type(own).__name__}")
        scaled.append(GaussianEvent(own.noise_multiplier * math.sqrt(count / needed)))
    return Composed(tuple(scaled))


def epsilon_of_adversaries(
    event: Event, present: Sequence[int], terms: Terms, *, delta: float, adjacency: Adjacency
) -> Mapping[str, Any]:
    """Return the certified epsilon against each adversary, given how many sites took part in each pass.

    An "outsider" sees the release; "one site" knows its own noise shares, too; the "coordinator" sees all messages, and
    knows the noise shares of `terms.may_collude` sites.  The event is the plan's: `terms.noise_shares` in each pass.

    **Privacy.** Reads no records.  Proof: docs/derivations/silos.md, "Three adversaries".
    """
    known = {"outsider": 0, "coordinator": terms.may_collude, "one site": 1}
    found = {}
    for name, own in known.items():
        seen = event_with_shares(event, [count - own for count in present], terms.noise_shares)
        epsilon = certify_at(seen, delta=delta, adjacency=adjacency, accountant="pld")
        found[name] = epsilon if math.isfinite(epsilon) else None
    return found
