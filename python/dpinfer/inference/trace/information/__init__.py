"""Weights under a full information matrix, and what every such posterior returns."""

from dataclasses import dataclass

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.theta import DrawnTheta


@dataclass(frozen=True)
class FullHessian:
    """A posterior with a full Hessian, of k coordinates, and what its draws tell of themselves."""

    theta: DrawnTheta  # one normal distribution for each draw of the Hessian
    optimum_mean: FloatArray  # (k,)
    optimum_stddev: FloatArray  # (k,)
    hessian_mean: FloatArray  # (k, k), of the full-data loss
    hessian_stddev: FloatArray  # (k, k)
    acceptance: float | None = None
    rhat: float | None = None  # largest split R-hat of the conditional means and the log density
    # how many equally good draws these are worth once the noise variance's trace weights them
    effective_draws: float | None = None
    share_dropped: float | None = None  # draws whose symmetrised Hessian was not positive definite
    noise_ratio: FloatArray | None = None  # (k,): residual standard deviation over tau
