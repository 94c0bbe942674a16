"""The coordinator's end of a session: requests masked sums, and opens the sum of the present sites.

**Privacy.** Sees no records. The vectors of sites are uniform except for their sum: docs/derivations/silos.md.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._arrays import IntArray
from dpinfer.errors import SiloError
from dpinfer.mechanism.silos.masks import (
    KEY_BYTES,
    combine,
    loaded,
    own_mask,
    pair_mask,
    parted,
    public_key,
    to_key,
    weights_at_zero,
)
from dpinfer.mechanism.silos.messages import Message, Transcript, asked_of_pass, pack, unpack
from dpinfer.mechanism.silos.rows import Line
from dpinfer.mechanism.silos.terms import Terms
from dpinfer.mechanism.silos.work import Task

_TAG_BYTES = 32  # HMAC-SHA256: format


class Session:
    """A session with all sites: keys first, then a masked sum and its opening for each pass."""

    def __init__(self, line: Line, task: Task, terms: Terms, n_passes: int, log: Path | None = None) -> None:
        self._line, self._task, self._terms, self._n_passes = line, task, terms, n_passes
        self._alive = list(range(terms.n_sites))
        # The log is a folder, for a file of each site's messages.
        self.transcripts = [Transcript(None if log is None else log / f"site-{place}.jsonl") for place in self._alive]
        self._masks: list[bytes] = []
        self._shares: list[list[bytes]] = []
        # Vectors and tags of a pass that is about to be opened, by place: it is opened for these sites or not at all.
        self._given: dict[int, Any] = {}
        self.secure = False  # whether every site declares its noise secure
        self.present: list[int] = []  # how many sites took part in each pass

    def open(self) -> None:
        """Send the task to all sites, and exchange their keys.  Nothing is charged yet, and no records are read.

        Raises SiloError if a site does not answer, or refuses.
        """
        opening = {"task": self._task.to_dict(), "terms": self._terms.to_dict()}
        asked = {place: pack("open", **opening, place=place) for place in self._alive}
        keys = self._all("keys", self._exchange(asked))
        boxes = [message.take("box", bytes) for message in keys]
        self._masks = [message.take("masks", bytes) for message in keys]
        if any(len(masks) != KEY_BYTES * self._n_passes for masks in self._masks):
            raise SiloError("a site has not given a key for each pass")
        self.secure = all(message.take("secure", bool) for message in keys)
        told = pack("peers", boxes=boxes, masks=self._masks)
        sealed = self._all("shares", self._exchange(dict.fromkeys(self._alive, told)))
        self._shares = [message.take("sealed", list) for message in sealed]

    def save(self) -> bytes:
        """Return the coordinator's state of a session, for :meth:`load` of a later process.

        **Privacy.** No secret of a site: the coordinator's received messages, before they are opened.
        """
        return pack(
            "session",
            alive=self._alive,
            masks=self._masks,
            shares=self._shares,
            given=[(place, *self._given[place]) for place in sorted(self._given)],
            secure=self.secure,
            present=self.present,
            transcripts=[item.save() for item in self.transcripts],
        )

    def load(self, saved: bytes) -> None:
        """Resume from :meth:`save`: sites repeat their answers byte for byte."""
        message = unpack(saved)
        self._alive, self._masks = message.take("alive", list), message.take("masks", list)
        self._shares, self.present = message.take("shares", list), message.take("present", list)
        self._given = {place: (numbers, tags) for place, numbers, tags in message.take("given", list)}
        self.secure = message.take("secure", bool)
        for transcript, item in zip(self.transcripts, message.take("transcripts", list), strict=True):
            transcript.load(item)

    def sum(self, query: bytes, length: int, keep: Callable[[], None] = lambda: None) -> IntArray:
        """Return the sum of all present sites' integers, with their noise shares, modulo 2**64.

        `keep` is called when this session must be on the disk before a site is sent anything more.

        Raises SiloError if too few sites are left; nothing of this pass was opened.
        """
        index = len(self.present)
        about = asked_of_pass(index, self._alive, query)
        if not self._given:
            # A site that is charged must be found again.
            keep()
            self._given = self._vectors(index, query, length)
            keep()
        vectors, tags = ({place: item[at] for place, item in self._given.items()} for at in (0, 1))
        present = sorted(vectors)
        opened = self._opened(index, present, tags)
        total = np.zeros(length, dtype=np.uint64)
        for vector in vectors.values():
            total += vector
        total -= self._masks_left(index, present, opened, about, length)
        self.present.append(len(present))
        # A site that sent its sum and is lost afterwards is in this sum and in no later one.
        self._alive, self._given, self._shares = sorted(opened), {}, []
        return total.astype(np.int64)

    def _vectors(self, index: int, query: bytes, length: int) -> dict[int, Any]:
        """Ask a pass; return the vector and the tags of each site that gave them."""
        common = {"index": index, "alive": self._alive, "query": query}
        first = {place: {"shares": [shares[place] for shares in self._shares]} for place in self._alive}
        asked = {place: pack("pass", **common, **(first[place] if index == 0 else {})) for place in self._alive}
        found = {}
        for place, reply in self._exchange(asked).items():
            numbers, tags = reply.fields.get("numbers"), reply.fields.get("tags")
            if not (reply.kind == "vector" and isinstance(numbers, np.ndarray) and isinstance(tags, bytes)):
                continue
            if numbers.shape == (length,) and len(tags) == _TAG_BYTES * len(self._alive):
                found[place] = (numbers.astype(np.uint64), tags)
        self._enough(found, "gave a sum")
        return found

    def _opened(self, index: int, present: list[int], tags: Mapping[int, bytes]) -> dict[int, list[int]]:
        """Return the shares with which the sites open the sum of those that are present."""
        opened, asked = {}, {}
        for place in present:
            first = _TAG_BYTES * self._alive.index(place)
            for_it = b"".join(tags[other][first : first + _TAG_BYTES] for other in present)
            asked[place] = pack("opening", index=index, present=present, tags=for_it)
        for place, reply in self._exchange(asked).items():
            shares = reply.fields.get("shares")
            if reply.kind == "opened" and isinstance(shares, bytes) and len(shares) == KEY_BYTES * len(self._alive):
                opened[place] = parted(shares)
        self._enough(opened, "opened the sum")
        return opened

    def _masks_left(
        self, index: int, present: list[int], opened: Mapping[int, list[int]], about: bytes, length: int
    ) -> Any:
        """Return the remaining masks in the sum of the present sites' vectors."""
        givers = sorted(opened)[: self._terms.fewest]
        weights = weights_at_zero([place + 1 for place in givers])
        left = np.zeros(length, dtype=np.uint64)
        for at, place in enumerate(self._alive):
            secret = to_key(combine({giver + 1: opened[giver][at] for giver in givers}, weights))
            if place in present:
                left += own_mask(secret, about, length)
                continue
            if public_key(secret) != self._masks[place][KEY_BYTES * index : KEY_BYTES * (index + 1)]:
                raise SiloError("the shares of a site that vanished are not those of its key")
            private = loaded(secret)
            for other in present:
                public = self._masks[other][KEY_BYTES * index : KEY_BYTES * (index + 1)]
                # The mask that the other site has added for this one.
                left -= pair_mask(private, public, own=place, other=other, about=about, length=length)
        return left

    def close(self) -> dict[str, Any]:
        """Tell the sites of the end, and return the session's record for the release."""
        self._exchange(dict.fromkeys(self._alive, pack("done", present=self.present)))
        return {
            **self._terms.to_dict(),
            "present": list(self.present),
            "bytes_to_sites": sum(item.n_bytes["coordinator"] for item in self.transcripts),
            "bytes_from_sites": sum(item.n_bytes["site"] for item in self.transcripts),
            "transcripts": [item.digest for item in self.transcripts],
        }

    def _exchange(self, messages: Mapping[int, bytes]) -> dict[int, Message]:
        for place, message in messages.items():
            self.transcripts[place].add("coordinator", message)
        found = {}
        for place, reply in self._line.exchange(messages).items():
            self.transcripts[place].add("site", reply)
            # A site with an invalid message counts as lost.
            try:
                found[place] = unpack(reply)
            except SiloError:
                continue
        return found

    def _all(self, kind: str, replies: Mapping[int, Message]) -> list[Message]:
        refused = {str(reply.fields.get("reason")) for reply in replies.values() if reply.kind == "refused"}
        missing = [place for place in self._alive if place not in replies or replies[place].kind != kind]
        if missing:
            because = f" ({', '.join(sorted(refused))})" if refused else ""
            raise SiloError(
                f"sites {', '.join(str(place + 1) for place in missing)} have not joined{because}; nothing was charged "
                "or read"
            )
        return [replies[place] for place in self._alive]

    def _enough(self, found: Iterable[int], what: str) -> None:
        count = len(set(found))
        if count < self._terms.fewest:
            raise SiloError(
                f"{self._terms.fewest} sites must be there in every pass, and {count} {what}; nothing was released of "
                "this pass, and the charges of sites with a request stand"
            )
