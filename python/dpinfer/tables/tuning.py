"""Chosen numbers of noisy tables: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of tables of means; the names of a release's sums have them."""

    # of a square beside a count and a sum, as squares give widths of intervals alone: a quarter of the others' squared
    # norm; 0.2 to 1; by hand
    square_weight: float = 0.5


TUNING = Tuning()
