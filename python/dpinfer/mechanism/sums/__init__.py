"""Sums over the records of a model: compiled kernels and NumPy code.

A model names its kind of sum (``gradient_sum``, ``site_sum``); `gradients.py` and `sites.py` open a session of that
kind.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism.
"""
