"""Coverage and width of the private Newton posterior of a logistic, probit or Poisson regression with normal features.

    python bench/coverage/newton_glm.py logistic|probit|poisson [--runs 24] [--seed 3]
    python bench/coverage/newton_glm.py stranger [--runs 24]    features and intercepts that the settings did not expect
    python bench/coverage/newton_glm.py wide [--runs 8]          logistic regressions with 100 and 300 features
    python bench/coverage/newton_glm.py efficiency               what clips cost without noise
    python bench/coverage/newton_glm.py adult [--runs 4] [--cells 0] [--steps 40]   needs DPINFER_DATA

Weights are N(0, 1 / d) with an intercept of 0, or one that sets the mean response (5% of the outcomes positive, rates
of 0.05 or 20); the prior is N(0, 1), or N(0, 9) where the intercept is far out.  Widths are relative to the normal
approximation of the posterior without privacy at the true weights.  adult: Adult's columns and the schema's declared
moments, logistic regression, weights N(0, 1), simulated labels; also the coverage of linear predictors, and the error
of the calibration curve of predictions for the test set, in ten bins, and their log loss, after a run with the real
labels.  Four chains of --steps: the public interface goes on where the Monte Carlo error says so.
"""

import argparse
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.models.clipped_residuals import ResponseGrid
from dpinfer.models.normal_design import PredictorLaw
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, autoregressive

FloatArray = npt.NDArray[np.float64]

MODELS = {
    "logistic": dpi.models.LogisticRegression,
    "probit": dpi.models.ProbitRegression,
    "poisson": dpi.models.PoissonRegression,
}


@dataclass(frozen=True)
class Cell:
    """Independent or AR(1) features, an intercept, and a budget."""

    n_features: int
    n_records: int
    correlation: float
    epsilon: float
    mean: float | None = None
    feature_scale: float = 1.0
    one_hot: int = 0

    def __str__(self) -> str:
        extra = "" if self.mean is None else f"mean response {self.mean:g}"
        extra += "" if self.feature_scale == 1.0 else f" features {self.feature_scale:g} times as large as declared"
        extra += f" {self.one_hot} one-hot columns" if self.one_hot else ""
        design = f"d {self.n_features:3d} N {self.n_records} AR(1) {self.correlation:.1f}"
        return f"{design} eps {self.epsilon:3.1f} {extra:28s}"


CELLS = (
    Cell(5, 20_000, 0.0, 1.0),
    Cell(5, 20_000, 0.5, 1.0),
    Cell(20, 20_000, 0.0, 1.0),
    Cell(20, 20_000, 0.5, 1.0),
    Cell(20, 20_000, 0.9, 1.0),
    Cell(5, 20_000, 0.5, 0.3),
    Cell(20, 20_000, 0.5, 0.3),
    Cell(20, 20_000, 0.5, 3.0),
    Cell(20, 20_000, 0.5, 8.0),
    Cell(20, 20_000, 0.5, 0.1),
)
RARE = (Cell(5, 20_000, 0.5, 1.0, mean=0.05), Cell(20, 20_000, 0.5, 1.0, mean=0.05))
FREQUENT = (Cell(5, 20_000, 0.5, 1.0, mean=20.0), Cell(20, 20_000, 0.5, 1.0, mean=20.0))
STRANGER = (
    Cell(5, 20_000, 0.5, 1.0, feature_scale=1.3),
    Cell(20, 20_000, 0.5, 1.0, feature_scale=1.3),
    Cell(5, 20_000, 0.5, 1.0, one_hot=5),
)
WIDE = (Cell(100, 20_000, 0.0, 1.0), Cell(100, 20_000, 0.5, 1.0), Cell(300, 100_000, 0.0, 1.0))


def intercept_of(model: dpi.models.GeneralizedLinearModel, predictor: FloatArray, mean: float) -> float:
    """Return the intercept with which responses have a mean of `mean`."""
    low, high = -15.0, 8.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if model.inverse_link(predictor + middle).mean() < mean else (low, middle)
    return low


def make_features(cell: Cell, rng: np.random.Generator) -> FloatArray:
    """Return normal features, and indicators of categories of unequal shares (all but the first)."""
    normal = autoregressive(cell.n_records, cell.n_features, cell.correlation)(rng) * cell.feature_scale
    if not cell.one_hot:
        return normal
    shares = 0.5 ** np.arange(cell.one_hot + 1)
    kinds = rng.choice(cell.one_hot + 1, size=cell.n_records, p=shares / shares.sum())
    return np.hstack((normal, (kinds[:, None] == np.arange(1, cell.one_hot + 1)).astype(float)))


def information_of(
    model: dpi.models.GeneralizedLinearModel, design: FloatArray, truth: FloatArray, prior_scale: float
) -> FloatArray:
    """Return the precision of the normal approximation without privacy at the true weights."""
    eta = design @ truth
    mean = model.inverse_link(eta)
    slope = (model.inverse_link(eta + 1e-5) - model.inverse_link(eta - 1e-5)) / 2e-5
    variance = mean if model.response == "count" else mean * (1.0 - mean)
    weight = slope**2 / np.maximum(variance, 1e-12)
    return (design * weight[:, None]).T @ design + np.eye(truth.size) / prior_scale**2


def run_cell(kind: str, cell: Cell, runs: int, seed: int) -> str:
    """Simulate the runs of a cell and return a line about their posteriors."""
    rng = np.random.default_rng(seed)
    prior_scale = 1.0 if cell.mean is None else 3.0
    d = cell.n_features + cell.one_hot
    model = MODELS[kind](d, fit_intercept=True, prior_scale=prior_scale)
    plan = dpi.plan_newton(model, target_epsilon=cell.epsilon, target_delta=1e-5, n_records=cell.n_records)
    releases, truths, widths, seconds = [], [], [], []
    for index in range(runs):
        features = make_features(cell, rng)
        weights = rng.normal(size=d) / np.sqrt(d)
        intercept = 0.0 if cell.mean is None else intercept_of(model, features @ weights, cell.mean)
        truth = np.append(weights, intercept)
        response = model.simulate(truth, features, rng)
        begun = time.process_time()
        source = InsecureRNG(1000 * seed + index)
        releases.append(
            dpi.run_newton(model, features, response, plan=plan, n_records=cell.n_records, random_source=source)
        )
        seconds.append(time.process_time() - begun)
        design = np.hstack((features, np.ones((cell.n_records, 1))))
        information = information_of(model, design, truth, prior_scale)
        truths.append(truth)
        widths.append(NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(information))))
    covered, relative, scores = [], [], []
    for truth, release, width in zip(truths, releases, widths, strict=True):
        posterior = dpi.noise_aware_posterior(release, check_convergence=False)
        low, high = posterior.quantile(LEVELS)
        covered.append((low < truth) & (truth < high))
        relative.append((high - low) / width)
        scores.append((posterior.mean - truth) / posterior.stddev)
    by_run = np.mean(covered, axis=1)
    error = np.std(by_run, ddof=1) / np.sqrt(runs)
    return (
        f"covered {np.mean(by_run):.3f} +- {error:.3f}  width {np.median(relative):5.2f}  rms z "
        f"{np.sqrt(np.mean(np.square(scores))):.2f}  intercept {np.mean(np.array(covered)[:, -1]):.2f}  "
        f"run {np.median(seconds):.2f} s"
    )


def efficiency() -> None:
    """Print what a clipped residual costs at a normal predictor: its largest value, and the standard error it leaves.

    The standard error is relative to that of the likelihood's own score, for one weight and no noise: sqrt(E v E i) / E
    s with i the Fisher information of a response about its predictor.
    """
    for kind, clips in (("logistic", (0.5, 0.7, 1.0)), ("probit", (0.5, 0.7, 1.0)), ("poisson", (1.0, 2.0, 4.0))):
        model = MODELS[kind](1)
        grid = ResponseGrid(model, 1.0 / 64.0)
        for law in (PredictorLaw(0.0, 0.3), PredictorLaw(0.0, 1.0), PredictorLaw(-1.5, 0.7)):
            told = []
            for clip in clips:
                residual = grid.clipped(clip)
                lost = math.sqrt(law.mean(grid, residual.variance) * law.mean(grid, grid.information))
                told.append(f"c {clip:.1f}: {residual.bound:.3f}, {lost / law.mean(grid, residual.slope):.3f}")
            print(f"{kind:8s} eta ~ N({law.loc:g}, {law.scale:g}^2)  {'   '.join(told)}")


def adult_tables() -> tuple[dpi.models.LogisticRegression, dpi.tabular.Table, dpi.tabular.Table]:
    """Return a model with the schema's declared moments, and the tables for training and test."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("DPINFER_DATA must name the folder with adult.data.csv.gz")
    schema = dpi.tabular.Schema.load(Path(__file__).parents[2] / "examples" / "adult.toml")
    train, test = (dpi.tabular.read_table(Path(folder) / f"adult.{part}.csv.gz", schema) for part in ("data", "test"))
    model = dpi.models.LogisticRegression(train.X.shape[1], fit_intercept=True, feature_moments=schema.feature_moments)
    return model, train, test


def adult(runs: int, seed: int, cells: list[int] | None, steps: int) -> None:
    """Print a line for each epsilon, or for those with these numbers."""
    model, train, test = adult_tables()
    features = np.ascontiguousarray(train.X)
    design = np.hstack((features, np.ones((len(features), 1))))
    for epsilon in (value for index, value in enumerate((0.1, 0.3, 1.0)) if cells is None or index in cells):
        plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=len(features))
        rng = np.random.default_rng(seed)
        rows, calibration, losses = [], [], []
        for index in range(runs):
            truth = rng.normal(size=design.shape[1])
            response = model.simulate(truth, features, rng)
            begun = time.process_time()
            source = InsecureRNG(1000 * seed + index)
            release = dpi.run_newton(
                model, features, response, plan=plan, n_records=len(features), random_source=source
            )
            seconds = time.process_time() - begun
            posterior = dpi.noise_aware_posterior(release, n_samples=steps, seed=seed)
            low, high = posterior.quantile(LEVELS)
            draws = posterior.sample(400, seed=0) @ design[::30].T
            ends = np.quantile(draws, LEVELS, axis=0)
            predictor = design[::30] @ truth
            covered = np.mean((ends[0] < predictor) & (predictor < ends[1]))
            information = information_of(model, design, truth, 1.0)
            width = np.median((high - low) / (NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(information)))))
            rows.append((np.mean((low < truth) & (truth < high)), covered, width, seconds))
            real = dpi.run_newton(
                model, features, train.y, plan=plan, n_records=len(features), random_source=InsecureRNG(index)
            )
            probability = dpi.noise_aware_posterior(real, n_samples=steps, seed=seed).predict_proba(test.X)[:, 1]
            calibration.append(dpi.diagnostics.calibration_curve(probability, test.y, n_bins=10).rmse)
            losses.append(-np.mean(np.log(np.where(test.y > 0.0, probability, 1.0 - probability))))
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(runs)
        print(
            f"Adult's columns  epsilon {epsilon:3.1f}  covered {mean[0]:.3f} +- {error[0]:.3f}  predictors "
            f"{mean[1]:.3f} +- {error[1]:.3f}  width {np.median(rows, axis=0)[2]:5.2f}  run {mean[3]:.2f} s  "
            f"calibration {np.mean(calibration):.4f} +- {np.std(calibration, ddof=1) / np.sqrt(runs):.4f}  "
            f"log loss {np.mean(losses):.4f} +- {np.std(losses, ddof=1) / np.sqrt(runs):.4f}",
            flush=True,
        )


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*MODELS, "stranger", "wide", "efficiency", "adult"])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--cells", type=int, nargs="*", help="numbers of cells; all by default")
    parser.add_argument("--steps", type=int, default=40, help="of each chain of adult")
    arguments = parser.parse_args()
    if arguments.what == "adult":
        adult(arguments.runs, arguments.seed, arguments.cells, arguments.steps)
        return
    if arguments.what == "efficiency":
        efficiency()
        return
    if arguments.what == "stranger":
        cells = [(kind, cell) for kind in MODELS for cell in STRANGER]
    elif arguments.what == "wide":
        cells = [("logistic", cell) for cell in WIDE]
    else:
        more = RARE + FREQUENT if arguments.what == "poisson" else RARE
        cells = [(arguments.what, cell) for cell in CELLS + more]
    for index, (kind, cell) in enumerate(cells):
        if arguments.cells is None or index in arguments.cells:
            print(f"{kind:8s} {cell}", run_cell(kind, cell, arguments.runs, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
