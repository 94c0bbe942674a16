"""Choose the settings for Adult from its schema alone: no Adult record and no Adult label is read.

Synthetic census tables: a categorical column's frequencies are Dirichlet(1), a continuous column is a Beta law on the
schema's bounds with the mean and standard deviation that the schema declares, and the columns depend on one another
through two latent factors (a Gaussian copula with random loadings).  Labels come from the model's own prior, weights
~ N(0, I).  A candidate is a mechanism and a posterior of the grid below; its score is the root mean square error of the
calibration curve (10 equal-count bins) of its predictions on synthetic test records, averaged over the tables and over
epsilon = 0.1, 0.3, 1.  The smallest mean is chosen; among those equal to 1e-4, the one with the best mean log score.
A candidate that fails once, or predicts something that is not finite, is out.

Clipping norms are multiples of the largest norm of a record that the schema's bounds admit.  By default the tables have
a third of Adult's records and three times its epsilon, which keeps epsilon N, hence noise against signal; the prior
then weighs three times more than it would.  Adult is scored afterwards, once, by bench/adult.py with what was chosen.

    OMP_NUM_THREADS=1 python bench/adult_selection.py [--tables 4] [--records 30162] [--out bench/results/selection]
"""

import argparse
import concurrent.futures
import functools
import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, ndtr

import dpinfer as dpi
from dpinfer.tabular import CategoricalColumn, ContinuousColumn
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[1]
EPSILONS = (0.1, 0.3, 1.0)
N_TRAIN, N_TEST, DELTA, SAMPLE_RATE = 30_162, 15_060, 1e-5, 0.1
N_FACTORS, N_DRAWS = 2, 1_000
NORM_FACTORS, RAW_SCALES, STEPS = (0.5, 1.0, 2.0), (100.0, 550.0), (2_500, 10_000)
GRADIENTS = ("reparameterised", "aligned")
MECHANISMS = tuple(itertools.product(NORM_FACTORS, RAW_SCALES, STEPS, GRADIENTS))
POSTERIORS = {
    "exact, diagonal, weak": {"method": "exact", "hessian": "diagonal", "prior": "weak"},
    "exact, diagonal, model": {"method": "exact", "hessian": "diagonal", "prior": "model"},
    "exact, tied, weak": {"method": "exact", "hessian": "tied", "prior": "weak"},
    "exact, tied, model": {"method": "exact", "hessian": "tied", "prior": "model"},
    "averaged": {"method": "averaged"},
}
FAILED = 1e9


@functools.cache
def load_schema():
    return dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")


def largest_norm():
    """Return the largest norm of an encoded record with its constant, from the schema's bounds."""
    return math.hypot(load_schema().max_row_norm, 1.0)


def synthetic_records(n_records, rng, dependence=(0.1, 0.6)):
    """Return encoded records of a table drawn from the schema alone, (n_records, n_features).

    `dependence` bounds the share of a column's variance that it has from the factors.
    """
    schema = load_schema()
    factors = rng.normal(size=(n_records, N_FACTORS))
    blocks = []
    for column in schema.columns:
        if not isinstance(column, (CategoricalColumn, ContinuousColumn)):
            continue
        direction = rng.normal(size=N_FACTORS)
        shared = rng.uniform(*dependence)
        common = factors @ direction / np.linalg.norm(direction)
        uniform = ndtr(math.sqrt(shared) * common + math.sqrt(1.0 - shared) * rng.normal(size=n_records))
        if isinstance(column, CategoricalColumn):
            size = len(column.feature_names)
            edges = np.cumsum(rng.dirichlet(np.ones(size)))[:-1]
            blocks.append(np.eye(size)[np.searchsorted(edges, uniform)])
        else:
            (offset, scale), (low, high) = column.offset_and_scale, column.bounds
            centre, spread = (offset - low) / (high - low), scale / (high - low)
            total = centre * (1.0 - centre) / spread**2 - 1.0
            share = betaincinv(centre * total, (1.0 - centre) * total, uniform)
            blocks.append(((low + (high - low) * share - offset) / scale)[:, None])
    features = np.hstack(blocks)
    bounds = schema.feature_bounds
    assert features.shape[1] == len(schema.feature_names)
    assert np.all((features >= bounds[:, 0] - 1e-9) & (features <= bounds[:, 1] + 1e-9))
    return np.ascontiguousarray(features)


@functools.lru_cache(maxsize=2)
def table(index, n_train, n_test):
    """Return training and test records with labels from the model's prior."""
    rng = np.random.default_rng([20_261_121, index])
    features = synthetic_records(n_train + n_test, rng)
    weights = rng.normal(size=features.shape[1] + 1)
    eta = features @ weights[:-1] + weights[-1]
    labels = (rng.random(len(features)) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return features[:n_train], labels[:n_train], features[n_train:], labels[n_train:]


@functools.cache
def plan_for(epsilon, n_steps):
    return dpi.plan_privacy(target_epsilon=epsilon, target_delta=DELTA, sample_rate=SAMPLE_RATE, n_steps=n_steps)


def score(posterior, X, y):
    """Return the calibration RMSE and the mean log score."""
    probability = posterior.predict_proba(X, n_draws=N_DRAWS)[:, 1]
    if not np.all(np.isfinite(probability)):
        return FAILED, -FAILED
    rmse = dpi.diagnostics.calibration_curve(probability, y, n_bins=10).rmse
    return rmse, float(np.mean(np.log(np.clip(np.where(y > 0.5, probability, 1.0 - probability), 1e-12, 1.0))))


def one_run(index, epsilon, mechanism, n_train):
    """Run one mechanism on one table and score every posterior."""
    factor, raw_scale, n_steps, gradient = mechanism
    X, y, X_test, y_test = table(index, n_train, N_TEST * n_train // N_TRAIN)
    release = dpi.run_dpvi(
        dpi.models.LogisticRegression(X.shape[1], fit_intercept=True),
        X,
        y,
        plan=plan_for(epsilon * N_TRAIN / n_train, n_steps),
        n_records=n_train,
        max_grad_norm=factor * largest_norm(),
        grad_scale=(1.0, raw_scale),
        gradient=gradient,
        recipe="plain",
        n_threads=1,
        random_source=InsecureRNG(index),
    )
    scores = {}
    for name, options in POSTERIORS.items():
        if gradient == "aligned" and options.get("hessian") == "tied":
            continue  # not defined: an aligned release has no gradient of the scales
        try:
            posterior = dpi.noise_aware_posterior(release, n_threads=1, **options)
            scores[name] = score(posterior, X_test, y_test)
        except dpi.errors.NumericalError:
            scores[name] = (FAILED, -FAILED)
    return {"table": index, "epsilon": epsilon, "mechanism": list(mechanism), "scores": scores}


def ranking(rows):
    """Return the candidates, best first: mean scores over tables and epsilons, and their Monte Carlo errors."""
    tables = sorted({row["table"] for row in rows})
    candidates = []
    for mechanism in MECHANISMS:
        of_mechanism = [row for row in rows if row["mechanism"] == list(mechanism)]
        for name in of_mechanism[0]["scores"] if of_mechanism else ():
            values = np.array(
                [
                    [
                        next(row["scores"][name] for row in of_mechanism if (row["table"], row["epsilon"]) == (t, eps))
                        for eps in EPSILONS
                    ]
                    for t in tables
                ]
            )  # (tables, epsilons, 2)
            per_table = values.mean(axis=1)
            candidates.append(
                {
                    "norm_factor": mechanism[0],
                    "max_grad_norm": mechanism[0] * largest_norm(),
                    "raw_scale": mechanism[1],
                    "n_steps": mechanism[2],
                    "gradient": mechanism[3],
                    "posterior": name,
                    "rmse": float(per_table[:, 0].mean()),
                    "rmse_error": float(per_table[:, 0].std(ddof=1) / math.sqrt(len(tables))),
                    "rmse_by_epsilon": values[..., 0].mean(axis=0).tolist(),
                    "rmse_by_epsilon_error": (values[..., 0].std(axis=0, ddof=1) / math.sqrt(len(tables))).tolist(),
                    "log_score": float(per_table[:, 1].mean()),
                    "log_score_error": float(per_table[:, 1].std(ddof=1) / math.sqrt(len(tables))),
                }
            )
    return sorted(candidates, key=lambda candidate: (round(candidate["rmse"], 4), -candidate["log_score"]))


def report(candidates, shown):
    print("calibration RMSE x 1000, mean ± Monte Carlo error over the tables; the best first")
    head = "".join(f"{'eps = ' + str(epsilon):>15}" for epsilon in EPSILONS)
    print(f"{'norm':>6}{'raw':>6}{'steps':>7}  {'gradient':16s}{'posterior':24s}{'mean':>14}{head}{'log score':>18}")
    for c in candidates[:shown]:
        cells = "".join(
            f"{1e3 * mean:9.1f} ± {1e3 * error:3.1f}"
            for mean, error in zip(c["rmse_by_epsilon"], c["rmse_by_epsilon_error"], strict=True)
        )
        print(
            f"{c['max_grad_norm']:6.1f}{c['raw_scale']:6.0f}{c['n_steps']:7d}  {c['gradient']:16s}{c['posterior']:24s}"
            f"{1e3 * c['rmse']:8.1f} ± {1e3 * c['rmse_error']:3.1f}{cells}"
            f"{c['log_score']:11.4f} ± {c['log_score_error']:.4f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--records", type=int, default=N_TRAIN // 3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shown", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "selection")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    store = arguments.out / "rows.jsonl"
    rows = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    done = {(row["table"], row["epsilon"], tuple(row["mechanism"])) for row in rows}
    tasks = [
        task for task in itertools.product(range(arguments.tables), EPSILONS, MECHANISMS) if tuple(task) not in done
    ]
    begin = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool, store.open("a") as stream:
        futures = [pool.submit(one_run, *task, arguments.records) for task in tasks]
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            rows.append(future.result())
            stream.write(json.dumps(rows[-1]) + "\n")
            stream.flush()
            print(f"\r{number} of {len(tasks)} runs, {time.perf_counter() - begin:.0f} s", end="", flush=True)
    print()
    candidates = ranking(rows)
    report(candidates, arguments.shown)
    result = {
        "n_tables": arguments.tables,
        "n_records": arguments.records,
        "epsilon_factor": N_TRAIN / arguments.records,
        "chosen": candidates[0],
        "candidates": candidates,
    }
    (arguments.out / "selected.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"chosen: {candidates[0]}")


if __name__ == "__main__":
    main()
