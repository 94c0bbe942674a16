"""Chosen numbers of runs of sites: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of mixtures, regressions and networks; a release's settings have those that its run used."""

    mixture_weight: float = 0.1  # of precisions; 1 for regressions; 0.03 to 1; by hand: the published table's data
    # mixture_quantile, regression_quantile: bound, of the typical norms of a site; 0.5 to 0.8, 0.95 to 1; Simulated
    mixture_quantile: float = 0.6
    regression_quantile: float = 0.99
    annealing: tuple[float, float] = (8.0, 0.6)  # temperature, share of the steps; 2 to 20, 0.3 to 0.8; Simulated
    # mixture_total, regression_total, largest_rate: rates add up to so much by default: less and the mean has not
    # arrived when the steps count, more and its excursions are wide enough to bend the drift; and the largest rate; 5
    # to 15, 0.1 to 0.5; Simulated
    mixture_total: float = 8.0
    regression_total: float = 11.0
    largest_rate: float = 0.3
    start_spread: float = 0.6  # of components' starts, in units of a block's scale; 0.3 to 1; Simulated
    # noise_norm, noise_weight: shares of the norm of the noise variance's statistic: of the bound, and of the clip of
    # its residual; 0.1 to 0.5, 0.05 to 0.2; Simulated
    noise_norm: float = 0.25
    noise_weight: float = 0.1
    # noise_rise, noise_fall, least_noise: largest and least change of the noise variance in a step, and its least
    # value; 1.1 to 2, 0.5 to 0.9, 1e-5 to 1e-3; Simulated
    noise_rise: float = 1.25
    noise_fall: float = 0.8
    least_noise: float = 1e-4
    least_noise_rate: float = 0.02  # least rate of the noise variance; 0.01 to 0.1; Simulated
    start_noise: float = 0.5  # of the standardised response's variance; 0.1 to 1; not tuned: a half
    replicas: int = 12  # of a network's run; 8 to 32; not tuned: a spread with an error of a fifth
    replica_rows: int = 20_000  # most made-up records, if no step samples half as many; 1e4 to 1e5; not tuned
    signal: float = 8000.0  # N epsilon at which the rule has the default settings; 2000 to 30 000; Simulated


TUNING = Tuning()
