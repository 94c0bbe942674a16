"""Records that stay at sites that trust nobody with their sums: what `X` may be in place of an array."""

import copy
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism import _native
from dpinfer.mechanism.silos.messages import pack
from dpinfer.mechanism.silos.terms import Terms, epsilon_of_adversaries

__all__ = ["Line", "SiloRecords", "Silos", "check_control_of_silos", "described"]

FloatArray = npt.NDArray[np.float64]


class Line(Protocol):
    """What carries bytes to sites and back."""

    @property
    def n_sites(self) -> int:
        """How many sites there are."""

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send each site its message, and return the replies of those that answered in time."""


class Silos:
    """Sites, each with records of its own, and a line to them.

    A pass gives every site the public numbers of a sum, and takes back a masked vector: only the sum of all of them can
    be opened, and it has the noise in it, of which every site adds a share.

    **Privacy.** Holds no records.  What each party and each coalition sees: docs/silos.md.

    Parameters
    ----------
    line : Line
        :class:`dpinfer.mechanism.silos.TcpLine`, :class:`dpinfer.mechanism.silos.FlowerLine`, or
        :class:`dpinfer.mechanism.silos.LocalLine` of sites in this process.
    may_vanish : int
        How many sites may be lost while a run goes on.
    may_collude : int
        How many sites may tell the coordinator, or each other, all they know: at least 1, which is the site that
        tells itself its own noise share.
    log : path-like, optional
        A folder, for a file of each site's messages: kinds, sizes and hashes.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or no honest site would be left.
    BackendUnavailableError
        Without `cryptography`: ``pip install 'dpinfer[silos]'``.
    """

    n_features = None

    def __init__(self, line: Line, *, may_vanish: int = 0, may_collude: int = 1, log: Any = None) -> None:
        # Refuses early where the extra is missing.
        import_module("dpinfer.mechanism.silos.masks")
        if not callable(getattr(line, "exchange", None)):
            raise TypeError(f"line must be a TcpLine, FlowerLine or LocalLine, got {type(line).__name__}")
        self._line = line
        self.terms = Terms(line.n_sites, may_vanish, may_collude)
        self._log = None if log is None else Path(log)
        self._request: dict[str, Any] | None = None

    def asking(self, request: Mapping[str, Any]) -> "Silos":
        """Return the same sites, asked for the rows of their tables that this public request describes."""
        other = copy.copy(self)
        other._request = dict(request)
        return other

    def open(self, kind: str, model: Any, terms: Mapping[str, Any], n_records: int, n_passes: int) -> Any:
        """Open a session for a task, and return it.

        Raises
        ------
        SiloError
            If a site does not answer, or refuses; nothing was charged.
        """
        # Imported by name: what it needs imports this module.
        opened = import_module("dpinfer.mechanism.silos.session").open_session
        task = {"kind": kind, "model": model, "terms": terms, "n_records": n_records, "records": self._request}
        return opened(self._line, task, self.terms, n_passes, self._log)

    def __repr__(self) -> str:
        return f"Silos({self.terms})"


def check_control_of_silos(X: Any, control: Any) -> None:
    """Refuse a ledger and a checkpoint for records at sites: these keep their own.

    Raises
    ------
    ValueError
        If there is one.
    """
    if isinstance(X, Silos) and control.ledger is not None:
        raise ValueError("ledger must be None with Silos: every site charges its own")
    if isinstance(X, Silos) and control.checkpoint is not None:
        raise ValueError("checkpoint must be None with Silos: a session that was cut off is begun anew")


class SiloRecords:
    """The records of all sites, as a private Newton run asks for them: noise comes from the sites.

    Parameters
    ----------
    silos : Silos
    model : Model
    plan : NewtonPlan
    n_records : int
        Public; how many a site has is told to nobody.
    """

    def __init__(self, silos: Silos, model: Any, plan: Any, n_records: int) -> None:
        self.n_rows = n_records
        self._silos = silos
        self._session = silos.open("newton", model, plan.to_dict(), n_records, plan.n_passes)

    @property
    def secure(self) -> bool:
        """Whether every site says that its noise is."""
        return bool(self._session.secure)

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Return nothing: no checkpoint knows these records again."""
        return ()

    def noisy_sum(self, query: Any) -> tuple[FloatArray, float]:
        """Return a pass's sum with the noise of all present sites, and what their noise is times what was planned."""
        step = _native.PartialSum(length=query.length, max_norm=query.max_norm).lattice_step
        integers = self._session.sum(pack("query", query=query), query.length)
        excess = self._session.present[-1] / self._silos.terms.noise_shares
        return integers.astype(np.float64) * step, float(np.sqrt(excess))

    def close(self, plan: Any) -> dict[str, Any]:
        """End the session, and return what the release says of it."""
        return described(self._silos.terms, self._session, plan)


def described(terms: Terms, session: Any, plan: Any) -> dict[str, Any]:
    """End a session, and return what its release says of it: who was there, and epsilon against each adversary."""
    said: dict[str, Any] = session.close()
    epsilon = epsilon_of_adversaries(plan.event, said["present"], terms, delta=plan.delta, adjacency=plan.adjacency)
    also = {"noise_shares": terms.noise_shares, "withstands_lies": terms.withstands_lies}
    return said | also | {"epsilon": dict(epsilon)}
