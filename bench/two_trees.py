"""Whole runs and coverage studies of two source trees, alternating: what a change of the library costs its users.

Each tree (with its compiled modules beside the packages) runs in a process of its own; the two take turns, and each
says the processor time of one thread.  Answer first: both trees give the same numbers, bit for bit, where the release
of the mechanism was not meant to change; otherwise the line says by how much they differ.  Printed are medians over
pairs and the bootstrap's standard error of the median ratio (new over old).

    python bench/two_trees.py OLD NEW [--pairs 15]      # OLD, NEW: folders that hold python/dpinfer
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def coverage(study, method, runs, **settings):
    from dpinfer import coverage_study

    def one(seed):
        return coverage_study(study, method=method, n_runs=runs, seed=seed, n_threads=1, **settings).runs

    return one


def numbers(runs):
    """Return the widths and standardised errors of a study's runs as one array."""
    return np.concatenate([np.ravel(runs.width90), np.ravel(runs.z)])


def tasks():
    return {
        "coverage, beta-bernoulli, default": coverage("beta-bernoulli", "exact", 64, epsilon=0.1),
        "coverage, linear regression, default": coverage("linear-regression", "exact", 8, epsilon=0.3),
        "coverage, gamma-exponential, published": coverage(
            "gamma-exponential", "exact", 2, epsilon=0.1, recipe="paper"
        ),
        "coverage, dirichlet, default": coverage("dirichlet-categorical", "exact", 4, epsilon=0.1),
    }


def work():
    """Serve one tree: a task's name and a seed come in, its seconds and a checksum go out."""
    known = tasks()
    print(json.dumps(sorted(known)), flush=True)
    for line in sys.stdin:
        name, seed = json.loads(line)
        start = time.thread_time()
        answer = known[name](seed)
        seconds = time.thread_time() - start
        print(json.dumps([seconds, numbers(answer).tolist()]), flush=True)


class Tree:
    """A process that has imported one tree."""

    def __init__(self, folder):
        path = str(Path(folder) / "python")
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--work", folder, folder]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.tasks = json.loads(self.process.stdout.readline())

    def run(self, name, seed):
        self.process.stdin.write(json.dumps([name, seed]) + "\n")
        self.process.stdin.flush()
        seconds, answer = json.loads(self.process.stdout.readline())
        return seconds, np.asarray(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work()
    old, new = Tree(arguments.old), Tree(arguments.new)
    generator = np.random.default_rng(0)
    for name in [task for task in old.tasks if task in new.tasks]:
        first, second = old.run(name, 0)[1], new.run(name, 0)[1]
        same = first.shape == second.shape and np.array_equal(first, second)
        apart = "same numbers" if same else "other numbers"
        times = []
        for seed in range(1, 1 + arguments.pairs):
            turns = (old, new) if seed % 2 else (new, old)
            seconds = {tree: tree.run(name, seed)[0] for tree in turns}
            times.append((seconds[old], seconds[new]))
        times = np.array(times)
        ratios = times[:, 1] / times[:, 0]
        error = np.std([np.median(generator.choice(ratios, ratios.size)) for _ in range(2000)])
        before, after = np.median(times, axis=0)
        print(f"{name:<42} {before:7.3f} s {after:7.3f} s  ratio {np.median(ratios):.3f} +- {error:.3f}  {apart}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
