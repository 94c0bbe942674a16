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

from newton_runs import CellResult, CellSettings, autoregressive, run_cell

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
    """Return the standardised features of a UCI set, clipped at 4, or None without DPINFER_DATA."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        return None
    with gzip.open(Path(folder) / f"{name}.csv.gz", "rt") as stream:
        columns = np.loadtxt(stream, delimiter=",", skiprows=1)[:, :-1]
    spread = columns.std(axis=0)
    columns = columns[:, spread > 0.0]
    return np.clip((columns - columns.mean(axis=0)) / spread[spread > 0.0], -4.0, 4.0)


def run(cell: Cell, runs: int) -> CellResult | None:
    """Simulate the runs of a cell, or return None where its columns are not there."""
    settings = CellSettings(
        epsilon=cell.epsilon,
        prior_scale=cell.prior_scale,
        intercept=cell.intercept,
        noise_variance=cell.noise_variance,
        response_error=cell.response_error,
        feature_scale=cell.scale_error,
        records_error=cell.records_error,
    )
    if cell.columns == "normal":
        make = autoregressive(cell.n_records, cell.n_features, cell.correlation)
        return run_cell(make, settings, runs, seed=SEED + cell.index)
    columns = real_columns(cell.columns)
    if columns is None:
        return None
    few = len(columns) > LARGEST

    def sample(rng: np.random.Generator) -> FloatArray:
        return columns[rng.choice(len(columns), LARGEST, replace=False)] if few else columns

    return run_cell(sample, settings, runs, seed=SEED + cell.index)


def main() -> None:
    """Run the design, or a half of it, and print a line for each cell and the pooled halves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=60)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--half", choices=("seen", "unseen", "both"), default="both")
    arguments = parser.parse_args()
    pooled: dict[bool, list[float]] = {True: [], False: []}
    variances: dict[bool, list[float]] = {True: [], False: []}
    for cell in draw_design(arguments.cells):
        if arguments.half not in ("both", "seen" if cell.seen else "unseen"):
            continue
        result = run(cell, arguments.runs)
        size = f"d {cell.n_features} N {cell.n_records} AR {cell.correlation:.2f}"
        what = size if cell.columns == "normal" else cell.columns
        wrong = f"scale {cell.scale_error:.2f} N {cell.records_error:.1f}"
        name = f"{cell.index:3d} {'seen' if cell.seen else 'unseen':6s} eps {cell.epsilon:4.2f} {what:26s} {wrong}"
        if result is None:
            print(f"{name}: left out, DPINFER_DATA is not set", flush=True)
            continue
        print(name, result, flush=True)
        pooled[cell.seen].append(result.coverage[0])
        variances[cell.seen].append(float(result.variance_covered.mean()))
    for seen, values in pooled.items():
        if values:
            error = np.std(values) / np.sqrt(len(values))
            print(
                f"{'seen' if seen else 'unseen'}: {len(values)} cells, coverage {np.mean(values):.3f} +- {error:.3f}, "
                f"noise variance {np.mean(variances[seen]):.3f}, cells below 0.80: {np.sum(np.array(values) < 0.80)}"
            )


if __name__ == "__main__":
    main()
