"""The posterior of a private Newton run: second moments, weights and noise variance from the release.

**Privacy.** Post-processing of a Release.
"""
