"""Coverage shares at memory speed: first that they are right, then their speed against the tarp package.

    python bench/tarp_shares.py [--sims 5000] [--draws 4000] [--dims 12] [--rounds 7] [--single]

The check: shares of a slice, joint and in every dimension, must equal a direct NumPy count, and with the published
package (``pip install tarp``) its whole coverage curve on the timed draws must come out the same.  Then, alternating
in the same process, with medians: reading the draws once (NumPy on every core), one pass of ours for one set of
references (joint and all marginals), and one call of the package (joint alone).  ``--single`` stores the draws in
single precision, ``--repeats 20`` also times that many sets of references in one pass.
"""

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from dpinfer.lab.coverage.counts import DrawArray, draw_moments, tarp_counts

FloatArray = npt.NDArray[np.float64]


def make_study(
    n_draws: int, n_sims: int, n_dims: int, dtype: npt.DTypeLike
) -> tuple[DrawArray, FloatArray, FloatArray]:
    """Return draws (S, K, d), truths and one set of references (K, d); blocks of 64 draws share their noise."""
    rng = np.random.default_rng(1)
    centre = rng.normal(size=(n_sims, n_dims))
    noise = rng.normal(size=(min(64, n_draws), n_sims, n_dims))
    draws = np.empty((n_draws, n_sims, n_dims), dtype)
    for first in range(0, n_draws, len(noise)):
        part = draws[first : first + len(noise)]
        part[:] = centre + rng.uniform(0.9, 1.1) * noise[: len(part)]
    thetas = centre + rng.normal(size=centre.shape)
    return draws, thetas, centre + rng.uniform(-4.0, 4.0, size=centre.shape)


def check_slice(draws: DrawArray, thetas: FloatArray, references: FloatArray) -> None:
    """Stop unless the counts of a few simulations equal direct ones."""
    own = np.ascontiguousarray(draws[:, :20])
    truth, points = np.ascontiguousarray(thetas[:20]), np.ascontiguousarray(references[None, :20])
    joint, marginal = tarp_counts(own, truth, points, np.ones_like(truth))
    squared, limit = (own.astype(np.float64) - points[0]) ** 2, (truth - points[0]) ** 2
    distance, radius = np.zeros(own.shape[:2]), np.zeros(len(truth))
    for j in range(truth.shape[1]):
        distance, radius = distance + squared[..., j], radius + limit[..., j]
    if not np.array_equal(marginal[0], (squared < limit).sum(axis=0) + (squared <= limit).sum(axis=0)):
        raise SystemExit("marginal shares differ from a direct count")
    if not np.array_equal(joint[0], (distance < radius).sum(axis=0) + (distance <= radius).sum(axis=0)):
        raise SystemExit("joint shares differ from a direct count")


def check_peer(peer: Callable[[], tuple[FloatArray, FloatArray]], shares: FloatArray, n_bins: int) -> None:
    """Stop unless the package's curve is the one of our shares, in its own bins."""
    coverage, _ = peer()
    density, edges = np.histogram(shares, density=True, bins=n_bins)
    gap = np.max(np.abs(coverage[1:] - np.cumsum(density) * (edges[1] - edges[0])))
    print(f"largest difference of the coverage curve from the package's: {gap:.2g}")
    # Single precision: the package rounds distances to it, so a draw at the boundary may change sides.
    if gap > 1e-9:
        raise SystemExit("coverage differs from the package's")


def main() -> None:
    """Check, time and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sims", type=int, default=5000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--dims", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=0, help="also time this many sets of references in one pass")
    parser.add_argument("--single", action="store_true", help="draws in single precision")
    arguments = parser.parse_args()
    draws, thetas, references = make_study(
        arguments.draws, arguments.sims, arguments.dims, np.float32 if arguments.single else np.float64
    )
    scales = np.ones_like(thetas)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(
        f"{arguments.sims} simulations x {arguments.draws} draws x {arguments.dims}: "
        f"{draws.nbytes / 1e9:.2f} GB, {cores} cores"
    )
    check_slice(draws, thetas, references)
    shares = tarp_counts(draws, thetas, references[None], scales)[0][0] / (2.0 * arguments.draws)

    pool = ThreadPoolExecutor(cores)
    # The largest of the numbers is what NumPy finds fastest in memory; pairs of finite single-precision numbers are
    # finite double-precision ones.
    words = draws.reshape(-1).view(np.uint8)
    parts = np.array_split(words[: words.size // 8 * 8].view(np.float64), cores)
    runs: dict[str, Callable[[], object]] = {
        "read": lambda: max(pool.map(np.maximum.reduce, parts)),
        "counts": lambda: tarp_counts(draws, thetas, references[None], scales),
        "moments": lambda: draw_moments(draws),
    }
    n_bins = max(2, arguments.sims // 10)
    if importlib.util.find_spec("tarp") is None:
        print("the tarp package is not installed: no comparison with it (pip install tarp)")
    else:
        import tarp

        def peer() -> tuple[FloatArray, FloatArray]:
            return tarp.get_tarp_coverage(draws, thetas, references=references, norm=False, num_alpha_bins=n_bins)

        check_peer(peer, shares, n_bins)
        runs["tarp"] = peer
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(arguments.rounds):
        for name, run in runs.items():
            if name == "tarp" and index >= 3:
                continue  # slow, and far from the others
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    median = {name: float(np.median(values)) for name, values in times.items()}
    for name, seconds in median.items():
        print(f"{name:8s} {1e3 * seconds:9.1f} ms {draws.nbytes / seconds / 1e9:7.2f} GB/s")
    print(f"share of the read bandwidth: {median['read'] / median['counts']:.2f} (wanted 0.70)")
    if "tarp" in median:
        print(f"times faster than the tarp package: {median['tarp'] / median['counts']:.1f} (wanted 8)")
    if arguments.repeats:
        rng = np.random.default_rng(2)
        many = rng.uniform(-4.0, 4.0, size=(arguments.repeats, *thetas.shape))
        began = time.perf_counter()
        tarp_counts(draws, thetas, many, scales)
        each = (time.perf_counter() - began) / arguments.repeats
        print(f"{arguments.repeats} sets of references in one pass: {1e3 * each:.1f} ms each")


if __name__ == "__main__":
    main()
