"""Widths that a plan predicts before any record is read, beside those that private runs gave.

    python bench/coverage/fit_widths.py [--runs 24] [--only linear|logistic|statistic]
    python bench/coverage/fit_widths.py --only clips      what the clip of a residual costs without noise

Median width over the weights, relative to the posterior without privacy; the error of a measured median is that over
resampled runs.  Linear regressions have an unknown noise variance and weights from the prior, logistic ones weights
N(0, 1 / d): a linear predictor of spread 1, which is what the plan assumes.  Features are independent, or have the
--correlation that the plan knows nothing of.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.models.clipping import ResponseGrid
from dpinfer.models.likely_records import PredictorLaw
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, autoregressive, median_and_error

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
    target = "model" if method == "newton" else "auto"  # that of the posteriors below
    plan = dpi.plan_fit(model, epsilon=epsilon, delta=DELTA, n_records=n_records, method=method, target=target)
    return plan.predicted_width


def linear_widths(d: int, n_records: int, epsilon: float, correlation: float, runs: int, seed: int) -> FloatArray:
    """Return relative widths of linear runs, (R, d + 1); the declared scale is wrong by a factor within 10."""
    rng = np.random.default_rng(seed)
    make = autoregressive(n_records, d, correlation)
    model = dpi.models.LinearRegression(d, prior_scale=2.0, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=n_records)
    rows = []
    for index in range(runs):
        features = make(rng)
        design = np.hstack((features, np.ones((n_records, 1))))
        variance = float(np.exp(rng.uniform(np.log(0.02), np.log(10.0))))
        truth = rng.normal(size=d + 1) * 2.0 * np.sqrt(variance)
        response = design @ truth + np.sqrt(variance) * rng.normal(size=n_records)
        scale = float(np.sqrt(np.mean(response**2))) * float(10.0 ** rng.uniform(-1.0, 1.0))
        release = dpi.run_newton(
            model, features, response, plan=plan, n_records=n_records, response_scale=scale,
            random_source=InsecureRNG(1000 * seed + index),
        )  # fmt: skip
        low, high = dpi.noise_aware_posterior(release, check_convergence=False).quantile(LEVELS)[:, : d + 1]
        covariance = variance * np.linalg.inv(design.T @ design + np.eye(d + 1) / 4.0)
        rows.append((high - low) / (NORMAL_WIDTH * np.sqrt(np.diag(covariance))))
    return np.array(rows)


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


def clips() -> None:
    """Print the largest value of a clipped residual, and the standard error that it leaves, at a normal predictor.

    The standard error is relative to that of the likelihood's own score, for one weight and no noise: sqrt(E v E i) / E
    s with i the Fisher information of a response about its predictor.
    """
    for kind, levels in (("Logistic", (0.5, 0.7, 1.0)), ("Probit", (0.5, 0.7, 1.0)), ("Poisson", (1.0, 2.0, 4.0))):
        grid = ResponseGrid(getattr(dpi.models, f"{kind}Regression")(1), 1.0 / 64.0)
        for law in (PredictorLaw(0.0, 0.3), PredictorLaw(0.0, 1.0), PredictorLaw(-1.5, 0.7)):
            columns = []
            for level in levels:
                residual = grid.clipped(level)
                lost = math.sqrt(law.mean(grid, residual.variance) * law.mean(grid, grid.information))
                columns.append(f"c {level:.1f}: {residual.bound:.3f}, {lost / law.mean(grid, residual.slope):.3f}")
            print(f"{kind:8s} eta ~ N({law.loc:g}, {law.scale:g}^2)  {'   '.join(columns)}")


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
    parser.add_argument("--only", choices=("linear", "logistic", "statistic", "clips"))
    parser.add_argument("--correlation", type=float, default=0.0, help="AR(1) correlation of features")
    arguments = parser.parse_args()
    if arguments.only == "clips":
        clips()
    runs, seed, correlation = arguments.runs, arguments.seed, arguments.correlation
    for d, n, epsilon in LINEAR if arguments.only in (None, "linear") else ():
        model = dpi.models.LinearRegression(d, fit_intercept=True, prior_scale=2.0)
        show(
            f"linear, {d} features, N {n}, epsilon {epsilon:g}",
            predicted(model, "newton", n, epsilon),
            lambda d=d, n=n, epsilon=epsilon: linear_widths(d, n, epsilon, correlation, runs, seed),
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
