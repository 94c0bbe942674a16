"""Samplers of the posterior of a gradient trace that ``approximation="exact"`` integrates: emcee and NUTS.

**Privacy.** Post-processing of a Release.
"""

from dpinfer.lab.comparison.posterior import sampled_posterior

__all__ = ["sampled_posterior"]
