"""Passes over one-hot columns by codes, one thread, against the same passes over the dense columns: Adult, and wider.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python bench/sparse_rows.py [--repeats 9]

Answer first: every sum, and the release of a whole run, have the same bits.  Then processor time (other processes on
the machine disturb it less than wall time), alternating; medians, with the quartiles of the ratio in alternating pairs.
Adult (through DPINFER_DATA) is read twice: all categories of the eight columns of labels in the file, and the columns
of examples/adult.toml.
"""

import argparse
import csv
import gzip
import json
import os
import time
from pathlib import Path

import numpy as np
from scipy import sparse

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
NO_TABLE = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
NUMBERS, LABELS = (0, 2, 4, 10, 11, 12), (1, 3, 5, 6, 7, 8, 9, 13)
BOUND, MAX_NORM = 8.0, 64.0


def adult_by_codes():
    """Return all categories of the file's labels, scaled numbers, and the labels to be predicted."""
    with gzip.open(FOLDER / "adult.data.csv.gz", "rt", encoding="utf-8") as stream:
        table = [[item.strip() for item in line] for line in csv.reader(stream)]
    rows = [line for line in table if len(line) == 15 and line[0].isdigit() and "?" not in line]
    numeric = np.array([[float(line[j]) for j in NUMBERS] for line in rows])
    numeric /= np.abs(numeric).max(axis=0)
    pairs = [np.unique([line[j] for line in rows], return_inverse=True) for j in LABELS]
    codes = np.column_stack([place for _, place in pairs]).astype(np.int64)
    coded = mechanism.CodedRows(codes, [len(names) for names, _ in pairs], numeric)
    return coded, np.array([float(">50K" in line[14]) for line in rows])


def adult_by_schema():
    """Return the columns of the example's schema as a sparse matrix."""
    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    table = dpi.tabular.read_table(FOLDER / "adult.data.csv.gz", schema)
    return sparse.csr_array(table.X), np.asarray(table.y, dtype=np.float64)


def made_up(n_rows, n_columns, per_row):
    rng = np.random.default_rng(1)
    columns = np.sort(rng.random((n_rows, n_columns)).argpartition(per_row, axis=1)[:, :per_row], axis=1)
    starts = np.arange(0, n_rows * per_row + 1, per_row)
    matrix = sparse.csr_array((rng.normal(size=n_rows * per_row), columns.ravel(), starts), (n_rows, n_columns))
    return matrix, rng.integers(0, 2, n_rows).astype(float)


def dense_and_sparse(rows):
    """Return the dense columns, and the arguments of the kernels for sparse rows."""
    if isinstance(rows, mechanism.CodedRows):
        found = rows._sparse()
        matrix = sparse.csr_array((found.values, found.columns, found.starts), found.shape)
    else:
        matrix = rows
    places = {"columns": matrix.indices.astype(np.int32), "starts": matrix.indptr.astype(np.int64)}
    return np.ascontiguousarray(matrix.toarray()), {
        "features": matrix.data, "n_features": matrix.shape[1], **places,
    }  # fmt: skip


class Passes:
    """One pass of each kind over both forms of the same rows."""

    def __init__(self, rows, response):
        dense, places = dense_and_sparse(rows)
        self.n, d = dense.shape[0], dense.shape[1] + 1
        self.per_row = np.count_nonzero(dense) / self.n
        rng = np.random.default_rng(2)
        self.transform, self.d = rng.normal(size=(d, d)) / np.sqrt(d), d
        self.residuals = _native.Residuals(link="logistic", loc=rng.normal(size=d) / d, bound=np.inf, **NO_TABLE)
        common = {"response": response, "intercept": True, "n_threads": 1}
        self.forms = [_native.RegressionRows(**common, **form) for form in ({"features": dense}, places)]

    def once(self, kind, form):
        """Return seconds and integers; the first moments' coordinates are those of a model that declares none."""
        total = _native.PartialSum(length=self.d if kind == "scores" else self.d * (self.d + 1) // 2, max_norm=MAX_NORM)
        where = {"transform": np.eye(self.d) if kind == "first moments" else self.transform, "bound": BOUND}
        start = time.process_time()
        if kind in ("first moments", "second moments"):
            form.add_second_moments(total, **where)
        else:
            getattr(form, f"add_{kind}")(total, self.residuals, **where)
        return time.process_time() - start, total.integers

    def compare(self, kind, repeats):
        times = []
        for _ in range(repeats):
            (dense, one), (few, other) = (self.once(kind, form) for form in self.forms)
            assert np.array_equal(one, other), kind
            times.append((dense, few))
        return np.array(times) / self.n


def whole_run(rows, response, repeats):
    """Return processor seconds of whole runs over dense and sparse rows."""
    dense, _ = dense_and_sparse(rows)
    model = dpi.models.LogisticRegression(dense.shape[1], fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-6, n_records=len(dense))
    times = []
    for _ in range(repeats):
        pair, bits = [], []
        for X in (dense, rows):
            start = time.process_time()
            release = dpi.run_newton(
                model, X, response, plan=plan, n_records=len(dense), random_source=InsecureRNG(1), n_threads=1
            )
            pair.append(time.process_time() - start)
            bits.append(release.scores.tobytes() + release.slope.tobytes())
        assert bits[0] == bits[1]
        times.append(pair)
    return np.array(times), plan.phases


def shown(times):
    ratios = times[:, 0] / times[:, 1]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return middle, f"{middle:5.2f} ({low:.2f}-{high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", help="a file for the results")
    arguments = parser.parse_args()
    tables = {
        "Adult, all categories": adult_by_codes(),
        "Adult, example's schema": adult_by_schema(),
        "made up, 10 of 100": made_up(20_000, 100, 10),
        "made up, 10 of 300": made_up(20_000, 300, 10),
    }
    results = {}
    print("one thread, ns a row: dense, sparse, their ratio (quartiles)")
    for name, (rows, response) in tables.items():
        passes = Passes(rows, response)
        print(f"{name}: {passes.n} rows, {passes.d - 1} columns, {passes.per_row:.1f} of them not zero")
        found, weights = {}, {}
        for kind in ("scores", "curvature", "second moments", "first moments"):
            times = passes.compare(kind, arguments.repeats)
            dense, few = 1e9 * np.median(times, axis=0)
            ratio, text = shown(times)
            found[kind], weights[kind] = {"dense_ns": dense, "sparse_ns": few, "ratio": ratio}, (dense, few)
            print(f"  {kind:15s} {dense:7.0f} {few:7.0f}  {text}")
        if name.startswith("Adult"):
            times, phases = whole_run(rows, response, arguments.repeats)
            kinds = {"geometry": "second moments", "slope": "curvature"}
            used = ["first moments", *(kinds.get(phase, "scores") for phase in phases[1:])]
            sums = np.sum([weights[kind] for kind in used], axis=0)
            ratio, text = shown(times)
            print(f"  the {len(phases)} passes of a run, from these: {sums[0] / sums[1]:.2f}")
            print(f"  whole private run, {np.median(times[:, 0]):.2f} s and {np.median(times[:, 1]):.2f} s: {text}")
            found["passes_of_a_run"], found["whole_run"] = sums[0] / sums[1], ratio
        results[name] = found
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
