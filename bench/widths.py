"""Widths of every method's 90% intervals at the same epsilon, beside how often they cover.

For each study, epsilon and method: the median over the runs of the width relative to the posterior without privacy
(smallest to largest coordinate, with the largest Monte Carlo error of a coordinate), and the share of true parameters
inside the 90% interval (smallest to largest).  A narrow interval is worth nothing where that share is far below 0.90.
The standard error of a share is about sqrt(0.09 / runs).  Gibbs-SS-Noisy is slow, and its widths have a script of their
own: bench/baselines.py.

    python bench/widths.py [--studies beta-bernoulli ...] [--epsilons 0.1 0.3 1] [--runs 100] [--gibbs]
"""

import argparse
import math
import time

import numpy as np

import dpinfer as dpi

STUDIES = ("gamma-exponential", "beta-bernoulli", "dirichlet-categorical", "linear-regression")
ROWS = (
    ("default", "exact", None),
    ("paper's recipe", "exact", "paper"),
    ("paper's recipe, Laplace", "laplace", "paper"),
    ("naive", "naive", "paper"),
    ("average", "averaged", "dpvim"),
    ("DPVIm", "dpvim", "dpvim"),
    ("Bernstein-Sheldon", "bernstein-sheldon", None),
    ("Gibbs-SS-Noisy", "gibbs-ss-noisy", None),
)


def main():
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=STUDIES)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--gibbs", action="store_true", help="also Gibbs-SS-Noisy: hours at 100 runs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.runs} runs; standard error of a share near 0.90: {math.sqrt(0.09 / arguments.runs):.3f}")
    print(
        f"{'study':<22} {'eps':>4} {'method':<24} {'relative width':>18} {'error':>8}"
        f" {'inside 90%':>14} {'failed':>6} {'s':>6}"
    )
    for study in arguments.studies:
        regression = study == "linear-regression"
        for epsilon in arguments.epsilons:
            for label, method, recipe in ROWS:
                if method == ("bernstein-sheldon" if regression else "gibbs-ss-noisy"):
                    continue
                if method == "gibbs-ss-noisy" and not arguments.gibbs:
                    continue
                began = time.perf_counter()
                result = dpi.coverage_study(
                    study,
                    method=method,
                    recipe=recipe,
                    epsilon=epsilon,
                    n_runs=arguments.runs,
                    n_draws=200,
                    n_repeats=1,
                    seed=arguments.seed,
                )
                width, inside = np.median(result.relative_width, axis=0), result.coverage90
                print(
                    f"{study:<22} {epsilon:>4g} {label:<24} {f'{width.min():.2f} to {width.max():.2f}':>18}"
                    f" {f'± {result.relative_width_stderr.max():.2f}':>8}"
                    f" {f'{inside.min():.2f} to {inside.max():.2f}':>14} {result.n_failed:>6}"
                    f" {time.perf_counter() - began:>6.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
