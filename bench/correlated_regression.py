"""Linear regression on correlated features: coverage of the weights and of the noise variance.

Truths come from the prior; features are normal with correlation rho**|i - j| (AR(1)), or indicators of three columns
of unequally likely categories beside two numbers.  The model is told what a user's schema says: independent columns,
unit variances, equally likely categories; "full-known": that these are the moments of single features (for categories,
their true shares).  For each epsilon, kind of features and posterior: the share of the weights,
and of the variances, inside their 90% intervals, standard deviation and mean of their z-scores, the median width
relative to the posterior without privacy, and the joint TARP curve's RMSE next to its Monte Carlo floor.

    python bench/correlated_regression.py [--runs 60] [--records 5000] [--cases tied full ...] [--features ar-0.9 ...]

One thread a run keeps the numbers of different machines equal; two runs go on at once.
"""

import argparse
import concurrent.futures
import functools
import math
import time

import numpy as np
from scipy.linalg import toeplitz

import dpinfer as dpi
from dpinfer.errors import NumericalError
from dpinfer.testing import InsecureRNG

RATE, STEPS = 0.1, 2500
N_FEATURES = 10
DRAWS = 500
CATEGORIES = ((0.5, 0.3, 0.15, 0.05), (0.6, 0.25, 0.1, 0.05), (0.7, 0.3))
KINDS = ("ar-0", "ar-0.5", "ar-0.9", "one-hot")
CASES = {
    "auto": ("default recipe and posterior", "tied", {}),
    "tied": ("one unknown per weight", "tied", {"hessian": "tied"}),
    "full": ("full Hessian", "tied", {"hessian": "full"}),
    "full-known": ("full Hessian, moments known", "tied", {"hessian": "full"}),
    "steady": ("recipe steady, full Hessian", "steady", {"hessian": "full"}),
    "steady-tied": ("recipe steady, one unknown per weight", "steady", {"hessian": "tied"}),
    "plain": ("recipe plain, diagonal Hessian", "plain", {"hessian": "diagonal", "prior": "weak"}),
    "plain-model": ("recipe plain, diagonal, model prior", "plain", {"hessian": "diagonal", "prior": "model"}),
    "averaged": ("averaged (ignores the noise)", "tied", {"method": "averaged"}),
}


def declared(kind, known=False):
    """Return the model as its user declares it, who may know the moments of single features."""
    if kind != "one-hot":
        moments = {"feature_moments": np.eye(N_FEATURES + 1), "feature_moments_known": True} if known else {}
        return dpi.models.LinearRegression(N_FEATURES, fit_intercept=True, **moments)
    sizes = [len(item) for item in CATEGORIES]
    shares = [np.array(item) if known else np.full(len(item), 1.0 / len(item)) for item in CATEGORIES]
    means = np.concatenate([*shares, np.zeros(2), np.ones(1)])
    moments = np.outer(means, means)
    first = 0
    for size in sizes:
        moments[first : first + size, first : first + size] = np.diag(means[first : first + size])
        first += size
    moments[first, first] = moments[first + 1, first + 1] = 1.0
    return dpi.models.LinearRegression(
        means.size - 1, fit_intercept=True, feature_moments=moments, feature_moments_known=known
    )


def features(kind, n_records, rng):
    """Return the records' features."""
    if kind != "one-hot":
        rho = float(kind.removeprefix("ar-"))
        root = np.linalg.cholesky(toeplitz(rho ** np.arange(N_FEATURES)))
        return rng.standard_normal((n_records, N_FEATURES)) @ root.T
    # Categories follow one another: a common normal score decides half of each.
    common = rng.standard_normal((n_records, 1))
    blocks = []
    for shares in CATEGORIES:
        score = math.sqrt(0.5) * (common[:, 0] + rng.standard_normal(n_records))
        rank = np.argsort(np.argsort(score)) / n_records
        blocks.append(np.eye(len(shares))[np.searchsorted(np.cumsum(shares)[:-1], rank, side="right")])
    numbers = math.sqrt(0.5) * (common + rng.standard_normal((n_records, 2)))
    return np.ascontiguousarray(np.hstack([*blocks, numbers]))


@functools.cache
def planned(epsilon):
    """Return the privacy plan."""
    return dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=RATE, n_steps=STEPS)


def simulate(kind, n_records, epsilon, seed, recipes):
    """Return (truth, model, posterior without privacy, releases by recipe)."""
    rng = np.random.default_rng(seed)
    model = declared(kind)
    truth = model.sample_prior(1, rng)[0]
    X = features(kind, n_records, rng)
    y = model.simulate(truth, X, rng)
    plan = planned(epsilon)
    releases = {}
    for recipe in recipes:
        # What a user of the plain recipe can know: the norm of a typical row, for residuals of about one deviation.
        given = {"max_grad_norm": 2.0 * math.sqrt(model.second_moments.sum())} if recipe == "plain" else {}
        if recipe == "plain":
            deviation = math.sqrt(model.variance_rate / (model.variance_shape + 1.0))
            given["max_grad_norm"] /= deviation
        releases[recipe] = dpi.run_dpvi(
            model,
            X,
            y,
            plan=plan,
            n_records=n_records,
            recipe=recipe,
            random_source=InsecureRNG(seed),
            n_threads=1,
            **given,
        )
    return truth, model, model.exact_posterior(X, y), releases


def one_run(kind, n_records, epsilon, seed, cases):
    """Return (truth, ideal widths, {case: (low, high, mean, stddev, draws, seconds, full Hessian)})."""
    truth, _, exact, releases = simulate(kind, n_records, epsilon, seed, {CASES[name][1] for name in cases})
    low, high = exact.interval(0.9)
    found = {}
    for name in cases:
        _, recipe, options = CASES[name]
        begin = time.perf_counter()
        try:
            if name == "full-known":
                options = options | {"model": declared(kind, known=True)}
            posterior = dpi.noise_aware_posterior(releases[recipe], n_threads=1, seed=seed, **options)
        except NumericalError:
            continue
        spent = time.perf_counter() - begin
        ends = posterior.quantile([0.05, 0.95])
        full = posterior.hessian == "full"
        found[name] = (*ends, posterior.mean, posterior.stddev, posterior.sample(DRAWS, seed=seed), spent, full)
    return truth, high - low, found


def report(label, kept, total):
    """Print one line: weights, then the noise variance."""
    truth, ideal = (np.stack([item[k] for item in kept]) for k in range(2))
    low, high, mean, stddev, draws = (np.stack([item[2][k] for item in kept]) for k in range(5))
    inside = (low <= truth) & (truth <= high)
    z, relative = (truth - mean) / stddev, (high - low) / ideal
    parts = []
    for name, own in (("weights", np.s_[:, :-1]), ("variance", np.s_[:, -1:])):
        share, mean_z = inside[own].mean(axis=1), z[own].mean(axis=1)
        error = share.std(ddof=1) / math.sqrt(len(kept))
        z_error = mean_z.std(ddof=1) / math.sqrt(len(kept))
        parts.append(
            f"{name} {share.mean():.3f} +- {error:.3f}, sd z {z[own].std():.2f},"
            f" mean z {mean_z.mean():+.2f} +- {z_error:.2f}, width {np.median(relative[own]):.2f}"
        )
    tarp = dpi.lab.coverage.run_tarp(draws.transpose(1, 0, 2), truth, n_repeats=20, seed=0)
    seconds, full = np.median([item[2][5] for item in kept]), sum(item[2][6] for item in kept)
    print(
        f"  {label:<36} {'; '.join(parts)}; TARP {tarp.rmse:.3f} (floor {tarp.rmse_floor:.3f}),"
        f" {len(kept)} of {total} runs ({full} with a full Hessian), {seconds:.2f} s",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--features", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--first-seed", type=int, default=1000)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.runs)
    print(f"{arguments.records} records, {STEPS} steps, {arguments.runs} runs, 90% intervals")
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for kind in arguments.features:
            for epsilon in arguments.epsilons:
                jobs = [pool.submit(one_run, kind, arguments.records, epsilon, seed, arguments.cases) for seed in seeds]
                runs = [job.result() for job in jobs]
                print(f"\n{kind}, epsilon {epsilon:g}")
                for name in arguments.cases:
                    kept = [(truth, ideal, found[name]) for truth, ideal, found in runs if name in found]
                    if len(kept) < 2:
                        print(f"  {CASES[name][0]:<36} failed in {len(runs) - len(kept)} of {len(runs)} runs")
                        continue
                    report(CASES[name][0], kept, len(runs))


if __name__ == "__main__":
    main()
