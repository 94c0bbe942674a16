"""Expectations under a model: gradient norms, the effect of clipping on them, and curvature of the loss.

Everything here is computed from the model and public numbers, by simulating records from the model.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_interval
from dpinfer.models import tuning
from dpinfer.models.base import Model

_SIZE = 2**15  # 32 768 simulated records: moments err by 1 / sqrt(32 768), 0.6%
_SEED = 20_250_101  # a date
_STEP = 0.05  # in standard deviations of one record's information: error of second differences of order 1e-3
_PRIOR_DRAWS = 1000  # docs/derivations/noise-aware-posterior.md, "Clipping norm"
_RECORDS = 2048  # records for each draw of the prior: time
_DISPERSION_RATIOS = np.geomspace(0.02, 4.0, 48)  # u / v of a table, on a log scale: tolerance


@runtime_checkable
class InformedModel(Protocol):
    """A model that has an expected information and can simulate records."""

    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return the expected information of one record, (..., n) for loc (..., n)."""

    def reference_records(self, loc: FloatArray, size: int, rng: np.random.Generator) -> tuple[Any, FloatArray]:
        """Return about `size` records that represent the model at theta = loc, and their weights, which sum to 1."""

    def record_derivatives(self, records: Any, loc: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return first and second derivatives of -log p(record | theta) in each parameter, two (records, n) arrays."""


@dataclass(frozen=True)
class ExpectedGradients:
    """Moments of the clipped, Fisher-preconditioned gradients of one record at the model's own optimum.

    **Privacy.** Public: the model and public settings only.

    Parameters
    ----------
    clipped_share : float, or an array with a leading axis for runs, as then in the others
        Share of the records whose gradient is clipped.
    clip_bias : (2 n,) array
        E[v - clip(v)] of the preconditioned gradient v, loc then raw_scale.
    clip_slope : (n,) array
        Slope in theta_j of E[clip(v_j)] / sqrt(I_j), both at theta, over the same without clipping: the preconditioner
        moves along, as in the mechanism.
    clip_spread : (n,) array
        Variance of clip(v_j) over the product of that of v_j and clip_slope_j**2: by how much clipping widens the
        distribution of the optimum around the truth (the "sandwich" of an M-estimator: Huber 1964, Annals of
        Mathematical Statistics 35, 73-101).
    bend : (n, n) array
        d/d theta_k d^2/d theta_j^2 of the expected loss over sqrt(I_k) I_j.
    information_slope : (n,) array
        d I_k / d theta_k over I_k^(3/2).
    """

    clipped_share: float | FloatArray
    clip_bias: FloatArray
    clip_slope: FloatArray
    clip_spread: FloatArray
    bend: FloatArray
    information_slope: FloatArray


def _preconditioned(
    model: InformedModel, records: Any, at: FloatArray, information: FloatArray, raw_ratio: float
) -> FloatArray:
    """Return beta * gradient of every record at `at`, (size, 2 n), with beta from `information`.

    With beta_raw = rho / (s s' I) the raw_scale gradient is rho times the second derivative over I.
    """
    first, second = model.record_derivatives(records, at)
    return np.concatenate((first / np.sqrt(information), raw_ratio * second / information), axis=1)


@lru_cache(maxsize=256)
def _cached(
    model: Model, loc: tuple[float, ...], max_grad_norm: float, raw_ratio: float, size: int, dispersion_ratio: float
) -> ExpectedGradients:
    if not isinstance(model, InformedModel):
        raise TypeError(f"model must have an expected information, got {type(model).__name__}")
    rng = np.random.default_rng(_SEED)
    centre = np.array(loc)
    n = centre.shape[0]
    records, weights = model.reference_records(centre, size, rng)
    if dispersion_ratio != 1.0:
        centre = _with_variance(model, centre, dispersion_ratio)
    information = model.information(centre)
    gradients = _preconditioned(model, records, centre, information, raw_ratio)
    factor = _shrink(gradients, max_grad_norm)
    plain = weights @ gradients
    clip_slope, bend, information_slope = np.empty(n), np.empty((n, n)), np.empty(n)
    for j in range(n):
        step = _STEP / np.sqrt(information[j])
        ends = []
        for sign in (-1.0, 1.0):
            moved = centre.copy()
            moved[j] += sign * step
            there = model.information(moved)
            # The mechanism preconditions, and so clips, by the information at the iterate.
            values = _preconditioned(model, records, moved, there, raw_ratio)
            shrink = _shrink(values, max_grad_norm)
            root = np.sqrt(there)
            ends.append((weights @ values[:, :n] * root, (weights * shrink) @ values[:, j] / root[j], there[j]))
        (low, low_clipped, low_information), (high, high_clipped, high_information) = ends
        clip_slope[j] = (high_clipped - low_clipped) / (high[j] / high_information - low[j] / low_information)
        bend[:, j] = (high + low - 2.0 * plain[:n] * np.sqrt(information)) / (_STEP**2 * np.sqrt(information))
        information_slope[j] = (high_information - low_information) / (2.0 * _STEP * information[j])
    clipped = gradients[:, :n] * factor[:, None]
    variance, clipped_variance = (
        weights @ np.square(values) - np.square(weights @ values) for values in (gradients[:, :n], clipped)
    )
    return ExpectedGradients(
        clipped_share=float(weights @ (factor < 1.0)),
        clip_spread=clipped_variance / (variance * clip_slope**2),
        clip_bias=(weights * (1.0 - factor)) @ gradients,
        clip_slope=clip_slope,
        bend=bend,
        information_slope=information_slope,
    )


def _shrink(gradients: FloatArray, max_grad_norm: float) -> FloatArray:
    """Return the clipping factor of each record, 1 for a gradient of zero."""
    return np.asarray(max_grad_norm / np.maximum(np.linalg.norm(gradients, axis=1), max_grad_norm))


def _with_variance(model: Model, loc: FloatArray, ratio: float) -> FloatArray:
    """Return loc with a noise variance of 1 / ratio times its own."""
    params = model.constrain(loc)
    params[-1] /= ratio
    return np.append(loc[:-1], model.unconstrain(params)[-1])


def expected_gradients(
    model: Model,
    loc: FloatArray,
    *,
    max_grad_norm: float,
    raw_ratio: float,
    size: int = _SIZE,
    dispersion_ratio: float = 1.0,
) -> ExpectedGradients:
    """Simulate records from the model at theta = loc and return moments of their clipped gradients there.

    **Privacy.** Post-processing when `loc` comes from a Release; no records are read.

    Raises TypeError if the model has no expected information.

    Parameters
    ----------
    model : Model
        The conjugate and the generalised linear models have an expected information, and simulate records.
    loc : (n,) array
    max_grad_norm, raw_ratio : float
        Clipping norm C and share rho of the raw_scale gradients (see ``FisherScaling``).
    size : int
        Number of simulated records, from a fixed seed: the Monte Carlo error is public noise of relative size
        ``size ** -0.5``.
    dispersion_ratio : float
        For a model whose last parameter is a noise variance: that of the records over that at which gradients are
        taken.  Other than 1 where the iterate's excursions keep it above the records' own.

    Notes
    -----
    Derivatives are central differences with a step of 0.05 / sqrt(I), on common random numbers.
    """
    centre = tuple(np.asarray(loc, dtype=np.float64).tolist())
    return _cached(model, centre, max_grad_norm, raw_ratio, size, dispersion_ratio)


@dataclass(frozen=True)
class DispersionClipping:
    """Effect of clipping on the gradient in the noise variance, at iterates with another variance than the records'.

    Scaled by the information and taken in the variance v itself, the gradient of one record's loss has the mean
    ``v (1 - ratio)`` without clipping, ratio the records' variance over v; clipped it is ``v (1 - ratio + excess)``.

    **Privacy.** Public: the model and public settings only.

    Parameters
    ----------
    ratios, excess, variance : (m,) arrays
        Increasing ratios; the excess there; and the variance of the clipped gradient over that without clipping.
    """

    ratios: FloatArray
    excess: FloatArray
    variance: FloatArray

    def ratio_at(self, level: FloatArray) -> FloatArray:
        """Return the ratio at which the clipped mean over v is `level`, any shape; the ends of the table outside it."""
        falling = 1.0 - self.ratios + self.excess
        return np.interp(-level, -falling, self.ratios)

    def linearised(self, ratio: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (s, b) of the tangent ``s (1 - r) + b`` of the clipped mean over v at r = ratio, and the spread there.

        The spread is as in :class:`ExpectedGradients`.
        """
        slope = 1.0 - np.interp(ratio, self.ratios, np.gradient(self.excess, self.ratios))
        level = 1.0 - ratio + np.interp(ratio, self.ratios, self.excess)
        spread = np.interp(ratio, self.ratios, self.variance) / slope**2
        return slope, level - slope * (1.0 - ratio), spread


@lru_cache(maxsize=64)
def dispersion_clipping(model: Model, max_grad_norm: float, raw_ratio: float) -> DispersionClipping:
    """Simulate records from a model with a noise variance and tabulate the effect of clipping on its gradient.

    The model is pivotal, with the noise variance as its last parameter: the table is the same at every theta.  Other
    arguments: see :func:`expected_gradients`.

    **Privacy.** No records are read.

    Raises TypeError if the model has no expected information.
    """
    if not isinstance(model, InformedModel):
        raise TypeError(f"model must have an expected information, got {type(model).__name__}")
    rng = np.random.default_rng(_SEED)
    centre = model.prior_moments()[0]
    records, weights = model.reference_records(centre, _SIZE, rng)
    excess, variance = np.empty_like(_DISPERSION_RATIOS), np.empty_like(_DISPERSION_RATIOS)
    for index, ratio in enumerate(_DISPERSION_RATIOS):
        moved = _with_variance(model, centre, ratio)
        gradients = _preconditioned(model, records, moved, model.information(moved), raw_ratio)
        shrink = np.minimum(1.0, max_grad_norm / np.linalg.norm(gradients, axis=1))
        # Preconditioned, the gradient in the variance is (1 - ratio z**2) / sqrt(2).
        dispersion = gradients[:, centre.shape[0] - 1]
        excess[index] = -np.sqrt(2.0) * float((weights * (1.0 - shrink)) @ dispersion)
        moments = [
            float(weights @ np.square(part)) - float(weights @ part) ** 2 for part in (shrink * dispersion, dispersion)
        ]
        variance[index] = moments[0] / moments[1]
    return DispersionClipping(_DISPERSION_RATIOS, excess, variance)


@lru_cache(maxsize=64)
def prior_predictive_norm(model: Model, quantile: float, raw_ratio: float) -> float:
    """Return a quantile of the Fisher-preconditioned gradient norm under the prior predictive: a public clipping norm.

    **Privacy.** Public: the model only.

    Raises TypeError if the model has no expected information.

    Parameters
    ----------
    model : Model
        With ``sample_prior``; see :func:`expected_gradients`.
    quantile : float in (0, 1)
        Of the records at one theta; of these the 99% quantile over the prior is taken.  (A quantile over records and
        prior together would cut off the rarer value of a binary record wherever theta makes it rare.)
    raw_ratio : float
    """
    check_interval("quantile", quantile, 0.0, 1.0)
    if not isinstance(model, InformedModel):
        raise TypeError(f"model must have an expected information, got {type(model).__name__}")
    rng = np.random.default_rng(_SEED)
    if getattr(model, "pivotal", False):
        draws, size = model.prior_moments()[0][None, :], _SIZE
    else:
        draws, size = model.unconstrain(model.sample_prior(_PRIOR_DRAWS, rng)), _RECORDS  # type: ignore[attr-defined]
    norms = []
    for loc in draws:
        records, weights = model.reference_records(loc, size, rng)
        gradients = _preconditioned(model, records, loc, model.information(loc), raw_ratio)
        norm = np.linalg.norm(gradients, axis=1)
        norms.append(np.quantile(norm, quantile, weights=weights, method="inverted_cdf"))
    return float(np.quantile(norms, tuning.TUNING.prior_quantile))


def default_max_grad_norm(model: Model, raw_ratio: float) -> float:
    """Return the clipping norm that the library takes by default for Fisher-preconditioned gradients.

    It is the 98.5% quantile of :func:`prior_predictive_norm`; the 93% quantile for pivotal models, for which the effect
    of clipping is the same at every theta, and so corrected closely. A lower quantile would be narrower still, if the
    records follow the model: docs/coverage.md.  `raw_ratio`: see :func:`expected_gradients`.

    **Privacy.** Public: the model only.
    """
    quantile = tuning.TUNING.pivotal_quantile if getattr(model, "pivotal", False) else tuning.TUNING.clip_quantile
    return prior_predictive_norm(model, quantile, raw_ratio)
