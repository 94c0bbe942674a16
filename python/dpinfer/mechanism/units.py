"""User-level privacy: all rows of a unit are one record.

**Privacy.** Proof: docs/derivations/units.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._types import refuse_array_type
from dpinfer._validate import as_record_array, check_container, check_interval, known_shape
from dpinfer._values import is_listed
from dpinfer.errors import RecordError

_MOST_ROWS = 1e6  # noise grows in proportion: more are of no use; formula


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
    """Return the units of rows as an array that can be compared.

    **Privacy.** Reads the records; names no value.

    Raises RecordError if they are no integers or strings, or not one for each row.
    """
    units = np.array(ids, dtype=object) if is_listed(ids) else as_record_array("unit", ids)
    if units.dtype.kind == "O":
        # Each by itself: a type for all would follow from one.
        if not all(isinstance(item, (str, int, np.integer)) and not isinstance(item, bool) for item in units.flat):
            raise RecordError("unit must be an array of integers or strings")
        units = units.astype(np.str_)
    check_identity_layout(units, n_rows)
    return np.asarray(units)


def unit_names(units: npt.NDArray[Any]) -> list[bytes]:
    """Return the name of each unit once; a number and its digits are one name."""
    names = np.unique(units).tolist()
    return [item if isinstance(item, bytes) else str(item).encode(errors="surrogatepass") for item in names]


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
