"""Negative binomial regressions, and offsets, through a formula: the model's own target, and what a likelihood costs.

    python bench/coverage/formula_families.py [--runs 24] [--epsilon 1] [--family negativebinomial poisson binomial]

Simulated tables of 4000 records: age (bounds 17 to 90), a job of three levels, and years of exposure, whose logarithm
is an offset. Coefficients of the scaled columns and the intercept from N(0, 0.5**2), the latter about a mean count of
exp(-1.5) a year, log(size) from N(1, 0.7**2): inside the default priors. 90% intervals: share that holds the truth,
coefficients of a run taken together, with its standard error over runs; median width relative to that of the maximum
likelihood estimates without privacy (from the expected information at the truth, size known). "size" is alone.
"poisson on counts with more variance" is the power twin: a likelihood that is wrong.
"""

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.formulas import design
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

N_RECORDS, DELTA, HALF_WIDTH = 4000, 1e-6, 1.6448536269514722
SCHEMA = dpi.tabular.Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [17, 90]},
            "job": {"kind": "categorical", "categories": ["a", "b", "c"]},
            "years": {"kind": "continuous", "bounds": [1, 20]},
            "visits": {"kind": "continuous", "bounds": [0, 500]},
            "rich": {"kind": "target", "positive": "yes", "negative": "no"},
        }
    }
)


def one_run(family: str, epsilon: float, seed: int, *, wrong: bool = False) -> tuple[list[bool], list[float]]:
    """Return which intervals hold the truth, and the relative widths of those of coefficients."""
    rng = np.random.default_rng(seed)
    response = "rich" if family == "binomial" else "visits"
    formula = f"{response} ~ age + job + offset(log(years))"
    found = design(formula, SCHEMA, family=family)
    values = {
        "age": rng.uniform(20, 80, N_RECORDS),
        "job": rng.integers(3, size=N_RECORDS) + 0.0,
        "years": rng.uniform(1, 20, N_RECORDS),
    }
    rows = found.encode(values)
    weights = 0.5 * rng.normal(size=4) - np.array([0.0, 0.0, 0.0, 1.5 - found.offset_centre])
    eta = np.column_stack([rows[:, :3], np.ones(N_RECORDS)]) @ weights + rows[:, 3]
    size = float(np.exp(1.0 + 0.7 * rng.normal()))
    mean = special.expit(eta) if family == "binomial" else np.exp(eta)
    if family == "binomial":
        y: Any = np.where(rng.random(N_RECORDS) < mean, "yes", "no")
        curvature = mean * (1.0 - mean)
    elif family == "poisson" and not wrong:
        y, curvature = rng.poisson(mean) + 0.0, mean
    else:
        y, curvature = rng.negative_binomial(size, size / (size + mean)) + 0.0, mean * size / (size + mean)
    table = {**values, "job": np.array(["a", "b", "c"])[values["job"].astype(int)], response: y}
    fit = dpi.regression(
        formula,
        table,
        family=family,
        schema=SCHEMA,
        epsilon=epsilon,
        delta=DELTA,
        n_records=N_RECORDS,
        target="model",
        random_source=InsecureRNG(seed),
    )
    coefficients = fit.coefficients(0.9)
    matrix, shift = found.user_units()
    truth = matrix @ weights + shift
    design_rows = np.column_stack([rows[:, :3], np.ones(N_RECORDS)])
    information = (design_rows * curvature[:, None]).T @ design_rows
    spread = np.sqrt(np.diag(matrix @ np.linalg.inv(information) @ matrix.T))
    held = ((coefficients.low[:4] < truth) & (truth < coefficients.high[:4])).tolist()
    if family == "negativebinomial":
        held.append(bool(coefficients.low[4] < size < coefficients.high[4]))
    return held, ((coefficients.high - coefficients.low)[:4] / (2.0 * HALF_WIDTH * spread)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--epsilon", type=float, default=1.0)
    cases = ("negativebinomial", "poisson", "binomial", "wrong")
    parser.add_argument("--family", nargs="*", choices=cases, default=cases)
    parser.add_argument("--seed", type=int, default=83)
    arguments = parser.parse_args()
    print("| family | covered | width | size covered |")
    print("|---|---|---|---|")
    for case in arguments.family:
        wrong = case == "wrong"
        family = "poisson" if wrong else case
        runs = [
            one_run(family, arguments.epsilon, 1000 * arguments.seed + index, wrong=wrong)
            for index in range(arguments.runs)
        ]
        shares = np.array([np.mean(held[:4]) for held, _ in runs])
        width = np.median([widths for _, widths in runs])
        error = shares.std(ddof=1) / np.sqrt(len(shares))
        sizes = np.array([held[4] for held, _ in runs if len(held) > 4])
        told = f"{sizes.mean():.3f} ± {sizes.std(ddof=1) / np.sqrt(len(sizes)):.3f}" if len(sizes) else ""
        name = "poisson on counts with more variance" if wrong else case
        print(f"| {name} | {shares.mean():.3f} ± {error:.3f} | {width:.2f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
