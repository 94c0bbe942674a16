"""Samplers of the posterior of a gradient trace that ``method="exact"`` integrates: emcee and NUTS, to compare with.

**Privacy.** Post-processing of a Release.
"""

from dpinfer.lab.comparison.posterior import sampled_posterior

__all__ = ["sampled_posterior"]
