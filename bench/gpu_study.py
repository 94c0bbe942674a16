"""The coverage study of linear regression with its sums on a GPU: equal bits to the CPU's, then how long it takes.

Answer first: a few hundred runs on both, every number of their results equal, or it stops.  Then the whole study in
processes, each with its own chunks on the same GPU, from the start of the processes to the last result.  Then one chunk
in one thread, by part, on both.  Needs a build with -DDPINFER_CUDA=ON.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python bench/gpu_study.py [--runs 10000] [--cores 16] [--processes 16 8]
"""

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import numpy as np

import dpinfer as dpi
from dpinfer.lab.studies import recipes

STUDY = {"study": "linear-regression", "method": "exact", "epsilon": 0.1}
PARTS = {
    "simulate_data": "data",
    "simulate_releases": "engine",
    "each": "posterior",
    "chunk_result": "draws, intervals",
}


def compare(one, other):
    """Raise unless all results of two studies are equal."""
    for name, array in one.runs.arrays.items():
        if array.tobytes() != other.runs.arrays[name].tobytes():
            raise AssertionError(f"{name} differs between the CPU and the GPU")


@contextmanager
def timed_parts():
    """Time the parts of a chunk that is computed in this process."""
    seconds = dict.fromkeys(PARTS.values(), 0.0)
    kept = {name: getattr(recipes, name) for name in PARTS}

    def timed(name):
        def call(*arguments, **options):
            start = time.perf_counter()
            try:
                return kept[name](*arguments, **options)
            finally:
                seconds[PARTS[name]] += time.perf_counter() - start

        return call

    for name in PARTS:
        setattr(recipes, name, timed(name))
    try:
        yield seconds
    finally:
        for name, function in kept.items():
            setattr(recipes, name, function)


def by_part(n_runs, backend):
    """Print the milliseconds of a run of one chunk in one thread, by part."""
    dpi.coverage_study(**STUDY, n_runs=2, n_threads=1, backend=backend)  # whatever is loaded at first
    with timed_parts() as seconds:
        result = dpi.coverage_study(**STUDY, n_runs=n_runs, n_threads=1, chunk_size=n_runs, backend=backend, seed=2)
    parts = "  ".join(f"{name} {1e3 * value / n_runs:.2f}" for name, value in seconds.items())
    print(f"{backend}, one thread, ms a run of {n_runs}: {1e3 * result.seconds / n_runs:.2f}: {parts}", flush=True)
    return result


def whole(n_runs, processes, chunks, cores, backend, seed):
    """Print the seconds of a study in processes that share the cores, their start included."""
    start = time.perf_counter()
    size = -(-n_runs // (processes * chunks))
    threads = max(1, cores // processes)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = dpi.coverage_study(
            **STUDY, n_runs=n_runs, n_threads=threads, chunk_size=size, executor=pool, backend=backend, seed=seed
        )
    seconds = time.perf_counter() - start
    covered = np.mean(np.abs(result.runs.pit - 0.5) < 0.45)
    error = np.sqrt(0.09 / result.runs.pit.size)
    print(
        f"{backend}, {processes} processes of {threads} threads, chunks of {size}: {n_runs} runs in {seconds:.1f} s; "
        f"90% intervals cover {covered:.4f} +- {error:.4f}",
        flush=True,
    )
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--check", type=int, default=320, help="runs that are compared with the CPU's")
    parser.add_argument("--chunk", type=int, default=160, help="runs of the chunk that is timed by part")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--processes", type=int, nargs="*", default=None, help="one or more; the cores by default")
    parser.add_argument("--chunks", type=int, default=1, help="of each process")
    options = parser.parse_args()
    one, other = (whole(options.check, options.cores, 1, options.cores, backend, seed=1) for backend in ("cpu", "cuda"))
    compare(one, other)
    print(f"{options.check} runs: every number of the GPU's study is the CPU's", flush=True)
    for processes in options.processes or [options.cores]:
        whole(options.runs, processes, options.chunks, options.cores, "cuda", seed=3)
    compare(by_part(options.chunk, "cpu"), by_part(options.chunk, "cuda"))


if __name__ == "__main__":
    main()
