"""What was chosen of full-rank gradient traces: every number, its range, and what chose it.

Each comment gives meaning; range; script. "Curved": by hand, on the model of bench/coverage/curved.py, whose coverage
and width show what is wrong; the reasons are in docs/derivations/any-model.md. Other guides: dpinfer.models.tuning.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of the full-rank normal guide; the release's settings and arrays have what followed from them."""

    clip_level: float = 0.98  # clipping norm, a quantile of simulated norms; 0.9 to 1; Curved
    mixing_times: float = 10.0  # of the steps: rho = min(1/2, 10/T, 1/nu); 5 to 20; Curved
    largest_rate: float = 0.5  # of rho; 0.1 to 1; by hand: a natural step of 1 would be a full Newton step
    # longest, longest_turn: step of m in standard deviations, and of K; 0.3 to 2, 0.1 to 0.5; by hand: L keeps a
    # positive diagonal
    longest: float = 1.0
    longest_turn: float = 0.3
    # of the rate of K; 0.05 to 0.5; by hand: stationary variances of K add up to about a tenth
    turn_variance: float = 0.2


TUNING = Tuning()
