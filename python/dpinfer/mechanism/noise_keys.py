"""Where randomness comes from, and a key for the noise of each query: a hash of the run's key and the whole query.

**Privacy.** The same noise never meets two queries, for any copying, resuming or exchange between two runs with one
key.  Proof: docs/derivations/checkpoint.md.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from typing import Any, Self

from dpinfer._validate import check_integer
from dpinfer.mechanism.questions import Reader


class RandomSource(ABC):
    """Gives each run a fresh 32-byte key for ChaCha20.

    **Privacy.** The guarantee of a release rests on nobody knowing the key.  Sources cannot be pickled or copied: a
    second process with the same key would draw the same noise.
    """

    @property
    @abstractmethod
    def secure(self) -> bool:
        """Whether releases drawn from this source are private."""

    @abstractmethod
    def take_key(self) -> bytes:
        """Return the key of one run; no key is given out twice."""

    def __sklearn_clone__(self) -> Self:
        """Return the source itself: clones of an estimator take the next keys of one sequence."""
        return self

    def __reduce__(self) -> str:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: its keys must not be used twice")


class OSRandomSource(RandomSource):
    """Keys from the operating system's generator: the default, and the only secure source.

    Examples
    --------
    >>> len(OSRandomSource().take_key())
    32
    """

    @property
    def secure(self) -> bool:
        """True."""
        return True

    def take_key(self) -> bytes:
        """Return 32 bytes from the operating system."""
        return os.urandom(32)


class InsecureRNG(RandomSource):
    """A seeded source for studies: reproducible, and therefore NOT PRIVATE.

    Its releases are marked, refuse to state an epsilon, and keep the mark when saved.  Successive runs from one
    object use different keys, in an order that the seed fixes.

    Parameters
    ----------
    seed : int
        At least 0.

    Examples
    --------
    >>> InsecureRNG(1).take_key() == InsecureRNG(1).take_key()
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = check_integer("seed", seed, 0)
        self._taken = 0

    @property
    def secure(self) -> bool:
        """False."""
        return False

    def take_key(self) -> bytes:
        """Return the next key of the seed's sequence."""
        text = f"dpinfer insecure generator, seed {self._seed}, run {self._taken}"
        self._taken += 1
        return hashlib.sha256(text.encode()).digest()

    def __repr__(self) -> str:
        return f"InsecureRNG(seed={self._seed})  # NOT PRIVATE"


def noise_key(key: bytes, *query: Any) -> bytes:
    """Return the key of a query's noise: a hash of the query, keyed with the run's 32 bytes.

    A query has numbers, text, arrays, containers and data classes of them, and models with their code.  Two queries
    that differ in a bit of a number, a name, or a line of a user's code have keys that are independent for everybody
    without `key` (BLAKE2b is taken for a pseudorandom function).

    **Privacy.** Reads no records, which must not be in `query`: the noise would depend on them.
    """
    digest = hashlib.blake2b(key=key, digest_size=32, person=b"dpinfer noise")
    Reader(digest.update).add(query)
    return digest.digest()


def noise_step(key: bytes, step: int, n_steps: int, *query: Any) -> int:
    """Return the number of the streams from which a step of many draws its sample and its noise.

    A stream's number has 64 bits.  The lowest hold the step, so that no two steps of a run share a stream; the others
    hold a keyed hash of the query, so that two runs with one key, where their queries differ, share one with
    probability 2**-44 for up to 2**20 steps.

    **Privacy.** As :func:`noise_key`.
    """
    bits = min(max(n_steps.bit_length(), 20), 64)
    hashed = int.from_bytes(noise_key(key, "step", query)[:8], "little")
    return step | (hashed << bits) & (2**64 - 1)
