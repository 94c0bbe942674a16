"""Exact posteriors from one noisy sufficient statistic: no trace, no optimum, no approximation of the noise.

**Privacy.** Post-processing of a release; reads no records.
"""

from dpinfer.inference.statistic.conjugate import statistic_posterior
from dpinfer.inference.statistic.noise_laws import LaplaceLaw, NoiseLaw, RoundedGaussianLaw

__all__ = ["LaplaceLaw", "NoiseLaw", "RoundedGaussianLaw", "statistic_posterior"]
