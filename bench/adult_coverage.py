"""Where coverage does not hold yet: correlated features.  Simulated labels on Adult's columns, weights from the prior.

For each epsilon: the share of the weights inside their 90% intervals, and the mean width of those, for the recipes
"plain" (diagonal Hessian) and "tied" (diagonal information of one-hot columns with equal frequencies).  Only the
columns of the training file are used; no label of the file is.

    DPINFER_DATA=../shared/data python bench/adult_coverage.py [--runs 3] [--steps 2500]
"""

import argparse
import os
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.mechanism import FisherScaling
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[1]
RATE = 0.1
CASES = {
    "plain, weak prior": ("plain", {"prior": "weak"}),
    "plain, model prior": ("plain", {"prior": "model"}),
    "plain, averaged (not noise-aware)": ("plain", {"method": "averaged"}),
    "tied, weak prior": ("tied", {"prior": "weak"}),
    "tied, model prior": ("tied", {"prior": "model"}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2500)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
    table = dpi.tabular.read_table(
        folder / "adult.data.csv.gz", dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    )
    X = np.ascontiguousarray(table.X)
    n_records = len(X)
    # One-hot columns of a schema are named "column=category": equal frequencies within each column, the public guess.
    columns = [name.split("=")[0] for name in table.feature_names]
    scale = [columns.count(column) ** -0.5 for column in columns]
    norm = float(np.sqrt(len(set(columns)) + 1.0))  # with every value in [-1, 1]: the largest row norm
    model = dpi.models.LogisticRegression(X.shape[1], fit_intercept=True, feature_scale=scale)
    print(f"{n_records} records, {model.n_params} weights, {arguments.steps} steps, {arguments.runs} sets of labels")
    for epsilon in (0.1, 0.3, 1.0):
        plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=RATE, n_steps=arguments.steps)
        covered = {case: [] for case in CASES}
        widths = {case: [] for case in CASES}
        for run in range(arguments.runs):
            rng = np.random.default_rng(run)
            weights = model.sample_prior(1, rng)[0]
            y = model.simulate(weights, X, rng)
            options = {"plan": plan, "n_records": n_records, "random_source": InsecureRNG(run)}
            releases = {
                "plain": dpi.run_dpvi(model, X, y, recipe="plain", max_grad_norm=norm, **options),
                "tied": dpi.run_dpvi(
                    model, X, y, grad_scale=FisherScaling(model, n_records, RATE, arguments.steps), **options
                ),
            }
            for case, (recipe, settings) in CASES.items():
                low, high = dpi.noise_aware_posterior(releases[recipe], **settings).quantile([0.05, 0.95])
                covered[case].append(np.mean((low <= weights) & (weights <= high)))
                widths[case].append(np.mean(high - low))
        print(f"\nepsilon {epsilon:g}")
        for case in CASES:
            share, error = np.mean(covered[case]), np.std(covered[case], ddof=1) / np.sqrt(arguments.runs)
            print(f"  {case:<36} covered {share:.2f} +- {error:.2f} (nominal 0.90), width {np.mean(widths[case]):.2f}")


if __name__ == "__main__":
    main()
