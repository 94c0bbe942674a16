"""Share of the machine's roofline that the passes reach: memory bandwidth, multiply-adds, and each kernel between them.

    python bench/roofline.py [--rows 1000000] [--features 100] [--repeats 5] [--threads 1 2] [--clock processor]

Both peaks are measured by a few lines of C (compiled by `cc`, or what CC names) on as many threads as the kernel uses,
just before every call of it, so that what disturbs one disturbs the other: sums of an array that is larger than the
caches, and independent fused multiply-adds in registers; the triad of STREAM is printed beside them.  Bytes are those
of the records, each read once.  Flops are those that the algorithm needs: a fused multiply-add is two; additions of
integers, and what is done once a record (exponentials, square roots), are not counted.  The roof of a kernel is the
least time for its bytes or its flops, whichever is more, in that pair of measurements; shares are medians with
quartiles.

Answer first: every kernel's sum is that of NumPy on a part of the rows.  With `--clock processor` all rates are per
thread and second of processor time: on a machine that others use too, only what they do to caches, memory and shared
cores is left in the shares.  Parallel efficiency is rows a second of two threads over twice those of one, in the same
repeat: by the wall's clock, where that is chosen.
"""

import argparse
import ctypes
import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Each thread on a processor of its own: in so short a time the system may leave two on one.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_PROC_BIND", "true")
# Before OpenMP binds this thread.
PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

import numpy as np  # noqa: E402
from scipy import special  # noqa: E402

from dpinfer.mechanism import _native  # noqa: E402

SOURCE = r"""
#include <stddef.h>
typedef double vec __attribute__((vector_size(64)));
double read_all(const double* a, size_t n) {
  vec s[8] = {0};
  const vec* v = (const vec*)a;
  for (size_t i = 0; i + 8 <= n / 8; i += 8)
    for (int k = 0; k < 8; ++k) s[k] += v[i + k];
  double total = 0.0;
  for (int k = 0; k < 8; ++k)
    for (int j = 0; j < 8; ++j) total += s[k][j];
  return total;
}
double triad(double* a, const double* b, const double* c, size_t n) {
  for (size_t i = 0; i < n; ++i) a[i] = b[i] + 3.0 * c[i];
  return a[n / 2];
}
double multiply_add(size_t n, double x) {
  vec s[12], m, c;
  for (int j = 0; j < 8; ++j) { m[j] = 1.0 - 1e-9 * x; c[j] = 1e-9 * x; }
  for (int k = 0; k < 12; ++k) for (int j = 0; j < 8; ++j) s[k][j] = k + j;
  for (size_t i = 0; i < n; ++i)
    for (int k = 0; k < 12; ++k) s[k] = s[k] * m + c;
  double total = 0.0;
  for (int k = 0; k < 12; ++k) for (int j = 0; j < 8; ++j) total += s[k][j];
  return total;
}
"""
ADDS_PER_ROUND = 12 * 8 * 2
# Each array: so often that what it costs to start threads does not count.
READ_TIMES = 3
NO_TABLE = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
BOUND, CHECKED, KEY = 1e3, 4096, bytes(range(32))


def compiled(folder):
    """Return the functions of SOURCE, compiled for this processor."""
    path = Path(folder) / "peaks.c"
    path.write_text(SOURCE, encoding="utf-8")
    command = [*shlex.split(os.environ.get("CC", "cc")), "-O3", "-march=native", "-funroll-loops"]
    subprocess.run([*command, "-shared", "-fPIC", "-o", f"{folder}/peaks.so", str(path)], check=True, timeout=120)
    library = ctypes.CDLL(f"{folder}/peaks.so")
    for function in (library.read_all, library.triad, library.multiply_add):
        function.restype = ctypes.c_double
    return library


class Machine:
    """What the machine can do on some threads, now."""

    def __init__(self, library, n_values):
        self.library = library
        self.arrays = [self._aligned(n_values) for _ in range(3)]

    @staticmethod
    def _aligned(n_values):
        raw = np.ones(n_values + 8)
        return raw[(-raw.ctypes.data % 64) // 8 :][:n_values]

    def _timed(self, work, n_threads, clock):
        there = threading.Barrier(n_threads, timeout=60.0)

        def settle(index):
            there.wait()
            if PROCESSORS:
                os.sched_setaffinity(0, {PROCESSORS[index % len(PROCESSORS)]})

        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(settle, range(n_threads)))
            start = clock()
            list(pool.map(work, range(n_threads)))
            return clock() - start

    def _part(self, index, n_threads):
        size = len(self.arrays[0]) // n_threads // 64 * 64
        return [array.ctypes.data_as(ctypes.c_void_p).value + 8 * size * index for array in self.arrays], size

    def read(self, n_threads, clock):
        def work(index):
            parts, size = self._part(index, n_threads)
            for a in READ_TIMES * parts:
                self.library.read_all(ctypes.c_void_p(a), ctypes.c_size_t(size))

        n_bytes = 8 * self._part(0, n_threads)[1] * len(self.arrays) * READ_TIMES
        return n_bytes * n_threads / self._timed(work, n_threads, clock)

    def triad(self, n_threads, clock):
        def work(index):
            parts, size = self._part(index, n_threads)
            self.library.triad(*map(ctypes.c_void_p, parts), ctypes.c_size_t(size))

        return 24 * self._part(0, n_threads)[1] * n_threads / self._timed(work, n_threads, clock)

    def flops(self, n_threads, clock, rounds=3_000_000):
        def work(index):
            self.library.multiply_add(ctypes.c_size_t(rounds), ctypes.c_double(1.0 + index))

        return ADDS_PER_ROUND * rounds * n_threads / self._timed(work, n_threads, clock)


class Kernels:
    """The passes over one set of rows."""

    def __init__(self, X, y):
        self.X, self.y, self.d = X, y, X.shape[1]
        rng = np.random.default_rng(3)
        self.transform = np.eye(self.d) + 0.01 * rng.normal(size=(self.d, self.d))
        self.loc = rng.normal(size=self.d) / self.d
        nodes, weights = np.polynomial.hermite_e.hermegauss(10)
        self.rule = nodes, weights / np.sqrt(2.0 * np.pi)

    def cost(self, kind):
        """Return the bytes and the flops of one record."""
        d = self.d
        size = self.X.dtype.itemsize * d + (0 if kind == "second moment" else 8)
        white, predictor, norm = 2 * d * d, 2 * d, 2 * d
        return size, {
            "gradient": white + predictor + norm + 2 * d,
            "second moment": white + norm + d * (d + 1),
            "Jacobian": white + predictor + norm + d * (d + 1),
            # Per weight: x^2, two sums for the expectations, two squared norms, two rounded products.
            "DPVI step": 13 * d,
        }[kind]

    def call(self, kind, n_threads, rows=slice(None)):
        """Return what makes a pass, and a function of the sum that it leaves."""
        if kind == "DPVI step":
            return self._step(n_threads, rows)
        native = _native.RegressionRows(
            features=self.X[rows], response=self.y[rows], intercept=False, n_threads=n_threads
        )
        residuals = _native.Residuals(link="logistic", loc=self.loc, bound=np.inf, **NO_TABLE)
        where = {"transform": self.transform, "bound": BOUND}
        length, largest = (self.d, 64.0) if kind == "gradient" else (self.d * (self.d + 1) // 2, 4096.0)

        def run():
            total = _native.PartialSum(length=length, max_norm=largest)
            if kind == "second moment":
                native.add_second_moments(total, **where)
            else:
                add = native.add_scores if kind == "gradient" else native.add_curvature
                add(total, residuals, **where)
            return total.integers * total.lattice_step

        return run

    def _step(self, n_threads, rows):
        session = _native.StepSession(
            features=self.X[rows], response=self.y[rows], likelihood="logistic", intercept=False, aligned=False,
            sample_rate=1.0, max_grad_norm=1e4, key=KEY, n_threads=n_threads,
        )  # fmt: skip
        session.set_quadrature(self.loc, np.full(self.d, 1e-4), *self.rule, np.empty(0))
        session.set_scales(np.ones(2 * self.d), np.zeros(2 * self.d))
        return lambda: session.clipped_sum(0) * session.lattice_step

    def check(self, kind):
        """Compare the sum over a few rows with NumPy's."""
        rows = slice(0, CHECKED)
        X, y = self.X[rows].astype(np.float64), self.y[rows]
        if kind == "DPVI step":
            mean, spread = X @ self.loc, np.sqrt((X * X) @ np.full(self.d, 1e-4))
            at = special.expit(mean[:, None] + spread[:, None] * self.rule[0])
            first, second = (y[:, None] - at) @ self.rule[1], (at * (1.0 - at)) @ self.rule[1]
            expected = np.concatenate((-X.T @ first, (X * X).T @ second))
        else:
            z, p = X @ self.transform.T, special.expit(X @ self.loc)
            factor = {"gradient": y - p, "second moment": np.ones(len(y)), "Jacobian": p * (1.0 - p)}[kind]
            row, column = np.triu_indices(self.d)
            matrix = (z * factor[:, None]).T @ z
            triangle = matrix[row, column] * np.where(row == column, 1.0, np.sqrt(2.0))
            expected = z.T @ factor if kind == "gradient" else triangle
        np.testing.assert_allclose(self.call(kind, 2, rows)(), expected, rtol=1e-5, atol=0.02)


KINDS = ("gradient", "second moment", "Jacobian", "DPVI step")


def quartiles(values):
    return [float(value) for value in np.quantile(values, [0.25, 0.5, 0.75])]


def measured(kernels, machine, kind, threads, repeats, clock):
    """Return, for each number of threads, rows a second, and the peaks measured beside them."""
    runs = {n: kernels.call(kind, n) for n in threads}
    found = {n: [] for n in threads}
    for _ in range(repeats):
        for n, run in runs.items():
            bandwidth, flops = machine.read(n, clock), machine.flops(n, clock)
            start = clock()
            run()
            found[n].append((len(kernels.y) / (clock() - start), bandwidth, flops))
    return {n: np.array(rows) for n, rows in found.items()}


def report(kind, dtype, cost, found, per_thread):
    size, flops = cost
    results = []
    for n, rows in found.items():
        scale = n if per_thread else 1
        least = np.maximum(size / rows[:, 1], flops / rows[:, 2])
        share = quartiles(least * rows[:, 0])
        bound = "memory" if np.median(size / rows[:, 1]) > np.median(flops / rows[:, 2]) else "flops"
        rate = scale * float(np.median(rows[:, 0]))
        result = {
            "kernel": kind, "dtype": dtype, "threads": n, "bytes_a_row": size, "flops_a_row": flops,
            "rows_per_second": rate, "gb_per_second": rate * size / 1e9, "gflops": rate * flops / 1e9,
            "read_gb_per_second": scale * float(np.median(rows[:, 1])) / 1e9,
            "peak_gflops": scale * float(np.median(rows[:, 2])) / 1e9, "roof": bound, "share": share,
        }  # fmt: skip
        if n == 2 and 1 in found:
            result["efficiency"] = quartiles(scale * rows[:, 0] / (2.0 * found[1][:, 0]))
        efficiency = "{1:.2f} ({0:.2f}-{2:.2f})".format(*result["efficiency"]) if "efficiency" in result else ""
        print(
            f"{kind:14s} {dtype:8s} {n:7d} {size:6d} {flops:7d} {1e9 / rate:8.0f} {rate * size / 1e9:6.1f} "
            f"{result['read_gb_per_second']:6.1f} {rate * flops / 1e9:7.1f} {result['peak_gflops']:7.1f}  {bound:7s}"
            f"{share[1]:.2f} ({share[0]:.2f}-{share[2]:.2f})  {efficiency}",
            flush=True,
        )
        results.append(result)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--json", help="a file for the results")
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    rng, results = np.random.default_rng(1), []
    X = rng.standard_normal((arguments.rows, arguments.features), dtype=np.float32)
    y = (rng.random(arguments.rows) < 0.5).astype(float)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(compiled(folder), 8_000_000)
        for n in arguments.threads:
            print(f"triad of STREAM, {n} threads: {n * machine.triad(n, time.process_time) / 1e9:.1f} GB/s")
        print(
            f"{arguments.rows} rows, {arguments.features} features, {arguments.clock} clock; peaks beside each kernel"
        )
        columns = "kernel         dtype    threads bytes   flops   ns/row   GB/s  (peak) Gflop/s  (peak)  roof   "
        print(f"{columns}share (quartiles)  efficiency")
        for dtype in ("float32", "float64"):
            # Made in place of the other, so that both are never held.
            X = X.astype(dtype, copy=False)
            kernels = Kernels(X, y)
            for kind in KINDS:
                kernels.check(kind)
                found = measured(kernels, machine, kind, arguments.threads, arguments.repeats, clock)
                results += report(kind, dtype, kernels.cost(kind), found, arguments.clock == "processor")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
