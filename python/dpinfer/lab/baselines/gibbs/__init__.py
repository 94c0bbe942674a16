"""Gibbs samplers for releases of noisy sufficient statistics, as published: the statistic is drawn like a parameter.

**Privacy.** Post-processing of a release; reads no records.
"""
