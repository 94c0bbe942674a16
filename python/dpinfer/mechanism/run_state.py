"""The state of a private run between two steps, for its checkpoint."""

import hashlib
from collections.abc import Mapping

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import CheckpointError


def snapshot(trace: Mapping[str, FloatArray], current: Mapping[str, FloatArray], made: int) -> dict[str, FloatArray]:
    """Return the state after `made` steps: the releases, and the start of the next step.

    Parameters
    ----------
    trace : mapping from name to array
        Arrays with a row for each step, or with one row that is common to all steps.
    current : mapping from name to array
        The start of the next step; no name of `trace`.
    """
    return {**current, **{name: array[: min(made, len(array))] for name, array in trace.items()}}


def restore(
    trace: Mapping[str, FloatArray], current: Mapping[str, FloatArray], done: int, saved: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Fill the rows of `trace` that are `done` from the saved state, and return the start of the next step.

    Raises CheckpointError if it is no snapshot of such a run.

    Parameters
    ----------
    trace : mapping from name to array
        Changed in place.
    current : mapping from name to array
        Where the run started: gives names and shapes, and is returned when nothing was done.
    saved : mapping from name to array
        A :func:`snapshot`.
    """
    if not done:
        return dict(current)
    steps = max((len(array) for array in trace.values()), default=done)
    shapes = {name: array.shape for name, array in snapshot(trace, current, done).items()}
    if done > steps or {name: array.shape for name, array in saved.items()} != shapes:
        raise CheckpointError("the checkpoint is damaged: its arrays are not those of this run")
    for name, array in trace.items():
        array[: len(saved[name])] = saved[name]
    return {name: saved[name] for name in current}


def hash_numbers(*arrays: FloatArray) -> str:
    """Return a hash of public numbers, for the description of a run's settings."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()
