"""Preconditioners and learning rates: functions of public settings and of the already released iterate only."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_choice, check_float_array, check_interval
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.bijectors import sigmoid, softplus

__all__ = ["FisherScaling", "GradScale", "LearningRate", "Schedule", "StepPolicy"]

FloatArray = npt.NDArray[np.float64]
Schedule = Callable[[int, FloatArray], npt.ArrayLike]
GradScale = float | tuple[float, float] | npt.ArrayLike | Schedule
LearningRate = str | float | npt.ArrayLike | Schedule

_SMALLEST_SCALE, _LARGEST_SCALE = 1e-30, 1e30


@dataclass(frozen=True)
class FisherScaling:
    """Preconditioner and natural steps from the model's expected information at the released iterate.

    With I_j the per-record expected information of weight j under public second moments of the features,
    beta_loc = I**(-1/2) and beta_raw = rho / (s s' I); the steps are
    ``rate(t) / (kappa N I)`` for loc and ``rate(t) / (kappa s'**2 (N I + 1 / s**2))`` for raw_scale.

    **Privacy.** Depends on past releases and public numbers only: no privacy cost.

    Parameters
    ----------
    model : GeneralizedLinearModel
        Logistic, probit or Poisson.
    n_records : int
        The public number of records.
    sample_rate : float in (0, 1]
    n_steps : int
    second_moments : float or (n_features,) array
        Public guesses of E[x_j**2], positive; 1 for standardised features.
    raw_ratio : float
        rho, the share of the clipping norm given to the raw_scale gradients.
    rate : float
        Base rate lambda; the first fifth of the steps uses five times it.

    Notes
    -----
    The expected information of the logistic model is E[p(1 - p)] with a Gaussian linear predictor of variance
    ``second_moments @ (loc**2 + s**2)``, approximated by ``1 / (4 sqrt(1 + pi v / 8))``; of the probit model by
    ``2 / (pi sqrt(1 + v))``, and of the Poisson model by ``exp(v / 2)`` at most 1e6.
    """

    model: GeneralizedLinearModel
    n_records: int
    sample_rate: float
    n_steps: int
    second_moments: float | npt.ArrayLike = 1.0
    raw_ratio: float = 0.4
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.model.has_dispersion:
            raise ValueError("model must have no noise variance, got a Gaussian likelihood")
        moments = np.asarray(self.second_moments, dtype=np.float64)
        if moments.ndim == 0:
            moments = np.full(self.model.n_features, float(moments))
        moments = check_float_array("second_moments", moments, (self.model.n_features,))
        if not np.all(moments > 0.0):
            raise ValueError("second_moments must be positive")
        if self.model.fit_intercept:
            moments = np.append(moments, 1.0)
        object.__setattr__(self, "second_moments", moments)
        check_interval("raw_ratio", self.raw_ratio, 0.0)
        rate = 10.0 / self.n_steps if self.rate is None else check_interval("rate", self.rate, 0.0)
        object.__setattr__(self, "rate", rate)

    def information(self, params: FloatArray) -> FloatArray:
        """Return the per-record expected information I_j at (loc, raw_scale), shape (n,)."""
        n = params.size // 2
        moments = np.asarray(self.second_moments)
        spread = float(moments @ (params[:n] ** 2 + softplus(params[n:]) ** 2))
        if self.model.likelihood == "logistic":
            level = 0.25 / math.sqrt(1.0 + math.pi * spread / 8.0)
        elif self.model.likelihood == "probit":
            level = 2.0 / (math.pi * math.sqrt(1.0 + spread))
        else:
            level = min(math.exp(min(0.5 * spread, 20.0)), 1e6)
        return np.asarray(level * moments)

    def grad_scale(self, step: int, params: FloatArray) -> FloatArray:
        """Return (beta_loc, beta_raw) at a step, shape (2 n,)."""
        information = self.information(params)
        raw = params[params.size // 2 :]
        return np.concatenate(
            (information**-0.5, self.raw_ratio / np.maximum(softplus(raw) * sigmoid(raw) * information, 1e-20))
        )

    def learning_rate(self, step: int, params: FloatArray) -> FloatArray:
        """Return the step sizes at a step, shape (2 n,)."""
        information = self.information(params)
        raw = params[params.size // 2 :]
        scale, slope = softplus(raw), sigmoid(raw)
        rate = float(self.rate or 0.0) * (5.0 if step < self.n_steps // 5 else 1.0) / self.sample_rate
        total = self.n_records * information
        return np.concatenate((rate / total, rate / np.maximum(slope**2 * (total + scale**-2.0), 1e-20)))


class StepPolicy:
    """Preconditioner and step size of every step, from whatever form the caller gave them in.

    Parameters
    ----------
    grad_scale : float, (loc, raw_scale) pair, (2 n,) array or callable (step, params)
    learning_rate : "heuristic", float, (2 n,) array or callable (step, params)
    n_params : int
    heuristic_rate : float
        What "heuristic" multiplies beta by: lambda_heur = sqrt(2) lambda_c / (sigma C sqrt(T d)) (NA-DPVI, A55) with
        lambda_c = sqrt(d / 2).

    Raises
    ------
    TypeError, ValueError
        If either has the wrong shape or range.
    """

    def __init__(
        self, grad_scale: GradScale, learning_rate: LearningRate, *, n_params: int, heuristic_rate: float
    ) -> None:
        self._width = 2 * n_params
        self._scale = grad_scale if callable(grad_scale) else self._fixed_scale(grad_scale, n_params)
        self._heuristic = heuristic_rate if isinstance(learning_rate, str) else None
        if isinstance(learning_rate, str):
            check_choice("learning_rate", learning_rate, ("heuristic",))
            self._rate: FloatArray | Schedule = np.empty(0)
        else:
            self._rate = learning_rate if callable(learning_rate) else self._checked_rate(learning_rate)
        self.varying_scale = callable(self._scale)
        self.varying_rate = callable(self._rate) or (self.varying_scale and self._heuristic is not None)

    def grad_scale(self, step: int, params: FloatArray) -> FloatArray:
        """Return beta, (2 n,)."""
        return self._checked_scale(self._scale(step, params.copy())) if callable(self._scale) else self._scale

    def learning_rate(self, step: int, params: FloatArray, beta: FloatArray) -> FloatArray:
        """Return the step size, (2 n,)."""
        if self._heuristic is not None:
            return self._heuristic * beta
        return self._checked_rate(self._rate(step, params.copy())) if callable(self._rate) else self._rate

    def _fixed_scale(self, grad_scale: Any, n_params: int) -> FloatArray:
        value = np.asarray(grad_scale)
        if value.ndim == 0:
            value = np.full(self._width, check_float_array("grad_scale", value))
        elif isinstance(grad_scale, tuple) and value.shape == (2,):
            value = np.repeat(check_float_array("grad_scale", value), n_params)
        return self._checked_scale(value)

    def _checked_scale(self, value: Any) -> FloatArray:
        array = check_float_array("grad_scale", value, (self._width,))
        if not (array.min() >= _SMALLEST_SCALE and array.max() <= _LARGEST_SCALE):
            raise ValueError(f"grad_scale must lie in [{_SMALLEST_SCALE:g}, {_LARGEST_SCALE:g}]")
        return array

    def _checked_rate(self, value: Any) -> FloatArray:
        array = np.asarray(value)
        if array.ndim == 0:
            array = np.full(self._width, check_float_array("learning_rate", array))
        array = check_float_array("learning_rate", array, (self._width,))
        if not array.min() >= 0.0:
            raise ValueError("learning_rate must be at least 0")
        return array
