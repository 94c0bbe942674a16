"""Coverage and width of the private Newton posterior of a logistic regression with normal features.

    python bench/newton_logistic.py [--runs 24]
    python bench/newton_logistic.py --adult [--runs 4]        needs DPINFER_DATA, with adult.data.csv.gz

Weights are N(0, 1 / d) with an intercept of 0, or one that makes 5% of the outcomes positive; the prior is N(0, 1).
Widths are relative to the normal approximation of the posterior without privacy at the true weights.  --adult: Adult's
columns and the schema's declared moments, weights N(0, 1), simulated labels; also the coverage of linear predictors.
"""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.inference.newton.logistic import logistic_distribution, logistic_sampler
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, autoregressive

FloatArray = npt.NDArray[np.float64]

CHAINS, WARM_UP, KEPT = 2, 60, 60


@dataclass(frozen=True)
class Cell:
    """Independent or AR(1) features, an intercept, and a budget."""

    n_features: int
    n_records: int
    correlation: float
    epsilon: float
    rare: bool = False


CELLS = (
    Cell(5, 20_000, 0.0, 1.0),
    Cell(5, 20_000, 0.5, 1.0),
    Cell(20, 20_000, 0.0, 1.0),
    Cell(20, 20_000, 0.5, 1.0),
    Cell(5, 20_000, 0.5, 1.0, rare=True),
    Cell(20, 20_000, 0.9, 1.0),
    Cell(5, 20_000, 0.5, 0.3),
    Cell(20, 20_000, 0.5, 0.3),
    Cell(20, 20_000, 0.5, 8.0),
    Cell(20, 20_000, 0.5, 0.1),
)


def rare_intercept(predictor: FloatArray) -> float:
    """Return the intercept with which 5% of the outcomes are positive on average."""
    low, high = -12.0, 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if special.expit(predictor + middle).mean() < 0.05 else (low, middle)
    return low


def run_cell(cell: Cell, runs: int, seed: int) -> str:
    """Simulate the runs of a cell and return a line about their posteriors."""
    rng = np.random.default_rng(seed)
    make = autoregressive(cell.n_records, cell.n_features, cell.correlation)
    model = dpi.models.LogisticRegression(cell.n_features, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=cell.epsilon, target_delta=1e-5, n_records=cell.n_records)
    releases, truths, widths = [], [], []
    for index in range(runs):
        features = make(rng)
        weights = rng.normal(size=cell.n_features) / np.sqrt(cell.n_features)
        truth = np.append(weights, rare_intercept(features @ weights) if cell.rare else 0.0)
        design = np.hstack((features, np.ones((cell.n_records, 1))))
        p = special.expit(design @ truth)
        response = (rng.random(cell.n_records) < p) + 0.0
        source = InsecureRNG(1000 * seed + index)
        releases.append(
            dpi.run_newton(model, features, response, plan=plan, n_records=cell.n_records, random_source=source)
        )
        information = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(truth.size)
        truths.append(truth)
        widths.append(NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(information))))
    sampler = logistic_sampler(releases, [1.0] * runs, n_chains=CHAINS, seed=seed)
    sampler.warm_up(WARM_UP)
    found = [sampler.draw(KEPT)]
    covered, relative = [], []
    for index, release in enumerate(releases):
        theta, _ = logistic_distribution(release, found, slice(CHAINS * index, CHAINS * (index + 1)))
        low, high = theta.marginals.quantile(LEVELS)
        covered.append(np.mean((low < truths[index]) & (truths[index] < high)))
        relative.append((high - low) / widths[index])
    error = np.std(covered, ddof=1) / np.sqrt(runs)
    return f"covered {np.mean(covered):.3f} +- {error:.3f}  width {np.median(relative):5.2f}"


def adult(runs: int, seed: int) -> None:
    """Print a line for each epsilon."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("DPINFER_DATA must name the folder with adult.data.csv.gz")
    schema = dpi.tabular.Schema.load(Path(__file__).parents[1] / "examples" / "adult.toml")
    features = np.ascontiguousarray(dpi.tabular.read_table(Path(folder) / "adult.data.csv.gz", schema).X)
    design = np.hstack((features, np.ones((len(features), 1))))
    model = dpi.models.LogisticRegression(features.shape[1], fit_intercept=True, feature_moments=schema.feature_moments)
    for epsilon in (0.3, 1.0):
        plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=len(features))
        rng = np.random.default_rng(seed)
        rows = []
        for index in range(runs):
            truth = rng.normal(size=design.shape[1])
            p = special.expit(design @ truth)
            response = (rng.random(len(p)) < p) + 0.0
            begun = time.process_time()
            source = InsecureRNG(1000 * seed + index)
            release = dpi.run_newton(model, features, response, plan=plan, n_records=len(p), random_source=source)
            seconds = time.process_time() - begun
            posterior = dpi.noise_aware_posterior(release, n_samples=40, seed=seed)
            low, high = posterior.quantile(LEVELS)
            draws = posterior.sample(400, seed=0) @ design[::30].T
            ends = np.quantile(draws, LEVELS, axis=0)
            predictor = design[::30] @ truth
            covered = np.mean((ends[0] < predictor) & (predictor < ends[1]))
            information = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(truth.size)
            width = np.median((high - low) / (NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(information)))))
            rows.append((np.mean((low < truth) & (truth < high)), covered, width, seconds))
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(runs)
        print(
            f"Adult's columns  epsilon {epsilon:3.1f}  covered {mean[0]:.3f} +- {error[0]:.3f}  predictors "
            f"{mean[1]:.3f} +- {error[1]:.3f}  width {np.median(rows, axis=0)[2]:5.2f}  run {mean[3]:.2f} s",
            flush=True,
        )


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--adult", action="store_true")
    arguments = parser.parse_args()
    if arguments.adult:
        adult(arguments.runs, arguments.seed)
        return
    for cell in CELLS:
        rare = "5% outcomes" if cell.rare else ""
        name = (
            f"d {cell.n_features:3d} N {cell.n_records} AR(1) {cell.correlation:.1f} eps {cell.epsilon:3.1f} {rare:11s}"
        )
        print(name, run_cell(cell, arguments.runs, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
