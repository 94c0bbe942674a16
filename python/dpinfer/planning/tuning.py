"""Chosen numbers of comparisons of plans: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of comparisons of predicted widths, and of the search for a trace's settings."""

    alike: float = 1.1  # widths within this factor are alike, fewest passes decide; 1 to 1.2; by hand: errors of 15%
    # up to which width the population's target is taken; 1.25 to 1.6; bench/coverage/real_responses.py targets and
    # small, even cells: where it is predicted so much wider, the model's intervals cover too little in silence
    cost_of_robustness: float = 1.6
    # factor of a gradient trace's width in the comparison, since its intervals are many times wider where features are
    # correlated; 1 to 3; by hand (docs/coverage.md)
    unwhitened: float = 1.5
    # factors, sample_rates, steps: tried as learning rate over the steady one, sample rate and number of steps; 0.1 to
    # 2, 0.05 to 1, 1000 to 10 000; not tuned: grids of a factor of about 2, up to the published number of steps
    factors: tuple[float, ...] = (0.125, 0.18, 0.25, 0.35, 0.5, 1.0, 2.0)
    sample_rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    steps: tuple[int, ...] = (1000, 2500, 5000, 10_000)
    slack: float = 1.01  # fewer steps are preferred up to this factor of width; 1 to 1.05; not tuned
    largest_contraction: float = 0.5  # of one step, which diverges at 2; 0.25 to 1; by hand
    # least_coverage, coverage_slack: of 90% intervals: settings that cover less are not taken; choices so near to the
    # best are compared by their score; 0.85 to 0.9, 0.01 to 0.05; by hand: bench/coverage/coverage_tables.py
    least_coverage: float = 0.88
    coverage_slack: float = 0.03


TUNING = Tuning()
