"""What sums the records of a model: compiled kernels, NumPy code, and where rows come from.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism.
"""
