"""Chosen numbers of unknown arguments: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of counts, bounds and categories that are released before a fit."""

    budget_share: float = 0.1  # of the budget, in squares, for all of them; 0.02 to 0.3; by hand
    failure_share: float = 0.1  # of delta, for thresholds of labels; 0.01 to 0.5; by hand: the rest is for the fit
    # n_records, bounds, categories: weights of the parts, as squares of the signal-to-noise ratio; 1 to 10; by hand
    n_records: float = 1.0
    bounds: float = 5.0
    categories: float = 4.0
    # a quantile is released that so many records over epsilon lie beyond; 10 to 100; by hand: a draw among 1024 cells
    # lands beyond all of N values about once in 10 000 times at an epsilon p N / (1 - p) of 32
    resolved: float = 32.0
    # probability, least_probability, largest_probability: of the default quantile where the number of records is not
    # known, and ends of those that follow from it; 0.01 to 0.25; by hand (docs/unknown.md)
    probability: float = 0.1
    least_probability: float = 0.02
    largest_probability: float = 0.25


TUNING = Tuning()
