"""Fits of files that are larger than the memory they take: peak memory, MB/s of each pass against a plain read, rows/s.

    python bench/speed/streams.py [--gigabytes 1] [--features 20] [--folder DIR] [--formats npy map parquet]
        [--largest 4e6]

Answer first: a stream gives the bits of the run in memory.  Then a generated file (.npy, read and mapped; Parquet where
pyarrow is installed) is fitted in a process of its own, cold: the pages of the file are dropped from the system's cache
before every pass and before every plain read, which alternate.  Memory is the peak of what the process has of its own,
and beside it the peak with the file's pages that it has mapped.  Last, warm fits over two decades of rows, and one of
few rows.  The folder needs as many bytes as one file, which is deleted after its fit.
"""

import argparse
import mmap
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.testing import InsecureRNG

GENERATED_ROWS = 100_000
READ_BYTES = 2**21
# So few that a pass over them costs what any pass does.
FEW_ROWS = 1000


def options(n_features, n_records):
    model = dpi.models.LogisticRegression(n_features)
    delta = min(1e-7, 0.1 / n_records)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=delta, n_records=n_records)
    return model, {"plan": plan, "n_records": n_records, "random_source": InsecureRNG(1), "n_threads": 1}


def generated(n_rows, n_features):
    """Yield blocks of records."""
    rng = np.random.default_rng(3)
    weights = rng.normal(size=n_features) / np.sqrt(n_features)
    for start in range(0, n_rows, GENERATED_ROWS):
        X = rng.normal(size=(min(GENERATED_ROWS, n_rows - start), n_features))
        yield X, (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-X @ weights))).astype(float)


def write_npy(folder, n_rows, n_features):
    paths = [folder / f"X{n_rows}.npy", folder / f"y{n_rows}.npy"]
    arrays = [
        np.lib.format.open_memmap(path, mode="w+", dtype="f8", shape=shape)
        for path, shape in zip(paths, ((n_rows, n_features), (n_rows,)), strict=True)
    ]
    start = 0
    for block in generated(n_rows, n_features):
        for array, part in zip(arrays, block, strict=True):
            array[start : start + len(part)] = part
        start += len(block[0])
    for array in arrays:
        array.flush()
    return paths


def write_parquet(folder, n_rows, n_features):
    import pyarrow
    import pyarrow.parquet

    path = folder / f"rows{n_rows}.parquet"
    names = [f"x{index}" for index in range(n_features)]
    schema = pyarrow.schema([(name, pyarrow.float64()) for name in (*names, "y")])
    # Normal numbers do not compress: what is written is what is read.
    with pyarrow.parquet.ParquetWriter(path, schema, compression="NONE", use_dictionary=False) as writer:
        for X, y in generated(n_rows, n_features):
            columns = {name: X[:, index] for index, name in enumerate(names)}
            writer.write_table(pyarrow.table({**columns, "y": y}, schema=schema))
    return [path]


FORMATS = {"npy": write_npy, "map": write_npy, "parquet": write_parquet}


def source(name, paths, n_features):
    """Return the rows of a format, and the arrays that it maps."""
    if name == "npy":
        return mechanism.rows_of_npy(*paths), []
    if name == "map":
        maps = [np.load(path, mmap_mode="r") for path in paths]
        return mechanism.rows_of_arrays(*maps), maps
    return mechanism.rows_of_parquet(paths, [f"x{index}" for index in range(n_features)], "y"), []


def drop(paths, maps=()):
    for array in maps:
        # The system keeps pages that a process has mapped.
        array._mmap.madvise(mmap.MADV_DONTNEED)
    for path in paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(paths):
    buffer = bytearray(READ_BYTES)
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return time.perf_counter() - start


def megabytes(entry):
    """Return what the system says of this process; its count of resources begins with the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{entry}:")[2].split()[0]) / 1024.0


class OwnMemory:
    """The most memory of its own that this process has had, by a sample every few milliseconds."""

    def __init__(self):
        self.before = self.peak = megabytes("RssAnon")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            self.peak = max(self.peak, megabytes("RssAnon"))
            time.sleep(0.005)


def fit(name, paths, n_rows, n_features, n_reads, sink):
    """Fit in a fresh process; send seconds per pass, of plain reads between them, and peak memory before and after."""
    model, settings = options(n_features, n_rows)
    rows, maps = source(name, paths, n_features)
    own, passes, reads = OwnMemory(), [], []
    # Warm: processor time, which other processes on the machine disturb less.
    clock = time.perf_counter if n_reads else time.process_time
    start = clock()

    def note(done, total):
        nonlocal start
        passes.append(clock() - start)
        if n_reads:
            drop(paths, maps)
        if n_reads and len(reads) <= n_reads:
            reads.append(plain_read(paths))
            drop(paths)
        start = clock()

    release = dpi.run_newton(model, rows, progress=note, **settings)
    # The first also has the check of the records.
    memory = (own.before, own.peak, megabytes("VmHWM"))
    sink.send((passes[1:], reads[1:], memory, release.scores.tobytes()))


def in_a_process(*arguments):
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=fit, args=(*arguments, sender))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def answer_first(folder, formats, n_features):
    X, y = (np.concatenate(parts) for parts in zip(*generated(50_000, n_features), strict=True))
    model, settings = options(n_features, len(X))
    whole = dpi.run_newton(model, X, y, **settings).scores.tobytes()
    for name in formats:
        paths = FORMATS[name](folder, len(X), n_features)
        assert in_a_process(name, paths, len(X), n_features, 0)[3] == whole, name
        for path in paths:
            path.unlink()
    print(f"bits of the run in memory: {', '.join(formats)}: equal")


def cold_fit(folder, name, n_rows, n_features, n_reads):
    paths = FORMATS[name](folder, n_rows, n_features)
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    drop(paths)
    passes, reads, (before, own, mapped), _ = in_a_process(name, paths, n_rows, n_features, n_reads)
    for path in paths:
        path.unlink()
    shares = np.array(reads) / np.array(passes)[: len(reads)]
    print(
        f"{name:8s} {megabytes:7.0f} MB, {n_rows} rows, cold: a pass {megabytes / np.median(passes):5.0f} MB/s, plain "
        f"read {megabytes / np.median(reads):5.0f} MB/s; share {np.median(shares):.2f} (median of {len(reads)} passes, "
        f"{shares.min():.2f} to {shares.max():.2f}; fastest {megabytes / min(passes):.0f} of "
        f"{megabytes / min(reads):.0f} MB/s); memory {own:.0f} MB ({before:.0f} before the run; {mapped:.0f} with "
        "mapped pages)"
    )


def slope_of(counts, times):
    """Return the slope of log(time) against log(rows), and its error; passes of a kind have a level of their own."""
    logs = np.log(np.array(times))
    place = np.log(counts) - np.mean(np.log(counts))
    slopes = place @ (logs - logs.mean(axis=0)) / (place @ place)
    return float(np.mean(slopes)), float(np.std(slopes, ddof=1) / np.sqrt(slopes.size))


def scaling(folder, n_rows, n_features):
    counts = [round(n_rows * 10.0**-power) for power in (2.0, 1.5, 1.0, 0.5, 0.0)]
    print("warm, npy, one thread, processor time:")
    times = []
    for count in (FEW_ROWS, *counts):
        paths = write_npy(folder, count, n_features)
        plain_read(paths)
        passes, *_ = in_a_process("npy", paths, count, n_features, 0)
        for path in paths:
            path.unlink()
        times.append(passes)
        speed = count / np.median(passes)
        print(f"  {count:10d} rows: {1e3 * np.median(passes):9.2f} ms a pass, {speed / 1e6:6.2f} million rows/s")
    fixed, times = float(np.median(times[0])), np.array(times[1:])
    print("  slope of log(time) against log(rows):")
    for name, first in (("two decades", 0), ("the last one", 2)):
        for what, taken in (("", 0.0), (f", less the pass of {FEW_ROWS} rows", fixed)):
            slope, error = slope_of(counts[first:], times[first:] - taken)
            print(f"    {name}{what}: {slope:.3f} +- {error:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument(
        "--folder", help="on the disk to be measured; the system's folder of temporary files by default"
    )
    parser.add_argument("--formats", nargs="*", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--reads", type=int, default=100, help="so many passes at most have a plain read beside them")
    parser.add_argument("--largest", type=float, default=4e6, help="rows of the largest warm fit")
    arguments = parser.parse_args()
    n_rows = round(arguments.gigabytes * 1e9 / (8 * (arguments.features + 1)))
    try:
        import pyarrow  # noqa: F401

        formats = arguments.formats
    except ImportError:
        formats = [item for item in arguments.formats if item != "parquet"]
        print("Parquet is left out: pyarrow is not installed")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        answer_first(folder, formats, arguments.features)
        for item in formats:
            cold_fit(folder, item, n_rows, arguments.features, arguments.reads)
        scaling(folder, min(n_rows, round(arguments.largest)), arguments.features)


if __name__ == "__main__":
    main()
