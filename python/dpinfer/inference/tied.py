"""The tied posterior: one unknown h per parameter, both the Hessian in the location and the variational precision."""

import numpy as np
import numpy.typing as npt

from dpinfer.inference.collapsed import SideRegression
from dpinfer.inference.statistics import TraceStatistics
from dpinfer.models.bijectors import sigmoid, softplus

__all__ = ["pooled_slope_score", "raw_scale_regression"]

FloatArray = npt.NDArray[np.float64]


def raw_scale_regression(
    raw_scale: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,
    sample_rate: float,
) -> SideRegression:
    """Regress the raw-scale gradients on the precision h that makes them linear.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    raw_scale, gradients : (T, n) arrays
        u_t and its noisy gradients, the steps used.
    noise_stddev : (n,) or (T, n) array
    sample_rate : float

    Returns
    -------
    SideRegression

    Notes
    -----
    At the mean-field optimum the precision 1 / s**2 is the Hessian's diagonal h, and with a quadratic loss the gradient
    is ``g_u ~ N(kappa s' (h s_t - 1 / s_t), tau_u**2)``, s = softplus(u), s' its derivative: linear in h wherever u is,
    so u need not have converged.
    """
    scale, slope = softplus(raw_scale), sigmoid(raw_scale)
    design = sample_rate * slope * scale / noise_stddev
    response = (gradients + sample_rate * slope / scale) / noise_stddev
    precision = np.sum(design**2, axis=0)
    estimate = np.sum(design * response, axis=0) / precision
    residual = np.sum((response - estimate * design) ** 2, axis=0)
    return SideRegression(raw_scale.shape[0], estimate, precision, residual)


def pooled_slope_score(side: SideRegression, statistics: TraceStatistics, sample_rate: float) -> FloatArray:
    """Return h in standard errors when both regressions are pooled: how well it is identified, (n,)."""
    own = (sample_rate / statistics.slope_stderr) ** 2
    slope = statistics.slope_score * statistics.slope_stderr / sample_rate
    return np.asarray((own * slope + side.precision * side.slope) / np.sqrt(own + side.precision))
