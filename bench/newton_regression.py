"""Coverage and width of the private Newton posterior: AR(1) features and real columns, noise variance unknown.

    python bench/newton_regression.py synthetic [--records 5000] [--runs 40]
    python bench/newton_regression.py real [--runs 20]        needs DPINFER_DATA, a folder with the UCI sets

Weights are drawn from the prior N(0, 4 variance), the noise variance is log-uniform on (0.02, 10), and the public scale
of the responses is wrong by up to a factor of 10.  Widths are relative to the posterior without privacy.
"""

import argparse

from newton_runs import CellSettings, autoregressive, run_cell
from scope_cells import REAL_SETS, real_columns

EPSILONS = (0.1, 0.3, 1.0, 3.0)
CORRELATIONS = (0.0, 0.5, 0.9, 0.99)


def synthetic(n_records: int, runs: int, seed: int) -> None:
    """Print a line for each correlation and epsilon: 10 features and an intercept."""
    for correlation in CORRELATIONS:
        for epsilon in EPSILONS:
            result = run_cell(autoregressive(n_records, 10, correlation), CellSettings(epsilon), runs, seed)
            print(f"N {n_records}  AR(1) {correlation:4.2f}  epsilon {epsilon:3.1f}  {result}", flush=True)


def real(runs: int, seed: int) -> None:
    """Print a line for each UCI set and epsilon."""
    for name in REAL_SETS:
        columns = real_columns(name)
        if columns is None:
            raise SystemExit("DPINFER_DATA must name the folder with the UCI sets")
        for epsilon in EPSILONS[2:]:
            result = run_cell(lambda rng, X=columns: X, CellSettings(epsilon), runs, seed)
            print(f"{name:<26s} N {len(columns):>6d}  epsilon {epsilon:3.1f}  {result}", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("synthetic", "real"))
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.what == "synthetic":
        synthetic(arguments.records, arguments.runs, arguments.seed)
    else:
        real(arguments.runs, arguments.seed)


if __name__ == "__main__":
    main()
