"""Counts of posterior draws against the truth: the compiled part of coverage tests."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer
from dpinfer.lab import _native

__all__ = ["check_draws", "check_thetas", "draw_moments", "tarp_counts"]

CountArray = npt.NDArray[np.uint32]
DrawArray: TypeAlias = npt.NDArray[np.float64] | npt.NDArray[np.float32]


def check_draws(name: str, value: npt.ArrayLike) -> DrawArray:
    """Return posterior draws (n_draws, n_sims, n_dims) as a C-contiguous array, float32 if they are float32.

    **Privacy.** Posterior draws are post-processing of a Release.

    Parameters
    ----------
    name : str
        Name of the array in errors.
    value : (n_draws, n_sims, n_dims) array

    Returns
    -------
    (n_draws, n_sims, n_dims) float64 or float32 array
        Without a copy where `value` is one already; finiteness is checked by the pass over the draws.

    Raises
    ------
    TypeError, ValueError
        If it is not a non-empty, three-dimensional array of real numbers.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be an array of real numbers, got dtype {array.dtype}")
    if array.ndim != 3 or array.size == 0:
        raise ValueError(f"{name} must have shape (n_draws, n_sims, n_dims), none of them 0, got {array.shape}")
    if array.dtype == np.float32:
        return np.ascontiguousarray(array, dtype=np.float32)
    return np.ascontiguousarray(array, dtype=np.float64)


def tarp_counts(
    samples: DrawArray, thetas: FloatArray, references: FloatArray, scales: FloatArray, *, n_threads: int | None = None
) -> tuple[CountArray, CountArray]:
    """Count the draws nearer to each reference point than the truth, jointly and in each dimension.

    **Privacy.** Post-processing of a Release: reads posterior draws, no records.

    Parameters
    ----------
    samples : (S, K, d) float64 or float32, C-contiguous
        S posterior draws of each of K simulations; finite.
    thetas : (K, d) float64
        The value each simulation was made from.
    references : (R, K, d) float64
        R reference points for each simulation.
    scales : (K, d) float64
        The distance is Euclidean in units of these; positive.
    n_threads : int, optional
        All by default.  The result does not depend on it.

    Returns
    -------
    joint : (R, K) uint32
    marginal : (R, K, d) uint32
        Doubled counts: twice the number of nearer draws plus the number of ties, so divide by 2 S.

    Raises
    ------
    ValueError
        If shapes disagree or a number is not finite.

    Notes
    -----
    NA-DPVI (2025), eq. A63; a tie, which a continuous posterior has with probability zero, counts half.  The samples
    are read once, for any number of reference points.

    Examples
    --------
    >>> import numpy as np
    >>> draws = np.array([1.0, 2.0, 3.0, 5.0]).reshape(4, 1, 1)
    >>> joint, marginal = tarp_counts(draws, np.array([[3.0]]), np.zeros((1, 1, 1)), np.ones((1, 1)))
    >>> joint.tolist()
    [[5]]
    """
    if not np.all(scales > 0.0):
        raise ValueError("scales must be positive")
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1)
    with np.errstate(over="ignore"):
        inverse_scales = 1.0 / scales
    return _native.tarp_counts(samples, thetas, references, inverse_scales, threads)


def draw_moments(samples: DrawArray, *, n_threads: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Return the mean of the draws and their centred sum of squares, each (K, d), in one pass.

    **Privacy.** Post-processing of a Release: reads posterior draws, no records.

    Parameters
    ----------
    samples : (S, K, d) float64 or float32, C-contiguous
    n_threads : int, optional
        All by default.  The result does not depend on it.

    Returns
    -------
    mean, squares : (K, d) float64
        The variance of the draws is ``squares / (S - 1)``.

    Raises
    ------
    ValueError
        If a draw is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> mean, squares = draw_moments(np.array([1.0, 2.0, 6.0]).reshape(3, 1, 1))
    >>> mean.item(), squares.item()
    (3.0, 14.0)
    """
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1)
    return _native.draw_moments(samples, threads)


def check_thetas(thetas: npt.ArrayLike, samples: DrawArray) -> FloatArray:
    """Return the true values as (K, d) float64 that fit the draws.

    **Privacy.** True values of simulations: no records.
    """
    return check_float_array("thetas", thetas, samples.shape[1:])
