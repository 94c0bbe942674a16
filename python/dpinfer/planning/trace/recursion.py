"""Moments of one coordinate's noisy recursion over a schedule, and the information in a window of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray


@dataclass(frozen=True)
class WindowMoments:
    """Moments of ``x' = x - r_t (c x + q_t eta)`` from 0 over the steps of a window, in the units of x.

    Parameters
    ----------
    gradient_mean : float
        Variance of the mean of the gradients over c, that is, of the distance from the positions' mean to the estimate
        of the optimum.
    spread : float
        Expected variance of the positions within the window, S_xx / n.
    start : float
        Remaining part, in the mean of the positions, of a unit distance at the start.
    """

    gradient_mean: float
    spread: float
    start: float


def window_moments(rates: FloatArray, slope: float, noise: FloatArray, first: int) -> WindowMoments:
    """Return the moments for learning rates (T,), noise standard deviations (T,) and the first step of the window.

    Notes
    -----
    Any mean over the window is linear in the noises; its coefficients follow from one backward pass
    (docs/derivations/planner.md).
    """
    steps = rates.shape[0]
    size = steps - first
    keep = 1.0 - rates * slope
    influence = np.zeros(steps + 1)  # d(mean position) / d(position at t)
    for t in range(steps - 1, -1, -1):
        influence[t] = keep[t] * influence[t + 1] + (1.0 / size if t >= first else 0.0)
    position = -rates * noise * influence[1:]
    used = np.arange(steps) >= first
    gradient = position + np.where(used, noise / (slope * size), 0.0)
    square = 0.0
    total = 0.0
    for t in range(steps):
        if t >= first:
            total += square / size
        square = keep[t] ** 2 * square + (rates[t] * noise[t]) ** 2
    spread = max(total - float(np.sum(position**2)), 0.0)
    return WindowMoments(float(np.sum(gradient**2)), spread, float(influence[0]))


def inflated_noise(
    rates: FloatArray,
    slopes: Sequence[float],
    noise: float,
    *,
    start: float,
    n_weights: int,
    n_records: int,
    max_grad_norm: float,
) -> FloatArray:
    """Return the excess of a regression's noise variance at every step, because its weights wander, (T,).

    The weights' distance v, in posterior variances, and the inflation f follow ``v' = (1 - r c)^2 v + r^2 q^2 f`` and
    ``log f' = log f - r c (1 - s / f)``, ``s = 1 + n (v + f) / N``.

    Parameters
    ----------
    rates : (T,) array
    slopes : pair of float
        Factors of the slopes after clipping, for the weights and the noise variance.
    noise : float
        q.
    start : float
        Mean square distance of the start, in posterior variances.
    max_grad_norm : float
        While s / f is large, the gradients are clipped.
    """
    result = np.empty(rates.shape[0])
    v, f = start, 1.0
    for t, rate in enumerate(rates):
        result[t] = f
        seen = 1.0 + n_weights * (v + f) / n_records
        shrink = min(1.0, max_grad_norm / np.sqrt(n_weights * seen / f))
        v = (1.0 - rate * slopes[0] * shrink) ** 2 * v + rate**2 * noise**2 * f
        f = f * float(np.exp(-rate * slopes[1] * shrink * max(1.0 - seen / f, -10.0)))
    return result
