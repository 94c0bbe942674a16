"""Results of the NA-DPVI paper about a trace: its information about the Hessian, and stable learning rates."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize

from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.lab.stationary.recursion import TIMES, covariance, max_learning_rate

__all__ = [
    "gradient_norm_bound",
    "hessian_stddev",
    "hessian_stddev_bound",
    "heuristic_learning_rate",
    "learning_rate_limit",
    "mean_square_distance",
    "optimal_learning_rate",
]


def hessian_stddev(square_distance: npt.ArrayLike, sample_rate: float, noise_stddev: npt.ArrayLike) -> Any:
    """Return the standard deviation of a trace's estimate of the Hessian's diagonal when the optimum is known.

    **Privacy.** Reads no records.

    Parameters
    ----------
    square_distance : float or (d,) array
        Sum over the steps used of ``(phi_t - phi*)**2``, positive.
    sample_rate : float in (0, 1]
    noise_stddev : float or (d,) array
        Of the released gradient.

    Returns
    -------
    float or (d,) array
        ``noise_stddev / (sample_rate * sqrt(square_distance))``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    NA-DPVI (2025), eq. A16.
    """
    shape: tuple[int, ...] | None = () if np.ndim(square_distance) == 0 else None
    square = check_float_array("square_distance", square_distance, shape)
    if not np.all(square > 0.0):
        raise ValueError("square_distance must be positive")
    kappa = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    noise = check_float_array("noise_stddev", noise_stddev, () if np.ndim(noise_stddev) == 0 else None)
    return np.asarray(noise / (kappa * np.sqrt(square)))[()]


def hessian_stddev_bound(
    radius: float, n_coordinates: int, n_steps_used: int, sample_rate: float, noise_stddev: float
) -> float:
    """Return a lower bound on the largest standard deviation of an estimated Hessian diagonal (Theorem 2).

    **Privacy.** Reads no records.

    Parameters
    ----------
    radius : float
        r*: all iterates that are used lie within this distance of the optimum.
    n_coordinates : int
        d.
    n_steps_used : int
        T - T*.
    sample_rate : float in (0, 1]
    noise_stddev : float
        sigma C.

    Returns
    -------
    float
        ``sqrt(d / (T - T*)) sigma C / (kappa r*)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    NA-DPVI (2025), Theorem 2 in the form of eq. A22, which bounds a **standard deviation**; eq. A9 prints a variance in
    its place, and does not hold.

    Examples
    --------
    >>> round(hessian_stddev_bound(0.5, 2, 800, 0.1, 4.0), 6)
    4.0
    """
    radius = check_interval("radius", radius, 0.0)
    d = check_integer("n_coordinates", n_coordinates, 1)
    steps = check_integer("n_steps_used", n_steps_used, 1)
    kappa = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    noise = check_interval("noise_stddev", noise_stddev, 0.0, low_open=False)
    return math.sqrt(d / steps) * noise / (kappa * radius)


def mean_square_distance(
    A: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    sample_rate: float,
    noise_stddev: npt.ArrayLike,
    time: str = "discrete",
) -> float:
    """Return the stationary mean of the squared distance to the optimum, the trace of the covariance.

    **Privacy.** Reads no records.

    Parameters
    ----------
    A : (d,) or (d, d) array
    learning_rate, sample_rate, noise_stddev, time
        As in :func:`dpinfer.lab.stationary.covariance`.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong or the recursion is not stable.

    Notes
    -----
    Continuous time, diagonal A: ``lambda sigma**2 C**2 Tr(A^-1) / (2 kappa)``, NA-DPVI (2025), eq. A32.  Discrete
    time: ``lambda sigma**2 C**2 / kappa`` times the sum of ``1 / (2 l - lambda kappa l**2)`` over the eigenvalues; the
    last line of appendix F prints ``2 l - lambda l**2``.
    """
    variance = covariance(A, learning_rate, sample_rate, noise_stddev, time)
    return float(np.sum(variance) if variance.ndim == 1 else np.trace(variance))


def learning_rate_limit(
    A: npt.ArrayLike, radius: float, sample_rate: float, noise_stddev: float, time: str = "continuous"
) -> float:
    """Return the learning rate at which the stationary root mean square distance reaches a radius (Theorem 3).

    **Privacy.** Reads no records.

    Parameters
    ----------
    A : (d,) or (d, d) array
        Hessian with positive eigenvalues.
    radius : float
        r*: how far from the optimum the loss is still nearly quadratic.
    sample_rate : float in (0, 1]
    noise_stddev : float
        sigma C, the same for every coordinate.
    time : {"continuous", "discrete"}
        "continuous" is the theorem's; "discrete" is exact for the recursion and smaller.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong or A has an eigenvalue without a positive real part.

    Notes
    -----
    NA-DPVI (2025), Theorem 3, eq. A10: ``2 kappa r*^2 / (sigma**2 C**2 Tr(A^-1))``.

    Examples
    --------
    >>> round(learning_rate_limit([50.0, 20.0], 0.3, 0.1, 3.0), 6)
    0.028571
    """
    check_choice("time", time, TIMES)
    radius = check_interval("radius", radius, 0.0)
    noise = check_interval("noise_stddev", noise_stddev, 0.0)
    limit = float(max_learning_rate(A, sample_rate))
    if limit == 0.0:
        raise ValueError("A must have eigenvalues with positive real parts")

    def excess(rate: float) -> float:
        return mean_square_distance(A, rate, sample_rate, noise, time) - radius**2

    first = radius**2 / mean_square_distance(A, 1.0, sample_rate, noise, "continuous")
    if time == "continuous":
        return first  # the covariance is proportional to the rate
    high = limit * (1.0 - 1e-9)
    if excess(high) <= 0.0:
        return limit
    return float(optimize.brentq(excess, 1e-12 * high, high, xtol=1e-300, rtol=1e-13))


def gradient_norm_bound(
    learning_rate: float,
    *,
    initial_gap: float,
    smoothness: float,
    n_steps: int,
    sample_rate: float,
    n_coordinates: int,
    noise_stddev: float,
    gradient_bound: float,
    subsampling_error: float = 0.0,
) -> float:
    """Return the bound of Theorem 4 on the mean squared norm of the full gradient over the steps.

    **Privacy.** Reads no records; the gap, smoothness and bounds must be public.

    Parameters
    ----------
    learning_rate : float
        One for all coordinates.
    initial_gap : float
        ``L(phi_0) - inf L``.
    smoothness : float
        H, the Lipschitz constant of the gradient.
    n_steps : int
    sample_rate : float in (0, 1]
    n_coordinates : int
        d.
    noise_stddev : float
        sigma C.
    gradient_bound : float
        G, the supremum of the full gradient's norm.
    subsampling_error : float
        e_sub, root mean square distance of the sampled gradient from kappa times the full one.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    NA-DPVI (2025), Theorem 4, eq. A11.  Like :func:`optimal_learning_rate` it needs the sum convention of eq. A42: the
    loss is the sum over the records, and a step moves by the learning rate times the sum over a batch.
    """
    rate = check_interval("learning_rate", learning_rate, 0.0)
    spread = _spread(sample_rate, n_coordinates, noise_stddev, gradient_bound, subsampling_error)
    steps = check_integer("n_steps", n_steps, 1)
    gap = check_interval("initial_gap", initial_gap, 0.0, low_open=False)
    curvature = check_interval("smoothness", smoothness, 0.0)
    return gap / (steps * rate * sample_rate) + curvature / (2.0 * sample_rate) * spread * rate


def optimal_learning_rate(
    *,
    initial_gap: float,
    smoothness: float,
    n_steps: int,
    sample_rate: float,
    n_coordinates: int,
    noise_stddev: float,
    gradient_bound: float,
    subsampling_error: float = 0.0,
) -> float:
    """Return the learning rate that minimises the bound of Theorem 4.

    **Privacy.** Reads no records; the gap, smoothness and bounds must be public.

    Parameters
    ----------
    initial_gap, smoothness, n_steps, sample_rate, n_coordinates, noise_stddev, gradient_bound, subsampling_error
        As in :func:`gradient_norm_bound`.

    Returns
    -------
    float
        ``sqrt(2 gap / (H T (e_sub**2 + kappa**2 G**2 + sigma**2 C**2 d)))``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    NA-DPVI (2025), appendix G, lambda_opt.
    """
    spread = _spread(sample_rate, n_coordinates, noise_stddev, gradient_bound, subsampling_error)
    steps = check_integer("n_steps", n_steps, 1)
    gap = check_interval("initial_gap", initial_gap, 0.0)
    curvature = check_interval("smoothness", smoothness, 0.0)
    return math.sqrt(2.0 * gap / (curvature * steps * spread))


def heuristic_learning_rate(
    noise_multiplier: float, max_grad_norm: float, n_steps: int, n_coordinates: int, factor: float = 1.0
) -> float:
    """Return the paper's heuristic learning rate, to be multiplied by the preconditioner.

    **Privacy.** Reads no records.

    Parameters
    ----------
    noise_multiplier, max_grad_norm : float
        sigma and C.
    n_steps, n_coordinates : int
        T and d.
    factor : float
        lambda_c; the paper uses 1 and ``sqrt(d / 2)``.

    Returns
    -------
    float
        ``sqrt(2) lambda_c / (sigma C sqrt(T d))``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    NA-DPVI (2025), eq. A55.  It drops the gap, the smoothness and the gradient bound from lambda_opt, so that a
    coordinate whose curvature is small need not converge within T steps.

    Examples
    --------
    >>> heuristic_learning_rate(10.0, 2.0, 10_000, 2)
    0.0005
    """
    noise = check_interval("noise_multiplier", noise_multiplier, 0.0)
    norm = check_interval("max_grad_norm", max_grad_norm, 0.0)
    steps = check_integer("n_steps", n_steps, 1)
    d = check_integer("n_coordinates", n_coordinates, 1)
    return math.sqrt(2.0) * check_interval("factor", factor, 0.0) / (noise * norm * math.sqrt(steps * d))


def _spread(
    sample_rate: float, n_coordinates: int, noise_stddev: float, gradient_bound: float, subsampling_error: float
) -> float:
    """Return the mean square of a released gradient, at most."""
    kappa = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    d = check_integer("n_coordinates", n_coordinates, 1)
    noise = check_interval("noise_stddev", noise_stddev, 0.0, low_open=False)
    bound = check_interval("gradient_bound", gradient_bound, 0.0, low_open=False)
    error = check_interval("subsampling_error", subsampling_error, 0.0, low_open=False)
    return error**2 + (kappa * bound) ** 2 + noise**2 * d
