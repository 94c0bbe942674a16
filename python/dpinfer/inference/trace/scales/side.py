"""The raw-scale gradients as a second regression: the precision of q, which shares its slope with the location."""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.trace.collapsed import SideRegression
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.models.base import sigmoid, softplus


@dataclass(frozen=True)
class SideSums:
    """Sums over the steps of the raw-scale regression ``response ~ N(h design, 1)``, in units of the noise, (k,) each.

    Parameters
    ----------
    count : int
        Number of steps.
    design_square, product, response_square, design, response : (k,) arrays
    """

    count: int
    design_square: FloatArray
    product: FloatArray
    response_square: FloatArray
    design: FloatArray
    response: FloatArray

    def regression(self, shift: FloatArray | float = 0.0) -> SideRegression:
        """Return the regression after adding `shift` to every response."""
        product = self.product + shift * self.design
        square = self.response_square + 2.0 * shift * self.response + self.count * np.square(shift)
        slope = product / self.design_square
        residual = np.maximum(square - product * slope, 0.0)
        return SideRegression(self.count, slope, self.design_square, residual)


def raw_scale_sums(
    raw_scale: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,
    sample_rate: float,
    information: FloatArray | float = 1.0,
) -> SideSums:
    """Sum up the regression of the raw-scale gradients on the precision that makes them linear.

    Parameters
    ----------
    raw_scale, gradients : (T, n) arrays
        u_t and its noisy gradients, the steps used.
    noise_stddev : (n,) or (T, n) array
    information : (T, n) array or 1
        Where the slope is known up to a factor that changes with the iterate.

    Notes
    -----
    At the mean-field optimum the precision 1 / s**2 is the Hessian's diagonal h, and with a quadratic loss the gradient
    is ``g_u ~ N(kappa s' (h s_t - 1 / s_t), tau_u**2)``, s = softplus(u), s' its derivative: linear in h wherever u is,
    so u need not have converged.  With h = eta I(phi_t) it is linear in eta.
    """
    scale, slope = softplus(raw_scale), sigmoid(raw_scale)
    design = sample_rate * slope * scale * information / noise_stddev
    response = (gradients + sample_rate * slope / scale) / noise_stddev
    return SideSums(
        raw_scale.shape[0],
        np.sum(design**2, axis=0),
        np.sum(design * response, axis=0),
        np.sum(response**2, axis=0),
        np.sum(design, axis=0),
        np.sum(response, axis=0),
    )


def pooled_slope_score(side: SideRegression, statistics: TraceStatistics, sample_rate: float) -> FloatArray:
    """Return h in standard errors when both regressions are pooled: how well it is identified, (n,)."""
    precision = (sample_rate / statistics.slope_stderr) ** 2
    slope = statistics.slope_score * statistics.slope_stderr / sample_rate
    return np.asarray((precision * slope + side.precision * side.slope) / np.sqrt(precision + side.precision))
