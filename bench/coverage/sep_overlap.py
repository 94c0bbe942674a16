"""Intervals of DP-SEP for mixtures whose components overlap: coverage of the truth, and what is flagged.

    python bench/coverage/sep_overlap.py [--runs 40] [--half seen|unseen|both] [--seed 20261128]

A design of 24 cells is drawn from the seed: components 2 or 3, dimension 1 or 2, neighbours 1.5 to 5 standard
deviations apart, epsilon 1 or 5, 500 to 4000 records; the first half of the cells is seen.  Two
cells of the second had been seen, too, before the last choice (six places of a run's path); another seed is unseen.
A run's labels are matched to the truth by the nearest permutation.  Prints the share of 90% intervals that hold the
truth, with its standard error over runs, that of the runs without a warning, and the share of runs with one.
"""

import argparse
import itertools

import numpy as np

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

SEED, CELLS = 20261128, 24


def design(seed):
    """Return the cells: components, dimension, distance, epsilon, records."""
    rng = np.random.default_rng(seed)
    for _ in range(CELLS):
        yield (
            int(rng.integers(2, 4)), int(rng.integers(1, 3)), round(float(rng.uniform(1.5, 5.0)), 2),
            float(rng.choice([1.0, 5.0])), round(10.0 ** rng.uniform(2.7, 3.6)),
        )  # fmt: skip


def one_run(cell, seed):
    """Return which 90% intervals hold the truth, their median width, and whether there was a warning."""
    components, dimension, distance, epsilon, records = cell
    rng = np.random.default_rng(seed)
    truth = np.zeros((components, dimension))
    truth[:, 0] = distance * (np.arange(components) - 0.5 * (components - 1)) + rng.normal(0.0, 0.1, components)
    model = dpi.models.GaussianMixture(components, dimension, prior_scale=4.0)
    X = model.simulate(truth.ravel(), records, rng)
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=1.0, n_steps=40)
    release = dpi.run_dp_sep(model, X, plan=plan, n_records=records, random_source=InsecureRNG(seed), n_threads=1)
    posterior = dpi.noise_aware_posterior(release)
    shape = truth.shape
    low, high = (end.reshape(shape) for end in posterior.quantile([0.05, 0.95]))
    mean = posterior.mean.reshape(shape)
    orders = map(list, itertools.permutations(range(components)))
    order = min(orders, key=lambda order: np.sum((mean[order] - truth) ** 2))
    covered = (low[order] < truth) & (truth < high[order])
    return covered.mean(), float(np.median(high - low)), bool(posterior.diagnostics.warnings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--half", choices=("seen", "unseen", "both"), default="both")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    cells = list(design(options.seed))
    halves = {"seen": range(CELLS // 2), "unseen": range(CELLS // 2, CELLS)}
    for half, places in halves.items():
        if options.half not in (half, "both"):
            continue
        every = []
        for place in places:
            runs = [one_run(cells[place], 1000 * place + index) for index in range(options.runs)]
            covered, width, warned = (np.array(column) for column in zip(*runs, strict=True))
            every.append((covered, warned))
            print(
                f"{half} {cells[place]}: covered {covered.mean():.3f} +- "
                f"{covered.std(ddof=1) / np.sqrt(options.runs):.3f}  width {np.median(width):.2f}  "
                f"warned {warned.mean():.2f}  silent {covered[~warned].mean() if np.any(~warned) else np.nan:.3f}",
                flush=True,
            )
        covered, warned = (np.concatenate(column) for column in zip(*every, strict=True))
        silent = covered[~warned]
        error = silent.std(ddof=1) / np.sqrt(silent.size)
        print(
            f"{half}: covered {covered.mean():.3f} +- {covered.std(ddof=1) / np.sqrt(covered.size):.3f}; without a "
            f"warning {silent.mean():.3f} +- {error:.3f}; warned {warned.mean():.2f}"
        )


if __name__ == "__main__":
    main()
