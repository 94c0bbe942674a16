"""Tables of the UCI repository from file to coefficients in units, and how often they hold those without privacy.

    python bench/coverage/tables.py [--runs 12] [--only wine ...] [--epsilons 1 3] [--target auto] [--processes 1]
    python bench/coverage/tables.py --only sex --samples --coefficient "sex[T.Male]" --epsilons 1 --runs 40

Schemas are those of examples/. An interval counts what the records leave open, too, so that shares above 90% are
expected where they leave more open than the noise. The estimates without privacy are least squares, or the mode with
the same prior (logistic), of the same rows, with robust standard errors (HC0); with --samples a run's rows are drawn
from the table with replacement, and the estimates of the whole table are to be covered, by HC0 of the sample, too.
"off" is the distance of the coefficient that is farthest from its estimate, in these errors: its median over runs.
Errors are standard errors over runs, coefficients of one run taken together. The power twin are intervals that do not
count the noise: the fitted centre with the width without privacy. "MCSE" is the largest Monte Carlo error of an
interval's end, in posterior standard deviations: its median over runs, and the largest of all. "seconds": processor
seconds of a fit with its table, median; of the posterior alone, median and most. "sigma" is the share of runs that
hold the residuals' standard deviation, "false scale" that whose summary doubts the response's bounds, which are right.

DPINFER_DATA names the folder of the tables.  Run k has seed k, however many processes share the runs out.
"""

import argparse
import concurrent.futures
import csv
import gzip
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.formulas import Design
from dpinfer.formulas.records import UnreadRecords
from dpinfer.models.base import sigmoid
from dpinfer.testing import InsecureRNG
from newton_runs import logistic_mode, median_and_error

FloatArray = npt.NDArray[np.float64]

DELTA = 1e-5
HALF_WIDTH = 1.6448536269514722
EXAMPLES = Path(__file__).parents[2] / "examples"
# File, formula, family, public number of records.
TABLES: dict[str, tuple[str, str, str, int]] = {
    "wine": ("wine-quality-red", "y ~ .", "gaussian", 1599),
    "concrete": ("concrete", "y ~ . - x8 + log(x8)", "gaussian", 1030),
    "power": ("power-plant", "y ~ .", "gaussian", 9568),
    "kin8nm": ("kin8nm", "y ~ .", "gaussian", 8192),
    "yacht": ("yacht", "y ~ x1 + x2 + x3 + x4 + x5 + poly(x6, 3)", "gaussian", 308),
    "adult": (
        "adult.data",
        "income ~ age + sex + C(education, base='HS-grad') + C(`marital-status`, base='Never-married') "
        "+ `hours-per-week`",
        "binomial",
        32561,
    ),
    "sex": (
        "adult.data",
        "income ~ age + sex + C(workclass) + C(education, base='HS-grad') + C(`marital-status`, base='Never-married') "
        "+ `hours-per-week`",
        "binomial",
        30718,
    ),
    # Of whose responses 0.5% are an upper code, a hundred times the usual residual.
    "gains": ("adult.data", "`capital-gain` ~ age + sex + `hours-per-week`", "gaussian", 32561),
}
SCHEMAS = {"gains": "adult", "sex": "adult"}


def sample(path: Path, seed: int) -> dict[str, Any]:
    """Return rows of a table, drawn with replacement, as columns."""
    with gzip.open(path, "rt") as file:
        header, *rows = csv.reader(file)
    picked = np.random.default_rng([20_261_125, seed]).integers(len(rows), size=len(rows))
    return dict(zip(header, np.array(rows, dtype=object)[picked].T, strict=True))


def without_privacy(found: Design, data: Any) -> tuple[FloatArray, FloatArray, float]:
    """Return estimates, standard errors and sigma in the user's units, from the rows that the mechanism gets."""
    records = UnreadRecords(data, found)
    X, y = np.asarray(records.X), np.asarray(records.y)
    rows = np.column_stack([X, np.ones(len(X))])
    if found.family == "gaussian":
        weights = np.linalg.lstsq(rows, y, rcond=None)[0]
        residual, precision = y - rows @ weights, rows.T @ rows
    else:
        weights, precision = logistic_mode(rows, y, found.prior_scale)
        residual = y - sigmoid(rows @ weights)
    bread = np.linalg.inv(precision)
    covariance = bread @ (rows * np.square(residual)[:, None]).T @ rows @ bread
    matrix, shift = found.user_units()
    sigma = found.response_scale * float(np.std(residual))
    return matrix @ weights + shift, np.sqrt(np.diag(matrix @ covariance @ matrix.T)), sigma


@dataclass(frozen=True)
class Run:
    """One fit beside the estimate without privacy."""

    summary: str
    exact: str
    method: str
    coverage: float
    without_noise: float
    robust: float
    sigma: float
    off: FloatArray
    widths: FloatArray
    monte_carlo: float
    doubts_scale: bool
    seconds: tuple[float, float]


def run(name: str, epsilon: float, seed: int, folder: Path, arguments: argparse.Namespace) -> Run:
    """Fit a table, and compare its coefficients with those without privacy."""
    file, formula, family, size = TABLES[name]
    schema = dpi.tabular.Schema.load(EXAMPLES / f"{SCHEMAS.get(name, name)}.toml")
    path = folder / f"{file}.csv.gz"
    settings: dict[str, Any] = {"family": family, "schema": schema, "delta": DELTA, "target": arguments.target}
    data = sample(path, seed) if arguments.samples else path
    start = time.process_time()
    source = InsecureRNG(seed)
    fit = dpi.regression(formula, data, random_source=source, epsilon=epsilon, n_records=size, **settings)
    table = fit.coefficients()
    whole, start = time.process_time() - start, time.process_time()
    dpi.noise_aware_posterior(fit.release)
    seconds = whole, time.process_time() - start
    exact, _, sigma = without_privacy(fit.design, path)
    own, error, _ = without_privacy(fit.design, data)
    kept = [k for k in range(len(exact)) if arguments.coefficient in (None, table.names[k])]
    exact, own, error, low, high, mean = (each[kept] for each in (exact, own, error, table.low, table.high, table.mean))
    diagnostics = fit.posterior.diagnostics
    return Run(
        summary=str(fit.summary()),
        exact=", ".join(f"{table.names[k]} {value:.4g}" for k, value in zip(kept, exact, strict=True)),
        method=fit.plan.method,
        coverage=float(np.mean((low <= exact) & (exact <= high))),
        without_noise=float(np.mean(np.abs(mean - exact) <= HALF_WIDTH * error)),
        robust=float(np.mean(np.abs(own - exact) <= HALF_WIDTH * error)),
        sigma=float(table.low[-1] <= sigma <= table.high[-1]) if family == "gaussian" else float("nan"),
        off=np.abs(mean - exact) / error,
        widths=(high - low) / (2.0 * HALF_WIDTH * error),
        monte_carlo=float("nan" if diagnostics.mcse is None else np.max(diagnostics.mcse)),
        doubts_scale="scale" in diagnostics.warnings,
        seconds=seconds,
    )


def show(name: str, epsilon: float, runs: list[Run]) -> None:
    """Print the coefficients of the first run, and one line of the table."""
    print(f"\n{runs[0].summary}\n\nwithout privacy: {runs[0].exact}")
    held, naive, robust, sigma = (
        f"{np.mean(each):.3f} +- {np.std(each, ddof=1) / np.sqrt(len(runs)):.3f}"
        for each in ([getattr(one, key) for one in runs] for key in ("coverage", "without_noise", "robust", "sigma"))
    )
    errors, (whole, own) = [one.monte_carlo for one in runs], np.transpose([one.seconds for one in runs])
    each = np.array([(one.off.max(), np.median(one.widths)) for one in runs]).T
    off, widths = ("{:.2f} +- {:.2f}".format(*median_and_error(part)) for part in each)
    doubts = np.mean([one.doubts_scale for one in runs])
    print(f"| {name} | {TABLES[name][3]} | {runs[0].widths.size} | {epsilon:g} | {runs[0].method} | {len(runs)} | "
          f"{held} | {naive} | {robust} | {sigma} | {off} | {widths} | {np.median(errors):.3f}, {np.max(errors):.3f} | "
          f"{doubts:.2f} | {np.median(whole):.2f}; {np.median(own):.2f}, {own.max():.2f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--target", default="auto", choices=("auto", "model", "population"))
    parser.add_argument("--samples", action="store_true", help="rows drawn with replacement")
    parser.add_argument("--coefficient", help="compare this one alone")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print("| table | N | coefficients | eps | method | runs | coverage | without the noise | HC0 | sigma | off | "
          "width | MCSE | false scale | seconds |")  # fmt: skip
    print("|---" * 15 + "|")
    cells = [(name, epsilon) for name in arguments.only for epsilon in arguments.epsilons]
    tasks = [(*cell, k, Path(os.environ["DPINFER_DATA"]), arguments) for cell in cells for k in range(arguments.runs)]
    with concurrent.futures.ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run, *task) for task in tasks]
        for place, cell in enumerate(cells):
            first = place * arguments.runs
            show(*cell, [each.result() for each in waiting[first : first + arguments.runs]])


if __name__ == "__main__":
    main()
