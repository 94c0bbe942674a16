"""The numbers of docs/tutorials/which-epsilon.md: how much epsilon a survey question needs, planned and then checked.

The question: the share of adults with an income above $50,000, by UCI Adult's training file, for the whole file and for
a county of 1000.  Then, with --regression, the weights of the logistic regression of the Adult tutorial (minutes).
Planning reads the schema and, for the regression, 1000 rows of features of the test file, which stand for public ones.

    DPINFER_DATA=../shared/data python bench/which_epsilon.py [--runs 20] [--regression]
"""

import argparse
import os
from pathlib import Path

import numpy as np
from scipy import special, stats

import dpinfer as dpi
from dpinfer.planning import widening_grid
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[1]
DELTA = 1e-5
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
COUNTS = (300, 1000, 3000, 30_162)


def width_in_points(low, high):
    """Return the width of an interval of log-odds as percentage points of the share."""
    return 100.0 * (special.expit(high) - special.expit(low))


def question(arguments, labels):
    model = dpi.models.BetaBernoulli()
    grid = widening_grid(model, n_records=COUNTS, target_epsilon=EPSILONS, target_delta=DELTA)
    print(grid)
    print("\nsmallest epsilon of these that widens by at most a quarter:")
    for count, epsilon in zip(COUNTS, grid.epsilon_for(1.25), strict=True):
        print(f"  {count:>6} records: {'none' if epsilon is None else f'{epsilon:g}'}")
    rng = np.random.default_rng(0)
    county = labels[rng.permutation(len(labels))[:1000]]
    for count, records in ((1000, county), (len(labels), labels)):
        total = float(records.sum())
        exact = stats.beta(10.0 + total, 10.0 + count - total)
        low, high = exact.ppf([0.05, 0.95])
        print(f"\n{count} records, without privacy: [{100 * low:.1f}, {100 * high:.1f}] percent")
        for epsilon in (0.1, 0.3, 1.0):
            plan = dpi.plan_inference(model, n_records=count, target_epsilon=epsilon, target_delta=DELTA)
            found = []
            for run in range(arguments.runs):
                release = dpi.run_dpvi(model, records, random_source=InsecureRNG(run), **plan.run_arguments())
                found.append(dpi.noise_aware_posterior(release).quantile([0.05, 0.95], space="unconstrained")[:, 0])
            ends = np.array(found)
            widths = width_in_points(ends[:, 0], ends[:, 1])
            factor = (ends[:, 1] - ends[:, 0]) / (special.logit(high) - special.logit(low))
            print(
                f"  epsilon {epsilon:g}: predicted {plan.widening[0]:.2f} times as wide; {arguments.runs} private runs:"
                f" {np.median(factor):.2f} +- {1.25 * factor.std(ddof=1) / np.sqrt(len(factor)):.2f} times,"
                f" a median of {np.median(widths):.1f} percentage points; one of them"
                f" [{100 * special.expit(ends[0, 0]):.1f}, {100 * special.expit(ends[0, 1]):.1f}]"
                f" (T = {plan.privacy.n_steps}, kappa = {plan.privacy.sample_rate:g})",
                flush=True,
            )


def regression(train, test):
    rows = np.random.default_rng(3).choice(len(test.X), 1000, replace=False)
    model = dpi.models.LogisticRegression(
        train.X.shape[1],
        fit_intercept=True,
        feature_names=train.feature_names,
        feature_moments=train.schema.feature_moments,
    )
    print("\nlogistic regression with 57 weights, 30162 records")
    for epsilon in (0.1, 1.0, 10.0):
        plan = dpi.plan_inference(
            model, n_records=30_162, target_epsilon=epsilon, target_delta=DELTA, pilot=test.X[rows]
        )
        print(
            f"  epsilon {epsilon:g}: the median weight's interval {plan.prediction.typical_widening:.1f} times as wide,"
            f" expected coverage of 90% intervals {plan.prediction.coverage90:.2f},"
            f" {np.mean(plan.widening < 2.0):.0%} of the weights at most twice as wide",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--regression", action="store_true")
    arguments = parser.parse_args()
    folder = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    train = dpi.tabular.read_table(folder / "adult.data.csv.gz", schema)
    question(arguments, np.asarray(train.y, dtype=np.float64))
    if arguments.regression:
        regression(train, dpi.tabular.read_table(folder / "adult.test.csv.gz", schema))


if __name__ == "__main__":
    main()
