"""Checks on the records of a network, before anything is spent and without quoting any of them."""

from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import as_record_array, check_layout
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.mechanism.records import without_null_records
from dpinfer.models import BayesianNeuralNetwork

_MAX_RECORDS = 2**31  # as in all runs


def check_network_records(
    model: BayesianNeuralNetwork, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[FloatArray, FloatArray]:
    """Return (X, y), standardised by the model's public scales, as the kernels read them, without null records.

    Without scales in the model, C-contiguous float64 records are not copied.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if an array does not hold real numbers. Raises RecordError if shapes disagree, there is no record,
    or a value is not finite.
    """
    features, response = as_record_array("X", X), as_record_array("y", y)
    check_layout(model, features, response)
    if not 0 < features.shape[0] <= _MAX_RECORDS:
        raise RecordError(f"X must have between 1 and {_MAX_RECORDS} rows")
    features, response = without_null_records(adjacency, features, response)
    # Overflow is no matter, and no warning: a contribution that is not finite is zero.
    with np.errstate(all="ignore"):
        # A sum is finite where all its terms are, save for overflow; looking at each number would copy the records.
        for name, array in (("X", features), ("y", response)):
            if not np.isfinite(np.sum(array, dtype=np.float64)) and not np.all(np.isfinite(array)):
                raise RecordError(f"{name} must be finite: it holds a NaN or an infinity")
        if model.feature_loc != 0.0 or model.feature_scale != 1.0:
            features = model.standardise_features(features)
        if model.target_loc != 0.0 or model.target_scale != 1.0:
            response = model.standardise_target(response)
    return np.ascontiguousarray(features, dtype=np.float64), np.ascontiguousarray(response, dtype=np.float64)
