"""Tables 3, 4 and 5 (networks on UCI sets) and, with --clipping, 8 and 9: ours next to the published.

    DPINFER_DATA=... python bench/coverage/sep_network.py [--sets power,wine] [--methods sep,dp_sep] [--splits 5]
    DPINFER_DATA=... python bench/coverage/sep_network.py --clipping 0.1,0.2,0.4,0.8,1.6,3.2 --splits 3
    DPINFER_DATA=... python bench/coverage/sep_network.py --validation --methods sep_clipped --passes 200 --norm 10

DP-SEP is honest: Poisson sampling, noise of the sum that is released, settings by one rule of public numbers that was
chosen on simulated data.  DP-VI has the published settings (tables 6 and 7) with its noise calibrated to the same
epsilon, and once more with Adam's rate at least 1e-3.  "_long" makes five times the passes.  With --validation a tenth
of the training records takes the place of the test records.  Means and standard deviations over splits.
"""

import argparse
import gzip
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.inference import network_posterior
from dpinfer.lab.baselines import NetworkVISettings, run_network_sep, run_network_vi
from dpinfer.mechanism import NetworkSettings, network_plan_arguments, run_network_dp_sep
from dpinfer.models import BayesianNeuralNetwork
from dpinfer.testing import InsecureRNG

FILES = {
    "naval": "naval-propulsion-plant", "kin8nm": "kin8nm", "power": "power-plant", "wine": "wine-quality-red",
    "protein": "protein-tertiary-structure"}  # fmt: skip


@dataclass(frozen=True)
class Split:
    """Standardised training records, test records in the same features, and the response's location and scale.

    As in the published benchmark, means and standard deviations are those of the training records.  For a private
    method that is a (small, unaccounted) leak which public bounds would avoid; it is made here because the published
    numbers make it, and stated next to every table.
    """

    X: np.ndarray
    y: np.ndarray
    test_features: np.ndarray
    test_response: np.ndarray
    loc: float
    scale: float

    def rmse(self, mean):
        return float(np.sqrt(np.mean((self.test_response - self.loc - self.scale * mean) ** 2)))

    def held_out(self, seed, share=0.1):
        """Return the split of the training records alone, for choices that must not see the test records."""
        order = np.random.default_rng(seed).permutation(self.y.size)
        test, train = np.split(order, [round(share * self.y.size)])
        response = self.loc + self.scale * self.y
        return Split(self.X[train], self.y[train], self.X[test], response[test], self.loc, self.scale)

    def log_likelihood(self, mean, variance):
        error = self.test_response - self.loc - self.scale * mean
        total = self.scale**2 * variance
        return float(np.mean(-0.5 * np.log(2 * np.pi * total) - 0.5 * error**2 / total))


def load(name):
    """Return the set's published 90/10 split number k as a function, and how many there are."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("set DPINFER_DATA to the folder with the UCI files (see docs/dp-sep-network.md)")
    base = Path(folder) / FILES[name]
    with gzip.open(f"{base}.csv.gz", "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", skiprows=1)
    with gzip.open(f"{base}.splits.json.gz", "rt") as stream:
        splits = json.load(stream)

    def split(k):
        train, test = np.array(splits[k]["train"]), np.array(splits[k]["test"])
        X, y = table[:, :-1], table[:, -1]
        loc, scale = X[train].mean(0), X[train].std(0)
        scale = np.where(scale > 1e-10 * np.maximum(1.0, np.abs(loc)), scale, 1.0)
        y_loc, y_scale = float(y[train].mean()), float(y[train].std())
        X, standard = np.ascontiguousarray((X - loc) / scale), (y[train] - y_loc) / y_scale
        return Split(X[train], standard, X[test], y[test], y_loc, y_scale)

    return split, len(splits)


# epochs, batch size, rate, noise precision, prior precision, KL weight, and for DP-VI the clipping norm.
VI_SETTINGS = {
    "naval": (100, 100, 1e-4, 20.0, 1.0, 1.0, 5.0),
    "kin8nm": (100, 100, 1e-3, 10.0, 100.0, 0.01, 1.0),
    "power": (200, 100, 9e-4, 18.0, 100.0, 0.001, 1.0),
    "wine": (40, 100, 1e-2, 2.0, 200.0, 0.01, 5.0),
    "protein": (100, 200, 1e-5, 50.0, 100.0, 2.0, 1.0),
}
# Published test RMSE and log-likelihood with standard deviations (tables 3-5), by set.
PUBLISHED = {
    "vi": {
        "naval": (0.005, 0.0005, 3.734), "kin8nm": (0.099, 0.0009, 0.897), "power": (4.327, 0.0352, -2.890),
        "wine": (0.646, 0.0081, -0.980), "protein": (4.842, 0.0305, -2.992)},
    "ep": {
        "naval": (0.003, 0.0002, 4.164), "kin8nm": (0.088, 0.0044, 1.007), "power": (4.098, 0.1388, -2.830),
        "wine": (0.614, 0.0382, -0.926), "protein": (4.654, 0.0572, -2.957)},
    "sep": {
        "naval": (0.002, 0.0001, 4.609), "kin8nm": (0.089, 0.0042, 0.999), "power": (4.061, 0.1356, -2.821),
        "wine": (0.623, 0.0436, -0.936), "protein": (4.602, 0.0649, -2.945)},
    "sep_clipped": {
        "naval": (0.002, 0.0002, 4.710), "kin8nm": (0.078, 0.0033, 1.121), "power": (4.013, 0.1246, -2.809),
        "wine": (0.627, 0.0411, -0.938), "protein": (4.581, 0.0599, -2.941)},
    "dp_sep": {
        "naval": (0.002, 0.0003, 4.686), "kin8nm": (0.078, 0.0022, 1.125), "power": (4.032, 0.1385, -2.814),
        "wine": (0.627, 0.0362, -0.938), "protein": (4.585, 0.0589, -2.941)},
    "dp_vi": {
        "naval": (0.010, 0.0016, 3.253), "kin8nm": (0.098, 0.0085, 0.928), "power": (4.350, 0.1274, -3.077),
        "wine": (0.734, 0.0510, -1.213), "protein": (4.934, 0.0532, -3.049)},
    "point": {
        "naval": (0.001, 0.0001, math.nan), "kin8nm": (0.091, 0.0015, math.nan), "power": (4.182, 0.0402, math.nan),
        "wine": (0.645, 0.0098, math.nan), "protein": (4.539, 0.0288, math.nan)},
}  # fmt: skip
# Published DP-SEP at C = 1, 2, 3, 4, 5, 10 (tables 8 and 9): RMSE, log-likelihood.
PUBLISHED_NORMS = (1, 2, 3, 4, 5, 10)
PUBLISHED_CLIPPING = {
    "naval": ((0.0025, 0.0026, 0.0034, 0.0034, 0.0038, 0.0042), (4.545, 4.535, 4.443, 4.430, 4.360, 4.242)),
    "kin8nm": ((0.079, 0.082, 0.083, 0.085, 0.087, 0.090), (1.116, 1.108, 1.098, 1.093, 1.091, 1.069)),
    "power": ((3.997, 4.007, 4.014, 4.057, 4.081, 4.153), (-2.805, -2.835, -2.845, -2.862, -2.886, -2.915)),
    "wine": ((0.600, 0.605, 0.608, 0.612, 0.619, 0.636), (-0.903, -0.907, -0.911, -0.915, -0.926, -0.932)),
    "protein": ((4.601, 4.660, 4.692, 4.746, 4.797, 4.946), (-2.945, -2.968, -2.984, -3.020, -3.064, -3.096)),
}
METHODS = (
    "lsq", "point", "vi", "ep", "adf", "sep", "sep_long", "sep_clipped", "sep_clipped_long", "dp_vi", "dp_vi_fast",
    "dp_sep",
)  # fmt: skip


def least_squares(split):
    def design(X):
        return np.hstack((X, np.ones((X.shape[0], 1))))

    weights, *_ = np.linalg.lstsq(design(split.X), split.y, rcond=None)
    noise = np.mean((split.y - design(split.X) @ weights) ** 2)
    mean = design(split.test_features) @ weights
    return mean, np.full(mean.size, noise)


def point_estimate(split, hidden, seed):
    from sklearn.neural_network import MLPRegressor

    fit = MLPRegressor(
        hidden_layer_sizes=(hidden,), alpha=1e-4, learning_rate_init=2e-3, max_iter=60, tol=0.0, random_state=seed
    )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit.fit(split.X, split.y)
    noise = np.mean((split.y - fit.predict(split.X)) ** 2)
    mean = fit.predict(split.test_features)
    return mean, np.full(mean.size, noise)


def network(name, split, **prior):
    return BayesianNeuralNetwork(split.X.shape[1], 100 if name == "protein" else 50, **prior)


def dp_sep(name, split, seed, epsilon, plans, settings=None, threads=None):
    n_records = split.X.shape[0]
    arguments = network_plan_arguments(n_records)
    key = (epsilon, *arguments.values())
    if key not in plans:
        plans[key] = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, **arguments)
    release = run_network_dp_sep(
        network(name, split, prior_precision=2.0), split.X, split.y, plan=plans[key], n_records=n_records,
        settings=settings, start_seed=seed, random_source=InsecureRNG(seed),
        n_threads=threads,
    )  # fmt: skip
    return network_posterior(release)


def variational(name, split, seed, arguments, plans, private, least_rate=0.0):
    epochs, batch, rate, noise, prior, weight, norm = VI_SETTINGS[name]
    settings = NetworkVISettings(max(rate, least_rate), noise, prior, weight)
    model, n_records = network(name, split), split.X.shape[0]
    if not private:
        return run_network_vi(
            model,
            split.X,
            split.y,
            settings=settings,
            n_epochs=epochs,
            batch_size=batch,
            seed=seed,
            n_threads=arguments.threads,
        )
    key = ("vi", arguments.epsilon, batch / n_records, epochs)
    if key not in plans:
        plans[key] = dpi.plan_privacy(
            target_epsilon=arguments.epsilon, target_delta=1e-5, sample_rate=batch / n_records,
            n_steps=epochs * n_records // batch,
        )  # fmt: skip
    return run_network_vi(
        model, split.X, split.y, settings=settings, plan=plans[key], n_records=n_records, max_grad_norm=norm, seed=seed,
        random_source=InsecureRNG(seed), n_threads=arguments.threads,
    )  # fmt: skip


def fit(method, name, split, seed, arguments, plans):
    """Return the predictive mean and variance of standardised test responses."""
    if method == "lsq":
        return least_squares(split)
    if method == "point":
        return point_estimate(split, 100 if name == "protein" else 50, seed)
    if method == "vi":
        weights = variational(name, split, seed, arguments, plans, False, 1e-3)
    elif method in ("dp_vi", "dp_vi_fast"):
        weights = variational(name, split, seed, arguments, plans, True, 1e-3 if method == "dp_vi_fast" else 0)
    elif method == "dp_sep":
        weights = dp_sep(name, split, seed, arguments.epsilon, plans, threads=arguments.threads)
    else:
        passes = arguments.passes * (5 if method.endswith("_long") else 1)
        weights = run_network_sep(
            network(name, split), split.X, split.y, n_passes=passes, seed=seed,
            method="sep" if method.startswith("sep") else method,
            max_site_norm=arguments.norm if method.startswith("sep_clipped") else None,
        )  # fmt: skip
    return weights.predict(split.test_features)


def table(arguments):
    plans = {}
    for name in arguments.sets.split(","):
        split_of, available = load(name)
        n_splits = min(arguments.splits, available)
        print(f"\n{name}: {n_splits} splits, epsilon {arguments.epsilon:g}, {arguments.passes} passes", flush=True)
        print(f"{'':16s}      RMSE       sd  published       sd   log-lik      sd  published")
        first = None
        for method in arguments.methods.split(","):
            start, scores = time.perf_counter(), []
            for k in range(n_splits):
                split = split_of(k)
                if arguments.validation:
                    split = split.held_out(k)
                mean, variance = fit(method, name, split, k, arguments, plans)
                scores.append((split.rmse(mean), split.log_likelihood(mean, variance)))
            average, deviation = np.mean(scores, axis=0), np.std(scores, axis=0)
            published = PUBLISHED.get(method.removesuffix("_fast").removesuffix("_long"), {}).get(name, (math.nan,) * 3)
            seconds = (time.perf_counter() - start) / n_splits
            print(
                f"{method:16s} {average[0]:9.4f} {deviation[0]:8.4f} {published[0]:10.3f} {published[1]:8.4f} "
                f"{average[1]:9.3f} {deviation[1]:7.3f} {published[2]:10.3f}   {seconds:.1f} s a split",
                flush=True,
            )
            errors = np.array(scores)[:, 0]
            if first is None:
                first = errors
            elif n_splits > 1:
                gap = errors - first
                stderr = gap.std(ddof=1) / math.sqrt(n_splits)
                print(f"{'':16s} RMSE less the first method's, split by split: {gap.mean():+.4f} +- {stderr:.4f}")


def clipping(arguments):
    """Tables 8 and 9: DP-SEP against the clipping norm, the rest of the rule as it is."""
    plans = {}
    for name in arguments.sets.split(","):
        split_of, available = load(name)
        n_splits = min(arguments.splits, available)
        rule_norm = NetworkSettings.rule(split_of(0).X.shape[0], arguments.epsilon).max_site_norm
        print(f"\n{name}: DP-SEP at epsilon {arguments.epsilon:g}, {n_splits} splits; the rule's C is {rule_norm:.2f}")
        rows = zip(PUBLISHED_NORMS, *PUBLISHED_CLIPPING[name], strict=True)
        print("published, C (of natural parameters): " + "; ".join(f"{c}: {e:g}, {ll:.3f}" for c, e, ll in rows))
        for norm in (float(value) for value in arguments.clipping.split(",")):
            scores = []
            for k in range(n_splits):
                split = split_of(k)
                rule = NetworkSettings.rule(split.X.shape[0], arguments.epsilon)
                settings = NetworkSettings(max_site_norm=norm, block_weight=rule.block_weight, movement=rule.movement)
                weights = dp_sep(name, split, k, arguments.epsilon, plans, settings, arguments.threads)
                mean, variance = weights.predict(split.test_features)
                scores.append((split.rmse(mean), split.log_likelihood(mean, variance)))
            average, deviation = np.mean(scores, axis=0), np.std(scores, axis=0)
            print(
                f"C = {norm:5.2f}: RMSE {average[0]:8.4f} +- {deviation[0]:.4f}, log-likelihood {average[1]:7.3f} +- "
                f"{deviation[1]:.3f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(FILES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--norm", type=float, default=10.0, help="clipping norm of sep_clipped")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--clipping", default="")
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    print("inputs and responses standardised by the training records, as published (see bench/coverage/py)")
    if arguments.clipping:
        clipping(arguments)
    else:
        table(arguments)


if __name__ == "__main__":
    main()
