"""Stationary theory of the noisy gradient recursion: spread, speed, and which learning rates a trace allows.

**Privacy.** Nothing here reads a record.
"""

from dpinfer.lab.stationary.recursion import (
    autocorrelation,
    covariance,
    effective_sample_size,
    max_learning_rate,
    mixing_time,
    spectral_radius,
    trace_autocorrelation,
)
from dpinfer.lab.stationary.theory import (
    gradient_norm_bound,
    hessian_stddev,
    hessian_stddev_bound,
    heuristic_learning_rate,
    learning_rate_limit,
    mean_square_distance,
    optimal_learning_rate,
)

__all__ = [
    "autocorrelation",
    "covariance",
    "effective_sample_size",
    "gradient_norm_bound",
    "hessian_stddev",
    "hessian_stddev_bound",
    "heuristic_learning_rate",
    "learning_rate_limit",
    "max_learning_rate",
    "mean_square_distance",
    "mixing_time",
    "optimal_learning_rate",
    "spectral_radius",
    "trace_autocorrelation",
]
