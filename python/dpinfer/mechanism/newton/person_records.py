"""Persons made of rows and their owners: one record of fixed width for each person.

**Privacy.** Reads the records.  A person's record is a function of that person's rows and of public numbers: the first
rows, up to the public largest number, in the order in which they were given (docs/derivations/people.md).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.errors import RecordError
from dpinfer.mechanism.newton.own_rows import OwnRecords
from dpinfer.mechanism.records import check_records
from dpinfer.mechanism.sources.held import records_of
from dpinfer.mechanism.units import Units, check_identities
from dpinfer.models.person_model import PersonModel


def open_persons(model: PersonModel, X: Any, y: Any, units: Units, *, n_threads: int) -> OwnRecords:
    """Check the rows, and return persons as passes read them; those of a source are held in memory, too.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Parameters
    ----------
    X : (N, p) array, or RowSource of (X, y, unit)
    y : (N,) array or None

    Raises
    ------
    RecordError
        If the records cannot be used, or units of a source are not in increasing order.
    """

    def check(features: Any, response: Any, ids: Any) -> tuple[npt.NDArray[Any], ...]:
        rows = check_records(model, features, response)
        return (*rows, check_identities(ids, len(rows[0])))

    records = records_of(X, y)
    if records.held is not None:
        features, response, unit = check(*records.held, units.ids)
        order = np.argsort(unit, kind="stable")
        return OwnRecords(*persons_of(model, features[order], response[order], unit[order]), n_threads=n_threads)
    # Copies: a source may put the next block in the place of one.
    blocks = [tuple(np.array(part) for part in block) for block in records.source().checked(check)]
    features, response, unit = (np.concatenate(part) for part in zip(*blocks, strict=True))
    if np.any(unit[1:] < unit[:-1]):
        raise RecordError("unit must increase: the rows must be sorted by their units")
    return OwnRecords(*persons_of(model, features, response, unit), n_threads=n_threads)


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
