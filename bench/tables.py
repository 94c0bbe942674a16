"""Tables of the UCI repository from file to coefficients in units, and how often they hold those without privacy.

    DPINFER_DATA=... python bench/tables.py [--runs 12] [--only wine ...] [--epsilons 1 3] [--report DIR]

Schemas are those of examples/.  An interval of 90% counts what the records leave open, too; the estimate from these
very records lies closer to the centre than the truth does, so that shares above 90% are expected where records leave
more open than the noise.  The estimates without privacy are least squares, or the mode with the same prior
(logistic), of the same rows.  Errors are standard errors over runs, coefficients of one run taken together.  The power
twin are intervals that do not count the noise: the fitted centre with the width without privacy.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.formulas import Design
from dpinfer.formulas.records import UnreadRecords
from dpinfer.models.bijectors import sigmoid
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

DELTA = 1e-5
HALF_WIDTH = 1.6448536269514722
EXAMPLES = Path(__file__).parent.parent / "examples"
# File, formula, family, public number of records.
TABLES: dict[str, tuple[str, str, str, int]] = {
    "wine": ("wine-quality-red", "y ~ .", "gaussian", 1599),
    "concrete": ("concrete", "y ~ . - x8 + log(x8)", "gaussian", 1030),
    "power": ("power-plant", "y ~ .", "gaussian", 9568),
    "yacht": ("yacht", "y ~ x1 + x2 + x3 + x4 + x5 + poly(x6, 3)", "gaussian", 308),
    "adult": (
        "adult.data",
        "income ~ age + sex + C(education, base='HS-grad') + C(`marital-status`, base='Never-married') "
        "+ `hours-per-week`",
        "binomial",
        32561,
    ),
}


def without_privacy(found: Design, path: Path) -> tuple[FloatArray, FloatArray]:
    """Return estimates and standard errors in the user's units, from the rows that the mechanism gets."""
    records = UnreadRecords(path, found)
    X, y = np.asarray(records.X), np.asarray(records.y)
    rows = np.column_stack([X, np.ones(len(X))])
    if found.family == "gaussian":
        weights = np.linalg.lstsq(rows, y, rcond=None)[0]
        variance = np.sum((y - rows @ weights) ** 2) / (len(y) - rows.shape[1])
        covariance = variance * np.linalg.inv(rows.T @ rows)
    else:
        prior = np.eye(rows.shape[1]) / found.prior_scale**2
        weights = np.zeros(rows.shape[1])
        for _ in range(30):
            probability = sigmoid(rows @ weights)
            precision = (rows * (probability * (1.0 - probability))[:, None]).T @ rows + prior
            weights = weights + np.linalg.solve(precision, rows.T @ (y - probability) - prior @ weights)
        covariance = np.linalg.inv(precision)
    matrix, shift = found.user_units()
    return matrix @ weights + shift, np.sqrt(np.diag(matrix @ covariance @ matrix.T))


def run(name: str, epsilon: float, runs: int, folder: Path, report: Path | None) -> None:
    """Print one line of the table, and the coefficients of the first run."""
    file, formula, family, size = TABLES[name]
    schema = dpi.tabular.Schema.load(EXAMPLES / f"{name}.toml")
    path = folder / f"{file}.csv.gz"
    settings: dict[str, Any] = {
        "family": family,
        "schema": schema,
        "epsilon": epsilon,
        "delta": DELTA,
        "n_records": size,
    }
    exact = error = None
    held, naive, widths, seconds = [], [], [], []
    for seed in range(runs):
        start = time.perf_counter()
        fit = dpi.regression(formula, path, random_source=InsecureRNG(seed), **settings)
        table = fit.coefficients()
        seconds.append(time.perf_counter() - start)
        if exact is None or error is None:
            exact, error = without_privacy(fit.design, path)
        count = len(exact)
        held.append(np.mean((table.low[:count] <= exact) & (exact <= table.high[:count])))
        naive.append(np.mean(np.abs(table.mean[:count] - exact) <= HALF_WIDTH * error))
        widths.append((table.high - table.low)[:count] / (2.0 * HALF_WIDTH * error))
        if seed == 0:
            print(f"\n{fit.summary()}\n")
            print("without privacy: " + ", ".join(f"{n} {v:.4g}" for n, v in zip(table.names, exact, strict=False)))
            if report is not None:
                fit.report(report / f"{name}-{epsilon:g}.html")
    shares = [f"{np.mean(each):.3f} +- {np.std(each, ddof=1) / np.sqrt(runs):.3f}" for each in (held, naive)]
    print(
        f"| {name} | {size} | {count} | {epsilon:g} | {fit.plan.method} | {runs} | {shares[0]} | {shares[1]} | "
        f"{np.median(widths):.2f} | {np.median(seconds):.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--report", type=Path, help="a folder for a report of the first run of each")
    arguments = parser.parse_args()
    folder = Path(os.environ["DPINFER_DATA"])
    print("| table | N | coefficients | eps | method | runs | coverage | without the noise | width | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in arguments.only:
        for epsilon in arguments.epsilons:
            run(name, epsilon, arguments.runs, folder, arguments.report)


if __name__ == "__main__":
    main()
