"""Regressions of textbooks: without noise beside the ordinary fit, and coverage on bootstrap samples.

    DPINFER_DATA=... python bench/coverage/textbook.py limit [--keys 1,2,3]
    DPINFER_DATA=... python bench/coverage/textbook.py cover [--epsilon 1] [--runs 8] [--first 100] [--only NAME,...]
    python bench/coverage/textbook.py rare [--runs 20]

``limit``: estimates and widths at epsilon = 1e6 beside statsmodels' estimates and HC0 errors, which are kept with the
tables.  ``cover``: 90% intervals of samples with replacement, with the table's estimate as truth; width over HC0's.
Chosen numbers of the runs were looked at with samples 0 to 9; others are unseen.  ``rare``: rare exposures of a true
logistic model: mean estimate, coverage, width, and the share of runs whose row has a remark.
"""

import argparse
import csv
import gzip
import json
import os
import warnings
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

Z90 = 1.64485
RARE = [(8000, 0.02, 0.6), (50_000, 0.003, 0.6), (8000, 0.01, 0.6), (8000, 0.02, 1.0), (20_000, 0.01, -1.0)]


def tables():
    """Return what is public of each table, and its estimates."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("set DPINFER_DATA to the folder that holds the folder textbook")
    return Path(folder) / "textbook", json.loads((Path(folder) / "textbook" / "tables.json").read_text("utf-8"))


def read(folder, name, table):
    """Return the complete rows of a table, by column."""
    with gzip.open(folder / f"{name}.csv.gz", "rt") as stream:
        head, *lines = csv.reader(stream)
    kinds, rows = table["schema"]["columns"], [line for line in lines if all(line)]
    columns = {column: [line[j] for line in rows] for j, column in enumerate(head)}
    return {c: np.array(v, dtype=float if kinds[c]["kind"] == "continuous" else str) for c, v in columns.items()}


def rows_of(table, data, epsilon, key):
    """Return for each coefficient: mean, ends, the table's estimate, HC0's error."""
    schema = dpi.tabular.Schema.from_dict(table["schema"])
    fit = dpi.regression(
        table["formula"], data, schema=schema, family=table["family"], epsilon=epsilon, delta=1e-6,
        n_records=table["complete_rows"], random_source=InsecureRNG(key),
    )  # fmt: skip
    found, rows = fit.coefficients(level=0.9).to_dict(), []
    for name, mean, low, high in zip(*(found[key] for key in ("name", "mean", "low", "high")), strict=True):
        known = (
            "Intercept" if name == "intercept" else name if name in table["estimate"] else name.replace(" ** ", "**")
        )
        if known in table["estimate"]:
            rows.append((mean, low, high, table["estimate"][known], table["robust_se"][known]))
    return np.array(rows)


def limit(folder, known, keys):
    """Print which tables are off by more than a tenth of a standard error, or 5% of a width."""
    for key in keys:
        off = []
        for name, table in known.items():
            mean, low, high, estimate, error = rows_of(table, read(folder, name, table), 1e6, key).T
            distance, width = np.abs(mean - estimate) / error, (high - low) / (2.0 * Z90 * error)
            if distance.max() > 0.1 or width.min() < 0.95 or width.max() > 1.05 or len(mean) < len(table["estimate"]):
                off.append(f"{name} {distance.max():.2f} se, {width.min():.2f} to {width.max():.2f}")
        print(f"key {key}: {len(off)} of {len(known)} off", "; ".join(off), flush=True)


def cover(folder, known, epsilon, samples):
    """Print coverage and width of each table."""
    covered, worst, widths = [], [], []
    for name, table in known.items():
        data, size, runs = read(folder, name, table), table["complete_rows"], []
        for key in samples:
            index = np.random.default_rng([20261128, key]).integers(0, size, size)
            _, low, high, estimate, error = rows_of(table, {c: v[index] for c, v in data.items()}, epsilon, key).T
            runs.append(((low < estimate) & (estimate < high), (high - low) / (2.0 * Z90 * error)))
        held, width = (np.array(part) for part in zip(*runs, strict=True))
        covered.append(held.mean())
        worst.append(held.mean(axis=0).min())
        widths.append(np.median(width))
        error = held.mean(axis=1).std(ddof=1) / np.sqrt(len(runs))
        print(f"{name:14s} {covered[-1]:.3f} +- {error:.3f}, row {worst[-1]:.2f}, width {widths[-1]:.2f}", flush=True)
    print(
        f"epsilon {epsilon:g}, {len(samples)} runs: mean {np.mean(covered):.3f}, "
        f"below 0.85 {np.sum(np.less(covered, 0.85))}, with a row below 0.6 {np.sum(np.less(worst, 0.6))}, "
        f"median width {np.median(widths):.3f}"
    )


def rare(runs):
    """Print what becomes of rare exposures."""
    columns = {
        "died": {"kind": "binary", "positive": "1", "negative": "0"},
        "age": {"kind": "continuous", "bounds": [-4, 4]},
        "sick": {"kind": "categorical", "categories": ["no", "yes"]},
    }
    schema = dpi.tabular.Schema.from_dict({"columns": columns})
    for size, share, effect in RARE:
        for epsilon in (1.0, 3.0, 1e6):
            found = []
            for key in range(runs):
                rng = np.random.default_rng([53, key, size])
                age, sick = rng.normal(size=size).clip(-4, 4), rng.random(size) < share
                died = rng.random(size) < 1.0 / (1.0 + np.exp(1.2 - 1.2 * age - effect * sick))
                data = {"died": np.where(died, "1", "0"), "age": age, "sick": np.where(sick, "yes", "no")}
                fit = dpi.regression(
                    "died ~ age + sick", data, schema=schema, family="binomial", epsilon=epsilon, delta=1e-6,
                    n_records=size, random_source=InsecureRNG(key),
                )  # fmt: skip
                row = fit.coefficients(level=0.9)["sick[T.yes]"]
                told = bool(fit.coefficients().remark("sick[T.yes]"))
                found.append((row["mean"], row["low"] < effect < row["high"], row["high"] - row["low"], told))
            means, held, width, told = (np.array(part, dtype=float) for part in zip(*found, strict=True))
            print(
                f"{size} records, {share:.1%} exposed, effect {effect}, epsilon {epsilon:g}: mean "
                f"{means.mean():.2f} +- {means.std(ddof=1) / runs**0.5:.2f}, "
                f"held {held.mean():.2f} +- {(held.var() / runs) ** 0.5:.2f}, "
                f"width {np.median(width):.2f}, remark {told.mean():.2f}", flush=True,
            )  # fmt: skip


def main():
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("limit", "cover", "rare"))
    parser.add_argument("--keys", default="1,2,3")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.what == "rare":
        rare(arguments.runs)
        return
    folder, known = tables()
    known = {name: known[name] for name in arguments.only.split(",") if name} or known
    if arguments.what == "limit":
        limit(folder, known, [int(key) for key in arguments.keys.split(",")])
    else:
        cover(folder, known, arguments.epsilon, range(arguments.first, arguments.first + arguments.runs))


if __name__ == "__main__":
    main()
