"""The posterior of a private Newton run: second moments, weights and noise variance from what was released.

**Privacy.** Post-processing of a Release.
"""
