"""Chosen numbers of the audit: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of the audit: which faults it finds depends on them, its false positive rate does not."""

    rate: float = 0.1  # of Poisson samples; 0.01 to 0.5; not tuned: the library's usual rate
    noise_share: int = 10  # one trial in so many tests the noise, which needs fewer; 2 to 50; by hand
    lags: int = 12  # of autocorrelations: a generator's fault shows at the first ones; 5 to 50; not tuned
    # opposed, huge, modest: full contributions on the other side, and lengths of records in clipping norms: far above
    # the clip, and below it; 10 to 100, 10 to 1000, 0.2 to 0.8; not tuned: wide
    opposed: int = 50
    huge: float = 100.0
    modest: float = 0.5
    norm: float = 16.0  # clip of a fit in one run, far from 1, as noise may forget it; 4 to 64; not tuned: wide
    # pilot_share, pilot_level, in_favour: share of the trials that choose a threshold, level of their own intervals,
    # and share of the best bound of 49 thresholds above which errors are counted together, as the best is partly luck;
    # 0.05 to 0.3, 1e-4 to 0.05, 0.7 to 1; by hand (bench/privacy/audit.py)
    pilot_share: float = 0.1
    pilot_level: float = 1e-3
    in_favour: float = 0.85


TUNING = Tuning()
