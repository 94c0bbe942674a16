"""Seconds that the posterior of a private Newton run takes, its answer checked first.

    OPENBLAS_NUM_THREADS=1 python bench/speed/newton_posterior_speed.py [--repeats 3] [--adult, needs DPINFER_DATA]

Normal AR(1) 0.5 features, or Adult's columns and labels; epsilon = 1, the default request.  Seconds of the processors
and by the clock, median and range over seeds.  Checked: every 5% and 95% quantile against those of another seed, whose
difference must be within 5 Monte Carlo errors.  The share of true weights in 90% intervals is that of one release.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
from scipy import special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

sys.path.insert(0, str(Path(__file__).parents[1] / "coverage"))
from newton_runs import LEVELS, autoregressive

SEED = 5
# Logistic or linear, weights, records.
CASES = ((False, 11, 5_000), (False, 57, 30_000), (True, 20, 20_000), (True, 57, 30_000), (True, 100, 50_000),
         (True, 300, 200_000), (False, 150, 20_000), (False, 300, 50_000))  # fmt: skip


def release_of(logistic: bool, d: int, n_records: int) -> tuple[dpi.NewtonRelease | dpi.GlmNewtonRelease, np.ndarray]:
    """Return one release of the case, and the true weights."""
    rng = np.random.default_rng(SEED)
    features = autoregressive(n_records, d, 0.5)(rng)
    predictor = features @ (truth := rng.normal(size=d) / np.sqrt(d))
    if logistic:
        response, model = (rng.random(n_records) < special.expit(predictor)) + 0.0, dpi.models.LogisticRegression
    else:
        response, model = predictor + rng.normal(size=n_records), dpi.models.LinearRegression
    chosen = model(d)
    plan = dpi.plan_newton(chosen, target_epsilon=1.0, target_delta=1e-6, n_records=n_records)
    return dpi.run_newton(
        chosen, features, response, plan=plan, n_records=n_records,
        response_scale=None if logistic else 1.0, random_source=InsecureRNG(SEED),
    ), truth  # fmt: skip


def adult_release() -> dpi.GlmNewtonRelease:
    """Return a release of Adult's table, with the schema's declared moments; say how long the run took."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("DPINFER_DATA must name the folder with adult.data.csv.gz")
    schema = dpi.tabular.Schema.load(Path(__file__).parents[2] / "examples" / "adult.toml")
    table = dpi.tabular.read_table(Path(folder) / "adult.data.csv.gz", schema)
    features = np.ascontiguousarray(table.X)
    model = dpi.models.LogisticRegression(features.shape[1], fit_intercept=True, feature_moments=schema.feature_moments)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=len(features))
    begun = time.process_time()
    release = dpi.run_newton(
        model, features, table.y, plan=plan, n_records=len(features), random_source=InsecureRNG(SEED)
    )
    print(f"Adult: the run takes {time.process_time() - begun:.2f} s")
    return release


def time_posterior(name: str, release: object, repeats: int, truth: np.ndarray | None = None) -> None:
    """Print a line for one release."""
    seconds, ends, errors = [], [], []
    for seed in range(repeats + 1):
        begun = np.array([time.process_time(), time.perf_counter()])
        posterior = dpi.noise_aware_posterior(release, seed=seed, check_convergence=False)
        seconds.append(np.array([time.process_time(), time.perf_counter()]) - begun)
        ends.append(posterior.quantile(LEVELS))
        errors.append(posterior.diagnostics.mcse * posterior.stddev)
    apart = np.abs(ends[0] - ends[1]) / np.maximum(np.hypot(errors[0], errors[1]), 1e-9)  # where nothing is drawn
    if np.max(apart) > 5.0:
        raise SystemExit(f"two seeds differ by {np.max(apart):.1f} Monte Carlo errors")
    timed = np.array(seconds[1:]).T  # the first call loads SciPy's libraries
    took = [f"{np.median(part):.2f} ({min(part):.2f} to {max(part):.2f})" for part in timed]
    low, high = ends[0] if truth is None else ends[0][:, : truth.size]
    covered = "" if truth is None else f", covers {np.mean((low < truth) & (truth < high)):.2f}"
    print(
        f"{name}  processor {took[0]} s, clock {took[1]} s  Monte Carlo error "
        f"{np.max(errors[0] / posterior.stddev):.1%}  two seeds at most {np.max(apart):.1f} errors apart{covered}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--adult", action="store_true")
    arguments = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        raise SystemExit("set OPENBLAS_NUM_THREADS=1: the library divides its work among the cores itself")
    if arguments.adult:
        time_posterior("Adult", adult_release(), arguments.repeats)
        return
    for logistic, d, n_records in CASES:
        name = f"{'logistic' if logistic else 'linear  '}  {d:3d} weights  N {n_records:6d}"
        release, truth = release_of(logistic, d, n_records)
        time_posterior(name, release, arguments.repeats, truth)


if __name__ == "__main__":
    main()
