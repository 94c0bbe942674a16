"""Synthetic records from a noise-aware posterior: what analyses of them cover, and how the sets are combined.

    python bench/coverage/synthetic.py [--runs 40] [--sets 50] [--model linear logistic]

Simulated records, 3 features and an intercept, weights from N(0, 1) (logistic: N(0, 0.5**2)), prior N(0, 2.5**2); a
private Newton fit at epsilon 1, delta 1e-5.  An analyst who knows nothing of privacy fits the same model to each
synthetic set, and combines the sets.  90% intervals: share that holds the true weights, with its standard error over
runs; median width relative to the analysis of the records themselves.
"direct" is the posterior; "mixture" and "moments" are the rules of SyntheticSets.combine, for sets of the size of the
records and of 10 times that; "one set" is the power twin, one set taken for the records.
"""

import argparse

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

EPSILON, DELTA, N_RECORDS, N_FEATURES, LARGER = 1.0, 1e-5, 2000, 3, 10
LEVEL, HALF_WIDTH = 0.9, 1.6448536269514722


def analysis(kind: str, X: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return estimates and squared standard errors of a fit without privacy."""
    rows = np.column_stack([X, np.ones(len(X))])
    weights = np.zeros(rows.shape[1])
    if kind == "linear":
        weights = np.linalg.lstsq(rows, y, rcond=None)[0]
        variance = np.sum((y - rows @ weights) ** 2) / (len(y) - rows.shape[1])
        return weights, variance * np.diag(np.linalg.inv(rows.T @ rows))
    for _ in range(8):
        chance = special.expit(rows @ weights)
        precision = (rows * (chance * (1.0 - chance))[:, None]).T @ rows
        weights = weights + np.linalg.solve(precision, rows.T @ (y - chance))
    return weights, np.diag(np.linalg.inv(precision))


def simulated(kind: str, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return features, responses and the true weights, the intercept's last."""
    truth = rng.normal(size=N_FEATURES + 1) * (1.0 if kind == "linear" else 0.5)
    X = rng.normal(size=(N_RECORDS, N_FEATURES))
    eta = X @ truth[:-1] + truth[-1]
    if kind == "linear":
        return X, eta + rng.normal(size=N_RECORDS), truth
    return X, (rng.random(N_RECORDS) < special.expit(eta)) + 0.0, truth


def one_run(kind: str, n_sets: int, seed: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return for each way whether the intervals hold the truth, and their relative widths."""
    rng = np.random.default_rng(seed)
    X, y, truth = simulated(kind, rng)
    family = dpi.models.LinearRegression if kind == "linear" else dpi.models.LogisticRegression
    fit = dpi.fit(
        family(N_FEATURES, fit_intercept=True, prior_scale=2.5),
        X,
        y,
        epsilon=EPSILON,
        delta=DELTA,
        n_records=N_RECORDS,
        method="newton",
        response_scale=2.0 if kind == "linear" else None,
        random_source=InsecureRNG(seed),
    )
    size = N_FEATURES + 1
    whole = 2.0 * HALF_WIDTH * np.sqrt(analysis(kind, X, y)[1])
    intervals = {"direct": fit.posterior.interval(LEVEL)[:, :size]}
    for name, larger in (("1x", 1), (f"{LARGER}x", LARGER)):
        points = rng.normal(size=(larger * N_RECORDS, N_FEATURES))
        sets = fit.posterior.synthetic(points, n_sets=n_sets, seed=seed)
        found = [analysis(kind, *each) for each in sets]
        estimates, variances = (np.array(values) for values in zip(*found, strict=True))
        for rule in ("mixture", "moments"):
            intervals[f"{rule}, {name}"] = sets.combine(estimates, variances, rule=rule).interval(LEVEL)
        reach = HALF_WIDTH * np.sqrt(variances[0])
        intervals[f"one set, {name}"] = np.stack([estimates[0] - reach, estimates[0] + reach])
    return {way: ((low <= truth) & (truth <= high), (high - low) / whole) for way, (low, high) in intervals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--sets", type=int, default=50)
    parser.add_argument("--model", nargs="*", choices=("linear", "logistic"), default=("linear", "logistic"))
    parser.add_argument("--seed", type=int, default=71)
    arguments = parser.parse_args()
    print("| model | intervals | covered | width |")
    print("|---|---|---|---|")
    for kind in arguments.model:
        runs = [one_run(kind, arguments.sets, 1000 * arguments.seed + index) for index in range(arguments.runs)]
        for way in runs[0]:
            shares = np.array([np.mean(run[way][0]) for run in runs])
            width = np.median([run[way][1] for run in runs])
            error = np.std(shares, ddof=1) / np.sqrt(len(shares))
            print(f"| {kind} | {way} | {np.mean(shares):.3f} ± {error:.3f} | {width:.2f} |", flush=True)


if __name__ == "__main__":
    main()
