"""Persons made of rows and their owners: one record of fixed width for each person.

**Privacy.** Reads the records.  A person's record is a function of that person's rows and of public numbers: the first
rows, up to the public largest number, in the order in which they were given (docs/derivations/people.md).
"""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.contributions import ReadRecords
from dpinfer.mechanism.newton.own_rows import OwnRecords
from dpinfer.mechanism.newton.unit_parts import UnitParts, check_unit_rows, rows_of_part, sorted_by_unit
from dpinfer.mechanism.records import records_of
from dpinfer.mechanism.sources.row_source import Arrays
from dpinfer.mechanism.units import Units
from dpinfer.models.person_model import PersonModel


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
    check, read = partial(check_unit_rows, model), partial(_read_persons, model, n_threads)
    if "parts" in records.demands:
        return UnitParts(records, check, read)
    if records.held is None:
        return read(rows_of_part(records.source(), check, in_order=True), None)
    return read(sorted_by_unit(check(*records.held, units.ids)), None)


def _read_persons(model: PersonModel, n_threads: int, rows: Arrays, numbers: Any) -> OwnRecords:
    return OwnRecords(*persons_of(model, *rows), n_threads=n_threads, numbers=numbers)


def persons_of(
    model: PersonModel, features: npt.NDArray[Any], response: FloatArray, unit: npt.NDArray[Any]
) -> tuple[FloatArray, FloatArray]:
    """Return persons (N, 1 + max_rows p), the number of rows first, and their responses (N, max_rows).

    Parameters
    ----------
    features, response, unit : (rows, p), (rows,) and (rows,) arrays
        Those of a person one after the other.
    """
    p = len(model.columns)
    starts = np.flatnonzero(np.concatenate(([True], unit[1:] != unit[:-1])))
    counts = np.diff(np.append(starts, len(unit)))
    person = np.repeat(np.arange(len(starts)), counts)
    place = np.arange(len(unit)) - starts[person]
    kept = place < model.max_rows
    rows = np.zeros((len(starts), model.max_rows, p))
    rows[person[kept], place[kept]] = features[kept][:, :p]
    responses = np.zeros((len(starts), model.max_rows))
    responses[person[kept], place[kept]] = response[kept]
    sizes = np.minimum(counts, model.max_rows).astype(np.float64)
    return np.ascontiguousarray(np.column_stack((sizes, rows.reshape(len(starts), -1)))), responses
