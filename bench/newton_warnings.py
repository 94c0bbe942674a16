"""How often the posterior of a private Newton run warns: where all is as the model says, and where one thing is wrong.

The design is drawn from ``SEED``, which was committed before any threshold was chosen.  Thresholds may look at the even
cells alone; both halves are reported.

    python bench/newton_warnings.py [--half seen|unseen|both] [--kind KIND ...] [--runs 4]

A cell is a population of records, a declared model and a budget.  Kinds: "well", and one that is wrong on purpose:
"scale" (declared response_scale wrong by 60 to 100 000 times), "prior" (weights of 3 to 30 prior standard deviations),
"collinear" (AR(1) of 0.99 and more, or a feature that is another but for 1%), "outliers" (errors of a t distribution
with 1 to 3 degrees of freedom, or 5 to 20% of them 10 to 50 times larger), "link" (a quadratic or exponential mean;
for outcomes a complementary log-log link, or 10 to 25% of them flipped) and "features" (one or all of them 0.05 to 0.3
or 3 to 20 times their declared size).
"""

from dataclasses import dataclass

import numpy as np

SEED = 20_261_122_2
KINDS = ("well", "scale", "prior", "collinear", "outliers", "link", "features")
CELLS = {"well": 120, "scale": 24, "prior": 24, "collinear": 24, "outliers": 24, "link": 24, "features": 24}
LOGISTIC_KINDS = ("well", "prior", "collinear", "link", "features")


@dataclass(frozen=True)
class Cell:
    """One population, and what is wrong with it: `severity` in [0, 1) and a `variant` of 0 or 1."""

    index: int
    kind: str
    logistic: bool
    n_features: int
    n_records: int
    correlation: float
    intercept: bool
    epsilon: float
    prior_scale: float
    noise_variance: float
    response_error: float
    severity: float
    variant: int

    @property
    def seen(self) -> bool:
        """Whether thresholds may be chosen on this cell."""
        return self.index % 2 == 0


def draw_design(seed: int = SEED) -> list[Cell]:
    """Return all cells; the even ones are the seen half."""
    rng = np.random.default_rng(seed)
    return [_draw_cell(index, kind, rng) for kind in KINDS for index in range(CELLS[kind])]


def _draw_cell(index: int, kind: str, rng: np.random.Generator) -> Cell:
    logistic = bool(rng.uniform() < 0.4)
    return Cell(
        index=index,
        kind=kind,
        logistic=logistic and kind in LOGISTIC_KINDS,
        n_features=int(np.rint(np.exp(rng.uniform(np.log(2.0), np.log(15.0))))),
        n_records=int(np.exp(rng.uniform(np.log(2000.0), np.log(20_000.0)))),
        correlation=float(rng.choice([0.0, rng.uniform(0.2, 0.9)])),
        intercept=bool(rng.uniform() < 0.7),
        epsilon=float(np.exp(rng.uniform(np.log(0.3), np.log(8.0)))),
        prior_scale=float(rng.choice([1.0, 2.0, 4.0])),
        noise_variance=float(np.exp(rng.uniform(np.log(0.02), np.log(10.0)))),
        response_error=float(10.0 ** rng.uniform(-1.0, 1.0)),
        severity=float(rng.uniform()),
        variant=int(rng.integers(2)),
    )
