"""Shards on a local Dask or Spark cluster: equal bits, overhead of a pass, kills of workers in the middle of passes.

    python bench/speed/shards.py [--engine dask|spark] [--kills 20] [--rows 400000]

Needs Dask (``pip install 'dpinfer[dask]'``), or Spark (``pip install 'dpinfer[spark]'``) and its Java.  Answer first:
two worker processes give the bits of one process, which reads the same files.  Then passes of both, in alternating
runs, over few rows (what a pass costs before it reads anything) and over many.  Then workers are killed with SIGKILL at
random moments until so many were: every release has the same bits, and a ledger holds one finished charge.
"""

import argparse
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.testing import InsecureRNG

FEATURES, SHARDS, FEW_ROWS = 20, 4, 1000
# In one run: each costs the seconds in which a worker starts again.
MOST_KILLS = 4
NAMES = [f"x{index}" for index in range(FEATURES)]


def made_up(n_rows):
    """Yield the shards' records."""
    rng = np.random.default_rng(5)
    for part in np.array_split(np.arange(n_rows), SHARDS):
        yield rng.normal(size=(part.size, FEATURES)), (rng.random(part.size) < 0.5).astype(float)


class Dask:
    """Two worker processes with a thread each; nannies start those again that die."""

    def __init__(self):
        import distributed

        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
        self._cluster = distributed.LocalCluster(**options)
        self._client = distributed.Client(self._cluster)

    def rows(self, folder, n_rows):
        """Write records; return them as rows of this process, and of the cluster."""
        sources = []
        for index, (X, y) in enumerate(made_up(n_rows)):
            paths = [folder / f"{name}{n_rows}-{index}.npy" for name in "Xy"]
            for path, array in zip(paths, (X, y), strict=True):
                np.save(path, array)
            sources.append(mechanism.rows_of_npy(*paths))
        one = mechanism.RowSource(lambda: (block for source in sources for block in source._blocks()))
        # What a kill leaves behind takes Dask some tries to see.
        return one, mechanism.rows_of_dask(self._client, sources, retries=20)

    def victims(self, killed):
        """Return the workers' processes when all of them have reported, else none."""
        # A nanny that has given up is replaced, and one gives up a worker that is killed while it starts.
        self._cluster.scale(2)
        nannies = list(self._cluster.workers.values())
        alive = [nanny.pid for nanny in nannies if nanny.pid not in (None, *killed)]
        return alive if 0 < len(nannies) == len(alive) == len(self._cluster.scheduler.workers) else []

    def close(self):
        self._client.close()
        self._cluster.close()


class Spark:
    """Two executors with a core each, which their worker starts again; each has processes of its own for Python."""

    def __init__(self):
        # Workers import the package from where this process did.
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession

        settings = {
            "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF", "spark.task.maxFailures": "20",
            "spark.deploy.maxExecutorRetries": "-1", "spark.sql.files.minPartitionNum": str(SHARDS),
        }  # fmt: skip
        builder = SparkSession.builder.master("local-cluster[2,1,768]")
        self._session = builder.config(map=settings).getOrCreate()

    def rows(self, folder, n_rows):
        """Write records; return them as rows of this process, and of the cluster."""
        import pyarrow
        import pyarrow.parquet

        paths = []
        for index, (X, y) in enumerate(made_up(n_rows)):
            paths.append(folder / f"rows{n_rows}-{index}.parquet")
            pyarrow.parquet.write_table(pyarrow.table([*X.T, y], names=[*NAMES, "y"]), paths[-1])
        frame = self._session.read.parquet(*map(str, paths))
        assert frame.rdd.getNumPartitions() == SHARDS
        return mechanism.rows_of_parquet(paths, NAMES, "y"), mechanism.rows_of_spark(frame, NAMES, "y", retries=20)

    def victims(self, killed):
        """Return executors and, below them, the processes that run Python code."""
        parents = parents_of_processes()
        children = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        # This process, its Java, the executors, a daemon of each, and what that has forked.
        levels = [[os.getpid()]]
        for _ in range(4):
            levels.append([child for pid in levels[-1] for child in children.get(pid, ())])
        return [pid for pid in (*levels[2], *levels[4]) if pid not in killed]

    def close(self):
        self._session.stop()


def parents_of_processes():
    """Return the parent of each process of this machine."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = path.read_text(encoding="utf-8", errors="replace").split(" ", 1)
            parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    return parents


ENGINES = {"dask": Dask, "spark": Spark}


def fit(rows, n_rows, **options):
    """Return the release's arrays as bytes, and the seconds of each pass but the first, which also has the check."""
    model = dpi.models.LogisticRegression(FEATURES)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-7, n_records=n_rows)
    times = [time.perf_counter()]
    release = dpi.run_newton(
        model, rows, plan=plan, n_records=n_rows, n_threads=1, progress=lambda *_: times.append(time.perf_counter()),
        **options,
    )  # fmt: skip
    arrays = {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    assert {"moments", "scores"} <= arrays.keys()
    return arrays, np.diff(times)[1:]


def passes(one, sharded, n_rows, repeats):
    """Print the seconds of passes in one process and on the cluster, runs alternating; return the bits."""
    # Not timed: Java compiles what it runs often.
    (whole, _), (bits, _) = (fit(rows, n_rows, random_source=InsecureRNG(1)) for rows in (one, sharded))
    assert bits == whole
    times = []
    for _ in range(repeats):
        pair = []
        for rows in (one, sharded):
            bits, seconds = fit(rows, n_rows, random_source=InsecureRNG(1))
            assert bits == whole
            pair.append(seconds)
        times.append(pair)
    times = np.array(times)
    alone, across = np.median(times, axis=(0, 2))
    # Runs are what repeats: passes of one run share its luck.
    differences = np.median(times[:, 1], axis=1) - np.median(times[:, 0], axis=1)
    low, middle, high = 1e3 * np.quantile(differences, [0.0, 0.5, 1.0])
    print(
        f"{n_rows} rows, {SHARDS} shards: bits equal; pass {1e3 * alone:.1f} ms in one process, {1e3 * across:.1f} "
        f"on two workers: {middle:.1f} more ({low:.1f} to {high:.1f} in {repeats} runs of {times.shape[2]} passes)",
        flush=True,
    )
    return whole


def run_with_kills(engine, rows, n_rows, kills, rng, **options):
    """Run while another thread kills workers at random moments; return the release's bits and the number of kills."""
    done, killed = threading.Event(), []

    def killer():
        while not done.wait(rng.exponential(0.3)):
            alive = engine.victims(killed) if len(killed) < kills else []
            if alive:
                victim = int(rng.choice(alive))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        bits, _ = fit(rows, n_rows, **options)
    finally:
        done.set()
        thread.join()
    return bits, len(killed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="dask")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind, alternating")
    arguments = parser.parse_args()
    n_rows = arguments.rows
    engine = ENGINES[arguments.engine]()
    with tempfile.TemporaryDirectory() as name, contextlib.closing(engine):
        folder = Path(name)
        passes(*engine.rows(folder, FEW_ROWS), FEW_ROWS, arguments.repeats)
        one, rows = engine.rows(folder, n_rows)
        whole = passes(one, rows, n_rows, arguments.repeats)
        rng, killed, runs = np.random.default_rng(2), 0, 0
        for runs in itertools.count():
            if killed >= arguments.kills:
                break
            left = min(arguments.kills - killed, MOST_KILLS)
            bits, more = run_with_kills(engine, rows, n_rows, left, rng, random_source=InsecureRNG(1))
            assert bits == whole
            killed += more
            print(f"  run {runs + 1}: {more} workers killed, the same release", flush=True)
        people = dpi.PrivacyLedger.create(folder / "spent.ledger").add_dataset("people", budget=(1e4, 0.5))
        _, more = run_with_kills(engine, rows, n_rows, 2, rng, ledger=people)
        assert [run.status for run in people.runs()] == ["finished"]
    print(
        f"{killed} workers killed in {runs} runs: the same release every time; {more} more in a run with a ledger: one "
        "charge"
    )


if __name__ == "__main__":
    main()
