"""User-level privacy: coverage and width of linear regressions by units, beside runs by rows, and time per unit.

    python bench/units.py [--runs 12] [--units 2000]

Answer first: with one row a unit, a run by units gives the scores of a run by rows.  Weights are drawn from the prior;
coverage is of 90% intervals, pooled over weights, with its Monte Carlo error over runs; widths are relative to the
posterior without privacy of all rows.
"""

import argparse
import os
import time

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import dpinfer as dpi
from dpinfer.mechanism import Units
from dpinfer.testing import InsecureRNG

FEATURES, ROWS, NOISE = 5, 4, 0.5
MODEL = dpi.models.LinearRegression(FEATURES, prior_scale=2.0)


def plan_of(n_units):
    return dpi.plan_newton(MODEL, target_epsilon=1.0, target_delta=1e-6, n_records=n_units)


def records(rng, n_units, alike):
    """Return features, responses and weights; of a unit, the features have the correlation `alike`."""
    shared = np.repeat(rng.normal(size=(n_units, FEATURES)), ROWS, axis=0)
    X = np.sqrt(alike) * shared + np.sqrt(1.0 - alike) * rng.normal(size=shared.shape)
    weights = 2.0 * NOISE * rng.normal(size=FEATURES)
    return X, X @ weights + NOISE * rng.normal(size=len(X)), weights


def run(X, y, n_records, seed, **options):
    return dpi.run_newton(
        MODEL, X, y, plan=plan_of(n_records), n_records=n_records, response_scale=2.0, n_threads=1,
        random_source=InsecureRNG(seed), **options,
    )  # fmt: skip


def cell(name, n_units, runs, alike, max_rows):
    covered, widths = [], []
    for seed in range(runs):
        X, y, weights = records(np.random.default_rng([seed, 77]), n_units, alike)
        unit = (
            None if max_rows is None else Units(np.repeat(np.arange(n_units), ROWS), max_rows=max_rows, mean_rows=ROWS)
        )
        release = run(X, y, n_units if unit else len(X), seed, **({"unit": unit} if unit else {}))
        low, high = dpi.noise_aware_posterior(release, seed=seed).quantile([0.05, 0.95])[:, :FEATURES]
        covered.append(np.mean((low < weights) & (weights < high)))
        precision = X.T @ X / NOISE**2 + np.eye(FEATURES) / (2.0 * NOISE) ** 2
        widths.append((high - low) / (2.0 * 1.6449 * np.sqrt(np.diag(np.linalg.inv(precision)))))
    error = np.std(covered, ddof=1) / np.sqrt(runs)
    print(f"{name:44s} covered {np.mean(covered):.3f} +- {error:.3f}, width {np.median(widths):.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--units", type=int, default=2000)
    arguments = parser.parse_args()
    X, y, _ = records(np.random.default_rng(0), arguments.units, 0.0)
    one, other = run(X, y, len(X), 1), run(X, y, len(X), 1, unit=Units(np.arange(len(X))))
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-3, atol=1e-6)
    print("one row a unit: the scores of a run by rows")
    seconds = []
    for unit in (None, Units(np.repeat(np.arange(arguments.units), ROWS), max_rows=ROWS)):
        start = time.process_time()
        release = run(X, y, arguments.units, 1, **({"unit": unit} if unit else {}))
        seconds.append((time.process_time() - start) / release.n_passes)
    print(
        f"a pass: {1e9 * seconds[0] / len(X):.0f} ns a row in a run by rows, "
        f"{1e6 * seconds[1] / arguments.units:.1f} us a unit in a run by units"
    )
    print(f"{arguments.units} units of {ROWS} rows, {FEATURES} features, epsilon 1, {arguments.runs} runs a cell")
    for alike in (0.0, 0.8):
        print(f"features of a unit with correlation {alike}:")
        cell("  rows (nobody's four rows are protected)", arguments.units, arguments.runs, alike, None)
        for max_rows in (4.0, 2.0):
            cell(f"  units, max_rows = {max_rows:g}", arguments.units, arguments.runs, alike, max_rows)


if __name__ == "__main__":
    main()
