"""Coverage and width of the weight of a rare category, beside those of the other weights.

    python bench/rare_categories.py [--runs 12] [--model linear logistic poisson] [--seed 11]

Normal features, the indicator of a category with a small share, and an intercept; every feature is declared as one of
mean square 1. Weights are standard normal for a linear regression (noise variance 1, prior standard deviation 2), and
N(0, 1 / d) for the others (prior standard deviation 1). delta = 1e-5. Widths are relative to the normal approximation
of the posterior without privacy.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG
from newton_glm import information_of
from newton_runs import LEVELS, NORMAL_WIDTH

FloatArray = npt.NDArray[np.float64]

MODELS = {
    "linear": dpi.models.LinearRegression,
    "logistic": dpi.models.LogisticRegression,
    "poisson": dpi.models.PoissonRegression,
}


@dataclass(frozen=True)
class Cell:
    """A share of the records, as many normal features, and a budget."""

    share: float
    n_normal: int
    n_records: int
    epsilon: float


CELLS = (
    Cell(0.05, 1, 10_000, 1.0),
    Cell(0.02, 1, 30_000, 1.0),
    Cell(0.02, 1, 10_000, 3.0),
    Cell(0.005, 1, 30_000, 3.0),
    Cell(0.02, 8, 30_000, 3.0),
)


def run_cell(kind: str, cell: Cell, runs: int, seed: int) -> str:
    """Simulate the runs of a cell and return a row."""
    d = cell.n_normal + 1
    prior = 2.0 if kind == "linear" else 1.0
    model = MODELS[kind](d, fit_intercept=True, prior_scale=prior)
    plan = dpi.plan_newton(model, target_epsilon=cell.epsilon, target_delta=1e-5, n_records=cell.n_records)
    scale = {"response_scale": 2.0} if kind == "linear" else {}
    covered, widths, warned = [], [], []
    for index in range(runs):
        rng = np.random.default_rng([seed, index])
        indicator = (rng.random(cell.n_records) < cell.share).astype(np.float64)
        features = np.column_stack((rng.normal(size=(cell.n_records, cell.n_normal)), indicator))
        design = np.column_stack((features, np.ones(cell.n_records)))
        weights = rng.normal(size=d) / (1.0 if kind == "linear" else np.sqrt(d))
        truth = np.append(weights, 0.0)
        if kind == "linear":
            response = design @ truth + rng.normal(size=cell.n_records)
            precision = design.T @ design + np.eye(d + 1) / prior**2
        else:
            response = model.simulate(truth, features, rng)
            precision = information_of(model, design, truth, prior)
        release = dpi.run_newton(
            model, features, response, plan=plan, n_records=cell.n_records,
            random_source=InsecureRNG(1000 * seed + index), **scale,
        )  # fmt: skip
        posterior = dpi.noise_aware_posterior(release, seed=seed)
        low, high = posterior.quantile(LEVELS)[:, : d + 1]
        covered.append((low < truth) & (truth < high))
        widths.append((high - low) / (NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(precision)))))
        warned.append(bool(posterior.diagnostics.warnings))
    held, width = np.array(covered, dtype=np.float64), np.array(widths)
    rare, others = held[:, d - 1], np.delete(held, d - 1, axis=1).mean(axis=1)
    errors = [np.std(values, ddof=1) / np.sqrt(runs) for values in (rare, others)]
    low, middle, high = np.quantile(width[:, d - 1], [0.25, 0.5, 0.75])
    return (
        f"| {kind} | {cell.share:g} | {cell.n_normal} | {cell.n_records} | {cell.epsilon:g} "
        f"| {rare.mean():.3f} ± {errors[0]:.3f} | {middle:.2f} ({low:.2f} to {high:.2f}) "
        f"| {others.mean():.3f} ± {errors[1]:.3f} | {np.median(np.delete(width, d - 1, axis=1)):.2f} "
        f"| {np.mean(warned):.2f} |"
    )


def main() -> None:
    """Print a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    arguments = parser.parse_args()
    names = ("model", "share", "normal features", "N", "ε", "rare: covered", "width (quartiles)")
    print(f"| {' | '.join((*names, 'others: covered', 'width', 'warns'))} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind in arguments.model:
        for cell in CELLS:
            print(run_cell(kind, cell, arguments.runs, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
