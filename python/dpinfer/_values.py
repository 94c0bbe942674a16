"""Values of records, each read on its own: the meaning of a value depends on no other record.

Libraries choose one type for all values of a column, and return 1, 1.0, True, "1" or "1.0" for the same value,
depending on the other values of the column: a single record would change the labels of all others. So each value
gets one spelling for all types.

**Privacy.** Looks at values of records, one by one; keeps nothing.
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from numbers import Complex, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import as_record_array
from dpinfer.errors import RecordError

_TRUTHS = {"true": 1.0, "false": 0.0}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LARGEST = 2.0**53  # the first whole number that a float cannot tell from its neighbour
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")
_REAL = (Real, Decimal, np.bool_)
_HOLDERS = (list, tuple, dict, set, frozenset)


def text_of(value: Any) -> str | None:
    """Return the canonical spelling of a label; None for a missing value or an empty text.

    A number has the shortest digits that restore it in double precision, and no decimal point if it is whole; true and
    false are 1 and 0; dates and times follow ISO 8601. The same holds for a text of such a value. Other text loses
    surrounding spaces. None, NaN, NaT, "nan" and an empty text are missing.

    Examples
    --------
    >>> [text_of(value) for value in (1, 1.0, "1.0", b"01", True, "TRUE", " cat ", float("nan"), "2020-01-01T00:00")]
    ['1', '1', '1', '1', '1', '1', 'cat', None, '2020-01-01']
    """
    plain = _plain(value)
    if not isinstance(plain, float):
        return plain
    if math.isnan(plain):
        return None
    return str(int(plain)) if plain.is_integer() else repr(plain)


def number_of(value: Any) -> float:
    """Return a value as the number that :func:`text_of` spells, or NaN.

    Examples
    --------
    >>> [number_of(value) for value in ("1e3", True, "1_000", None)]
    [1000.0, 1.0, nan, nan]
    """
    plain = _plain(value)
    return plain if isinstance(plain, float) else math.nan


def as_values(name: str, values: Any) -> npt.NDArray[np.float64] | list[str | None]:
    """Return a column of records as an array of numbers if its type is numeric, else of each value's text.

    **Privacy.** Reads the records, each by itself: no type is inferred from the values of a list.

    Raises RecordError if it cannot be converted to an array with one dimension. Raises OSError if the system refused to
    read it.
    """
    if is_listed(values):
        return list(map(text_of, values))
    array = as_record_array(name, values)
    if array.ndim != 1:
        raise RecordError(f"{name} must be one-dimensional, got {array.ndim} dimensions")
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    return [text_of(value) for value in (array if array.dtype.kind in "mM" else array.tolist())]


def identity_of(value: Any) -> str | None:
    """Return the owner of a row in one spelling: two distinct whole numbers never share it.

    As :func:`text_of`, but whole numbers keep all of their digits.  None where a float is too large, or a text has too
    many digits, to be told from another: two persons that are taken for one are protected half as well.

    Examples
    --------
    >>> [identity_of(value) for value in (2**60 + 1, str(2**60 + 1), 2.0**60, 1.0, "01", "0.10000000000000000001")]
    ['1152921504606846977', '1152921504606846977', None, '1', '1', None]
    """
    try:
        if isinstance(value, bytes):
            value = value.decode("utf-8")
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, (int, np.integer)) or (isinstance(value, Decimal) and value == int(value)):
            return str(int(value))
        plain = _plain(value)
        if not isinstance(plain, float) or math.isnan(plain):
            return None if isinstance(plain, float) else plain
        agrees = (
            Decimal(text_of(plain) or 0) == Decimal(str(value).strip()) if isinstance(value, (str, Decimal)) else True
        )
        return text_of(plain) if agrees and abs(plain) < _LARGEST else None
    except Exception:
        return None


def as_identities(name: str, values: Any) -> list[str | None]:
    """Return whose each row is, by :func:`identity_of`.

    **Privacy.** Reads the records, each by itself.

    Raises RecordError or OSError as :func:`as_values`.
    """
    array = values if is_listed(values) else as_record_array(name, values)
    if isinstance(array, np.ndarray) and array.ndim != 1:
        raise RecordError(f"{name} must be one-dimensional, got {array.ndim} dimensions")
    plain = isinstance(array, np.ndarray) and array.dtype.kind not in "mM"
    return list(map(identity_of, array.tolist() if plain else array))


def is_listed(values: Any) -> bool:
    """Return whether these values lack a common type, as a list does; reads no record."""
    return isinstance(values, Sequence) and not isinstance(values, (str, bytes)) and not hasattr(values, "__array__")


def _plain(value: Any) -> float | str | None:
    """Return a number, a text that is none, or None."""
    try:
        if isinstance(value, str):
            return _of_text(value.strip())
        if isinstance(value, (np.datetime64, np.timedelta64)):
            value = value.astype(f"{value.dtype.kind}8[us]").item()
        # A value that is not equal to itself is missing; arrays raise, as do other values without a truth value.
        if value is None or isinstance(value, _HOLDERS) or bool(value != value):
            return None
        if isinstance(value, Complex) and value.imag == 0:
            value = value.real
        if isinstance(value, _REAL):
            return _as_float(value)
        if isinstance(value, bytes):
            return _of_text(value.decode("utf-8").strip())
        if type(value).__name__ == "MaskedConstant":  # NumPy's mark of a value that is hidden
            return None
        return _of_text((value.isoformat() if isinstance(value, (date, time)) else str(value)).strip())
    except Exception:
        # An error would reveal that there is such a value.
        return None


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _of_text(text: str) -> float | str | None:
    if not text:
        return None
    # Python's float() also reads "1_000"; no data file means that.
    if "_" not in text:
        try:
            return float(text)
        except ValueError:
            pass
    if text.casefold() in _TRUTHS:
        return _TRUTHS[text.casefold()]
    return _moment(text) if _MOMENT.match(text) else text


def _moment(text: str) -> str:
    """Return a date, a time or both in one form: midnight is written as its date."""
    try:
        if text[2] == ":":
            return time.fromisoformat(text).isoformat()
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return moment.date().isoformat() if moment == datetime.combine(moment, time()) else moment.isoformat(" ")
