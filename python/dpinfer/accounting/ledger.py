"""The privacy ledger: spending for each data set, written before the data are read."""

import math
import os
import secrets
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting._ledger_file import EntryFile, LedgerEntry
from dpinfer.accounting.accountant import MAX_NOISE_MULTIPLIER, MIN_NOISE_MULTIPLIER, certify
from dpinfer.accounting.bound import PrivacyBound
from dpinfer.accounting.decimals import at_most, decimal_of, share_of
from dpinfer.accounting.events import (
    Adjacency,
    Event,
    GaussianEvent,
    PureEvent,
    SelfComposed,
    as_adjacency,
    check_event,
)
from dpinfer.accounting.gaussian import bisected
from dpinfer.accounting.ledger_state import (
    COMPOSITIONS,
    FORMAT_NAME,
    FORMAT_VERSION,
    DatasetState,
    LedgerRun,
    check_budget,
    check_name,
    read_state,
)
from dpinfer.errors import BudgetExceededError, PrivacyLeakWarning

_ROUNDINGS = (12, 9, 6)  # digits to which what remains is tried: above the rounding of the accountants
_HALVINGS = 40  # of an interval of epsilons, or of logarithms of noise: 1e-12 of it, a tolerance


class PrivacyLedger:
    """A file that counts the privacy spent on each of its data sets.

    **Privacy.** Holds descriptions of mechanisms and names that the user chose: no record, and nothing computed from
    one.  Entries are only ever appended, chained by hashes, and on the disk before the charged run reads its
    data. Opening the file replays and checks all of it.

    `path` is that of an existing ledger; :meth:`create` makes one.

    Raises LedgerError if it cannot be read. Raises LedgerFormatError if it is not a ledger, is damaged, or was changed
    by hand.

    Notes
    -----
    docs/derivations/ledger.md has the proofs, and the limits of a hash chain: it cannot show that an older copy of the
    whole file was restored.  A release carries the entry and digest that charged it (``settings["ledger"]``), so that
    :meth:`holds` can check it.

    Examples
    --------
    >>> import tempfile, pathlib, dpinfer as dpi
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = dpi.PrivacyLedger.create(pathlib.Path(folder) / "spent.ledger")
    ...     account = ledger.add_dataset("census-2024", budget=(1.0, 1e-5))
    ...     account.spent().epsilon, account.remaining()
    (0.0, 1.0)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a path, got {type(path).__name__}")
        self._file = EntryFile(path)
        read_state(self._file.read())

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> "PrivacyLedger":
        """Make a new ledger without data sets.

        Raises FileExistsError if `path` exists. Raises OSError or LedgerError if it cannot be written.
        """
        content = {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "identity": secrets.token_hex(16),
            "time": timestamp(),
        }
        EntryFile.create(path, "ledger", content)
        return cls(path)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data sets, in the order in which they were added."""
        return tuple(read_state(self._file.read()))

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return every entry, after checking the chain."""
        entries = self._file.read()
        read_state(entries)
        # The file's own are shared by all who read it.
        return tuple(replace(entry, content=deepcopy(entry.content)) for entry in entries)

    def holds(self, entry: int, digest: str) -> bool:
        """Return whether entry number `entry` is there and has this digest.

        **Privacy.** Reads no records.  False for the entry of a release that this ledger once charged shows that an
        older copy of the file, or another file, is in its place.
        """
        entries = self._file.read()
        return 0 <= entry < len(entries) and entries[entry].digest == digest

    def add_dataset(
        self,
        name: str,
        *,
        budget: tuple[float, float] | None = None,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        composition: str = "pld",
    ) -> "LedgerAccount":
        """Add a data set, once, with the rules for all of its runs.

        **Privacy.** Reads no records.  The user decides on the definition of one data set: two names for overlapping
        data would each get their own budget.

        Raises TypeError or ValueError if an argument is wrong, or the name is not new. Raises LedgerError if the ledger
        cannot be written.

        Parameters
        ----------
        name : str
            1 to 200 printable characters; public.
        budget : (epsilon, delta), optional
            Limit for all runs together: epsilon in (0, inf), delta in (0, 1). None: count only.
        adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
            The relation under which the runs are composed; runs under another one are refused.
        composition : {"pld", "filter"}
            How runs add up.  ``"pld"``: tightly, which is proved for runs whose noise and rates were fixed in advance.
            ``"filter"``, with a budget: by Rényi divergences of one order, which holds however later runs are chosen in
            view of earlier releases, and admits a little less (docs/derivations/ledger.md).
        """
        name = check_name(name)
        relation = as_adjacency(adjacency)
        limit = check_budget(budget)
        check_choice("composition", composition, COMPOSITIONS)
        if composition == "filter" and limit is None:
            raise ValueError("composition must be 'pld' without a budget: a filter is for one")
        with self._file.appending() as (entries, append):
            if name in read_state(entries):
                raise ValueError(f"name must be new to the ledger, got {name!r}")
            append(
                "dataset",
                {
                    "dataset": name,
                    "budget": None if limit is None else list(limit),
                    "adjacency": relation.value,
                    **({} if composition == "pld" else {"composition": composition}),
                    "time": timestamp(),
                },
            )
        return LedgerAccount(self.path, name)

    def dataset(self, name: str, *, refund_refused: bool = False) -> "LedgerAccount":
        """Return the account of a data set.

        **Privacy.** Reads no records.  `refund_refused` lets the ledger's counts depend on the records: see
        :class:`LedgerAccount`.

        Raises ValueError if the ledger has no data set of that name.
        """
        account = LedgerAccount(self.path, name, refund_refused)
        account.runs()
        return account

    def __repr__(self) -> str:
        return f"PrivacyLedger({str(self.path)!r})"


@dataclass(frozen=True)
class LedgerAccount:
    """One data set's account, for ``ledger=`` of a private run.

    **Privacy.** A path and a name.  Every method opens the file anew; copies and forks are safe, and any number of
    processes may charge the same account.

    Parameters
    ----------
    path : path-like
        The ledger's file.
    dataset : str
    refund_refused : bool
        A run whose records are refused has drawn nothing, but the refusal reveals something about them that no noise
        covers: its charge stands. True takes it back, with a warning: then the guarantee holds only for data sets that
        are not refused, and the ledger's counts reveal refusals.  Warns with a PrivacyLeakWarning.
    """

    path: Path
    dataset: str
    refund_refused: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise TypeError(f"path must be a path, got {type(self.path).__name__}")
        object.__setattr__(self, "path", Path(self.path))
        check_name(self.dataset)
        if not isinstance(self.refund_refused, bool):
            raise TypeError(f"refund_refused must be a bool, got {type(self.refund_refused).__name__}")
        if self.refund_refused:
            warnings.warn(
                "refund_refused takes back the charge of runs whose records are refused: the refusal reveals "
                "something about the records that no guarantee covers",
                PrivacyLeakWarning,
                stacklevel=3,
            )

    @property
    def budget(self) -> tuple[float, float] | None:
        """The limit for all runs together, (epsilon, delta), or None."""
        return self._state().budget

    @property
    def adjacency(self) -> Adjacency:
        """The relation under which the runs are composed."""
        return self._state().adjacency

    @property
    def composition(self) -> str:
        """How runs add up: "pld" or "filter"."""
        return self._state().composition

    def runs(self) -> tuple[LedgerRun, ...]:
        """Return all runs, also cancelled ones, in the order of their charges."""
        return tuple(self._state().runs.values())

    def spent(self, delta: float | None = None) -> PrivacyBound:
        """Return the certified epsilon of all counted runs together, at a `delta` in (0, 1), by default the budget's.

        Raises ValueError if there is neither a budget nor a `delta`.
        """
        state = self._state()
        return state.composed([], _delta(state, delta))

    def preview(self, event: Event, delta: float | None = None) -> PrivacyBound:
        """Return :meth:`spent` as it would be after one more event; writes nothing."""
        state = self._state()
        return state.composed([check_event("event", event)], _delta(state, delta))

    def remaining(self) -> float | None:
        """Return an epsilon that can still be spent, at least 0; None without a budget.

        The budget's epsilon less the spent one, rounded down so that a run of it fits.  Runs compose to less than the
        sum of their epsilons, so that a run with more than this may still fit: see :meth:`preview`.
        """
        state = self._state()
        if state.budget is None:
            return None
        spent = state.composed([], state.budget[1]).epsilon
        if not spent < state.budget[0]:
            return 0.0

        def fits(epsilon: float) -> bool:
            return state.fits(PureEvent(epsilon, state.adjacency.value))

        rest = at_most(decimal_of(state.budget[0]) - decimal_of(spent))
        # What is not pure is certified with the rounding of its arithmetic; a filter counts in other units.
        for reduced in (rest, *(rest * (1.0 - 10.0**-digits) for digits in _ROUNDINGS)):
            if fits(reduced):
                return reduced
        return rest - bisected(lambda less: fits(rest - less), 0.0, rest, halvings=_HALVINGS)[1]

    def share(self, parts: int, *, pure: bool = False) -> float:
        """Return the epsilon to give each of `parts` equal runs to come, so that all fit what is left of the budget.

        Gaussian runs at the budget's delta compose to far less than the sum of their epsilons: ten of 1 cost about 3.
        So a share is more than a tenth.  It holds for runs whose noise is Gaussian and that draw no sample: private
        Newton, hence :func:`dpinfer.regression` and :func:`dpinfer.fit` by that method, and tables with a delta.  Give
        each the budget's delta.  A run on samples of the records, as ``run_dpvi``, may cost more; it is then refused.

        Raises ValueError if there is no budget. Raises BudgetExceededError if nothing is left.

        Parameters
        ----------
        parts : int
            At least 1.
        pure : bool
            For runs without a delta: counts and tables by default, one statistic.  Their epsilons add.

        Examples
        --------
        >>> import tempfile, pathlib, dpinfer as dpi
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = dpi.PrivacyLedger.create(pathlib.Path(folder) / "spent.ledger")
        ...     account = ledger.add_dataset("census", budget=(3.0, 1e-6))
        ...     account.share(10), account.share(10, pure=True)
        (0.855795, 0.3)
        """
        parts = check_integer("parts", parts, 1)
        state = self._state()
        if state.budget is None:
            raise ValueError("the data set must have a budget for a share of it: see PrivacyLedger.add_dataset")
        if pure:
            left = self.remaining()
            if not left:
                raise BudgetExceededError(f"nothing is left of the budget of data set {self.dataset!r}")
            return share_of(left, parts)

        def event(noise_multiplier: float) -> Event:
            return SelfComposed(GaussianEvent(noise_multiplier), parts)

        def fits(log_noise: float) -> bool:
            return state.fits(event(math.exp(log_noise)))

        ends = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
        if not fits(ends[1]):
            raise BudgetExceededError(f"too little is left of the budget of data set {self.dataset!r} for {parts} runs")
        noise = math.exp(bisected(fits, *ends, halvings=_HALVINGS)[1])
        one = certify(GaussianEvent(noise), delta=state.budget[1], adjacency=state.adjacency, accountant="pld")
        # Six digits, downward: people type it.
        digits = Context(prec=6, rounding=ROUND_FLOOR).create_decimal(Decimal(repr(one.epsilon)))
        return float(digits)

    def check(self, event: Event, *, adjacency: Adjacency | str) -> None:
        """Raise the error that a charge of this event would raise now; writes nothing.

        **Privacy.** Reads no records, so a caller can be refused before it opens them.
        """
        state = self._state()
        self.admit(state, check_event("event", event), as_adjacency(adjacency), 0.5)

    def status(self, run: str) -> str | None:
        """Return the status of a run, or None if the account does not have it."""
        run_state = self._state().runs.get(run)
        return None if run_state is None else run_state.status

    def _state(self) -> DatasetState:
        return find_dataset(read_state(EntryFile(self.path).read()), self.dataset)

    def admit(self, state: DatasetState, event: Event, relation: Adjacency, delta: float) -> PrivacyBound:
        """Return the bound after `event` at the budget's delta or at `delta`; refuse an event beyond the budget."""
        if relation is not state.adjacency:
            raise ValueError(
                f"adjacency must be {state.adjacency.value!r}, as entered in the ledger for data set "
                f"{self.dataset!r}, got {relation.value!r}"
            )
        after = state.composed([event], state.budget[1] if state.budget else delta)
        if state.budget is not None and not after.epsilon <= state.budget[0]:
            before = state.composed([], state.budget[1])
            # All digits, where six do not show that it is more.
            form = ".6g" if f"{after.epsilon:.6g}" != f"{state.budget[0]:.6g}" else ".17g"
            raise BudgetExceededError(
                f"the run would bring data set {self.dataset!r} to epsilon = {after.epsilon:{form}} at delta = "
                f"{after.delta:g}; its budget is {state.budget[0]:g}, of which {before.epsilon:{form}} is spent; "
                "nothing was added; remaining() and share() return what fits"
            )
        return after


def _delta(state: DatasetState, delta: float | None) -> float:
    if state.budget is not None and delta is None:
        return state.budget[1]
    if delta is None:
        raise ValueError("delta must be given for a data set without a budget")
    return check_interval("delta", delta, 0.0, 1.0)


def find_dataset(state: Mapping[str, DatasetState], name: str) -> DatasetState:
    """Return a data set's state."""
    if name not in state:
        names = ", ".join(repr(item) for item in state) or "none"
        raise ValueError(f"dataset must be one that was added to the ledger ({names}), got {name!r}")
    return state[name]


def check_account(ledger: Any) -> LedgerAccount:
    """Return `ledger` when it is a data set's account."""
    if not isinstance(ledger, LedgerAccount):
        kind = type(ledger).__name__
        raise TypeError(f"ledger must be a LedgerAccount (PrivacyLedger(path).dataset(name)), got {kind}")
    return ledger


def timestamp() -> str:
    """Return the time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
