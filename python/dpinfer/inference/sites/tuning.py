"""Chosen numbers of posteriors from the traces of DP-SEP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteTuning:
    """When the posterior of a mixture is not to be trusted.

    Overlap: the seen half of `bench/coverage/sep_overlap.py`.
    """

    # The least distance of two components' means, in standard deviations of their posterior; 3 to 10.
    apart: float = 5.0
    # How far the centre moves, and the logarithm of a variance, as the slope is taken at other places of the posterior,
    # in standard deviations; 0.1 to 1.
    bent: float = 0.35
    uneven: float = 0.35
    # The least p-value of the released precisions given the means: a run may end where two components share a place and
    # one covers two; 1e-3 to 0.05.
    misfit: float = 0.01


TUNING = SiteTuning()
