"""DP-SEP for a network on YearPredictionMSD (515345 x 90, 100 hidden units): time, peak memory and test error.

The set is not distributed with the project.  With --path to the original text file (response first, comma separated;
the first 463715 rows train, the rest test, as its authors ask), its test RMSE and log-likelihood are printed; without,
a simulated table of that size shows that time and memory hold.

    python bench/sep_year.py [--path YearPredictionMSD.txt] [--epsilon 1] [--steps 2000]

With fewer than 1000 steps (a quick look) only time and memory are printed.
"""

import argparse
import resource
import time

import numpy as np

import dpinfer as dpi
from dpinfer.inference import network_posterior
from dpinfer.mechanism import network_plan_arguments, run_network_dp_sep
from dpinfer.models import BayesianNeuralNetwork
from dpinfer.testing import InsecureRNG

ROWS, TRAIN, FEATURES, HIDDEN = 515_345, 463_715, 90, 100
LEAST_STEPS = 1000


def simulated(seed=0):
    rng = np.random.default_rng(seed)
    table = np.empty((ROWS, FEATURES))
    mixing = rng.normal(size=(20, FEATURES)) / np.sqrt(20)
    target = np.empty(ROWS)
    direction, ridge = rng.normal(size=FEATURES) / 10, rng.normal(size=FEATURES) / 10
    for start in range(0, ROWS, 50_000):
        rows = table[start : start + 50_000]
        rows[:] = rng.normal(size=(rows.shape[0], 20)) @ mixing + 0.5 * rng.normal(size=rows.shape)
        signal = 4 * rows @ direction + 4 * np.tanh(3 * rows @ ridge)
        target[start : start + 50_000] = 1998 + signal + 9 * rng.normal(size=rows.shape[0])
    return table, target


def peak_gigabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    if arguments.path:
        table = np.loadtxt(arguments.path, delimiter=",")
        target, features = table[:, 0].copy(), np.ascontiguousarray(table[:, 1:])
        del table
    else:
        features, target = simulated()
    loc, scale = features[:TRAIN].mean(0), features[:TRAIN].std(0)
    features -= loc
    features /= scale
    target_loc, target_scale = float(target[:TRAIN].mean()), float(target[:TRAIN].std())
    y = (target[:TRAIN] - target_loc) / target_scale
    before = peak_gigabytes()
    print(
        f"{'file' if arguments.path else 'simulated'}: {ROWS} x {FEATURES}, {features.nbytes / 1e9:.2f} GB of features"
    )
    plan_arguments = network_plan_arguments(TRAIN) | {"n_steps": arguments.steps}
    plan = dpi.plan_privacy(target_epsilon=arguments.epsilon, target_delta=1e-5, **plan_arguments)
    start = time.perf_counter()
    release = run_network_dp_sep(
        BayesianNeuralNetwork(FEATURES, HIDDEN, prior_precision=2.0), features[:TRAIN], y, plan=plan, n_records=TRAIN,
        random_source=InsecureRNG(0), n_threads=arguments.threads,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    worked = plan.sample_rate * TRAIN * plan.n_steps
    held = sum(getattr(release, name).nbytes for name in ("loc", "precision", "noisy_sums")) / 1e9
    print(
        f"{release.n_params} weights, {plan.n_steps} steps, noise multiplier {plan.noise_multiplier:.2f}: "
        f"{seconds:.1f} s, {seconds / plan.n_steps:.3f} s a step, {1e6 * seconds / worked:.1f} us a record; "
        f"2000 steps would take {2000 * seconds / plan.n_steps:.0f} s; the trace takes {held:.2f} GB, "
        f"peak memory rose from {before:.2f} to {peak_gigabytes():.2f} GB"
    )
    if arguments.steps < LEAST_STEPS:
        print(f"fewer than {LEAST_STEPS} steps: time and memory only, as q cannot settle")
        return
    mean, variance = network_posterior(release).predict(features[TRAIN:])
    error = target[TRAIN:] - target_loc - target_scale * mean
    total = target_scale**2 * variance
    log_likelihood = np.mean(-0.5 * np.log(2 * np.pi * total) - 0.5 * error**2 / total)
    design = np.hstack((features[:TRAIN], np.ones((TRAIN, 1))))
    weights = np.linalg.solve(design.T @ design, design.T @ y)
    linear = target_scale * (features[TRAIN:] @ weights[:-1] + weights[-1]) + target_loc
    ours, plain = np.sqrt(np.mean(error**2)), np.sqrt(np.mean((target[TRAIN:] - linear) ** 2))
    print(
        f"test RMSE {ours:.3f} (least squares {plain:.3f}; published DP-SEP on the real set 8.862), log-likelihood "
        f"{log_likelihood:.3f} (published -3.597)"
    )


if __name__ == "__main__":
    main()
