"""Records that stay at sites that trust nobody with their sums, as `X` of a run."""

import copy
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.silos.messages import pack
from dpinfer.mechanism.silos.terms import SESSION, Terms, epsilon_of_adversaries
from dpinfer.mechanism.sources.row_source import Records


class Line(Protocol):
    """A carrier of bytes to sites and back."""

    @property
    def n_sites(self) -> int:
        """How many sites there are."""

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send each site its message, and return the replies of those that answered in time."""


class Silos(Records):
    """Sites that keep their own records, and a line to these sites.

    In a pass every site gets the public numbers of a sum, and returns a masked vector: only the sum of all vectors can
    be opened, and it contains the noise, of which every site adds a share.

    **Privacy.** Holds no records.  docs/silos.md has the view of each party and coalition.

    Raises TypeError or ValueError if an argument is wrong, or no honest site would be left. Raises
    BackendUnavailableError without `cryptography`: ``pip install 'dpinfer[silos]'``.

    Parameters
    ----------
    line : Line
        :class:`dpinfer.mechanism.silos.TcpLine`, :class:`dpinfer.mechanism.silos.FlowerLine`, or
        :class:`dpinfer.mechanism.silos.LocalLine` of sites in this process.
    may_vanish : int
        How many sites may be lost while a run goes on.
    may_collude : int
        Number of sites that may share all their knowledge with the coordinator, or each other: at least 1, since a
        site knows its own noise share.
    log : path-like, optional
        A folder, for a file of each site's messages: kinds, sizes and hashes.
    """

    own_noise = True

    def __init__(self, line: Line, *, may_vanish: int = 0, may_collude: int = 1, log: Any = None) -> None:
        # Refuses early where the extra is missing.
        import_module("dpinfer.mechanism.silos.masks")
        if not callable(getattr(line, "exchange", None)):
            raise TypeError(f"line must be a TcpLine, FlowerLine or LocalLine, got {type(line).__name__}")
        self._line = line
        self.terms = Terms(line.n_sites, may_vanish, may_collude)
        self._log = None if log is None else Path(log)
        self._request: dict[str, Any] | None = None

    @property
    def demands(self) -> Mapping[str, str]:
        """A run whose sums sites can mask."""
        return {"sites": "{name} must be an array or a RowSource, not Silos: this run cannot mask its sums"}

    def each_part(self, function: Callable[..., Any], *public: Any) -> list[Any]:
        """Refuse: no site gives anything but a masked sum."""
        raise TypeError("X must not be Silos: a site gives masked sums alone")

    def asking(self, request: Mapping[str, Any]) -> "Silos":
        """Return the same sites, with a public request for rows of their tables."""
        other = copy.copy(self)
        other._request = dict(request)
        return other

    def to_dict(self) -> dict[str, Any]:
        """Return the identification of these sites for a checkpoint."""
        return {"silos": {"terms": self.terms.to_dict(), "records": self._request}}

    def open(
        self, kind: str, model: Any, terms: Mapping[str, Any], n_records: int, n_passes: int, saved: bytes = b""
    ) -> Any:
        """Open a session for a task, or go on with one that was saved, and return it.

        Raises SiloError if a site does not answer, or refuses; nothing was charged.
        """
        # Imported by name, since it imports this module.
        module = import_module("dpinfer.mechanism.silos.session")
        task = module.Task(kind, model, terms, n_records, self._request)
        session = module.Session(self._line, task, self.terms, n_passes, self._log)
        if saved:
            session.load(saved)
        else:
            session.open()
        return session

    def check_ledger(self, ledger: Any) -> None:
        """Refuse a ledger: sites keep their own.

        Raises ValueError if there is one.
        """
        if ledger is not None:
            raise ValueError("ledger must be None with Silos: give each Site its own, ledger=, which it charges")

    def __repr__(self) -> str:
        return f"Silos({self.terms})"


class SiloRecords:
    """The records of all sites in a private Newton run: noise comes from the sites.

    `n_records` is public: a site never reveals its own number.  `saved` is the run's state in a checkpoint, if any.
    """

    own_noise = True

    def __init__(self, silos: Silos, model: Any, plan: Any, n_records: int, saved: Mapping[str, FloatArray]) -> None:
        self.n_rows = n_records
        self._silos = silos
        words = _bytes_of(saved[SESSION]) if SESSION in saved else b""
        self._session = silos.open("newton", model, plan.to_dict(), n_records, plan.n_passes, words)

    @property
    def secure(self) -> bool:
        """Whether every site declares its noise secure."""
        return bool(self._session.secure)

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Return nothing: no checkpoint can recognise these records."""
        return ()

    def state(self) -> dict[str, FloatArray]:
        """Return the session's state for a checkpoint: no secret of a site."""
        return {SESSION: _words_of(self._session.save())}

    def noisy_sum(self, query: Any, keep: Callable[[], None]) -> FloatArray:
        """Return a pass's sum with the noise of all present sites; `keep` saves the state before the request."""
        step = _native.PartialSum(length=query.length, max_norm=query.max_norm).lattice_step
        integers = self._session.sum(pack("query", query=query), query.length, keep)
        return np.asarray(integers.astype(np.float64) * step)

    def excess(self, index: int) -> float:
        """Return the ratio of the noise of a pass, from all present sites, to the planned one."""
        return float(np.sqrt(self._session.present[index] / self._silos.terms.noise_shares))

    def close(self, plan: Any) -> dict[str, Any]:
        """End the session, and return its record for the release."""
        return {"silos": described(self._silos.terms, self._session, plan)}


def described(terms: Terms, session: Any, plan: Any) -> dict[str, Any]:
    """End a session, and return its record for the release: present sites, and epsilon against each adversary."""
    said: dict[str, Any] = session.close()
    epsilon = epsilon_of_adversaries(plan.event, said["present"], terms, delta=plan.delta, adjacency=plan.adjacency)
    also = {"noise_shares": terms.noise_shares, "withstands_lies": terms.withstands_lies}
    return said | also | {"epsilon": dict(epsilon)}


def _words_of(content: bytes) -> FloatArray:
    """Return bytes as numbers, which a checkpoint keeps: exact, four bytes each."""
    padded = len(content).to_bytes(4, "little") + content + bytes(-len(content) % 4)
    return np.frombuffer(padded, dtype="<u4").astype(np.float64)


def _bytes_of(words: FloatArray) -> bytes:
    """Return the bytes of :func:`_words_of`."""
    content = words.astype("<u4").tobytes()
    return content[4 : 4 + int.from_bytes(content[:4], "little")]
