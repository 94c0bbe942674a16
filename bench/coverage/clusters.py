"""Clusters that are not protected, short and long: coverage and width of the population's coefficients.

    python bench/coverage/clusters.py [--runs 16] [--seed 20261129]

A design of 24 cells is drawn from the seed: 50 to 1500 clusters of 2 to 100 rows on average, of even or very different
sizes, 1 to 5 features, an intraclass correlation of up to 0.3, epsilon 1 to 4, with or without weights.  The law of the
clusters' sums was written while the cells of seed 20261128 were looked at; other seeds are unseen.  Prints of each cell
the share of 90% intervals that hold the truth, that of design-based intervals without privacy, and the median width
over these, with standard errors over runs and over cells.
"""

import argparse

import numpy as np

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

Z90 = 1.6449


def cell_of(rng):
    """Draw a cell of the design."""
    clusters = int(np.exp(rng.uniform(np.log(50), np.log(1500))))
    rows = max(2, min(100, int(np.exp(rng.uniform(np.log(4000), np.log(20000)))) // clusters))
    return {
        "clusters": clusters, "rows": rows, "d": int(rng.integers(1, 6)), "rho": float(rng.uniform(0, 0.3)),
        "epsilon": float(np.exp(rng.uniform(0.0, np.log(4.0)))), "weighted": bool(rng.integers(2)),
        "uneven": bool(rng.integers(2)),
    }  # fmt: skip


def table_of(cell, rng):
    """Simulate a table; return it with its features and the coefficients, the intercept's last."""
    clusters, rows, d = cell["clusters"], cell["rows"], cell["d"]
    if cell["uneven"]:
        sizes = np.maximum(1, (rows * rng.gamma(1.0, size=clusters)).astype(int) + 1)
    else:
        sizes = np.maximum(1, rng.poisson(rows, clusters))
    own = np.repeat(np.arange(clusters), sizes)
    X = np.sqrt(0.7) * rng.normal(size=(own.size, d)) + np.sqrt(0.3) * rng.normal(size=(clusters, d))[own]
    truth = np.append(np.linspace(0.5, -0.5, d), 1.0)
    shared, alone = rng.normal(size=clusters)[own], rng.normal(size=own.size)
    y = X @ truth[:-1] + 1.0 + 2.0 * (np.sqrt(cell["rho"]) * shared + np.sqrt(1.0 - cell["rho"]) * alone)
    w = np.where(rng.random(clusters)[own] < 0.5, 1.0, 3.0)
    return {"v": own, "w": w, "y": y} | {f"x{k}": X[:, k] for k in range(d)}, X, truth


def design_based(table, X, weighted):
    """Return weighted least squares and its cluster-robust standard errors."""
    Z, own = np.column_stack((X, np.ones(len(X)))), table["v"]
    w = table["w"] if weighted else np.ones(len(X))
    inverse = np.linalg.inv((Z * w[:, None]).T @ Z)
    estimate = inverse @ ((Z * w[:, None]).T @ table["y"])
    sums = np.zeros((own.max() + 1, Z.shape[1]))
    np.add.at(sums, own, Z * ((table["y"] - Z @ estimate) * w)[:, None])
    return estimate, np.sqrt(np.diag(inverse @ (sums.T @ sums) @ inverse))


def main():
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--cells", type=int, default=24)
    arguments = parser.parse_args()
    rng, found = np.random.default_rng(arguments.seed), []
    for number in range(arguments.cells):
        cell, runs = cell_of(rng), []
        features = [f"x{k}" for k in range(cell["d"])]
        columns = {
            "v": {"kind": "ignore"},
            "w": {"kind": "continuous", "bounds": [0, 4], "mean": 2.0, "sd": 1.0},
            "y": {"kind": "continuous", "bounds": [-12, 12]},
        } | {name: {"kind": "continuous", "bounds": [-4, 4], "mean": 0, "sd": 1} for name in features}
        schema = dpi.tabular.Schema.from_dict({"columns": columns})
        for run in range(arguments.runs):
            table, X, truth = table_of(cell, np.random.default_rng([arguments.seed, number, run]))
            fit = dpi.regression(
                f"y ~ {' + '.join(features)}", table, schema=schema, epsilon=cell["epsilon"], delta=1e-6,
                n_records=cell["clusters"] * cell["rows"], clusters="v", weights="w" if cell["weighted"] else None,
                target="population", random_source=InsecureRNG(1000 * number + run),
            )  # fmt: skip
            rows = [fit.coefficients(level=0.9)[name] for name in (*features, "intercept")]
            estimate, error = design_based(table, X, cell["weighted"])
            held = [row["low"] <= value <= row["high"] for row, value in zip(rows, truth, strict=True)]
            widths = [row["sd"] for row in rows] / error
            runs.append((np.mean(held), np.mean(np.abs(estimate - truth) < Z90 * error), np.median(widths)))
        mean, error = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
        found.append(mean)
        print(
            number, {name: round(value, 2) for name, value in cell.items()},
            f"held {mean[0]:.3f} +- {error[0]:.3f}, design-based {mean[1]:.3f}, width {mean[2]:.2f}", flush=True,
        )  # fmt: skip
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    print(f"cells: held {mean[0]:.3f} +- {error[0]:.3f}, design-based {mean[1]:.3f}, width {mean[2]:.2f}")
    print(f"cells that hold less than 0.85: {sum(row[0] < 0.85 for row in found)} of {len(found)}")


if __name__ == "__main__":
    main()
