"""How often White's comparison calls a model untrue: of random tables whose model is true, and of others.

``python -m tests.limit.white --runs 600 --epsilon 1e6`` prints both; numbers were chosen on the seen half, --half 0.
"""

import argparse
import collections
import warnings

import numpy as np

from tests.limit.tables import FAMILIES, Dice, random_table

LEVEL = 0.01
SEED = 20261128  # of the design; its halves are tables with an even and an odd number


def pvalue(table, epsilon):
    """Return the p-value of White's comparison, None where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return table.fit(epsilon).posterior.diagnostics.information_pvalue


def truth(table):
    """Return whether the model is true, or what is not: the law of the errors of a linear regression."""
    if table.family != "gaussian":
        return "true"
    (errors,) = (trait for trait in table.traits if trait.endswith("errors"))
    return "true" if errors == "normal errors" else errors


def study(numbers, epsilon, most, families=FAMILIES):
    """Return p-values by family and truth."""
    found = collections.defaultdict(list)
    for number in numbers:
        table = random_table(Dice([SEED, 2, number]), "factors" if number % 4 < 2 else "any", most, families)
        if table.options:  # survey weights and dependent records have no comparison
            continue
        value = pvalue(table, epsilon)
        if value is not None:
            found[table.family, truth(table)].append(value)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--epsilon", type=float, default=1e6)
    parser.add_argument("--most", type=int, default=20_000, help="records")
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    parser.add_argument("--family", choices=FAMILIES, action="append")
    asked = parser.parse_args()
    numbers = range(asked.half, 2 * asked.runs, 2)
    for (family, what), values in sorted(study(numbers, asked.epsilon, asked.most, asked.family or FAMILIES).items()):
        below = np.mean(np.array(values) < LEVEL)
        error = np.sqrt(max(below * (1 - below), 1 / len(values)) / len(values))
        print(f"{family}, {what}: {below:.3f} +- {error:.3f} of {len(values)} below {LEVEL}")


if __name__ == "__main__":
    main()
