"""Interval arithmetic on public bounds: the range of a transformation, before any record is read.

**Privacy.** Public bounds alone.
"""

import math
from collections.abc import Callable

Interval = tuple[float, float]

_LARGEST = 1e30  # squares and their sums stay far from overflow


def checked(interval: Interval) -> Interval:
    """Return the interval; raise ValueError if a bound is not an ordinary number."""
    if not all(math.isfinite(bound) and abs(bound) <= _LARGEST for bound in interval):
        raise ValueError(f"gives values beyond {_LARGEST:g} within the public bounds")
    return interval


def add(left: Interval, right: Interval) -> Interval:
    """Return the sums."""
    return checked((left[0] + right[0], left[1] + right[1]))


def negate(interval: Interval) -> Interval:
    """Return the negatives."""
    return -interval[1], -interval[0]


def multiply(left: Interval, right: Interval) -> Interval:
    """Return the products."""
    corners = [a * b for a in left for b in right]
    return checked((min(corners), max(corners)))


def divide(left: Interval, right: Interval) -> Interval:
    """Return the quotients; raise ValueError if the divisor's public bounds include 0."""
    if right[0] <= 0.0 <= right[1]:
        raise ValueError(f"divides by something whose public bounds [{right[0]:g}, {right[1]:g}] include 0")
    return multiply(left, (1.0 / right[1], 1.0 / right[0]))


def power(base: Interval, exponent: float) -> Interval:
    """Return the powers; raise ValueError if some value within the public bounds has no such power."""
    low, high = base
    whole = float(exponent).is_integer()
    if exponent < 0.0:
        return divide((1.0, 1.0), power(base, -exponent))
    if not whole and low < 0.0:
        raise ValueError(f"takes a power {exponent:g} of something whose public bounds [{low:g}, {high:g}] go below 0")
    try:
        ends = [low**exponent, high**exponent]
    except OverflowError:
        ends = [math.inf]
    if whole and exponent % 2 == 0 and low < 0.0 < high:
        ends.append(0.0)
    return checked((min(ends), max(ends)))


def _monotone(
    function: Callable[[float], float], least: float = -math.inf, open_end: bool = False, what: str = ""
) -> Callable[[Interval], Interval]:
    def image(interval: Interval) -> Interval:
        low, high = interval
        if low < least or (open_end and low <= least):
            relation = "above" if open_end else "at least"
            raise ValueError(
                f"takes {what} of something whose public bounds [{low:g}, {high:g}] are not {relation} {least:g}"
            )
        try:
            return checked((function(low), function(high)))
        except OverflowError:
            return checked((0.0, math.inf))

    return image


def _absolute(interval: Interval) -> Interval:
    low, high = interval
    return (0.0 if low <= 0.0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


FUNCTIONS: dict[str, Callable[[Interval], Interval]] = {
    "log": _monotone(math.log, 0.0, True, "the logarithm"),
    "log2": _monotone(math.log2, 0.0, True, "the logarithm"),
    "log10": _monotone(math.log10, 0.0, True, "the logarithm"),
    "log1p": _monotone(math.log1p, -1.0, True, "log1p"),
    "exp": _monotone(math.exp),
    "expm1": _monotone(math.expm1),
    "sqrt": _monotone(math.sqrt, 0.0, False, "the square root"),
    "abs": _absolute,
    "sin": lambda interval: (-1.0, 1.0),
    "cos": lambda interval: (-1.0, 1.0),
}
