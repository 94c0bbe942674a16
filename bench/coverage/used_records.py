"""The noisy number of records of a release: how often a wrong declared number is seen, and a right one doubted.

Cells are drawn from a seed (family, target, coefficients, law of the features, records), and half of them were seen
when the numbers of `inference/newton/tuning.py` were chosen.  A cell is run with the declared number right, and 0.5, 2
and 10 times the true one; its records and its noise are drawn anew each time.  No posterior is computed.

    python bench/coverage/used_records.py [--cells 200] [--right 10] [--wrong 3] [--epsilon 1] [--seed 20261128]
"""

import argparse
import math
import time

import numpy as np

import dpinfer as dpi
from dpinfer.inference.newton.counted import used_records
from dpinfer.models import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression
from dpinfer.testing import InsecureRNG

MODELS = {
    "linear": LinearRegression, "logistic": LogisticRegression, "probit": ProbitRegression,
    "Poisson": PoissonRegression,
}  # fmt: skip
LAWS = ("normal", "uniform", "binary", "long")
FACTORS = (1.0, 0.5, 2.0, 10.0)


def drawn_cells(count, seed):
    """Return cells, the seen half first."""
    rng = np.random.default_rng(seed)
    return [
        {
            "model": list(MODELS)[rng.integers(len(MODELS))],
            "target": ("population", "model")[rng.integers(2)],
            "d": int(rng.choice([1, 2, 4, 8, 12])),
            "law": LAWS[rng.integers(len(LAWS))],
            "n": round(10.0 ** rng.uniform(math.log10(2000.0), math.log10(30_000.0))),
        }
        for _ in range(count)
    ]


def records(cell, rng):
    """Return the records of a cell, about as large as features and responses are declared to be."""
    shape = (cell["n"], cell["d"])
    X = {
        "normal": lambda: rng.standard_normal(shape),
        "uniform": lambda: rng.uniform(-(3.0**0.5), 3.0**0.5, shape),
        "binary": lambda: (rng.random(shape) < 0.1) / 0.1**0.5,
        "long": lambda: np.clip(rng.standard_t(3, shape), -8.0, 8.0) / 3.0**0.5,
    }[cell["law"]]()
    eta = 0.4 * X @ rng.standard_normal(cell["d"]) / cell["d"] ** 0.5 - 0.3
    if cell["model"] == "linear":
        return X, eta + rng.standard_normal(cell["n"])
    if cell["model"] == "Poisson":
        return X, rng.poisson(np.exp(np.clip(eta, -5.0, 3.0))).astype(float)
    return X, (rng.random(cell["n"]) < 1.0 / (1.0 + np.exp(-eta))).astype(float)


def counted(cell, factor, epsilon, seed):
    """Return the released number of records of one run with another declared number."""
    X, y = records(cell, np.random.default_rng(seed))
    number = int(np.random.default_rng(seed).integers(2**62))
    model, declared = MODELS[cell["model"]](cell["d"], fit_intercept=True), round(factor * cell["n"])
    response = {"response_scale": 1.0} if cell["model"] == "linear" else {}
    plan = dpi.plan_fit(
        model, epsilon=epsilon, delta=1e-6, n_records=declared, method="newton", target=cell["target"], **response
    )
    return used_records(plan.run(X, y, random_source=InsecureRNG(number), n_threads=1))


def share(found):
    """Return a share and its standard error, as text."""
    mean = np.mean(found)
    return f"{mean:.4f} ± {max(math.sqrt(mean * (1.0 - mean) / len(found)), 1.0 / len(found)):.4f} ({len(found)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--right", type=int, default=10, help="runs of each cell with the right number")
    parser.add_argument("--wrong", type=int, default=3, help="runs with each wrong number")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=20261128)
    given = parser.parse_args()
    cells, start = drawn_cells(given.cells, given.seed), time.perf_counter()
    warned = {(half, factor): [] for half in ("seen", "unseen") for factor in FACTORS}
    away = {(half, kind): [] for half in ("seen", "unseen") for kind in ("histograms", "second moments")}
    missed: list[tuple[object, ...]] = []
    for place, cell in enumerate(cells):
        half = "seen" if place < len(cells) // 2 else "unseen"
        by_moments = cell["target"] == "model" and cell["model"] in ("logistic", "probit")
        for factor in FACTORS:
            for run in range(given.right if factor == 1.0 else given.wrong):
                used = counted(cell, factor, given.epsilon, (given.seed, place, int(10 * factor), run))
                warned[half, factor].append(used.contradicts)
                if factor == 1.0:
                    error = (used.count - cell["n"]) / used.stddev
                    away[half, "second moments" if by_moments else "histograms"].append(error)
                if used.contradicts != (factor != 1.0):
                    missed.append((cell, factor, round(used.count), round(used.stddev)))
    print(f"epsilon {given.epsilon:g}, {len(cells)} cells, seed {given.seed}, {time.perf_counter() - start:.0f} s")
    for half in ("seen", "unseen"):
        print(f"{half}: falsely warned {share(warned[half, 1.0])}")
        for factor in FACTORS[1:]:
            print(f"{half}: n_records {factor:g} times the true number, warned {share(warned[half, factor])}")
        for kind in ("histograms", "second moments"):
            errors = np.array(away[half, kind])
            if errors.size:
                print(
                    f"{half}: {kind}, error over its standard deviation: mean {errors.mean():.2f}, sd "
                    f"{errors.std():.2f}, largest {np.abs(errors).max():.2f} ({errors.size})"
                )
    for line in missed[:30]:
        print("wrong:", *line)


if __name__ == "__main__":
    main()
