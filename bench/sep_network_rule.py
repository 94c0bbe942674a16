"""The rule for the settings of private networks (NetworkSettings.rule), chosen on simulated data: no record, no label.

Each family imitates a kind of table, not a particular one: nearly linear with little noise, smooth and strongly
non-linear, mostly noise with few records, nearly collinear sensor readings of a machine, and many skewed, correlated
records.  Printed is the test RMSE of DP-SEP at epsilon 1 over that of least squares, for the rule and for changes of
one setting at a time.

How it came about: a first version, with fewer and larger steps, diverged on two benchmark sets (the released noise
variance showed it); families "sensors" and "skewed" were added, which reproduce that, and steps made smaller until they
were stable there.  A later one was 0.004 above least squares on Wine; less movement for few records was then chosen on
"noisy".  Prior precision, norm, weight and movement were read off simulations like these, never off a benchmark.

    python bench/sep_network_rule.py [--seeds 3] [--families smooth,sensors] [--quick]
"""

import argparse
import math

import numpy as np

import dpinfer as dpi
from dpinfer.inference import network_posterior
from dpinfer.mechanism import NetworkSettings, network_plan_arguments, run_network_dp_sep
from dpinfer.models import BayesianNeuralNetwork
from dpinfer.testing import InsecureRNG

N_TEST = 2000
RECORDS = {"linear": 8600, "smooth": 7400, "noisy": 1440, "sensors": 10_700, "skewed": 41_000}


def ridge_mixture(X, rng, n_ridges):
    """Return a random smooth function: sines and hyperbolic tangents of random projections."""
    total = np.zeros(X.shape[0])
    for _ in range(n_ridges):
        direction, shift = 2 * rng.normal(size=X.shape[1]) / math.sqrt(X.shape[1]), rng.normal()
        wave = np.tanh if rng.random() < 0.5 else np.sin
        total += rng.normal() * wave(X @ direction + shift)
    return total / total.std()


def simulate(family, seed):
    """Standardised (X, y), and test records in the same units."""
    rng = np.random.default_rng(1000 + seed)
    n = RECORDS[family] + N_TEST
    if family == "sensors":
        load, state = rng.integers(1, 10, size=n) / 9.0, rng.uniform(size=(n, 2))
        columns = [
            load ** rng.uniform(0.3, 3) * (1 + 0.03 * state @ rng.normal(size=2))
            + 0.02 * state @ rng.normal(size=2)
            + 0.002 * rng.normal(size=n)
            for _ in range(14)
        ]
        X, y = np.stack(columns, 1), state[:, 0] + 0.01 * rng.normal(size=n)
    elif family == "skewed":
        size, latent = np.exp(0.4 * rng.normal(size=n)), rng.normal(size=(n, 6))
        columns = [size ** rng.uniform(0.2, 1.2) * np.exp(0.2 * latent @ rng.normal(size=6)) for _ in range(9)]
        X, signal = np.stack(columns, 1), ridge_mixture(latent, rng, 25) + 0.5 * np.log(size)
        y = signal / signal.std() + 0.9 * rng.normal(size=n)
    else:
        d, r_squared, linear, rank, own = {
            "linear": (4, 0.94, 0.95, 2, 0.35),
            "smooth": (8, 0.97, 0.45, 8, 1.0),
            "noisy": (11, 0.38, 0.9, 5, 0.35),
        }[family]
        X = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) / math.sqrt(rank) + own * rng.normal(size=(n, d))
        X = X / X.std(0)
        plane = X @ rng.normal(size=d)
        signal = math.sqrt(linear) * plane / plane.std() + math.sqrt(1 - linear) * ridge_mixture(X, rng, 6)
        y = math.sqrt(r_squared) * signal / signal.std() + math.sqrt(1 - r_squared) * rng.normal(size=n)
    train = slice(0, RECORDS[family])
    X, y = (X - X[train].mean(0)) / X[train].std(0), (y - y[train].mean()) / y[train].std()
    return np.ascontiguousarray(X[train]), np.ascontiguousarray(y[train]), X[train.stop :], y[train.stop :]


def least_squares(X, y, test_X, test_y):
    def design(points):
        return np.hstack((points, np.ones((points.shape[0], 1))))

    weights, *_ = np.linalg.lstsq(design(X), y, rcond=None)
    return float(np.sqrt(np.mean((test_y - design(test_X) @ weights) ** 2)))


def candidates(n_records):
    """Return the rule and its neighbours: (name, settings, prior precision, steps)."""
    rule = NetworkSettings.rule(n_records, 1.0)

    def changed(**values):
        fields = ("max_site_norm", "block_weight", "movement", "floor", "hidden_start", "output_start")
        return NetworkSettings(**({name: getattr(rule, name) for name in fields} | values))

    first, last = rule.movement
    return [
        ("rule", rule, 2.0, None),
        ("norm / 2", changed(max_site_norm=rule.max_site_norm / 2), 2.0, None),
        ("norm x 2", changed(max_site_norm=rule.max_site_norm * 2), 2.0, None),
        ("movement / 2", changed(movement=(first / 2, last / 2)), 2.0, None),
        ("movement x 2", changed(movement=(first * 2, last * 2)), 2.0, None),
        ("weight / 2", changed(block_weight=rule.block_weight / 2), 2.0, None),
        ("floor x 2", changed(floor=2.0), 2.0, None),
        ("prior 1", rule, 1.0, None),
        ("prior 5", rule, 5.0, None),
        ("300 steps", rule, 2.0, 300),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--families", default=",".join(RECORDS))
    parser.add_argument("--quick", action="store_true", help="only the rule")
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    for family in arguments.families.split(","):
        n_records = RECORDS[family]
        print(f"\n{family}: {n_records} records, {arguments.seeds} simulated sets; RMSE over that of least squares")
        for name, settings, prior, steps in candidates(n_records)[: 1 if arguments.quick else None]:
            plan_arguments = network_plan_arguments(n_records)
            if steps is not None:
                plan_arguments |= {"n_steps": steps, "sample_rate": min(1.0, 5 * plan_arguments["sample_rate"])}
            plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, **plan_arguments)
            ratios = []
            for seed in range(arguments.seeds):
                X, y, test_X, test_y = simulate(family, seed)
                release = run_network_dp_sep(
                    BayesianNeuralNetwork(X.shape[1], 100 if family == "skewed" else 50, prior_precision=prior), X, y,
                    plan=plan, n_records=n_records, settings=settings, start_seed=seed, random_source=InsecureRNG(seed),
                    n_threads=arguments.threads,
                )  # fmt: skip
                mean, _ = network_posterior(release).predict(test_X)
                rmse = float(np.sqrt(np.mean((test_y - mean) ** 2)))
                ratios.append(rmse / least_squares(X, y, test_X, test_y))
            error = np.std(ratios) / math.sqrt(max(1, len(ratios) - 1))
            print(f"{name:14s} {np.mean(ratios):.3f} +- {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
