"""Shards on a local Dask cluster: equal bits, overhead of a pass, and kills of workers in the middle of passes.

    python bench/shards.py [--kills 20] [--rows 400000]

Needs Dask (``pip install 'dpinfer[dask]'``).  Answer first: two worker processes give the bits of one process.  Then
workers are killed with SIGKILL at random moments until so many were: every release has the same bits, and the ledger
holds one finished charge for each.
"""

import argparse
import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import distributed

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.testing import InsecureRNG

FEATURES, SHARDS = 20, 4
# In one run: each costs the seconds in which a worker starts again.
MOST_KILLS = 4


def written(folder, n_rows):
    """Write shards of made-up records; return their sources."""
    rng = np.random.default_rng(5)
    sources = []
    for index, part in enumerate(np.array_split(np.arange(n_rows), SHARDS)):
        X = rng.normal(size=(part.size, FEATURES))
        np.save(folder / f"X{index}.npy", X)
        np.save(folder / f"y{index}.npy", (rng.random(part.size) < 0.5).astype(float))
        sources.append(mechanism.rows_of_npy(folder / f"X{index}.npy", folder / f"y{index}.npy"))
    return sources


def fit(rows, n_rows, **options):
    """Return the release, and the seconds of each pass but the first, which also has the check."""
    model = dpi.models.LogisticRegression(FEATURES)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-7, n_records=n_rows)
    times = [time.perf_counter()]
    release = dpi.run_newton(
        model, rows, plan=plan, n_records=n_rows, n_threads=1, progress=lambda *_: times.append(time.perf_counter()),
        **options,
    )  # fmt: skip
    return release, np.diff(times)[1:]


def run_with_kills(cluster, rows, n_rows, kills, rng, **options):
    """Run while another thread kills workers at random moments; return the release and the number of kills."""
    done, killed = threading.Event(), []

    def killer():
        while not done.wait(rng.exponential(0.3)):
            # A nanny that has given up is replaced.
            cluster.scale(2)
            if len(killed) == kills:
                continue
            # A nanny gives up a worker that is killed while it starts: only those that have reported are.
            alive = [nanny.pid for nanny in cluster.workers.values() if nanny.pid not in (None, *killed)]
            if 0 < len(cluster.workers) == len(alive) == len(cluster.scheduler.workers):
                victim = int(rng.choice(alive))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        release, _ = fit(rows, n_rows, **options)
    finally:
        done.set()
        thread.join()
    return release, len(killed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--json", help="a file for the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = written(folder, arguments.rows)
        one = mechanism.RowSource(lambda: (block for source in sources for block in source._blocks()))
        whole, alone = fit(one, arguments.rows, random_source=InsecureRNG(1))
        people = dpi.PrivacyLedger.create(folder / "spent.ledger").add_dataset("people", budget=(1e4, 0.5))
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            # What a kill leaves behind takes Dask some tries to see.
            rows = mechanism.rows_of_dask(client, sources, retries=20)
            release, sharded = fit(rows, arguments.rows, random_source=InsecureRNG(1))
            assert release.scores.tobytes() == whole.scores.tobytes()
            print(f"bits of one process on {len(client.nthreads())} workers: equal")
            print(
                f"{arguments.rows} rows, {SHARDS} shards: a pass {1e3 * np.median(alone):.1f} ms in one process, "
                f"{1e3 * np.median(sharded):.1f} ms on two workers (medians of {len(alone)} passes)"
            )
            rng, killed, runs = np.random.default_rng(2), 0, 0
            while killed < arguments.kills:
                left = min(arguments.kills - killed, MOST_KILLS)
                release, more = run_with_kills(cluster, rows, arguments.rows, left, rng, random_source=InsecureRNG(1))
                assert release.scores.tobytes() == whole.scores.tobytes()
                killed, runs = killed + more, runs + 1
                print(f"  run {runs}: {more} workers killed, the same release", flush=True)
            _, more = run_with_kills(cluster, rows, arguments.rows, 2, rng, ledger=people)
            assert [run.status for run in people.runs()] == ["finished"]
    print(
        f"{killed} workers killed in {runs} runs: the same release every time; {more} more in a run with a ledger: one "
        "charge"
    )
    results = {
        "rows": arguments.rows, "pass_seconds_alone": float(np.median(alone)),
        "pass_seconds_sharded": float(np.median(sharded)), "kills": killed, "runs": runs,
    }  # fmt: skip
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
