"""A site: answers a coordinator's messages with masked sums, and keeps its own record of requests.

**Privacy.** Reads the site's records.  Its outputs are public keys, sealed shares of keys, a vector for each pass that
is uniform for everybody except for the sum of all sites' vectors, and shares that open that sum.  Proof:
docs/derivations/silos.md.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from dpinfer._surroundings import standard_arithmetic
from dpinfer.accounting import LedgerAccount, charge_run
from dpinfer.accounting._ledger_file import run_of_token
from dpinfer.accounting.ledger import check_account
from dpinfer.errors import BudgetExceededError, DpinferError, SiloError
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import RunControl
from dpinfer.mechanism.silos.masks import (
    KEY_BYTES,
    PRIME,
    SiteKeys,
    agreed,
    derived,
    joined,
    loaded,
    opened,
    own_mask,
    pair_mask,
    parted,
    public_key,
    sealed,
    split,
    tag,
    to_secret,
)
from dpinfer.mechanism.silos.messages import Message, Transcript, asked_of_pass, kind_of, pack, unpack
from dpinfer.mechanism.silos.terms import Terms, epsilon_of_adversaries
from dpinfer.mechanism.silos.work import WORKS, Task, Work
from dpinfer.models import Model


class SiteTable(Protocol):
    """Records of a site for a public request: a table from which a formula computes rows."""

    def model(self, request: Mapping[str, Any]) -> Model:
        """Return the request's model, before a record is read; refuse one that does not fit this site's schema."""

    def rows(self, request: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return (X, y) of the request.

        **Privacy.** May read the records.
        """


@dataclass(frozen=True)
class SiteRequest:
    """A request to a site, for its curator's consent before anything is charged or read.

    `epsilon` is certified against each adversary, if as many sites vanish and collude as may.
    """

    task: Task
    terms: Terms
    place: int  # of this site among the others, from 0
    epsilon: Mapping[str, Any]
    delta: float
    spent: float | None  # in all, in the ledger's account, after the request; None without a ledger

    def __str__(self) -> str:
        terms, model = self.terms, self.task.model
        against = ", ".join(f"{name} {value:.4g}" for name, value in self.epsilon.items() if value is not None)
        lines = [
            f"asked: {self.task.kind}, {type(model).__name__} of {model.n_params} parameters, "
            f"n_records = {self.task.n_records} (public)",
            f"sites: {terms.n_sites}, of which this is number {self.place + 1}; {terms.may_vanish} may vanish, "
            f"{terms.may_collude} may collude with the coordinator; noise of {terms.noise_shares} sites suffices",
            f"epsilon at delta = {self.delta:g} against: {against}",
        ]
        if self.task.records:
            shown = {key: value for key, value in self.task.records.items() if isinstance(value, (str, int, float))}
            lines.insert(1, "records: " + ", ".join(f"{key} = {value}" for key, value in shown.items()))
        if self.spent is not None:
            lines.append(f"ledger: epsilon = {self.spent:.4g} would be spent in all")
        return "\n".join(lines)


@dataclass
class _State:
    """Everything that a site remembers between two messages.  SECRET."""

    key: bytes
    opening: dict[str, Any]
    boxes: dict[str, bytes] = field(default_factory=dict)  # keys of boxes from and to other sites
    tag_keys: list[bytes] = field(default_factory=list)  # one for each other site
    masks: list[bytes] = field(default_factory=list)  # every site's public keys of all passes, in order
    context: bytes = b""
    shares: list[bytes] = field(default_factory=list)  # shares from every site for this one
    alive: list[int] = field(default_factory=list)
    next_pass: int = 0
    about: bytes = b""  # the question of the pass that is not opened yet
    charged: bool = False


class Site:
    """One site of a session: a state machine that takes and returns messages, over any line.

    **Privacy.** Reads the records at the first pass, when the ledger has been charged.  Refuses requests beyond its
    ledger's budget or without its curator's consent, a pass out of order, a second opening of a pass, fewer sites than
    the terms require, and opening a sum with a site that got another question.  The last message, sent again byte for
    byte, gets the same answer byte for byte, so that a coordinator can resume after a crash.

    Parameters
    ----------
    X : array, sparse matrix, CodedRows, RowSource, or SiteTable
        The site's records, as the model of the task reads them; or a table whose rows follow from the request.
    y : (N,) array, optional
    model : Model, optional
        A model of one's own, whose code the site must have; it must be the coordinator's.
    ledger : LedgerAccount, optional
        The site's account for these records, charged before they are read.
    approve : callable, optional
        Gets a :class:`SiteRequest` and returns whether to take part.  By default everything within the ledger's budget.
    tell : callable, optional
        Gets a line for each request and answer.
    random_source : RandomSource, optional
        The operating system's by default.
    n_threads : int, optional
    log : path, optional
        A file that a line is appended to for each message: its kind, size and hash.

    Attributes
    ----------
    failure : BaseException or None
        Reason of the last refusal, for the curator's eyes: the coordinator gets less detail.
    transcript : Transcript
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        *,
        model: Model | None = None,
        ledger: LedgerAccount | None = None,
        approve: Callable[[SiteRequest], bool] | None = None,
        tell: Callable[[str], None] | None = None,
        random_source: RandomSource | None = None,
        n_threads: int | None = None,
        log: Path | None = None,
    ) -> None:
        self._control = RunControl.checked(random_source=random_source, n_threads=n_threads)
        self._ledger = None if ledger is None else check_account(ledger)
        self._X, self._y, self._model = X, y, model
        self._approve, self._tell = approve, (lambda text: None) if tell is None else tell
        self._log = log
        self._state: _State | None = None
        self._work: Work | None = None
        self._loaded = False
        # The last message that was not refused, and its answer.
        self._last: tuple[bytes, bytes] = (b"", b"")
        self.failure: BaseException | None = None
        self.transcript = Transcript(log)

    def answer(self, message: bytes) -> bytes:
        """Return the reply to a message of the coordinator; never raises because of the records or the message."""
        digest = _hash(message)
        if digest == self._last[0]:
            return self._last[1]
        under_way, opens = self.transcript, kind_of(message) == "open"
        if opens:
            self.transcript = Transcript(self._log)
        self.transcript.add("coordinator", message)
        try:
            with standard_arithmetic():
                reply = self._answer(unpack(message))
            self.failure, self._last = None, (digest, reply)
        except Exception as error:
            self.failure = error.__cause__ if isinstance(error, _UnreadError) else error
            # Unusable records are reported like any other error, whatever error their reader raised.
            reason = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "an error")
            self._tell(f"refused because of {reason}: {type(self.failure).__name__}")
            reply = pack("refused", reason=reason)
        self.transcript.add("site", reply)
        if opens and self.failure is not None and self._state is not None:
            self.transcript = under_way
        return reply

    def save(self) -> bytes:
        """Return the site's state of a session: SECRET, for :meth:`load` of the next process.

        It must not be restored if the site has answered since: a pass would be answered twice.
        """
        state = None if self._state is None else asdict(self._state)
        return pack("state", state=state, last=list(self._last), transcript=self.transcript.save())

    def load(self, state: bytes) -> None:
        """Take up a session where :meth:`save` left it."""
        self._state, self._work, self._loaded = None, None, False
        if state:
            saved = unpack(state)
            self._state = None if saved.fields["state"] is None else _State(**saved.take("state", dict))
            first, second = saved.take("last", list)
            self._last = (first, second)
            self.transcript.load(saved.take("transcript", dict))

    def _answer(self, message: Message) -> bytes:
        steps = {
            "open": self._open,
            "peers": self._take_peers,
            "pass": self._pass,
            "opening": self._opening,
            "done": self._done,
        }
        if message.kind not in steps:
            raise SiloError("a message must be one of this protocol")
        return steps[message.kind](message)

    @property
    def _session(self) -> _State:
        if self._state is None:
            raise SiloError("a session must be opened first")
        return self._state

    def _open(self, message: Message) -> bytes:
        before = self._state, self._work, self._loaded
        self._state = _State(key=b"", opening=message.fields)
        self._work, self._loaded = None, False
        try:
            request = self._request()
            self._tell(str(request))
            if self._approve is not None and not self._approve(request):
                raise _DeclinedError("the curator has not agreed")
        except BaseException:
            # The session under way goes on.
            self._state, self._work, self._loaded = before
            raise
        self._state.key = self._control.source.take_key()
        keys = SiteKeys(self._state.key)
        work = self._task_work()
        masks = _mask_keys(keys, work.n_passes)
        return pack("keys", box=public_key(keys.box_private), masks=masks, secure=self._control.source.secure)

    def _request(self) -> SiteRequest:
        """Check the request and the budget."""
        work, terms = self._task_work(), self._terms()
        place = self._place()
        present = [terms.fewest] * work.n_passes
        spent = None
        if self._ledger is not None:
            self._ledger.check(work.event, adjacency=work.adjacency)
            after = self._ledger.preview(work.event, None if self._ledger.budget else work.delta or 1e-6)
            spent = after.epsilon
        epsilon = epsilon_of_adversaries(work.event, present, terms, delta=work.delta, adjacency=work.adjacency)
        return SiteRequest(self._task, terms, place, epsilon, work.delta, spent)

    @property
    def _task(self) -> Task:
        data = cast(Mapping[str, Any], Message("open", self._session.opening).take("task", dict))
        model = self._model
        if model is None and data.get("records") is not None:
            if not hasattr(self._X, "model"):
                raise SiloError("the task asks for the rows of a table, and this site has arrays")
            model = self._X.model(data["records"])
        return Task.from_dict(data, model)

    def _task_work(self) -> Work:
        if self._work is None:
            task = self._task
            if task.kind not in WORKS:
                raise SiloError("the task is not one that this version knows")
            self._work = WORKS[task.kind](task, n_threads=self._control.n_threads)
        return self._work

    def _terms(self) -> Terms:
        given = Message("open", self._session.opening).take("terms", dict)
        try:
            return Terms(**given)
        except (TypeError, ValueError):
            raise SiloError("the terms must leave an honest site") from None

    def _place(self) -> int:
        place = cast(int, Message("open", self._session.opening).take("place", int))
        if not 0 <= place < self._terms().n_sites:
            raise SiloError("the place of a site must be one of the sites'")
        return place

    def _take_peers(self, message: Message) -> bytes:
        """Take all sites' keys, and share this one's secrets with the others."""
        state, work, terms, place = self._session, self._task_work(), self._terms(), self._place()
        boxes, masks = message.take("boxes", list), message.take("masks", list)
        sizes = {(len(box), len(mine)) for box, mine in zip(boxes, masks, strict=False)}
        if state.boxes or len(boxes) != len(masks) or len(boxes) != terms.n_sites:
            raise SiloError("a site must get each site once")
        keys = SiteKeys(state.key)
        # Every site looks for its own: with one context for all, each key is then that of its site.
        own = (public_key(keys.box_private), _mask_keys(keys, work.n_passes))
        if sizes != {(KEY_BYTES, KEY_BYTES * work.n_passes)} or (boxes[place], masks[place]) != own:
            raise SiloError("the sites' keys must be those that they gave")
        if len({*boxes}) != len(boxes) or len({*masks}) != len(masks):
            raise SiloError("the sites' keys must be different")
        # A site with another list of sites cannot open these boxes.
        common = {key: value for key, value in state.opening.items() if key != "place"}
        state.context = pack("context", opening=common, boxes=boxes, masks=masks)
        self._tell(f"fingerprint of all sites' keys: {_hash(state.context).hex()[:32]}")
        state.masks = masks
        state.alive = list(range(terms.n_sites))
        shares: list[list[int]] = [[] for _ in boxes]
        for index in range(work.n_passes):
            for what, secret in (("own", keys.own_seed(index)), ("mask", keys.mask_private(index))):
                rest = keys.coefficients(what, index, terms.fewest - 1)
                for other, share in enumerate(split(to_secret(secret), rest, terms.n_sites)):
                    shares[other].append(share)
        found, private = [], loaded(keys.box_private)
        for other, box in enumerate(boxes):
            shared = agreed(private, box, "sites")
            for way in ((place, other), (other, place)):
                state.boxes[f"{way[0]} {way[1]}"] = derived(shared, "box", *way)
            state.tag_keys.append(derived(shared, "tag"))
            found.append(sealed(state.boxes[f"{place} {other}"], joined(shares[other]), _hash(state.context)))
        return pack("shares", sealed=found)

    def _take_shares(self, sealed_shares: list[Any]) -> None:
        state, place = self._session, self._place()
        if len(sealed_shares) != len(state.masks) or not all(isinstance(box, bytes) for box in sealed_shares):
            raise SiloError("a site must be sent the shares of all sites")
        context = _hash(state.context)
        state.shares = [
            opened(state.boxes[f"{other} {place}"], box, context) for other, box in enumerate(sealed_shares)
        ]
        size = 2 * KEY_BYTES * self._task_work().n_passes
        if any(len(share) != size for share in state.shares):
            raise SiloError("the shares of a site are damaged")

    def _pass(self, message: Message) -> bytes:
        """Return the masked sum of a pass: the records' integers, the noise share, and all masks."""
        state, work, terms, place = self._session, self._task_work(), self._terms(), self._place()
        index, alive = message.take("index", int), _places(message, "alive")
        query = message.take("query", bytes)
        if index != state.next_pass or index >= work.n_passes or state.about or not state.masks:
            raise SiloError("a pass must be the next one")
        if not alive <= set(state.alive) or place not in alive or len(alive) < max(terms.fewest, 2):
            raise SiloError("a pass must be of enough sites, and a site that was lost stays lost")
        question = work.question(index, query, terms)
        if index == 0:
            self._take_shares(message.take("shares", list))
        self._tell(f"pass {index + 1} of {work.n_passes}: {work.describe(index, question)}")
        about = asked_of_pass(index, sorted(alive), query)
        self._charge(about)
        self._load()
        keys = SiteKeys(state.key)
        # From here on this pass counts as answered: another question for it must be refused.
        state.alive, state.next_pass, state.about = sorted(alive), index + 1, about
        integers = work.sum(index, question, keys.noise_key(index, _hash(query)), terms.noise_shares)
        total = integers.astype(np.uint64) + own_mask(keys.own_seed(index), about, integers.size)
        private = loaded(keys.mask_private(index))
        for other in state.alive:
            if other != place:
                public = state.masks[other][KEY_BYTES * index : KEY_BYTES * (index + 1)]
                total += pair_mask(private, public, own=place, other=other, about=about, length=integers.size)
        tags = b"".join(tag(state.tag_keys[other], place, state.about) for other in state.alive)
        return pack("vector", index=index, numbers=total, tags=tags)

    def _charge(self, about: bytes) -> None:
        """Charge the ledger for the session, once, before a record is read.

        The charge stands from here on, whatever happens.  It is that of the session's key and of the first question: a
        site that goes on after a crash is not charged again, and one that is put back to an older state cannot answer
        another first question.

        Raises BudgetExceededError or LedgerError if it is refused, or cannot be written; nothing was read.
        """
        state, work, account = self._session, self._task_work(), self._ledger
        if state.charged or account is None:
            return
        token = derived(state.key, "charge")
        run = run_of_token(token)
        binding = derived(state.key, "first question", about).hex()
        earlier = {found.run: found for found in account.runs()}.get(run)
        with charge_run(
            account,
            work.event,
            adjacency=work.adjacency,
            mechanism=f"{self._task.kind}, one of {self._terms().n_sites} silos",
            secure=self._control.source.secure,
            delta=work.delta or 1e-6,
            token=token if earlier is None or earlier.binding is None else None,
            run=run,
        ) as charge:
            charge.begin(binding)
        state.charged = True

    def _load(self) -> None:
        """Open the records, once in a process; an error is told of, and takes no charge back."""
        if self._loaded:
            return
        request, work = self._task.records, self._task_work()
        try:
            X, y = (self._X, self._y) if request is None else self._X.rows(request)
            work.open(X, y)
        except (Exception, SystemExit, GeneratorExit) as error:
            # Whatever reads the records cannot end the site, whose absence would tell of them without a word.
            raise _UnreadError from error
        self._loaded = True

    def _opening(self, message: Message) -> bytes:
        """Return the shares that open the sum of a pass: of a site's own mask if it is there, of its key if not."""
        state, terms, place = self._session, self._terms(), self._place()
        index, present = message.take("index", int), _places(message, "present")
        tags, asked = message.take("tags", bytes), state.about
        if not asked or index != state.next_pass - 1:
            raise SiloError("a pass must be opened once, when it was made")
        if not present <= set(state.alive) or place not in present or len(present) < max(terms.fewest, 2):
            raise SiloError("a sum must be of enough sites, and of this one")
        state.about = b""
        given = b"".join(tag(state.tag_keys[other], other, asked) for other in sorted(present))
        if not hmac.compare_digest(tags, given):
            raise SiloError("the sites of a sum must all have got the same question")
        shares = []
        for other in state.alive:
            own, masking = parted(state.shares[other][2 * KEY_BYTES * index : 2 * KEY_BYTES * (index + 1)])
            shares.append(own if other in present else masking)
        if any(share >= PRIME for share in shares):
            raise SiloError("the shares of a site are damaged")
        state.alive = sorted(present)
        return pack("opened", index=index, shares=joined(shares))

    def _done(self, message: Message) -> bytes:
        self._tell(f"done: {self._session.next_pass} passes answered")
        self._state = None
        self._work, self._loaded = None, False
        return pack("bye")


class _UnreadError(DpinferError):
    """The records could not be read, or not be used: the cause is for the curator's eyes."""


class _DeclinedError(DpinferError):
    """The curator declined."""


_REASONS = {BudgetExceededError: "its budget", _DeclinedError: "its curator", SiloError: "the protocol"}


def _places(message: Message, name: str) -> set[int]:
    """Return the places of sites in a field."""
    places = message.take(name, list)
    if not all(type(place) is int for place in places):
        raise SiloError("places of sites must be whole numbers")
    return set(places)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _mask_keys(keys: SiteKeys, n_passes: int) -> bytes:
    return b"".join(public_key(keys.mask_private(index)) for index in range(n_passes))


class LocalLine:
    """A line to sites in this process."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.n_sites = len(self.sites)

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Give each site its message, and return the replies."""
        return {place: self.sites[place].answer(message) for place, message in messages.items()}
