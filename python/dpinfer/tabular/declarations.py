"""Checks of single values in a schema; their errors name the key.

**Privacy.** Declarations only: they are public.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from dpinfer._validate import check_real
from dpinfer._values import text_of
from dpinfer.errors import SchemaError

_SHARES_OFF = 0.01  # published shares are rounded: tolerance


def unknown_key(full: str, key: str, allowed: Sequence[str], where: str) -> str:
    """Return the message for a key that a schema must not have."""
    close = get_close_matches(key, allowed, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown key {full}{hint}; {where} takes {', '.join(allowed)}"


def check_strings(key: str, value: Any, *, minimum: int) -> tuple[str, ...]:
    """Return distinct strings without surrounding space, at least `minimum` of them."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise SchemaError(f"{key} must be a list of strings")
    items = tuple(item.strip() for item in value)
    for item in items:
        check_encodable(key, item)
    if len(items) < minimum:
        raise SchemaError(f"{key} must hold at least {minimum} string, got {len(items)}")
    if len(set(items)) != len(items):
        raise SchemaError(f"{key} must hold distinct strings")
    return items


def check_told_apart(key: str, items: Sequence[str]) -> None:
    """Refuse spellings of one value: records would have either, depending on the type that it was read as."""
    known: dict[str, str] = {}
    for item in items:
        value = text_of(item)
        if value is None:
            raise SchemaError(f"{key} must hold values, and {item!r} is a missing one")
        if known.setdefault(value, item) != item:
            raise SchemaError(f"{key} must hold values that can be told apart: {known[value]!r} and {item!r} are one")


def check_encodable(key: str, text: str) -> None:
    """Refuse text that no file can hold, which would fail after the charge."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise SchemaError(f"{key} must be text that UTF-8 can encode, got a lone surrogate") from None


def check_shares(key: str, value: Any, size: int) -> tuple[float, ...]:
    """Return `size` positive shares that sum to one."""
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)) or len(value) != size:
        raise SchemaError(f"{key} must be a list of {size} numbers, one for each category")
    shares = tuple(check_number(key, item) for item in value)
    total = sum(shares)
    if min(shares) <= 0.0 or abs(total - 1.0) > _SHARES_OFF:
        raise SchemaError(f"{key} must be positive and sum to 1, got a smallest of {min(shares):g} and a sum {total:g}")
    # Values written by to_dict are restored bit for bit.
    return shares if abs(total - 1.0) < 1e-12 else tuple(share / total for share in shares)


def check_number(key: str, value: Any) -> float:
    """Return a finite number."""
    try:
        return check_real(key, value)
    except (TypeError, ValueError) as error:
        raise SchemaError(str(error)) from error
