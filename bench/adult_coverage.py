"""Coverage on real, correlated columns: simulated labels on Adult's columns, weights from the prior.

For each epsilon and posterior: the share of the weights inside their 90% intervals, the standard deviation of the
z-scores, the mean width of the intervals, their median width relative to the posterior without privacy, and the joint
TARP curve's RMSE next to its Monte Carlo floor; and the calibration of predictions, against the probabilities that made
the labels.  Only the columns of the training file are used; no label of it is.  "shares": 5% of the budget goes to
counts of the categories (dpinfer.tabular.release_shares), the rest to the run.  "public-shares": what a census table
would say, the file's own shares rounded to a percent, half a percent at least; no budget is spent on them.  What the
--synthetic takes a new table of bench/adult_selection.py for each run in place of Adult's, no record being read for it,
with shares of a column's variance that come from two factors common to all columns between LOW and HIGH.  What the
prior's degrees of freedom do: "public-shares-vague" has those of unknown shares, "equal-shares-sharp" believes equal
shares as if they were known.  "known-information" is given the information at the true weights, as nobody is.

    DPINFER_DATA=../shared/data python bench/adult_coverage.py [--runs 40] [--steps 2500] [--cases full ...]

One process and thread a run keeps the numbers of different machines equal; two runs go on at once (--workers).
"""

import argparse
import concurrent.futures
import functools
import math
import os
import time
from pathlib import Path

import numpy as np
from scipy import special

import dpinfer as dpi
from adult_selection import synthetic_records
from dpinfer.errors import NumericalError
from dpinfer.inference.information.posteriors import MODEL_BURN_IN
from dpinfer.inference.information.under_model import InformationTrace, weights_given_information
from dpinfer.mechanism import FisherScaling
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[1]
RATE = 0.1
DRAWS, PREDICTED = 500, 6000
CASES = {
    "full": ("default: full Hessian under the model", "plain", {}),
    "diagonal": ("diagonal Hessian, weak prior", "plain", {"hessian": "diagonal", "prior": "weak"}),
    "diagonal-model": ("diagonal Hessian, model prior", "plain", {"hessian": "diagonal", "prior": "model"}),
    "plain-tied": ("tied Hessian, model prior", "plain", {"hessian": "tied", "prior": "model"}),
    "averaged": ("averaged (not noise-aware)", "plain", {"method": "averaged"}),
    "naive": ("naive (not noise-aware)", "plain", {"method": "naive"}),
    "tied": ("recipe tied, weak prior", "tied", {"prior": "weak"}),
    "tied-model": ("recipe tied, model prior", "tied", {"prior": "model"}),
    "shares": ("full Hessian, shares released", "shares", {}),
    "public-shares": ("full Hessian, shares public", "plain", {"hessian": "full"}),
    "public-shares-vague": ("shares public, rank + 2 degrees", "plain", {"hessian": "full"}),
    "equal-shares-sharp": ("equal shares, 2 rank degrees", "plain", {"hessian": "full"}),
    "known-information": ("information known", "plain", {}),
    "paper": ("the paper's settings, full Hessian", "paper", {}),
    "paper-exact": ("the paper's settings and posterior", "paper", {"hessian": "diagonal", "prior": "empirical"}),
}


@functools.cache
def load():
    """Return the design without labels, and its schema."""
    folder = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    return np.ascontiguousarray(dpi.tabular.read_table(folder / "adult.data.csv.gz", schema).X), schema


class KnownInformation:
    """The posterior given the records' information matrix: normal."""

    def __init__(self, release, model, information):
        steps = slice(int(MODEL_BURN_IN * release.n_steps), None)
        n, rate = model.n_params, release.sample_rate
        trace = InformationTrace.build(
            release.positions[steps, :n],
            release.noisy_gradients[steps, :n],
            release.noise_stddev[:n],
            sample_rate=rate,
            prior_variance=1.0,
        )
        noise = np.diag(trace.noise_variance) + rate * (1.0 - rate) * information
        self.mean, precision = weights_given_information(trace, noise / (rate**2 * trace.weight), information, 1.0)
        self._cov = np.linalg.inv(precision)
        self.stddev = np.sqrt(np.diag(self._cov))

    def quantile(self, levels):
        return self.mean + np.outer(special.ndtri(levels), self.stddev)

    def sample(self, size, seed):
        return np.random.default_rng(seed).multivariate_normal(self.mean, self._cov, size)


def told(schema, known=True):
    """Return the model of somebody who knows the shares of the categories."""
    return dpi.models.LogisticRegression(
        len(schema.feature_names),
        fit_intercept=True,
        feature_moments=schema.feature_moments,
        feature_moments_known=known,
    )


def census(X, schema):
    """Return the schema with shares as a public table would print them: in percent, half a percent at least."""
    shares, first = {}, 0
    for column in schema.columns:
        size = len(column.feature_names)
        if size > 1:
            percent = np.maximum(np.round(100.0 * X[:, first : first + size].mean(axis=0)), 0.5)
            shares[column.name] = percent / percent.sum()
        first += size
    return schema.with_shares(shares)


def calibration_error(predicted, probability):
    """Return the RMSE, over ten equal-count bins of the predictions, of their means against the true ones."""
    order = np.argsort(predicted)
    errors = [probability[part].mean() - predicted[part].mean() for part in np.array_split(order, 10)]
    return float(np.sqrt(np.mean(np.square(errors))))


def one_run(epsilon, steps, seed, cases, dependence):
    """Return, for each case, (low, high, mean, stddev, draws, seconds) with the weights and the ideal widths."""
    X, schema = load()
    if dependence is not None:
        X = synthetic_records(len(X), np.random.default_rng([seed, 1]), dependence)
    n_records = len(X)
    model = dpi.models.LogisticRegression(X.shape[1], fit_intercept=True)
    # With every value in [-1, 1]: the largest row norm.
    columns = [column for column in schema.columns if column.feature_names]
    norm = math.sqrt(len(columns) + 1.0)
    rng = np.random.default_rng(seed)
    weights = model.sample_prior(1, rng)[0]
    y = model.simulate(weights, X, rng)
    design = np.column_stack([X, np.ones(n_records)])
    p = 1.0 / (1.0 + np.exp(-design @ weights))
    information = (design * (p * (1.0 - p))[:, None]).T @ design
    ideal = 2.0 * 1.6449 * np.sqrt(np.diag(np.linalg.inv(information + np.eye(model.n_params))))
    releases, found = {}, {}
    design_sample, p_sample = X[:: len(X) // PREDICTED], p[:: len(X) // PREDICTED]
    for name in cases:
        _, recipe, options = CASES[name]
        if recipe not in releases:
            length = 10_000 if recipe == "paper" else steps
            target = {"target_epsilon": epsilon, "target_delta": 1e-5, "sample_rate": RATE, "n_steps": length}
            source = InsecureRNG(seed)
            if recipe == "shares":
                both = dpi.tabular.plan_with_shares(**target)
                counts = dpi.tabular.release_shares(
                    dpi.tabular.Table(X, None, schema),
                    noise_multiplier=both.noise_multiplier,
                    delta=1e-5,
                    random_source=source,
                )
                plan, model = both.run, told(counts.schema)
            else:
                plan = dpi.plan_privacy(**target)
                model = dpi.models.LogisticRegression(
                    X.shape[1], fit_intercept=True, feature_moments=schema.feature_moments
                )
            given = {"max_grad_norm": 11.0, "recipe": "paper"} if recipe == "paper" else {"max_grad_norm": norm}
            if recipe == "tied":
                given = {"grad_scale": FisherScaling(model, n_records, RATE, steps)}
            releases[recipe] = dpi.run_dpvi(
                model, X, y, plan=plan, n_records=n_records, random_source=source, n_threads=1, **given
            )
        if name.startswith("public-shares"):
            options = options | {"model": told(census(X, schema), known=name == "public-shares")}
        elif name == "equal-shares-sharp":
            options = options | {"model": told(schema)}
        begin = time.perf_counter()
        try:
            if name == "known-information":
                posterior = KnownInformation(releases[recipe], model, information)
            else:
                posterior = dpi.noise_aware_posterior(releases[recipe], n_threads=1, seed=seed, **options)
        except NumericalError:
            continue
        spent = time.perf_counter() - begin
        low, high = posterior.quantile([0.05, 0.95])
        draws = posterior.sample(DRAWS, seed=seed)
        error = calibration_error(model.predict_mean(draws, design_sample).mean(axis=0), p_sample)
        found[name] = (low, high, posterior.mean, posterior.stddev, draws, spent, error)
    return weights, ideal, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES)[:7])
    parser.add_argument(
        "--synthetic", type=float, nargs=2, metavar=("LOW", "HIGH"), help="tables from the schema alone"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1000)
    arguments = parser.parse_args()
    X, _ = load()
    print(f"{len(X)} records, {X.shape[1] + 1} weights, {arguments.steps} steps, {arguments.runs} sets of labels")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.runs)
    for epsilon in arguments.epsilons:
        with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
            jobs = [
                pool.submit(one_run, epsilon, arguments.steps, seed, arguments.cases, arguments.synthetic)
                for seed in seeds
            ]
            runs = [job.result() for job in jobs]
        print(f"\nepsilon {epsilon:g}")
        for name in arguments.cases:
            kept = [(weights, ideal, found[name]) for weights, ideal, found in runs if name in found]
            if not kept:
                print(f"  {CASES[name][0]:<40} failed in every run")
                continue
            truth, ideal = np.stack([item[0] for item in kept]), np.stack([item[1] for item in kept])
            low, high, mean, stddev, draws = (np.stack([item[2][k] for item in kept]) for k in range(5))
            share = np.mean((low <= truth) & (truth <= high), axis=1)
            error = share.std(ddof=1) / math.sqrt(len(kept)) if len(kept) > 1 else math.nan
            z = (truth - mean) / stddev
            tarp = dpi.lab.coverage.run_tarp(draws.transpose(1, 0, 2), truth, n_repeats=20, seed=0)
            seconds = np.median([item[2][5] for item in kept])
            calibration = 1e3 * np.array([item[2][6] for item in kept])
            calibration_se = calibration.std(ddof=1) / math.sqrt(len(kept)) if len(kept) > 1 else math.nan
            print(
                f"  {CASES[name][0]:<40} covered {share.mean():.3f} +- {error:.3f} (of 0.90), sd of z {z.std():.2f},"
                f" width {np.mean(high - low):.2f}, relative {np.median((high - low) / ideal):.2f},"
                f" joint TARP {tarp.rmse:.3f} (floor {tarp.rmse_floor:.3f}),"
                f" calibration x 1000 {calibration.mean():.1f} +- {calibration_se:.1f},"
                f" {len(kept)} runs, {seconds:.2f} s each",
                flush=True,
            )


if __name__ == "__main__":
    main()
