"""Priors of the trace model: on the optimum, on the Hessian's diagonal, on noise beyond the privacy noise."""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.models import Model
from dpinfer.models.base import softplus_inverse

PRIORS = ("weak", "model", "empirical")

_LOWEST_RAW = -500.0  # softplus of it, exp(-500), is still a normal double
_ZERO_RAW = -37.0  # softplus of it is 0 beside 1 in double precision
_WHOLE = 6.0  # standard deviations beyond which a normal law has a billionth of its mass


@dataclass(frozen=True)
class TracePrior:
    """Normal priors of your own: ``optimum ~ N(loc, scale**2)`` and ``v ~ N(loc, scale**2)`` with Hessian softplus(v).

    **Privacy.** Public, as long as it was not chosen by looking at records.

    Parameters
    ----------
    optimum_loc : float or (k,) array
        Prior mean of the optimum, in the units of the gradient's coordinates (`GradientTrace.gradient_names`).
    optimum_scale : float or (k,) array
        Prior standard deviation of the optimum, positive.
    raw_hessian_loc : float or (k,) array
        Prior mean of v, at least -500; the Hessian of the full-data loss is softplus(v).
    raw_hessian_scale : float or (k,) array
        Prior standard deviation of v, positive.  A prior that lies wholly below -37 is refused: its Hessian is 0.

    Examples
    --------
    >>> TracePrior(optimum_loc=0.0, optimum_scale=1.0, raw_hessian_loc=5.0, raw_hessian_scale=3.0).optimum_scale
    array(1.)
    """

    optimum_loc: FloatArray | float
    optimum_scale: FloatArray | float
    raw_hessian_loc: FloatArray | float
    raw_hessian_scale: FloatArray | float

    def __post_init__(self) -> None:
        for name in ("optimum_loc", "optimum_scale", "raw_hessian_loc", "raw_hessian_scale"):
            value = check_float_array(name, getattr(self, name))
            if value.ndim > 1:
                raise ValueError(f"{name} must be a number or one-dimensional, got {value.ndim} dimensions")
            if np.ndim(getattr(self, name)) == 0:
                value = value.reshape(())
            if name.endswith("scale") and not np.all(value > 0.0):
                raise ValueError(f"{name} must be positive")
            if name == "raw_hessian_loc" and not np.all(value >= _LOWEST_RAW):
                raise ValueError(f"{name} must be at least {_LOWEST_RAW:g}")
            object.__setattr__(self, name, value)
        highest = np.asarray(self.raw_hessian_loc) + _WHOLE * np.asarray(self.raw_hessian_scale)
        if not np.all(highest > _ZERO_RAW):
            raise ValueError(
                "raw_hessian_loc and raw_hessian_scale must leave v some mass above zero: below "
                f"{_ZERO_RAW:g} the Hessian softplus(v) is 0; raise raw_hessian_loc or raw_hessian_scale"
            )

    def broadcast(self, width: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the four fields with shape (width,)."""
        fields = []
        for name in ("optimum_loc", "optimum_scale", "raw_hessian_loc", "raw_hessian_scale"):
            value = np.asarray(getattr(self, name))
            if value.ndim == 1 and value.shape[0] != width:
                raise ValueError(f"prior.{name} must have length {width}, got {value.shape[0]}")
            fields.append(np.ascontiguousarray(np.broadcast_to(value, (width,))))
        return fields[0], fields[1], fields[2], fields[3]


@dataclass(frozen=True)
class CoordinatePriors:
    """Priors of k coordinates as the quadrature takes them."""

    # optimum_loc, optimum_scale: (k,): normal prior of the optimum
    optimum_loc: FloatArray
    optimum_scale: FloatArray
    # wide_scale, wide_power: (k,): A and p of the prior a**(p - 1) exp(-a**2 / (2 A**2)) on the Hessian a.  With A =
    # 0 instead: a normal prior on v, a = softplus(v), where p > 0, and on log(a) where p = 0
    wide_scale: FloatArray
    wide_power: FloatArray
    # raw_loc, raw_scale: (k,): mean and standard deviation of that normal
    raw_loc: FloatArray
    raw_scale: FloatArray


def optimum_under_model(model: Model, n_records: int, *, with_scales: bool) -> tuple[FloatArray, FloatArray]:
    """Return location and scale of the optimum's prior, which follow from the model's prior alone.

    They are (n,), or, `with_scales`, (2 n,): raw_scale coordinates follow the loc coordinates.

    **Privacy.** Public: the model and the public number of records.

    The posterior mean of a parameter has at most its prior variance, so loc* is given the prior's mean and standard
    deviation S.  The scale s* lies between S / sqrt(1 + N) and S if one record is at most as informative about a
    parameter as its prior; u* = softplus^-1(s*) gets a normal prior with that interval as mean plus and minus one sd.
    """
    loc, scale = model.prior_moments()
    if not with_scales:
        return loc, scale
    low, high = softplus_inverse(scale / np.sqrt(1.0 + n_records)), softplus_inverse(scale)
    return np.concatenate((loc, 0.5 * (low + high))), np.concatenate((scale, 0.5 * (high - low)))


def coordinate_priors(
    prior: str | TracePrior,  # {"weak", "model", "empirical"} or TracePrior
    statistics: TraceStatistics,
    sample_rate: float,  # float in (0, 1]
    *,
    precision: bool = False,  # whether the Hessian is also the precision of theta (aligned and tied posteriors)
    # (k,): a Hessian value that the weak prior must comfortably contain besides the least-squares one
    largest: FloatArray | None = None,
    # pair of (k,) arrays, optional: location and scale of the optimum's prior for "model"; see `optimum_under_model`
    optimum: tuple[FloatArray, FloatArray] | None = None,
) -> CoordinatePriors:
    """Turn the user's choice of prior into numbers per coordinate.

    Raises TypeError or ValueError if `prior` is neither a known name nor a TracePrior of the right length.

    Notes
    -----
    "weak": optimum ~ N(mean position, (10 D)**2), D the spread of the positions; a half-normal, or Rayleigh where it is
    the precision of theta, with scale 100 times sqrt(least-squares slope**2 + standard error**2).  All of it moves with
    the units.  A flat density of a leaves the factor 1/a that integrating a wide prior of the optimum brings: it makes
    up for the upward bias of a slope that is learnt from a trace which the noise itself moves (Hurwicz 1950).  There is
    no such bias where the positions are drawn, as in an aligned trace; a density proportional to a then gives the
    posterior of ordinary regression, and keeps E[1/a] finite.  Chosen by coverage:
    docs/decisions/0003-priors-of-the-trace-model.md.

    "model": the Hessian as in "weak", the optimum from the model's own prior.

    "empirical": NA-DPVI (2025), H.3: optimum ~ N(mean position, 1); v ~ N(abs(S_xg) / (kappa S_xx),
    tau**2 / (kappa**2 S_xx)); the paper prints the last without its square root as a standard deviation.  It uses the
    trace twice and presumes that the Hessian is large against 1 (then softplus(v) = v).  Where the slope is not
    identified much of it lies below zero: there the Hessian is 0, and the optimum has its own prior
    (`diagnostics.zero_hessian` of the posterior).
    """
    width = statistics.weight.shape[0]
    zero = np.zeros(width)
    if isinstance(prior, TracePrior):
        loc, scale, raw_loc, raw_scale = prior.broadcast(width)
        return CoordinatePriors(loc, scale, zero, zero + 1.0, raw_loc, raw_scale)
    if not isinstance(prior, str):
        raise TypeError(f"prior must be a string or a TracePrior, got {type(prior).__name__}")
    check_choice("prior", prior, PRIORS)
    stderr = statistics.slope_stderr / sample_rate
    if prior == "empirical":
        return CoordinatePriors(
            statistics.position_mean, np.ones(width), zero, zero + 1.0, np.abs(statistics.slope_score) * stderr, stderr
        )
    size = stderr * np.hypot(statistics.slope_score, 1.0)
    if largest is not None:
        size = np.maximum(size, largest)
    loc, scale = statistics.position_mean, tuning.TUNING.optimum_spreads * statistics.spread
    if prior == "model":
        if optimum is None:
            raise ValueError("prior 'model' needs a release with a model and a public n_records")
        loc, scale = optimum
    return CoordinatePriors(
        loc, scale, tuning.TUNING.slope_scores * size, np.full(width, 2.0 if precision else 1.0), zero, np.ones(width)
    )
