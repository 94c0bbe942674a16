"""Count regressions whose counts are far from where a run starts: whether they arrive, and whether they say so if not.

    python bench/far_counts.py [--runs 12] [--family poisson negativebinomial] [--mean 0.1 1 10 100 ...] [--declared]

Simulated tables: age (bounds 17 to 90), a job of three levels; coefficients of the scaled columns from
N(0, 0.5**2), the intercept that gives counts the stated mean, log(size) from N(1, 0.7**2). delta = 1e-6.
A run starts at a mean count of 1; with --declared the schema declares the mean. Columns: 90% intervals of coefficients
that hold the truth, with the standard error over runs; the share of runs whose intercept is more than 5 posterior
standard deviations off; the median width relative to maximum likelihood; the share of runs that warn, and of those
whose intercept is off.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

DELTA, HALF_WIDTH = 1e-6, 1.6448536269514722
FAR = 5.0


def schema_of(mean: float, *, declared: bool) -> dpi.tabular.Schema:
    """Return the schema; bounds are those that a curator who knows the order of magnitude gives."""
    visits: dict[str, Any] = {"kind": "continuous", "bounds": [0, max(50.0, 100.0 * mean)]}
    if declared:
        visits |= {"mean": mean, "sd": mean}
    columns = {
        "age": {"kind": "continuous", "bounds": [17, 90]},
        "job": {"kind": "categorical", "categories": ["a", "b", "c"]},
        "visits": visits,
    }
    return dpi.tabular.Schema.from_dict({"columns": columns})


@dataclass
class Found:
    """What runs have shown."""

    covered: list[float] = field(default_factory=list)
    far: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    warned: list[bool] = field(default_factory=list)
    checks: Counter[str] = field(default_factory=Counter)

    def row(self) -> str:
        """Return a part of a row of the table."""
        error = np.std(self.covered, ddof=1) / np.sqrt(len(self.covered)) if len(self.covered) > 1 else np.nan
        told = [warned for warned, far in zip(self.warned, self.far, strict=True) if far]
        share = f"{sum(told)} of {len(told)}" if told else ""
        return (
            f"{np.mean(self.covered):.3f} ± {error:.3f} | {np.mean(self.far):.2f} | {np.median(self.widths):.2f} "
            f"| {np.mean(self.warned):.2f} | {share} | {dict(self.checks)}"
        )


def one_run(family: str, mean: float, seed: int, asked: argparse.Namespace, found: Found) -> None:
    """Make one run and note what it shows."""
    n_records = asked.records
    rng = np.random.default_rng(seed)
    design = dpi.formulas.design("visits ~ age + job", schema_of(mean, declared=asked.declared), family=family)
    values = {"age": rng.uniform(20, 80, n_records), "job": rng.integers(3, size=n_records) + 0.0}
    rows = np.column_stack([design.encode(values), np.ones(n_records)])
    weights = np.append(0.5 * rng.normal(size=3), 0.0)
    weights[-1] = np.log(mean) - np.log(np.mean(np.exp(rows @ weights)))
    rate = np.exp(rows @ weights)
    size = float(np.exp(1.0 + 0.7 * rng.normal()))
    if family == "poisson":
        y, curvature = rng.poisson(rate) + 0.0, rate
    else:
        y, curvature = rng.negative_binomial(size, size / (size + rate)) + 0.0, rate * size / (size + rate)
    table = {**values, "job": np.array(["a", "b", "c"])[values["job"].astype(int)], "visits": y}
    fit = dpi.regression(
        "visits ~ age + job",
        table,
        family=family,
        schema=design.schema,
        epsilon=asked.epsilon,
        delta=DELTA,
        n_records=n_records,
        random_source=InsecureRNG(seed),
    )
    posterior = fit.posterior
    low, high = posterior.quantile([0.05, 0.95], space="unconstrained")[:, :4]
    spread = np.sqrt(np.diag(np.linalg.inv((rows * curvature[:, None]).T @ rows)))
    found.covered.append(float(np.mean((low < weights) & (weights < high))))
    found.far.append(bool(abs(posterior.mean[3] - weights[3]) > FAR * posterior.stddev[3]))
    found.widths.append(float(np.median((high - low) / (2.0 * HALF_WIDTH * spread))))
    names = [name for name in posterior.diagnostics.warnings.split(", ") if name]
    found.checks.update(names)
    found.warned.append(bool(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--records", type=int, default=4000)
    families = ("poisson", "negativebinomial")
    parser.add_argument("--family", nargs="*", choices=families, default=families)
    parser.add_argument("--mean", nargs="*", type=float, default=[0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0])
    parser.add_argument("--declared", action="store_true")
    parser.add_argument("--seed", type=int, default=97)
    asked = parser.parse_args()
    heads = ("family", "mean", "covered", "off", "width", "warned", "warned where off", "checks")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for family in asked.family:
        for mean in asked.mean:
            found = Found()
            for index in range(asked.runs):
                seed = 1000 * asked.seed + index
                one_run(family, mean, seed, asked, found)
            print(f"| {family} | {mean:g} | {found.row()} |", flush=True)


if __name__ == "__main__":
    main()
