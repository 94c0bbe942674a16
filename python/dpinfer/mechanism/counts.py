"""Noisy counts of labels: exact integers, then an exactly rounded Gaussian."""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import IntArray
from dpinfer.mechanism import _native

# More than the rounding of the square root and of one product.
_ROUNDING = 1.0 + 2.0**-50


def noisy_counts(
    labels: Iterable[tuple[npt.NDArray[np.intp], int]], n_columns: int, *, noise_multiplier: float, key: bytes
) -> tuple[list[IntArray], float]:
    """Count the labels of every column, and add noise.

    **Privacy.** Reads the records.  One record has at most one label in each column, so adding, removing or blanking it
    moves the counts by at most sqrt(n_columns) in the L2 norm, and replacing it by at most twice that (sqrt(2
    n_columns)).  The event is ``GaussianEvent(noise_multiplier)``: docs/derivations/released-shares.md.

    Parameters
    ----------
    labels : iterable of (labels, size)
        For each column the labels of the records that have one, integers below `size`.
    n_columns : int
        Number of columns: the most that `labels` may hold.
    noise_multiplier : float
        Positive.
    key : bytes
        32 bytes, from ``RandomSource.take_key()``; for nothing else.

    Returns
    -------
    list of (size,) int64, float
        Noisy counts, which may be negative, and the standard deviation of the noise in each.
    """
    counts = [np.bincount(column, minlength=size).astype(np.int64) for column, size in labels]
    if len(counts) != n_columns:
        raise ValueError(f"labels must hold n_columns = {n_columns} columns, got {len(counts)}")
    stddev = noise_multiplier * math.sqrt(n_columns) * _ROUNDING
    noise, _ = _native.rounded_gaussian(key, 0, stddev, sum(count.size for count in counts))
    ends = np.cumsum([count.size for count in counts])[:-1]
    return [count + part for count, part in zip(counts, np.split(noise, ends), strict=True)], stddev
