"""The tape: queries, and noised sums with their exact sums.

**Privacy.** For made-up records: a tape holds exact sums.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class NoisedSum:
    """One noised sum.

    **Privacy.** Holds the exact sum of made-up records.

    Parameters
    ----------
    name : str
    stream : tuple
        Key and number of the noise; a stream serves one sum.
    mechanism : tuple
        ("gaussian", noise multiplier, sampling, rate), ("laplace", epsilon), ("threshold", epsilon, delta) or
        ("exponential", epsilon): the content of an event.
    exact, noise : tuple of int
        In lattice steps.
    sensitivity : Fraction
        Largest change of the sum by one record, in lattice steps; for Laplace under the release's own adjacency.
    norm : {1, 2, inf}
    released : object
        The output.
    n_rows : int
        Number of records, which a permutation's event needs.
    labels : tuple of str, optional
        Labels of the numbers, if other data sets may have other labels: missing ones are 0.
    """

    name: str
    stream: tuple[Any, ...] = field(repr=False)
    mechanism: tuple[Any, ...]
    exact: tuple[int, ...] = field(repr=False)
    noise: tuple[int, ...] = field(repr=False)
    sensitivity: Fraction
    norm: float
    released: Any = field(repr=False)
    n_rows: int = 0
    labels: tuple[str, ...] | None = field(default=None, repr=False)

    def same_noise(self, other: "NoisedSum") -> bool:
        """Whether the noise is the same wherever both have a number."""
        if self.labels is None or other.labels is None:
            return self.noise == other.noise
        mine, theirs = (
            dict(zip(self.labels, self.noise, strict=True)),
            dict(zip(other.labels, other.noise, strict=True)),
        )
        return all(mine[label] == theirs[label] for label in mine.keys() & theirs.keys())

    def move(self, other: "NoisedSum") -> float:
        """Return how far another data set's sum is from this one, as a share of the sensitivity: rounded up."""
        if self.labels is not None and other.labels is not None:
            mine, theirs = (Counter(dict(zip(own.labels or (), own.exact, strict=True))) for own in (self, other))
            moved = [mine[label] - theirs[label] for label in mine.keys() | theirs.keys()]
        elif len(self.exact) != len(other.exact):
            return math.inf
        else:
            moved = [a - b for a, b in zip(self.exact, other.exact, strict=True)]
        if self.norm == math.inf:
            share = Fraction(max(map(abs, moved))) / self.sensitivity
            return upward(float(share), lambda value: Fraction(value) >= share)
        if self.norm == 1:
            share = Fraction(sum(map(abs, moved))) / self.sensitivity
            return upward(float(share), lambda value: Fraction(value) >= share)
        square = Fraction(sum(k * k for k in moved)) / self.sensitivity**2
        return upward(math.sqrt(float(square)), lambda value: Fraction(value) ** 2 >= square)


def upward(value: float, enough: Callable[[float], bool]) -> float:
    """Return the least double near `value` that is enough; an exact bound is not made larger by rounding."""
    value = max(0.0, math.nextafter(math.nextafter(value, -math.inf), -math.inf))
    while not enough(value):
        value = math.nextafter(value, math.inf)
    return value


@dataclass(eq=False)
class Tape:
    """The actions of a run, in order.

    Parameters
    ----------
    log : list of str
        Everything that must not depend on one record.
    sums : list of NoisedSum
    faults : list of str
        Forbidden actions of a private run, for any records.
    """

    log: list[str] = field(default_factory=list)
    sums: list[NoisedSum] = field(default_factory=list, repr=False)
    faults: list[str] = field(default_factory=list)


def show(value: Any) -> str:
    """Return a value as text that is equal for equal bits only; arrays by type, shape and a hash."""
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"<{value.dtype} {value.shape} {digest}>"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes {hashlib.sha256(value).hexdigest()[:16]}>"
    if isinstance(value, (float, np.floating)):
        return f"{type(value).__name__} {float(value).hex()}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={show(item)}" for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(show, value)) + ")"
    return repr(value)
