"""Preconditioners and learning rates: functions of public settings and of the already released iterate only."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.models import InformedModel, Model
from dpinfer.models.base import sigmoid, softplus, softplus_inverse

Schedule = Callable[[int, FloatArray], npt.ArrayLike]
GradScale = float | tuple[float, float] | npt.ArrayLike | Schedule
LearningRate = str | float | npt.ArrayLike | Schedule

_SMALLEST_SCALE, _LARGEST_SCALE = 1e-30, 1e30  # squares stay far from overflow and underflow
_SMALLEST_SLOPE = 1e-20  # avoids division by zero


def largest_natural_rate(n_steps: int, n_params: int = 1, relative_noise: float = 0.0) -> float:
    """Return the largest share of the distance to the optimum that a step should cover, in (0, 1/2].

    It is 50 / n_steps, or less where the iterate would wander too far: steps of size r leave it, in each parameter, a
    stationary variance of ``r / 2 relative_noise**2`` in units of 1 / I, and these add up to at most 1/2.

    Parameters
    ----------
    n_steps, n_params : int
    relative_noise : float
        sigma C / (kappa N): standard deviation of the noise in a natural step of size 1, in units of I**(-1/2).
    """
    return min(0.5, 50.0 / n_steps, 1.0 / max(n_params * relative_noise**2, 1e-300))


def steady_rate(n_params: int, relative_noise: float) -> float:
    """Return the least step of the recipe "steady", as a share of the distance to the optimum, in (0, 1/2].

    It is 1 / n_params: whatever their correlations, no direction of n features has more than n times the information of
    one, so that no step overshoots; or less, so that the stationary variances, in units of 1 / I, add up to at most
    1/20: more excursions cannot be told from the noise variance where information is less than declared.

    `n_params` and `relative_noise` are as in :func:`largest_natural_rate`.
    """
    return min(0.5, 1.0 / n_params, 0.1 / max(n_params * relative_noise**2, 1e-300))


@dataclass(frozen=True)
class FisherScaling:
    """Preconditioner and natural steps from the model's expected information at the released iterate.

    With I_j the per-record expected information of parameter j at the iterate, beta_loc = I**(-1/2) and beta_raw = rho
    / (s s' I); the steps are ``rate(t) / (kappa N I)`` for loc and ``rate(t) / (kappa s'**2 (N I + 1 / s**2))`` for
    raw_scale, with ``rate(t) = max(r0, min(r, a / (t + 1)))``.  For aligned gradients I is taken at the sampled
    theta_t, raw_scale has no gradient, and `raw_ratio` is not used.

    **Privacy.** Depends on past releases and public numbers only: no privacy cost.

    Parameters
    ----------
    model : Model
        A model with an expected information: the conjugate and the generalised linear models.
    n_records : int
        The public number of records.
    sample_rate : float in (0, 1]
    n_steps : int
    raw_ratio : float
        rho, how the raw_scale gradients are weighted against those of loc.
    largest_rate : float in (0, 1), optional
        r; 50 / n_steps by default, at most 1/2.  :func:`dpinfer.run_dpvi` uses :func:`largest_natural_rate` if it
        builds the scaling itself.
    decay : float
        a, by how many times the distance to the optimum falls while the number of steps grows e-fold.
    tolerance : float
        Standard deviation of the logarithm of the ratio of the true information per record to the expected one; the
        posterior uses it as the prior of this ratio.
    excursion : float in (0, 1e6]
        c, for aligned gradients only: they are taken at theta_t ~ N(loc, (c s)**2), where s = (N I)**(-1/2) follows loc
        and no gradient.  The draws determine the Hessian to a relative error of ``sigma C / (kappa c sqrt(N T))``; far
        from loc the loss is less quadratic, and a record's gradient larger.
    smallest_rate : float in [0, 1)
        r0, below which no step shrinks; see :func:`steady_rate`.

    Notes
    -----
    Scaled by the information, every parameter's gradient has the same variance, so that one clipping norm serves all;
    a step moves every parameter by the same share of its distance to the optimum.  Chosen by coverage, then width:
    docs/coverage.md.
    """

    model: Model
    n_records: int
    sample_rate: float
    n_steps: int
    raw_ratio: float = 0.2
    largest_rate: float | None = None
    decay: float = 3.0
    tolerance: float = 0.1
    excursion: float = 2.0
    smallest_rate: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.model, InformedModel):
            raise TypeError(f"model must have an expected information, got {type(self.model).__name__}")
        check_integer("n_records", self.n_records, 1)
        check_interval("sample_rate", self.sample_rate, 0.0, 1.0, high_open=False)
        check_integer("n_steps", self.n_steps, 1)
        check_interval("raw_ratio", self.raw_ratio, 0.0)
        check_interval("tolerance", self.tolerance, 0.0)
        check_interval("decay", self.decay, 0.0)
        check_interval("excursion", self.excursion, 0.0, 1e6, high_open=False)
        check_interval("smallest_rate", self.smallest_rate, 0.0, 1.0, low_open=False)
        largest = largest_natural_rate(self.n_steps) if self.largest_rate is None else self.largest_rate
        object.__setattr__(self, "largest_rate", check_interval("largest_rate", largest, 0.0, 1.0))

    def information(self, params: FloatArray) -> FloatArray:
        """Return the per-record expected information I_j at (loc, raw_scale), shape (n,)."""
        n = params.size // 2
        model: Any = self.model
        return np.asarray(np.maximum(model.information(params[:n], softplus(params[n:])), NEGLIGIBLE))

    def rate(self, step: int) -> float:
        """Return the share of the distance to the optimum that a step covers."""
        return max(self.smallest_rate, min(float(self.largest_rate or 0.0), self.decay / (step + 1.0)))

    def start(self) -> FloatArray:
        """Return (loc, raw_scale): the prior's mean, and the scale that N records of the expected information leave."""
        loc = self.model.prior_moments()[0]
        return np.concatenate((loc, self.point_raw_scale(loc)))

    def grad_scale(self, step: int, params: FloatArray) -> FloatArray:
        """Return (beta_loc, beta_raw) at a step, shape (2 n,)."""
        information = self.information(params)
        raw = params[params.size // 2 :]
        slope = np.maximum(softplus(raw) * sigmoid(raw) * information, _SMALLEST_SLOPE)
        return _within_range(np.concatenate((information**-0.5, self.raw_ratio / slope)))

    def learning_rate(self, step: int, params: FloatArray) -> FloatArray:
        """Return the step sizes at a step, shape (2 n,)."""
        information = self.information(params)
        raw = params[params.size // 2 :]
        scale, slope = softplus(raw), sigmoid(raw)
        rate = self.rate(step) / self.sample_rate
        total = self.n_records * information
        curvature = slope**2 * (total + 1.0 / np.maximum(scale**2, 1e-300))
        return np.minimum(np.concatenate((rate / total, rate / np.maximum(curvature, _SMALLEST_SLOPE))), _LARGEST_SCALE)

    def point_information(self, point: FloatArray) -> FloatArray:
        """Return I_j at one theta, shape (n,)."""
        model: Any = self.model
        return np.asarray(np.maximum(model.information(point), NEGLIGIBLE))

    def point_raw_scale(self, loc: FloatArray) -> FloatArray:
        """Return raw_scale as aligned gradients have it, from loc: the scale that N records leave, shape (n,)."""
        return np.asarray(softplus_inverse((self.n_records * self.point_information(loc)) ** -0.5))

    def point_grad_scale(self, step: int, params: FloatArray) -> FloatArray:
        """Return beta at (theta, raw_scale), shape (2 n,); the second half is 1 and not used."""
        information = self.point_information(params[: params.size // 2])
        return _within_range(np.concatenate((information**-0.5, np.ones_like(information))))

    def point_learning_rate(self, step: int, params: FloatArray) -> FloatArray:
        """Return the step sizes at (theta, raw_scale), shape (2 n,): no gradient moves raw_scale."""
        information = self.point_information(params[: params.size // 2])
        rate = self.rate(step) / (self.sample_rate * self.n_records)
        return np.concatenate((rate / information, np.zeros_like(information)))


def _within_range(scale: FloatArray) -> FloatArray:
    """Return scales within the mechanism's range, also of an iterate that has diverged."""
    return np.asarray(np.clip(np.nan_to_num(scale, nan=1.0), _SMALLEST_SCALE, _LARGEST_SCALE))


class StepPolicy:
    """Preconditioner and step size of every step, from any of the accepted forms.

    Parameters
    ----------
    grad_scale : float, (loc, raw_scale) pair, (2 n,) array or callable (step, params)
    learning_rate : "heuristic", float, (2 n,) array or callable (step, params)
    n_params : int
    heuristic_rate : float
        Factor of beta for "heuristic": lambda_heur = sqrt(2) lambda_c / (sigma C sqrt(T d)) (NA-DPVI, A55) with
        lambda_c = sqrt(d / 2).
    """

    def __init__(
        self, grad_scale: GradScale, learning_rate: LearningRate, *, n_params: int, heuristic_rate: float
    ) -> None:
        self._width = 2 * n_params
        self._scale = grad_scale if callable(grad_scale) else self._fixed_scale(grad_scale, n_params)
        self._last_scale: FloatArray | None = None
        self._last_rate: FloatArray | None = None
        self._failed = False
        self._heuristic = heuristic_rate if isinstance(learning_rate, str) else None
        if isinstance(learning_rate, str):
            check_choice("learning_rate", learning_rate, ("heuristic",))
            self._rate: FloatArray | Schedule = np.empty(0)
        else:
            self._rate = learning_rate if callable(learning_rate) else self._checked_rate(learning_rate)
        self.varying_scale = callable(self._scale)
        self.varying_rate = callable(self._rate) or (self.varying_scale and self._heuristic is not None)

    def grad_scale(self, step: int, params: FloatArray) -> FloatArray:
        """Return beta, (2 n,); a function that fails after step 0 leaves the last one it gave, with a warning."""
        if callable(self._scale):
            self._last_scale = self._asked(
                "grad_scale", step, partial(self._scale, step, params.copy()), self._checked_scale, self._last_scale
            )
            return self._last_scale
        return self._scale

    def learning_rate(self, step: int, params: FloatArray, beta: FloatArray) -> FloatArray:
        """Return the step size, (2 n,); a function that fails after step 0 leaves the last one it gave."""
        if self._heuristic is not None:
            return self._heuristic * beta
        if callable(self._rate):
            self._last_rate = self._asked(
                "learning_rate", step, partial(self._rate, step, params.copy()), self._checked_rate, self._last_rate
            )
            return self._last_rate
        return self._rate

    def _asked(
        self, name: str, step: int, ask: Callable[[], Any], check: Callable[[Any], FloatArray], last: FloatArray | None
    ) -> FloatArray:
        """Call a function of the user. After the charge its errors must not lose the steps."""
        try:
            return check(ask())
        except Exception as error:
            if last is None:
                raise
            if not self._failed:
                self._failed = True
                text = f"{name} failed at step {step} ({type(error).__name__}): the run goes on with its last value"
                with suppress(RuntimeWarning):  # not even where warnings are errors
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
            return last

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
