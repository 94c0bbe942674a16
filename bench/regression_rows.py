"""Passes over a regression's records on the lattice, one thread, against the same sums in NumPy without privacy.

Answer first: the sums agree to the lattice's rounding.  Alternating runs, the fastest of each.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python bench/regression_rows.py [--repeats 7]
"""

import argparse
import time

import numpy as np

from dpinfer.mechanism import _native

SIZES = ((5000, 11), (32_561, 57), (20_000, 100), (20_000, 300))
NO_TABLE = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}


def svec(matrix):
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


class Case:
    def __init__(self, n, d):
        generator = np.random.default_rng(1)
        self.X, self.y = generator.normal(size=(n, d)), generator.integers(0, 2, n).astype(float)
        self.transform = np.eye(d) + 0.01 * generator.normal(size=(d, d))
        self.bound, self.d = 1.2 * np.sqrt(d), d
        self.rows = _native.RegressionRows(features=self.X, response=self.y, intercept=False)
        self.residuals = _native.Residuals(link="logistic", loc=np.zeros(d), bound=np.inf, **NO_TABLE)

    def ours_moments(self):
        total = _native.PartialSum(length=self.d * (self.d + 1) // 2, max_norm=self.bound**2)
        self.rows.add_second_moments(total, transform=self.transform, bound=self.bound)
        return total.integers * total.lattice_step

    def ours_scores(self):
        total = _native.PartialSum(length=self.d, max_norm=self.bound)
        self.rows.add_scores(total, self.residuals, transform=self.transform, bound=self.bound)
        return total.integers * total.lattice_step

    def weighted(self):
        z = self.X @ self.transform.T
        return z, z * np.minimum(1.0, self.bound**2 / (z * z).sum(axis=1))[:, None]

    def numpy_moments(self):
        z, weighted = self.weighted()
        return svec(weighted.T @ z)

    def numpy_scores(self):
        return self.weighted()[1].T @ (self.y - 0.5)


def fastest(calls, repeats):
    times = {call: [] for call in calls}
    for _ in range(repeats):
        for call in calls:
            start = time.perf_counter()
            call()
            times[call].append(time.perf_counter() - start)
    return [1e3 * min(times[call]) for call in calls]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print("records  features  moments ms (NumPy)  scores ms (NumPy)")
    for n, d in SIZES:
        case = Case(n, d)
        np.testing.assert_allclose(case.ours_moments(), case.numpy_moments(), atol=2e-6 * n)
        np.testing.assert_allclose(case.ours_scores(), case.numpy_scores(), atol=2e-6 * n)
        moments, numpy_moments = fastest((case.ours_moments, case.numpy_moments), repeats)
        scores, numpy_scores = fastest((case.ours_scores, case.numpy_scores), repeats)
        print(f"{n:7d} {d:9d} {moments:11.1f} ({numpy_moments:5.1f}) {scores:11.1f} ({numpy_scores:5.1f})")


if __name__ == "__main__":
    main()
