"""What a simulated run follows: expected gradients, from guessed curvature or public pilot data, and its moments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.models.base import sigmoid, softplus


@dataclass(frozen=True)
class WindowMoments:
    """Moments of ``x' = x - r_t (c x + q_t eta)`` from 0 over the steps of a window, in the units of x."""

    # variance of the mean of the gradients over c, that is, of the distance from the positions' mean to the estimate
    # of the optimum
    gradient_mean: float
    spread: float  # expected variance of the positions within the window, S_xx / n
    start: float  # remaining part, in the mean of the positions, of a unit distance at the start


def window_moments(rates: FloatArray, slope: float, noise: FloatArray, first: int) -> WindowMoments:
    """Return the moments for learning rates (T,), noise standard deviations (T,) and the first step of the window.

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
    rates: FloatArray,  # (T,)
    slopes: Sequence[float],  # factors of the slopes after clipping, for the weights and the noise variance
    noise: float,  # q
    *,
    start: float,  # mean square distance of the start, in posterior variances
    n_weights: int,
    n_records: int,
    max_grad_norm: float,  # while s / f is large, the gradients are clipped
) -> FloatArray:
    """Return the excess of a regression's noise variance at every step, because its weights wander, (T,).

    The weights' distance v, in posterior variances, and the inflation f follow ``v' = (1 - r c)^2 v + r^2 q^2 f`` and
    ``log f' = log f - r c (1 - s / f)``, ``s = 1 + n (v + f) / N``.
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


_PROBIT = np.pi / 8.0  # sigmoid(m / sqrt(1 + pi v / 8)) is E[sigmoid] under N(m, v), to about 0.02


class Drift(Protocol):
    """The gradient of the full-data loss that R simulated runs see."""

    def gradient(self, loc: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient in loc and the second derivative in every parameter, each (R, n)."""

    def hessian(self) -> FloatArray:
        """Return the Hessian at the R optima, (R, n, n)."""

    def optima(self) -> FloatArray:
        """Return the optima, (R, n)."""

    def information(self) -> FloatArray:
        """Return the sum over the records of the gradients' outer products at the optima, (R, n, n)."""


@dataclass(frozen=True)
class QuadraticLoss:
    """A quadratic loss with its optimum drawn from the prior."""

    optimum: FloatArray  # (R, n)
    curvature: FloatArray  # (R, n, n): of the records' loss
    prior_precision: FloatArray  # (n,): the prior's part of the curvature

    def gradient(self, loc: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient in loc and the second derivatives."""
        hessian = self.hessian()
        slope = np.einsum("rij,rj->ri", hessian, loc - self.optimum)
        return np.asarray(slope), np.asarray(np.einsum("rii->ri", hessian))

    def hessian(self) -> FloatArray:
        """Return the curvature, the prior's share included."""
        return self.curvature + np.diag(self.prior_precision)

    def optima(self) -> FloatArray:
        """Return the optima."""
        return self.optimum

    def information(self) -> FloatArray:
        """Return the records' curvature: the information equality."""
        return self.curvature


@dataclass(frozen=True)
class LogisticPilot:
    """The expected clipped gradients of logistic regression on pilot features, with labels that follow the model."""

    design: FloatArray  # (m, n): pilot features, the intercept's column included
    truth: FloatArray  # (R, n): weights that the labels follow
    scale_up: float  # number of records over m
    prior_precision: float
    max_grad_norm: float = np.inf  # clipping norm of the preconditioned gradients
    raw_grad_scale: float = 0.0  # preconditioner of the raw_scale gradients; that of loc is 1

    def gradient(self, loc: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient in loc and the second derivatives."""
        squares = np.square(self.design)
        widened = np.sqrt(1.0 + _PROBIT * (squares @ np.square(scale).T))
        probability = sigmoid((self.design @ loc.T) / widened)
        slope = probability * (1.0 - probability) / widened
        labels = self._labels()
        # s s' is about s**2 while s is small.
        raw_norm = self.raw_grad_scale**2 * np.square(slope) * (np.square(squares) @ (scale**4).T)
        row = squares.sum(axis=1)[:, None]
        residual, kept = np.zeros_like(slope), np.zeros_like(slope)
        for label, share in ((1.0, labels), (0.0, 1.0 - labels)):
            residuals = probability - label
            factor = np.minimum(1.0, self.max_grad_norm / np.sqrt(np.square(residuals) * row + raw_norm + 1e-300))
            residual += share * factor * residuals
            kept += share * factor
        first = self.scale_up * (residual.T @ self.design) + self.prior_precision * loc
        second = self.scale_up * ((kept * slope).T @ squares) + self.prior_precision
        return first, second

    def _labels(self) -> FloatArray:
        return np.asarray(sigmoid(self.design @ self.truth.T))

    def hessian(self) -> FloatArray:
        """Return the Hessian at the truth."""
        return np.asarray(self.information() + self.prior_precision * np.eye(self.design.shape[1]))

    def optima(self) -> FloatArray:
        """Return the modes: the truth, moved by the prior to first order."""
        pull = self.prior_precision * self.truth
        return np.asarray(self.truth - np.linalg.solve(self.hessian(), pull[..., None])[..., 0])

    def information(self) -> FloatArray:
        """Return the records' share of the Hessian at the truth: the information equality."""
        probability = self._labels()
        weights = self.scale_up * probability * (1.0 - probability)
        return np.stack([(self.design.T * column) @ self.design for column in weights.T])


def scale_gradient(raw: FloatArray, second: FloatArray) -> FloatArray:
    """Return the gradient in raw_scale from the second derivative of the expected loss: ``s' (h s - 1 / s)``."""
    scale = softplus(raw)
    return np.asarray(sigmoid(raw) * (second * scale - 1.0 / np.maximum(scale, 1e-300)))
