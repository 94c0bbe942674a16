"""Widths that a plan predicts before any record is read, beside those that private runs gave.

    python bench/coverage/fit_widths.py [--runs 24] [--only linear|logistic|statistic]

Median width over the weights, relative to the posterior without privacy; the error of a measured median is that over
resampled runs.  Linear regressions have an unknown noise variance and weights from the prior, the others those of
newton_glm.py (weights N(0, 1 / d): a linear predictor of spread 1, which is what the plan assumes), with
independent features, and --correlation for those that the plan knows nothing of.
"""

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, CellSettings, autoregressive, run_cell

FloatArray = npt.NDArray[np.float64]

DELTA = 1e-5
# Features (an intercept follows), records, epsilon.  The last two of each were not looked at before the formula stood.
LINEAR = [
    *((10, 5000, epsilon) for epsilon in (0.1, 0.3, 1.0, 3.0)),
    *((10, 30_000, epsilon) for epsilon in (0.1, 0.3, 1.0, 3.0)),
    (3, 10_000, 0.3),
    (25, 20_000, 1.0),
]
LOGISTIC = [
    *((5, 20_000, epsilon) for epsilon in (0.3, 1.0, 3.0)),
    *((20, 20_000, epsilon) for epsilon in (0.3, 1.0, 3.0)),
    (10, 50_000, 0.3),
    (10, 10_000, 1.0),
]
STATISTIC: list[tuple[dpi.models.ConjugateModel, float]] = [
    (model, epsilon)
    for model in (dpi.models.BetaBernoulli(), dpi.models.DirichletCategorical(), dpi.models.GammaExponential())
    for epsilon in (0.1, 1.0)
]


def predicted(model: dpi.models.Model, method: str, n_records: int, epsilon: float) -> float:
    """Return what the plan of a fit says."""
    plan = dpi.plan_fit(model, epsilon=epsilon, delta=DELTA, n_records=n_records, method=method)
    return plan.predicted_width


def median_and_error(width: FloatArray, seed: int) -> tuple[float, float]:
    """Return the median of (R, d) widths and its standard error over resampled runs."""
    rng = np.random.default_rng(seed)
    drawn = [np.median(width[rng.integers(0, len(width), len(width))]) for _ in range(400)]
    return float(np.median(width)), float(np.std(drawn))


def logistic_widths(d: int, n_records: int, epsilon: float, correlation: float, runs: int, seed: int) -> FloatArray:
    """Return relative widths of logistic runs, (R, d + 1)."""
    rng = np.random.default_rng(seed)
    make = autoregressive(n_records, d, correlation)
    model = dpi.models.LogisticRegression(d, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=n_records)
    releases, widths = [], []
    for index in range(runs):
        design = np.hstack((make(rng), np.ones((n_records, 1))))
        p = special.expit(design @ np.append(rng.normal(size=d) / np.sqrt(d), 0.0))
        y = (rng.random(n_records) < p) + 0.0
        source = InsecureRNG(1000 * seed + index)
        features = np.ascontiguousarray(design[:, :-1])
        releases.append(dpi.run_newton(model, features, y, plan=plan, n_records=n_records, random_source=source))
        information = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(d + 1)
        widths.append(NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(information))))
    ends = [dpi.noise_aware_posterior(release, check_convergence=False).quantile(LEVELS) for release in releases]
    return np.array([(high - low) / width for (low, high), width in zip(ends, widths, strict=True)])


def statistic_widths(
    model: dpi.models.ConjugateModel, n_records: int, epsilon: float, runs: int, seed: int
) -> FloatArray:
    """Return relative widths of one-shot runs, (R, n)."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(runs):
        records = model.simulate(model.sample_prior(1, rng)[0], n_records, rng)
        source = InsecureRNG(1000 * seed + index)
        release = dpi.run_statistic(model, records, epsilon=epsilon, n_records=n_records, random_source=source)
        private = np.diff(dpi.noise_aware_posterior(release).quantile(LEVELS, space="unconstrained"), axis=0)[0]
        rows.append(private / np.diff(model.posterior(records).quantile(LEVELS, "unconstrained"), axis=0)[0])
    return np.array(rows)


def show(name: str, planned: float, measure: Callable[[], FloatArray], seed: int) -> None:
    """Print a line."""
    measured, error = median_and_error(measure(), seed)
    share = 100.0 * (planned / measured - 1.0)
    print(f"{name:52s} predicted {planned:6.3f}  measured {measured:6.3f} +- {error:.3f}  {share:+4.0f}%", flush=True)


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--only", choices=("linear", "logistic", "statistic"))
    parser.add_argument("--correlation", type=float, default=0.0, help="AR(1) correlation of features")
    arguments = parser.parse_args()
    runs, seed, correlation = arguments.runs, arguments.seed, arguments.correlation
    for d, n, epsilon in LINEAR if arguments.only in (None, "linear") else ():
        model = dpi.models.LinearRegression(d, fit_intercept=True, prior_scale=2.0)
        make, settings = autoregressive(n, d, correlation), CellSettings(epsilon)
        show(
            f"linear, {d} features, N {n}, epsilon {epsilon:g}",
            predicted(model, "newton", n, epsilon),
            lambda make=make, settings=settings: run_cell(make, settings, runs, seed).width,
            seed,
        )
    for d, n, epsilon in LOGISTIC if arguments.only in (None, "logistic") else ():
        show(
            f"logistic, {d} features, N {n}, epsilon {epsilon:g}",
            predicted(dpi.models.LogisticRegression(d, fit_intercept=True), "newton", n, epsilon),
            lambda d=d, n=n, epsilon=epsilon: logistic_widths(d, n, epsilon, correlation, runs, seed),
            seed,
        )
    for conjugate, epsilon in STATISTIC if arguments.only in (None, "statistic") else ():
        show(
            f"{type(conjugate).__name__}, N 5000, epsilon {epsilon:g}",
            predicted(conjugate, "statistic", 5000, epsilon),
            lambda model=conjugate, epsilon=epsilon: statistic_widths(model, 5000, epsilon, 10 * runs, seed),
            seed,
        )


if __name__ == "__main__":
    main()
