"""User-level privacy: all rows of a unit are one record.

**Privacy.** Proof: docs/derivations/units.md.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._types import refuse_array_type
from dpinfer._validate import as_record_array, check_container, check_interval, known_shape
from dpinfer._values import is_listed
from dpinfer.errors import RecordError

_MOST_ROWS = 1e6  # noise grows in proportion: more are of no use; formula
_MOST_DIGITS = 4000  # of a number as a name: Python writes no more than 4300; time
_TOO_LARGE = 10**_MOST_DIGITS  # the first with more: formula
_WHOLE = re.compile(rb"0|-?[1-9][0-9]*")  # the digits of a number, as Python writes them


@dataclass(frozen=True, eq=False)
class Units:
    """The unit of each row: privacy then protects a unit with all of its rows, for any number of rows.

    **Privacy.** Holds records: the unit of a row is private.  `max_rows` and `mean_rows` are public: from
    knowledge of the population, not from these rows.

    Parameters
    ----------
    ids : (N,) array of integers or strings, or str, optional
        The unit of each row, or for :func:`dpinfer.regression` the name of its column; None with a
        :class:`dpinfer.mechanism.RowSource`, whose blocks then are (X, y, unit).
    max_rows : float
        At least 1.  Bound on a unit's sum over its rows in units of one row's bound; longer sums are clipped to it, and
        the noise grows in proportion. Privacy does not depend on its being right.
    mean_rows : float, optional
        Rows of an average unit, `max_rows` by default: how many rows there are is taken to be the number of units times
        this number.
    """

    ids: npt.ArrayLike | None = None
    max_rows: float = 1.0
    mean_rows: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "max_rows", check_interval("max_rows", self.max_rows, 1.0, _MOST_ROWS, low_open=False))
        mean = self.max_rows if self.mean_rows is None else self.mean_rows
        put(self, "mean_rows", check_interval("mean_rows", mean, 1.0, _MOST_ROWS, low_open=False))

    def n_rows(self, n_units: int) -> int:
        """Return the public number of rows of so many units."""
        return round(n_units * float(self.mean_rows or 1.0))

    def to_dict(self, n_units: int) -> dict[str, Any]:
        """Return the public fields, as plain data."""
        return {"n_units": n_units, "max_rows": self.max_rows, "mean_rows": self.mean_rows}

    def __repr__(self) -> str:
        return f"Units(max_rows={self.max_rows:g}, mean_rows={self.mean_rows:g}; private identities, not shown)"


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters within which rows may depend on each other: rows are protected, and intervals allow for the dependence.

    **Privacy.** Holds records: the cluster of a row is one.

    Parameters
    ----------
    ids : (N,) array of integers or strings
        The cluster of each row.
    """

    ids: npt.ArrayLike
    max_rows: ClassVar[float] = 1.0

    @staticmethod
    def n_rows(n_records: int) -> int:
        """Return the public number of rows: that of records."""
        return n_records

    def __repr__(self) -> str:
        return "Clusters(private identities, not shown)"


def check_identities(ids: Any, n_rows: int) -> npt.NDArray[Any]:
    """Return the name of each row's unit: int64, or bytes of the name's text.

    A number and its digits are one name in every type, so that blocks may differ in theirs; :func:`joined_names` joins
    them, and :class:`NamesInOrder` compares them.

    **Privacy.** Reads the records; names no value.

    Raises RecordError if they are no integers or strings, or not one for each row.
    """
    units = np.array(ids, dtype=object) if is_listed(ids) else as_record_array("unit", ids)
    check_identity_layout(units, n_rows)
    if units.dtype.kind in "iu":
        return units.astype(np.int64 if np.can_cast(units.dtype, np.int64) else np.bytes_)
    # Each by itself: a type for all would follow from one.
    return np.array([_spelled(item) for item in units.tolist()], dtype=np.bytes_)


def _spelled(item: Any) -> bytes:
    """Return a name as bytes; NumPy would drop a zero byte at its end, which UTF-8 can also write in two bytes."""
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool) and abs(int(item)) < _TOO_LARGE:
        return str(int(item)).encode()
    if not isinstance(item, (str, bytes)):
        raise RecordError(f"unit must be an array of integers of at most {_MOST_DIGITS} digits, or of strings")
    name = item if isinstance(item, bytes) else item.encode(errors="surrogatepass")
    return name.replace(b"\0", b"\xc0\x80")


def _texts(names: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
    return np.asarray(names.astype(np.bytes_) if names.dtype.kind == "i" else names)


def joined_names(blocks: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the names of several blocks of :func:`check_identities`, at least one."""
    same = len({block.dtype.kind for block in blocks}) == 1
    return np.concatenate(blocks if same else [_texts(block) for block in blocks])


def unit_names(units: npt.NDArray[Any]) -> list[bytes]:
    """Return the name of each unit once, from names of :func:`check_identities`."""
    found: list[bytes] = _texts(np.unique(units)).tolist()
    return found


def bytes_of_names(units: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the names of rows as bytes, the same for every type that holds them."""
    return np.frombuffer(b"\0".join(_texts(units).tolist()), dtype=np.uint8)


class NamesInOrder:
    """Checks that names increase along a source, all by the same order: numbers before texts, or all as texts.

    **Privacy.** Either order is total, so that rows of one name lie together, whatever type a block has.
    """

    def __init__(self) -> None:
        self._last: list[Any] = [None, None]  # of each order; None before the first
        self._holds = [True, True]

    def follow(self, names: npt.NDArray[Any]) -> bool:
        """Take the names of the next rows, at least one; return whether the first is that of the row before.

        Raises RecordError if the names increase by no order.
        """
        begins = np.flatnonzero(np.concatenate(([True], names[1:] != names[:-1])))
        texts = _texts(names[begins]).tolist()
        follows = bool(texts[0] == self._last[1])
        for place, keys in enumerate(([_by_number(text) for text in texts], texts)):
            last = self._last[place]
            ordered = all(first <= second for first, second in itertools.pairwise(keys))
            self._holds[place] &= ordered and (last is None or last <= keys[0])
            self._last[place] = keys[-1]
        if not any(self._holds):
            raise RecordError("unit must increase: the rows must be sorted by their units")
        return follows


def _by_number(text: bytes) -> tuple[bool, int, bytes]:
    is_number = len(text) <= _MOST_DIGITS and _WHOLE.fullmatch(text) is not None
    return (False, int(text), b"") if is_number else (True, 0, text)


def check_identity_layout(ids: Any, n_rows: int | None) -> None:
    """Refuse identities of a wrong type or shape, without reading them; objects without a type are checked later.

    Raises TypeError if they are no array. Raises RecordError if they are not integers or strings, or not one for each
    row, if the number of rows is given.
    """
    check_container("unit", ids)
    refuse_array_type("unit", ids)
    dtype, shape = getattr(ids, "dtype", None), known_shape(ids)
    if isinstance(dtype, np.dtype) and dtype.kind not in "iuSUO":
        raise RecordError("unit must be an array of integers or strings")
    if shape is not None and (len(shape) != 1 or (n_rows is not None and shape[0] != n_rows)):
        raise RecordError("unit must be one-dimensional with as many entries as X has rows")
