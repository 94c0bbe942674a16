"""Null records: the representation of blanked records, under the relation with blanked records.

**Privacy.** Under ``zero_out`` a neighbour's record is replaced with one that contributes exactly zero.  A row of zeros
does not: with an intercept its gradient can be as long as any. So a null record is a row that holds only NaN, and it is
removed before any use: docs/derivations/dpvi-mechanism.md.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer.accounting import Adjacency

Array = npt.NDArray[Any]
Features = TypeVar("Features", bound=Array)

_CHUNK = 1 << 14  # records at once: memory only


def without_null_records(adjacency: Adjacency, features: Array, response: Array | None) -> tuple[Array, Array]:
    """Return the records without null records: under ``zero_out`` those that are not NaN in every number; else all.

    **Privacy.** Reads the records. The result for one record does not depend on another.

    Parameters
    ----------
    features : (N, d) or (N,) array
    response : (N,) array, optional
        Empty if there is none.

    Returns
    -------
    features, response : array
        Not copied if no record is removed.
    """
    targets = np.empty(0) if response is None else response
    if adjacency is not Adjacency.ZERO_OUT:
        return features, targets
    columns = features.reshape(features.shape[0], -1)
    null = np.empty(columns.shape[0], dtype=bool)
    for start in range(0, columns.shape[0], _CHUNK):
        rows = slice(start, start + _CHUNK)
        null[rows] = np.isnan(columns[rows]).all(axis=1) & (True if response is None else _is_null(response[rows]))
    if not null.any():
        return features, targets
    return features[~null], targets if response is None else response[~null]


def _is_null(response: Array) -> Array:
    """Return a mask of responses that are NaN, together with any weights."""
    return np.asarray(np.isnan(response.reshape(len(response), -1)).all(axis=1))
