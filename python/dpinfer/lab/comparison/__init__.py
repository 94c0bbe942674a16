"""What the methods are compared with: samplers of a trace's posterior, and divergences of DP-SEP's Theorem 4.1.

emcee and NUTS sample the posterior of a gradient trace that ``approximation="exact"`` integrates.

**Privacy.** Post-processing of a Release, or arithmetic.
"""

from dpinfer.lab.comparison.divergence import (
    ExpectedDivergence,
    clipped_divergence,
    divergence_bound,
    expected_divergence,
    gaussian_divergence,
)
from dpinfer.lab.comparison.posterior import sampled_posterior

__all__ = [
    "ExpectedDivergence",
    "clipped_divergence",
    "divergence_bound",
    "expected_divergence",
    "gaussian_divergence",
    "sampled_posterior",
]
