"""Where the mechanism's randomness comes from."""

import hashlib
import os
from abc import ABC, abstractmethod

from dpinfer._validate import check_integer


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
