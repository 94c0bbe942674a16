"""Units of several rows: a person with a fixed number of rows is one record; a unit of any number is in one shard.

**Privacy.** Reads the records.  A person's record is a function of that person's rows and of public numbers: the first
rows, up to the public largest number, in the order in which they were given (docs/derivations/people.md).  Of units in
several places what travels is as private as the records; noise is drawn by the mechanism, when all parts have answered.
"""

import copy
import hashlib
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import standard_arithmetic
from dpinfer.errors import RecordError
from dpinfer.mechanism import _native
from dpinfer.mechanism.checkpoint import tag_of_records
from dpinfer.mechanism.newton.contributions import Query, ReadRecords
from dpinfer.mechanism.newton.own_rows import OwnRecords, earlier_equals
from dpinfer.mechanism.records import check_records, no_records, records_of
from dpinfer.mechanism.sources.row_source import Arrays, Records, RowSource, total_rows
from dpinfer.mechanism.sources.shards import Each
from dpinfer.mechanism.sums.parts import integers_of_part
from dpinfer.mechanism.units import (
    NamesInOrder,
    Units,
    bytes_of_names,
    check_identities,
    joined_names,
    unit_names,
)
from dpinfer.models.person_model import PersonModel

_NAME_BYTES = 16  # two of 2**31 names have one hash with probability 2**-67, which would refuse a run: format


def check_unit_rows(model: Any, features: Any, response: Any, ids: Any) -> Arrays:
    """Return checked features, responses and units of rows."""
    rows = check_records(model, features, response)
    return (*rows, check_identities(ids, len(rows[0])))


def no_unit_rows(model: Any) -> Arrays:
    """Return checked rows of no unit."""
    return check_unit_rows(model, *no_records(model), np.empty(0, dtype=np.int64))


def sorted_by_unit(rows: Arrays) -> Arrays:
    """Return rows in increasing order of their units, the last array; rows of a unit keep their order."""
    order = np.argsort(rows[-1], kind="stable")
    return [np.ascontiguousarray(array[order]) for array in rows]


class UnitParts(ReadRecords):
    """Units in several places.  The first pass refuses a unit with rows in two places.

    **Privacy.** Parts give the caller hashes of the names of their units and of their records, and integers: all are as
    private as the records.  Each call first compares the part with its first content, so that no unit is in two parts
    of a pass (docs/derivations/units.md).

    Raises
    ------
    RecordError
        If rows of a unit are in two parts.
    """

    def __init__(
        self,
        records: Records,
        model: Any,
        # returns :class:`ReadRecords` from rows sorted by their units, and the numbers of equal records, or None
        read: Callable[[Arrays, Any], ReadRecords],
    ) -> None:
        self._parts, self._public = records, (model, read)
        found = records.each_part(_look_at_part, *self._public, secrets.token_bytes(_NAME_BYTES))
        names, kinds = (
            [np.frombuffer(part[place], dtype="<u8").reshape(-1, width) for part in found]
            for place, width in ((1, _NAME_BYTES // 8), (2, 4))
        )
        self.n_rows = total_rows(*map(len, names))
        if np.any(earlier_equals(np.concatenate(names))):
            raise RecordError("unit must be in one shard with all of its rows: at least one has rows in two shards")
        # Equal records have numbers, as if they were in one place.
        numbers = np.split(earlier_equals(np.concatenate(kinds)), np.cumsum([len(part) for part in kinds])[:-1])
        self._seen = Each((part[0], own) for part, own in zip(found, numbers, strict=True))

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Return a hash of each part's records."""
        return [np.frombuffer(tag, dtype=np.uint8) for tag, _ in self._seen]

    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all parts' sums, when all have arrived.

        Raises
        ------
        RecordError
            If a part gives other rows than before.
        RuntimeError
            If one could not be read.
        """
        for integers in self._parts.each_part(_add_units, *self._public, self._seen, query, total.max_norm):
            total.merge(integers.copy())


def rows_of_part(source: RowSource, model: Any, *, in_order: bool = False) -> Arrays:
    """Return all rows of a part, sorted by their units.

    Raises RecordError if there are too many, or if units that must be sorted are not.
    """
    # Copies: a source may put the next block in the place of one.
    blocks = [[np.array(array) for array in block] for block in source.each(partial(check_unit_rows, model))]
    if not blocks:
        return no_unit_rows(model)
    total_rows(*(len(block[0]) for block in blocks))
    order = NamesInOrder()
    for *_, names in blocks if in_order else ():
        order.follow(names)
    *rows, units = zip(*blocks, strict=True)
    return sorted_by_unit([*map(np.concatenate, rows), joined_names(units)])


def _look_at_part(source: RowSource, model: Any, read: Callable[..., Any], key: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a hash of all rows, hashes of the names of units, which tell nobody without the key, and of records."""
    rows = rows_of_part(source, model)
    names = [hashlib.blake2b(name, key=key, digest_size=_NAME_BYTES).digest() for name in unit_names(rows[-1])]
    return _tag_of_rows(rows), b"".join(names), read(rows, None).kinds.tobytes()


@standard_arithmetic()
def _add_units(
    source: RowSource,
    model: Any,
    read: Callable[..., Any],
    seen: tuple[bytes, npt.NDArray[np.int64]],
    query: Query,
    max_norm: float,
) -> npt.NDArray[np.int64]:
    """Return the integers of a part that is as it was."""
    query = copy.deepcopy(query)
    total = _native.PartialSum(length=query.length, max_norm=max_norm)
    tag, numbers = seen
    rows = rows_of_part(source, model)
    if _tag_of_rows(rows) != tag:
        raise RecordError("X must give the same rows and units in every pass, and a shard gave others")
    read(rows, numbers).add(total, query)
    return integers_of_part(total)


def _tag_of_rows(rows: Arrays) -> bytes:
    return tag_of_records(b"", [*rows[:-1], bytes_of_names(rows[-1])])


def open_persons(model: PersonModel, X: Any, y: Any, units: Units, *, n_threads: int) -> ReadRecords:
    """Check the rows, and return persons as passes read them: in memory, or in their shards.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Parameters
    ----------
    X : (N, p) array, or RowSource of (X, y, unit), or ShardedRows of such
    y : (N,) array or None

    Raises
    ------
    RecordError
        If the records cannot be used, units of a source are not in increasing order, or one is in two shards.
    RuntimeError
        If a shard could not be read.
    """
    records = records_of(X, y)
    read = partial(_read_persons, model, n_threads)
    if "parts" in records.demands:
        return UnitParts(records, model, read)
    if records.held is None:
        return read(rows_of_part(records.source(), model, in_order=True), None)
    return read(sorted_by_unit(check_unit_rows(model, *records.held, units.ids)), None)


def _read_persons(model: PersonModel, n_threads: int, rows: Arrays, numbers: Any) -> OwnRecords:
    return OwnRecords(*persons_of(model, *rows), n_threads=n_threads, numbers=numbers)


def persons_of(
    model: PersonModel,
    # features, response, unit: (rows, p), (rows,), (rows,): those of a person one after the other
    features: npt.NDArray[Any],
    response: FloatArray,
    unit: npt.NDArray[Any],
) -> tuple[FloatArray, FloatArray]:
    """Return persons (N, 1 + max_rows p), the number of rows first, and their responses (N, max_rows)."""
    p = len(model.columns)
    begins = np.ones(len(unit), dtype=bool)
    begins[1:] = unit[1:] != unit[:-1]
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(unit)))
    person = np.repeat(np.arange(len(starts)), counts)
    place = np.arange(len(unit)) - starts[person]
    kept = place < model.max_rows
    rows = np.zeros((len(starts), model.max_rows, p))
    rows[person[kept], place[kept]] = features[kept][:, :p]
    responses = np.zeros((len(starts), model.max_rows))
    responses[person[kept], place[kept]] = response[kept]
    sizes = np.minimum(counts, model.max_rows).astype(np.float64)
    return np.ascontiguousarray(np.column_stack((sizes, rows.reshape(len(starts), model.max_rows * p)))), responses
