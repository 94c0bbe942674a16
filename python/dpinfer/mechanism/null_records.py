"""Null records: what a blanked record is, under the relation that has them.

**Privacy.** Under ``zero_out`` a neighbour's record is replaced with one that contributes exactly zero.  A row of zeros
does not: with an intercept its gradient can be as long as any.  So a null record is a row that holds NaN and nothing
else, and it is taken out before anything reads it: docs/derivations/dpvi-mechanism.md.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer.accounting import Adjacency

__all__ = ["without_null_records"]

Array = npt.NDArray[Any]
Features = TypeVar("Features", bound=Array)

_CHUNK = 1 << 14


def without_null_records(adjacency: Adjacency, features: Array, response: Array | None) -> tuple[Array, Array]:
    """Return the records that are there: under ``zero_out`` those that are not NaN in every number; else all.

    **Privacy.** Reads the records.  What is left of one does not depend on another.

    Parameters
    ----------
    adjacency : Adjacency
    features : (N, d) or (N,) array
    response : (N,) array, optional
        An empty one is returned where there is none.

    Returns
    -------
    features, response : array
        Not copied where nothing is taken out.
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
    """Return which responses, with their weights where they have some, are NaN."""
    return np.asarray(np.isnan(response.reshape(len(response), -1)).all(axis=1))
