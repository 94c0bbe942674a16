"""The README figure: intervals of three methods at one epsilon on simulated data, and how often each covers.

python bench/coverage/readme_figure.py [--out docs/images/intervals.png]
"""

import argparse
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.testing import InsecureRNG
from newton_runs import NORMAL_WIDTH, logistic_mode

N, FEATURES, EPSILON, LEVEL = 20_000, 10, 0.3, 0.9


def simulate(rng):
    """Draw weights from the prior, and data given them."""
    weights = rng.normal(size=FEATURES) * 0.5
    X = rng.normal(size=(N, FEATURES))
    y = (rng.random(N) < 1 / (1 + np.exp(-X @ weights))).astype(float)
    return weights, X, y


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "images" / "intervals.png")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model = dpi.models.LogisticRegression(FEATURES, prior_scale=0.5)
    plan = dpi.plan_privacy(target_epsilon=EPSILON, target_delta=1e-5, sample_rate=0.1, n_steps=4000)
    rng = np.random.default_rng(7)
    covered = {"without privacy": [], "private, noise ignored": [], "private, noise-aware": []}
    for run in range(arguments.runs):
        weights, X, y = simulate(rng)
        release = dpi.run_dpvi(
            model, X, y, plan=plan, n_records=N, max_grad_norm=np.sqrt(FEATURES), random_source=InsecureRNG(run)
        )
        aware = dpi.noise_aware_posterior(release)
        naive = dpi.noise_aware_posterior(release, approximation="naive")
        probabilities = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        mode, precision = logistic_mode(X, y, 0.5)
        half = 0.5 * NORMAL_WIDTH * np.sqrt(np.diag(np.linalg.inv(precision)))
        intervals = {
            "without privacy": np.stack((mode - half, mode + half)),
            "private, noise ignored": naive.quantile(probabilities),
            "private, noise-aware": aware.quantile(probabilities),
        }
        for name, (low, high) in intervals.items():
            covered[name].append(np.mean((low <= weights) & (weights <= high)))
        if run == 0:
            shown = weights, intervals
    weights, intervals = shown
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    order = np.argsort(weights)
    colours = ("#8a8f98", "#d1495b", "#1f6f8b")
    for shift, (colour, (name, (low, high))) in enumerate(zip(colours, intervals.items(), strict=True)):
        rate = np.mean(covered[name])
        error = np.std(covered[name], ddof=1) / np.sqrt(arguments.runs)
        print(f"{name:24s} 90% intervals cover {100 * rate:.0f}% ± {100 * error:.0f}% over {arguments.runs} data sets")
        place = np.arange(FEATURES) + 0.24 * (shift - 1)
        label = f"{name}: 90% intervals cover {100 * rate:.0f}%"
        axes.vlines(place, (low - weights)[order], (high - weights)[order], color=colour, linewidth=5, label=label)
    axes.axhline(0.0, color="black", linewidth=1.2, label="truth")
    axes.set_ylim(top=1.9 * axes.get_ylim()[1])
    axes.set_xticks(np.arange(FEATURES), [f"w{index}" for index in order])
    axes.set_ylabel("coefficient minus its true value")
    axes.set_title(f"Logistic regression on {N:,} records at ε = {EPSILON}", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=130)
    print(f"wrote {arguments.out.name}")


if __name__ == "__main__":
    main()
