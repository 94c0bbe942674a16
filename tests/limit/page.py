"""The tables of docs/limit.md: ``python -m tests.limit.page --tables 150``."""

import argparse
import warnings

import numpy as np

from tests.limit.tables import Dice, compare, random_table
from tests.limit.test_ways import FORMULAS, N, table_of

SAMPLES = {"weights": {"weights": "w"}, "clusters": {"clusters": "c"}, "strata": {"strata": "s"}}


def line(what, rows):
    """Return a line of the first table, from the rows of coefficients that are not marked."""
    rows = [row for row in rows if not row.marked]
    distance, widths = max(row.distance for row in rows), [row.width for row in rows]
    return f"| {what} | {len(rows)} | {distance:.3f} | {min(widths):.3f} to {max(widths):.3f} |"


def ways():
    print("| regression | coefficients | largest distance, standard errors | widths over the ordinary ones |")
    print("|---|---|---|---|")
    for family in ("gaussian", "binomial", "poisson", "probit"):
        for epsilon in (1e4, 1e6):
            rows = [row for formula in FORMULAS for row in _rows(table_of(formula, family), epsilon)]
            print(line(f"{len(FORMULAS)} formulas, {family}, ε = {epsilon:g}, {N} records", rows))
    for name, options in SAMPLES.items():
        rows = [
            row
            for family in ("gaussian", "binomial", "poisson")
            for row in _rows(table_of("y ~ x + g", family, **options), 1e6)
        ]
        print(line(f"{name}, gaussian, binomial and poisson, ε = 1e+06", rows))


def _rows(table, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(table, table.fit(epsilon))


def tables(runs, most, first):
    print("\n| random tables | tables | rows | rows off | of them few | marked | marked without need |")
    print("|---|---|---|---|---|---|---|")
    for kind in ("factors", "any"):
        for family in ("gaussian", "binomial", "poisson", "probit"):
            every, off = [], 0
            for number in range(first, first + runs // 8):
                table = random_table(Dice([20261128, 3, number]), kind, most, (family,))
                try:
                    rows = _rows(table, 1e6)
                except ValueError:  # a formula whose columns determine each other
                    continue
                off += any(not row.right for row in rows)
                every += rows
            wrong = [row for row in every if not row.right]
            needless = sum(row.marked and not row.few and row.prior < 0.3 for row in every)
            few, marked = sum(row.few for row in wrong), sum(row.marked for row in every)
            count = f"{off} of {runs // 8}"
            print(
                f"| {kind}, {family} | {count} off | {len(every)} | {len(wrong)} | {few} | {marked} | {needless} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=160)
    parser.add_argument("--most", type=int, default=5000, help="records of a random table")
    parser.add_argument("--half", type=int, choices=(0, 1), default=0, help="tables that nothing was tried on: 1")
    asked = parser.parse_args()
    np.set_printoptions(precision=3)
    ways()
    tables(asked.tables, asked.most, 100_000 * asked.half)


if __name__ == "__main__":
    main()
