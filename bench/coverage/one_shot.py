"""Coverage and width of the one-shot statistic: conjugate models, rare events, sparse categories, truths in a tail.

    python bench/coverage/one_shot.py --runs 1000
    python bench/coverage/one_shot.py --tables --runs 200

Every run draws a truth (from the prior, or fixed), records, a release and its posterior.  Widths are relative to the
posterior without privacy; errors are over the runs.  `excess` is the RMSE of the joint TARP curve above its floor.

With --tables: noisy counts and means of skewed values (Beta(1, 6) on bounds of [0, 1]) in cells of very different
sizes; 90% intervals for the sample and for the population, their widths relative to Student's interval of the
population.  No constant of tables was chosen on these runs.
"""

import argparse
import os

import numpy as np
from scipy import stats

os.environ.setdefault("OMP_NUM_THREADS", "1")

import dpinfer as dpi
from dpinfer.models import BetaBernoulli, ConjugateModel, DirichletCategorical, GammaExponential
from dpinfer.testing import InsecureRNG

N = 5000
DRAWS = 200
CELLS: list[tuple[str, ConjugateModel, tuple[float, ...] | None]] = [
    ("Beta(10, 10)", BetaBernoulli(), None),
    ("Dirichlet(5, 5, 5)", DirichletCategorical(), None),
    ("Gamma(8, 2)", GammaExponential(), None),
    ("Beta(1, 200)", BetaBernoulli(1.0, 200.0), None),
    ("Dirichlet(0.3 x 20)", DirichletCategorical((0.3,) * 20), None),
    ("Beta(10, 10), truth 0.05", BetaBernoulli(), (0.05,)),
]
SHARES = (0.5, 0.3, 0.15, 0.04, 0.01)
TABLE = dpi.tabular.Schema.from_dict(
    {
        "columns": {
            "value": {"kind": "continuous", "bounds": [0, 1]},
            "cell": {"kind": "categorical", "categories": [f"{index}" for index in range(len(SHARES))]},
        }
    }
)
LAWS = {"laplace": 0.0, "gaussian": 1e-6}


def run(model, truth, epsilon, rng, seed):
    """Return the truth, what is covered, the relative widths, and draws, on the unconstrained space."""
    params = np.atleast_1d(model.sample_prior(1, rng)[0] if truth is None else np.array(truth))
    records = model.simulate(params, N, rng)
    release = dpi.run_statistic(model, records, epsilon=epsilon, n_records=N, random_source=InsecureRNG(seed))
    posterior = dpi.noise_aware_posterior(release)
    levels = np.array([0.05, 0.95])
    low, high = posterior.quantile(levels, space="unconstrained")
    exact = model.posterior(records)
    base = np.diff(exact.quantile(levels, "unconstrained"), axis=0)[0]
    with np.errstate(divide="ignore"):
        theta = model.prior.unconstrain(params)
    known = np.isfinite(theta) & (np.abs(theta) < 600.0)
    without = exact.quantile(levels, "unconstrained")
    return {
        "theta": theta,
        "covered": ((low < theta) & (theta < high))[known].mean(),
        "without": ((without[0] < theta) & (theta < without[1]))[known].mean(),
        "width": np.median((high - low) / base),
        "draws": posterior.sample(DRAWS, seed=rng, space="unconstrained"),
    }


def cell(name, model, truth, epsilon, runs, seed):
    rng = np.random.default_rng(seed)
    found = [run(model, truth, epsilon, rng, seed * 1_000_003 + index) for index in range(runs)]
    covered, without = (np.array([item[key] for item in found]) for key in ("covered", "without"))
    width = np.array([item["width"] for item in found])
    text = ""
    thetas = np.array([item["theta"] for item in found])
    if truth is None and np.all(np.isfinite(thetas)):
        samples = np.stack([item["draws"] for item in found], axis=1)
        tarp = dpi.lab.coverage.run_tarp(samples, thetas, references="centred", n_repeats=20, seed=seed)
        text = f"  excess {tarp.rmse - tarp.rmse_floor:+.4f}  KS p {tarp.ks_pvalue:.2g}"
    error = covered.std(ddof=1) / np.sqrt(runs)
    print(
        f"{name:26s} epsilon {epsilon:<4g} covered {covered.mean():.3f} +- {error:.3f}"
        f" (without privacy {without.mean():.3f})  width {np.median(width):.3f}{text}",
        flush=True,
    )


def table_run(n, law, epsilon, rng, seed):
    """Return what is covered, (cells, 3): counts, means of the sample and of the population; and relative widths."""
    labels, values = rng.choice(len(SHARES), n, p=SHARES), rng.beta(1.0, 6.0, n)
    data = {"cell": [f"{label}" for label in labels], "value": values}
    terms = {"schema": TABLE, "epsilon": epsilon, "delta": LAWS[law]}
    counts = dpi.tables.counts(data, "cell", **terms, random_source=InsecureRNG(seed)).interval()
    means = dpi.tables.means(data, "value", "cell", **terms, random_source=InsecureRNG(seed + 1))
    sample, population = (means.interval(target=target) for target in ("sample", "population"))
    covered, width = np.full((len(SHARES), 3), np.nan), np.full(len(SHARES), np.nan)
    for own in range(len(SHARES)):
        there = values[labels == own]
        truths = len(there), there.mean() if len(there) else np.nan, 1.0 / 7.0
        for place, (ends, truth) in enumerate(zip((counts, sample, population), truths, strict=True)):
            covered[own, place] = ends[own, 0] - 1e-9 <= truth <= ends[own, 1] + 1e-9 if np.isfinite(truth) else np.nan
        if len(there) > 1:
            plain = 2.0 * stats.t.ppf(0.95, len(there) - 1) * there.std(ddof=1) / np.sqrt(len(there))
            width[own] = np.diff(population[own])[0] / plain
    return covered, width


def tables(runs, epsilons, sizes, seed):
    for n in sizes:
        for law in LAWS:
            for epsilon in epsilons:
                rng = np.random.default_rng([seed, n])
                found = [table_run(n, law, epsilon, rng, 2 * (seed * 10_007 + index)) for index in range(runs)]
                covered, width = (np.array(part) for part in zip(*found, strict=True))
                for own, share in enumerate(SHARES):
                    told = [f"{np.nanmean(covered[:, own, place]):.3f}" for place in range(3)]
                    size = f"{law:8s} epsilon {epsilon:<4g} records of a cell {n * share:6.0f}"
                    of = f"count {told[0]}, mean of the sample {told[1]}, of the population {told[2]}"
                    print(f"{size}  covered: {of}  width {np.nanmedian(width[:, own]):.2f}", flush=True)
                pooled = np.nanmean(covered, axis=1)
                error = np.nanstd(pooled, axis=0, ddof=1) / np.sqrt(runs)
                numbers = [f"{a:.3f} +- {b:.3f}" for a, b in zip(np.nanmean(pooled, axis=0), error, strict=True)]
                print(f"  all cells: {', '.join(numbers)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--cells", nargs="+", default=None, help="beginnings of names")
    parser.add_argument("--seed", type=int, default=2611)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--records", type=int, nargs="+", default=[300, 3000], help="of tables")
    args = parser.parse_args()
    if args.tables:
        tables(args.runs, args.epsilons, args.records, args.seed)
        return
    for name, model, truth in CELLS:
        if args.cells is None or any(name.startswith(start) for start in args.cells):
            for epsilon in args.epsilons:
                cell(name, model, truth, epsilon, args.runs, args.seed)


if __name__ == "__main__":
    main()
