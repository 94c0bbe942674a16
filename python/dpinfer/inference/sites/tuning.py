"""Chosen numbers of posteriors from the traces of DP-SEP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteTuning:
    """When the posterior of a mixture is not to be trusted; `bench/coverage/sep_overlap.py` shows how often it is."""

    apart: float = 5.0  # least distance of two means, in posterior standard deviations; 3 to 10; not tuned: well apart
    bent: float = 0.35  # how far the centre moves with the slope's place, in standard deviations; 0.1 to 1; not tuned
    uneven: float = 0.35  # how far the logarithm of a variance moves with the slope's place; 0.1 to 1; not tuned
    misfit: float = 0.01  # least p-value of the released precisions given the means; 0.001 to 0.05; not tuned


TUNING = SiteTuning()
