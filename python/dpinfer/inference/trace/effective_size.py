"""How many independent draws a correlated trace is worth."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array


def effective_sample_size(trace: npt.ArrayLike) -> Any:
    """Return how many independent draws the mean of each coordinate of a stationary trace is worth.

    Parameters
    ----------
    trace : (T,) or (T, d) array
        At least four steps, after the burn-in.

    Returns
    -------
    float or (d,) array
        ``T / (1 + 2 sum of autocorrelations)``, at most T log10(T); nan for a coordinate that does not move.

    Raises
    ------
    TypeError, ValueError
        If the trace is not numeric, finite and long enough.

    Notes
    -----
    The sum runs over Geyer's (1992) initial monotone sequence: sums of neighbouring pairs of autocorrelations while
    they are positive, each cut to the one before it; valid for reversible chains, which a stationary linear recursion
    with a symmetric Hessian and equal rates is.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> bool(0.8 < effective_sample_size(rng.normal(size=4000)) / 4000 < 1.2)
    True
    """
    values = check_trace_array(trace)
    steps = values.shape[0]
    columns = values.reshape(steps, -1)
    covariances = autocovariance(columns)
    pairs = steps // 2
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariances / covariances[0]
    sums = correlation[: 2 * pairs].reshape(pairs, 2, -1).sum(axis=1)
    positive = np.cumprod(sums > 0.0, axis=0, dtype=np.int64)
    monotone = np.minimum.accumulate(np.where(positive == 1, sums, 0.0), axis=0)
    time = 2.0 * monotone.sum(axis=0) - 1.0
    size = np.where(np.isfinite(correlation[0]), steps / np.maximum(time, 1.0 / np.log10(steps)), np.nan)
    return size.reshape(values.shape[1:])[()]


def check_trace_array(trace: npt.ArrayLike) -> FloatArray:
    """Return a trace (T,) or (T, d) of at least four steps, checked."""
    values = check_float_array("trace", trace)
    if values.ndim not in (1, 2) or values.shape[0] < 4:
        raise ValueError(f"trace must be (T,) or (T, d) with at least 4 steps, got shape {values.shape}")
    return values


def autocovariance(values: FloatArray) -> FloatArray:
    """Return the autocovariances of each column at all lags, (T,) or (T, d)."""
    steps = values.shape[0]
    centred = values - values.mean(axis=0)
    transform = fft.rfft(centred, n=fft.next_fast_len(2 * steps, real=True), axis=0)
    return np.asarray(fft.irfft(np.abs(transform) ** 2, axis=0)[:steps] / steps)
