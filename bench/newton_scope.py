"""Coverage and width of the private Newton posterior over a random design of cells, half of it unseen.

The design is drawn from ``SEED``, which was written down before any constant of the method was chosen.  Constants may
look at the first half alone; both halves are reported.

    python bench/newton_scope.py [--half seen|unseen|both] [--cells 60] [--runs 8]

Real columns need DPINFER_DATA, a folder with the UCI sets; without it their cells are left out, and said so.
"""

import argparse
import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 20_261_122
REAL_SETS = (
    "power-plant",
    "kin8nm",
    "protein-tertiary-structure",
    "wine-quality-red",
    "concrete",
    "energy",
    "naval-propulsion-plant",
    "yacht",
)
LARGEST = 10_000

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One cell: a population of linear regressions and a privacy budget."""

    index: int
    columns: str
    n_features: int
    n_records: int
    correlation: float
    intercept: bool
    noise_variance: float
    prior_scale: float
    scale_error: float
    records_error: float
    response_error: float
    epsilon: float

    @property
    def seen(self) -> bool:
        """Whether constants may be chosen on this cell."""
        return self.index % 2 == 0


def draw_design(size: int, seed: int = SEED) -> list[Cell]:
    """Return the first `size` cells of the design; its halves are the even and the odd cells."""
    rng = np.random.default_rng(seed)
    return [_draw_cell(index, rng) for index in range(size)]


def _draw_cell(index: int, rng: np.random.Generator) -> Cell:
    real = rng.uniform() < 0.35
    return Cell(
        index=index,
        columns=str(rng.choice(REAL_SETS)) if real else "normal",
        n_features=int(np.rint(np.exp(rng.uniform(0.0, np.log(20.0))))),
        n_records=int(np.exp(rng.uniform(np.log(1000.0), np.log(30_000.0)))),
        correlation=float(rng.choice([0.0, rng.uniform(0.2, 0.95), 0.99], p=[0.3, 0.6, 0.1])),
        intercept=bool(rng.uniform() < 0.7),
        noise_variance=float(np.exp(rng.uniform(np.log(0.02), np.log(10.0)))),
        prior_scale=float(rng.choice([1.0, 2.0, 4.0])),
        scale_error=float(rng.choice([1.0, 1.1, 1.3, 1.0 / 1.3], p=[0.55, 0.15, 0.15, 0.15])),
        records_error=float(rng.choice([1.0, 0.9, 1.1], p=[0.7, 0.15, 0.15])),
        response_error=float(10.0 ** rng.uniform(-1.0, 1.0)),
        epsilon=float(np.exp(rng.uniform(np.log(0.1), np.log(8.0)))),
    )


def real_columns(name: str) -> FloatArray | None:
    """Return the standardised features of a UCI set, clipped at four standard deviations, or None without DPINFER_DATA."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        return None
    with gzip.open(Path(folder) / f"{name}.csv.gz", "rt") as stream:
        columns = np.loadtxt(stream, delimiter=",", skiprows=1)[:, :-1]
    spread = columns.std(axis=0)
    columns = columns[:, spread > 0.0]
    return np.clip((columns - columns.mean(axis=0)) / spread[spread > 0.0], -4.0, 4.0)


def main() -> None:
    """Print the design."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=60)
    arguments = parser.parse_args()
    for cell in draw_design(arguments.cells):
        print("seen  " if cell.seen else "unseen", cell)


if __name__ == "__main__":
    main()
