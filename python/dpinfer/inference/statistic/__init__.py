"""Exact posteriors from one noisy sufficient statistic: no trace, no optimum, no approximation of the noise.

**Privacy.** Post-processing of a release; reads no records.
"""
