"""How far and how fast the iterate wanders: the stationary law of the noisy gradient recursion."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.errors import NumericalError
from dpinfer.lab import _native

__all__ = [
    "autocorrelation",
    "covariance",
    "effective_sample_size",
    "max_learning_rate",
    "mixing_time",
    "spectral_radius",
    "trace_autocorrelation",
]

TIMES = ("discrete", "continuous")
FORMS = ("auto", "diagonal", "symmetric", "general")

_OK, _UNSTABLE = 0, 1  # codes of the compiled function


def covariance(
    A: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    sample_rate: float,
    noise_stddev: npt.ArrayLike,
    time: str = "discrete",
    *,
    form: str = "auto",
    n_threads: int | None = None,
) -> FloatArray:
    """Return the stationary covariance of ``x' = x - learning_rate * (sample_rate * A x + noise_stddev * eta)``.

    This is how far the iterates of DP-SGD wander around the optimum of a quadratic loss with Hessian A.
    Preconditioners need no argument of their own: ``noise_stddev`` is that of the released gradient, sigma C / beta,
    coordinate by coordinate, and a preconditioned step is a learning rate per coordinate.

    **Privacy.** Reads no records.  With an A inferred from a Release it is post-processing.

    Parameters
    ----------
    A : (d,), (d, d) or (..., d, d) array, or (..., d) with ``form="diagonal"``
        Hessian of the full-data loss at its optimum, or its diagonal; leading axes are a batch, such as draws of A.
    learning_rate : float, (d,) or (..., d) array
        Positive.
    sample_rate : float in (0, 1]
        Poisson sampling rate kappa.
    noise_stddev : float, (d,) or (..., d) array
        Standard deviation of the noise in every coordinate of the gradient, at least 0.
    time : {"discrete", "continuous"}
        "discrete" (default) is exact for the recursion; "continuous" is the Ornstein-Uhlenbeck approximation.
    form : {"auto", "diagonal", "symmetric", "general"}
        "auto": one axis means diagonal; matrices are symmetric when they equal their transpose exactly.
    n_threads : int, optional
        All by default.  Results do not depend on it.

    Returns
    -------
    (..., d) or (..., d, d) array
        Variances for diagonal A, else covariance matrices.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the recursion is not stable: no stationary law exists.
    NumericalError
        If LAPACK's eigenvalue iteration did not converge.

    Notes
    -----
    With ``M = kappa diag(lambda) A`` and ``D = diag((lambda tau)**2)``: ``M S + S M' - M S M' = D``, in continuous time
    without the last term.  For a scalar rate this is eq. A30 of NA-DPVI (Alrawajfeh, Jalko and Honkela 2025), whose
    second line has A for A' and so holds for symmetric A only, and the discrete equation of appendix F, whose last
    line lacks a kappa: a coordinate's variance is ``lambda sigma**2 C**2 / (kappa (2 a - lambda kappa a**2))``.
    Symmetric A with different rates is made symmetric by ``L = diag(sqrt(lambda))``; where ``lambda * tau**2 = c``
    everywhere, the solution is ``(c / 2) L ((kappa L A L)^-1 + (2 - kappa L A L)^-1) L``.  Matrices up to 32 x 32 are
    solved eight at a time by Smith's (1968) doubling; a solution whose error is not certain to be below 2e-11 of its
    size, and every larger matrix, by LAPACK (docs/derivations/planner.md).

    Examples
    --------
    >>> covariance([50.0, 20.0], 0.01, 0.1, 3.0).round(6).tolist()
    [0.009231, 0.022727]
    >>> covariance([50.0, 20.0], 0.01, 0.1, 3.0, time="continuous").round(6).tolist()
    [0.009, 0.0225]
    """
    hessian, form = _hessian(A, form)
    check_choice("time", time, TIMES)
    kappa = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    width = hessian.shape[-1]
    batch = hessian.shape[:-1] if form == "diagonal" else hessian.shape[:-2]
    rate = _vectors("learning_rate", learning_rate, batch, width, positive=True)
    noise = _vectors("noise_stddev", noise_stddev, batch, width, positive=False)
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1)
    code = FORMS.index(form) - 1
    stack = hessian.reshape((-1, width) if form == "diagonal" else (-1, width, width))
    result, status = _native.stationary_covariance(stack, rate, noise, kappa, code, time == "discrete", threads)
    if np.any(status != _OK):
        bad = int(np.argmax(status != _OK))
        if status[bad] != _UNSTABLE:
            raise NumericalError("the eigenvalue iteration of the stationary covariance did not converge")
        raise ValueError(_instability(stack[bad], rate if rate.ndim == 1 else rate[bad], kappa, time, form, bad, batch))
    return result.reshape(hessian.shape)


def spectral_radius(A: npt.ArrayLike, learning_rate: npt.ArrayLike, sample_rate: float) -> Any:
    """Return the largest modulus of the eigenvalues of ``I - kappa diag(learning_rate) A``; stable below 1.

    **Privacy.** Reads no records.

    Parameters
    ----------
    A, learning_rate, sample_rate
        As in :func:`covariance`.

    Returns
    -------
    float or (...) array
        One number per matrix of the batch.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Examples
    --------
    >>> spectral_radius([[2.0, 0.5], [0.5, 1.0]], 0.1, 1.0).round(4)
    np.float64(0.9207)
    """
    return np.max(np.abs(1.0 - _contractions(A, learning_rate, sample_rate, "auto")), axis=-1)


def mixing_time(
    A: npt.ArrayLike, learning_rate: npt.ArrayLike, sample_rate: float, time: str = "discrete", *, form: str = "auto"
) -> Any:
    """Return the number of steps in which the distance to the optimum falls by a factor e along the slowest direction.

    **Privacy.** Reads no records.

    Parameters
    ----------
    A, learning_rate, sample_rate, time, form
        As in :func:`covariance`.

    Returns
    -------
    float or (...) array
        ``-1 / log(spectral radius)``, or in continuous time one over the smallest real part of the eigenvalues of
        ``kappa diag(learning_rate) A``, about ``1 / (lambda kappa a)``; infinity where the recursion is not stable.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Examples
    --------
    >>> mixing_time([50.0, 20.0], 0.01, 0.1, time="continuous").round(9)
    np.float64(50.0)
    """
    check_choice("time", time, TIMES)
    values = _contractions(A, learning_rate, sample_rate, form)
    if time == "discrete":
        radius = np.max(np.abs(1.0 - values), axis=-1)
        with np.errstate(divide="ignore"):
            return np.where(radius < 1.0, -1.0 / np.log(np.minimum(radius, 1.0)), np.inf)[()]
    slowest = np.min(values.real, axis=-1)
    with np.errstate(divide="ignore"):
        return np.where(slowest > 0.0, 1.0 / np.maximum(slowest, 0.0), np.inf)[()]


def max_learning_rate(A: npt.ArrayLike, sample_rate: float) -> Any:
    """Return the supremum of the learning rates for which the recursion is stable.

    **Privacy.** Reads no records.

    Parameters
    ----------
    A, sample_rate
        As in :func:`covariance`.

    Returns
    -------
    float or (...) array
        ``min 2 Re(m) / |m|**2`` over the eigenvalues m of ``kappa A``; 0 where one of them has no
        positive real part, for then no rate is stable.  For symmetric A: ``2 / (kappa l_max)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Examples
    --------
    >>> max_learning_rate([50.0, 20.0], 0.1)
    np.float64(0.4)
    """
    values = _contractions(A, 1.0, sample_rate, "auto")
    with np.errstate(divide="ignore", invalid="ignore"):
        limits = 2.0 * values.real / np.abs(values) ** 2
    return np.min(np.where(values.real > 0.0, limits, 0.0), axis=-1)


def autocorrelation(
    A: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    sample_rate: float,
    noise_stddev: npt.ArrayLike,
    lags: npt.ArrayLike,
    time: str = "discrete",
    *,
    form: str = "auto",
) -> FloatArray:
    """Return the stationary autocorrelation of every coordinate.

    **Privacy.** Reads no records.

    Parameters
    ----------
    A : (d,) or (d, d) array
    learning_rate, sample_rate, noise_stddev, time, form
        As in :func:`covariance`.
    lags : (L,) array of int
        At least 0.

    Returns
    -------
    (L, d) array

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong or the recursion is not stable.

    Notes
    -----
    The autocovariance at lag h is ``Q**h S`` with ``Q = I - kappa diag(lambda) A``, in continuous time ``exp(-h M) S``.

    Examples
    --------
    >>> autocorrelation([50.0], 0.01, 0.1, 3.0, [0, 10]).round(3).tolist()
    [[1.0], [0.599]]
    """
    steps = np.asarray(lags)
    if steps.dtype.kind not in "iu":
        raise TypeError(f"lags must be integers, got dtype {steps.dtype}")
    if steps.ndim != 1 or np.any(steps < 0):
        raise ValueError("lags must be one-dimensional and at least 0")
    hessian, form = _hessian(A, form)
    variance = covariance(hessian, learning_rate, sample_rate, noise_stddev, time, form=form)
    if hessian.ndim != (1 if form == "diagonal" else 2):
        raise ValueError("A must be one matrix or one diagonal, got a batch")
    rate = _vectors("learning_rate", learning_rate, (), hessian.shape[-1], positive=True)
    if form == "diagonal":
        contraction = rate * sample_rate * hessian
        power = steps[:, None]
        return np.asarray((1.0 - contraction) ** power if time == "discrete" else np.exp(-contraction * power))
    values, vectors = np.linalg.eig(rate[:, None] * sample_rate * hessian)
    weights = np.linalg.solve(vectors, variance)
    base = 1.0 - values if time == "discrete" else np.exp(-values)
    moved = np.einsum("jk,lk,kj->lj", vectors, base[None, :] ** steps[:, None], weights).real
    return np.asarray(moved / np.diag(variance))


def trace_autocorrelation(trace: npt.ArrayLike, max_lag: int | None = None) -> FloatArray:
    """Return the empirical autocorrelation of every coordinate of a trace.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    trace : (T,) or (T, d) array
        At least four steps.
    max_lag : int, optional
        Largest lag, T - 1 by default.

    Returns
    -------
    (max_lag + 1,) or (max_lag + 1, d) array
        With the denominator T at every lag, by the fast Fourier transform; nan for a coordinate that does not move.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    """
    values = check_trace_array(trace)
    steps = values.shape[0]
    last = steps - 1 if max_lag is None else check_integer("max_lag", max_lag, 0, steps - 1)
    covariances = autocovariance(values)[: last + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariances / covariances[0])


def _hessian(A: npt.ArrayLike, form: str) -> tuple[FloatArray, str]:
    check_choice("form", form, FORMS)
    hessian = check_float_array("A", A, finite=False)
    if np.ndim(A) == 0 or hessian.size == 0:
        raise ValueError(f"A must have at least one coordinate and one matrix, got shape {np.shape(A)}")
    if form == "auto" and hessian.ndim == 1:
        form = "diagonal"
    if form == "diagonal":
        return check_float_array("A", hessian), form
    if hessian.ndim < 2 or hessian.shape[-1] != hessian.shape[-2]:
        raise ValueError(
            f"A must hold square matrices, got shape {hessian.shape}; say form='diagonal' for a batch of diagonals"
        )
    finite, symmetric = _native.check_matrices(hessian.reshape(-1, *hessian.shape[-2:]), 0)
    if not finite:
        raise ValueError("A must be finite, got a NaN or an infinity")
    if form == "symmetric" and not symmetric:
        raise ValueError("A must equal its transpose with form='symmetric'")
    return hessian, form if form != "auto" else "symmetric" if symmetric else "general"


def _vectors(name: str, value: npt.ArrayLike, batch: tuple[int, ...], width: int, *, positive: bool) -> FloatArray:
    """Return (d,) when it is shared by the batch, else (S, d)."""
    array = check_float_array(name, value, () if np.ndim(value) == 0 else None)
    if positive and not np.all(array > 0.0):
        raise ValueError(f"{name} must be positive")
    if not np.all(array >= 0.0):
        raise ValueError(f"{name} must be at least 0")
    if array.ndim <= 1:
        if array.ndim == 1 and array.shape[0] != width:
            raise ValueError(f"{name} must be a number or have length {width}, got {array.shape[0]}")
        return np.ascontiguousarray(np.broadcast_to(array, (width,)))
    if array.shape != (*batch, width):
        raise ValueError(f"{name} must have shape {(*batch, width)} like the batch of A, got {array.shape}")
    return np.ascontiguousarray(array.reshape(-1, width))


def _contractions(A: npt.ArrayLike, rate: npt.ArrayLike, sample_rate: float, form: str) -> npt.NDArray[Any]:
    """Return the eigenvalues of ``kappa diag(rate) A``, (..., d)."""
    hessian, form = _hessian(A, form)
    kappa = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    width = hessian.shape[-1]
    batch = hessian.shape[:-1] if form == "diagonal" else hessian.shape[:-2]
    rates = _vectors("learning_rate", rate, batch, width, positive=True)
    rates = rates if rates.ndim == 1 else rates.reshape(*batch, width)
    if form == "diagonal":
        return np.asarray(kappa * rates * hessian)
    root = np.sqrt(rates)
    scaled = kappa * root[..., :, None] * hessian * root[..., None, :]
    return np.asarray(np.linalg.eigvalsh(scaled) if form == "symmetric" else np.linalg.eigvals(scaled))


def _instability(
    hessian: FloatArray, rate: FloatArray, kappa: float, time: str, form: str, index: int, batch: tuple[int, ...]
) -> str:
    values = _contractions(hessian, rate, kappa, form)
    where = "" if not batch else f" for matrix {index} of the batch"
    if np.min(values.real) <= 0.0:
        return (
            f"A must have eigenvalues with positive real parts (times the learning rates){where}, got "
            f"{values.real.min():g}: no learning rate is stable"
        )
    limit = float(np.min(2.0 * values.real / np.abs(values) ** 2))
    return (
        f"learning_rate must be below {limit:.6g} times its value to be stable in {time} time{where}: the largest "
        f"eigenvalue modulus of I - kappa diag(learning_rate) A is {np.max(np.abs(1.0 - values)):.6g}"
    )


def effective_sample_size(trace: npt.ArrayLike) -> Any:
    """Return how many independent draws the mean of each coordinate of a stationary trace is worth.

    Raises TypeError or ValueError if the trace is not numeric, finite and long enough.

    Parameters
    ----------
    trace : (T,) or (T, d) array
        At least four steps, after the burn-in.

    Returns
    -------
    float or (d,) array
        ``T / (1 + 2 sum of autocorrelations)``, at most T log10(T); nan for a coordinate that does not move.

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
