"""An epsilon, or a delta, is the decimal that a person types: the shortest text of its double, as a fraction.

Pure parts add as these decimals, and the noise of pure releases is drawn for them exactly, so that ten runs of 0.1 are
one of 1.  Proof: docs/derivations/ledger.md, "Decimals".
"""

import math
import sys
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpinfer._validate import check_interval

# A sum's noise, and its square, stay within the range of doubles for any bound on a contribution: overflow.
_LEAST, _LARGEST = 1e-50, 1e50


def check_epsilon(name: str, value: Any) -> float:
    """Return an epsilon of a pure release, in [1e-50, 1e50].

    Raises TypeError or ValueError if it is none.
    """
    return check_interval(name, value, _LEAST, _LARGEST, low_open=False, high_open=False)


@lru_cache(maxsize=4096)
def decimal_of(value: float) -> Fraction:
    """Return the decimal of a finite double: the fraction that its shortest text denotes.

    Examples
    --------
    >>> decimal_of(0.1), 10 * decimal_of(0.1) == decimal_of(1.0)
    (Fraction(1, 10), True)
    """
    return Fraction(repr(float(value)))


def at_most(value: Fraction) -> float:
    """Return the largest double whose decimal is at most `value`, which is at least 0."""
    try:
        near = float(value)
    except OverflowError:
        return sys.float_info.max
    while decimal_of(near) > value:
        near = math.nextafter(near, 0.0)
    return near


def at_least(value: Fraction) -> float:
    """Return the least double whose decimal is at least `value`, which is at least 0; infinity beyond all doubles."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    while decimal_of(near) < value:
        near = math.nextafter(near, math.inf)
        if math.isinf(near):
            break
    return near


def share_of(total: float, parts: int) -> float:
    """Return the largest of `parts` equal shares whose decimals add to at most the whole.

    Examples
    --------
    >>> share_of(1.0, 10), share_of(1.0, 3)
    (0.1, 0.3333333333333333)
    """
    return at_most(decimal_of(total) / parts)
