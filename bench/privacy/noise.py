"""Secure lattice noise: throughput against NumPy, the share of draws that need exact arithmetic, chi-square and tails.

Answer first: the draws equal the exact rounding of a 192-bit evaluation, and their counts in cells and in
the tails have the laws of a rounded Gaussian (every interval at 99.9%).  ``--draws 1e9`` takes minutes.

    python bench/privacy/noise.py [--draws 2e7] [--repeats 15]
"""

import argparse
import math
import statistics
import sys
import time

import numpy as np
from scipy import stats

from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG

BLOCK = 2**20
# Cells of the chi-square test: this many on either side of zero, of 2**CELL_BITS lattice steps each (4.3 deviations).
HALF_CELLS, CELL_BITS = 320, 30
TAILS = (3.0, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5)
ALPHA = 1e-3
# sigma certified for epsilon = 1, 0.3 and 0.1 at rate 0.1, 10**4 steps, delta 1e-5, on the widest lattice, 2**31.
SCALES = {"sigma 37.3": 37.34 * 2.0**31, "sigma 112": 112.5 * 2.0**31, "sigma 307": 307.6 * 2.0**31}


def check_bits(key):
    for scale in SCALES.values():
        draws, _ = _native.rounded_gaussian(key, 0, scale, 10**6)
        assert np.array_equal(draws, _native.exact_rounded_gaussian(key, 0, scale, 10**6))
    print(f"{len(SCALES)} x 1 000 000 draws equal the rounding by 192-bit arithmetic alone, bit for bit")


def cpu_seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def throughput(key, repeats):
    generator = np.random.default_rng(1)
    functions = {
        "numpy standard_normal, not secure": lambda: generator.standard_normal(BLOCK),
        "box-muller, float64": lambda: _native.monte_carlo_normals(key, 0, BLOCK),
    }
    for name, scale in SCALES.items():
        functions[f"rounded, {name}"] = lambda scale=scale: _native.rounded_gaussian(key, 0, scale, BLOCK)
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(cpu_seconds(function))
    base = statistics.median(times["numpy standard_normal, not secure"])
    print(f"\nthroughput of one core, {_native.simd_variant()} (processor time, median of {repeats} alternating runs)")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"  {name:36s} {BLOCK / median / 1e6:7.1f} M draws/s   {base / median:5.2f} x NumPy")
    for name, scale in SCALES.items():
        _, n_exact = _native.rounded_gaussian(key, 1, scale, BLOCK)
        print(f"  {name}: {n_exact / BLOCK:.2e} of the draws are not decided by float64")


def shape(key, n_draws):
    """Chi-square over equal cells of 2**30 lattice steps, and counts beyond each tail, in standard deviations."""
    scale = SCALES["sigma 37.3"]
    # A draw is an integer b when the normal is within a half of it; the two outermost cells reach to infinity.
    edges = (np.arange(1 - HALF_CELLS, HALF_CELLS) * 2.0**CELL_BITS - 0.5) / scale
    cells = np.diff(stats.norm.cdf(edges), prepend=0.0, append=1.0)
    tails = np.array(TAILS)
    counts, beyond = np.zeros(cells.size, dtype=np.int64), np.zeros(tails.size, dtype=np.int64)
    total = squares = lag = 0.0
    n_blocks = max(1, math.ceil(n_draws / BLOCK))
    start, shown = time.perf_counter(), time.perf_counter()
    for block in range(n_blocks):
        draws, _ = _native.rounded_gaussian(key, block, scale, BLOCK)
        places = np.clip(draws >> CELL_BITS, -HALF_CELLS, HALF_CELLS - 1) + HALF_CELLS
        counts += np.bincount(places, minlength=cells.size)
        z = draws / scale
        far = np.abs(z)
        far = far[far > tails[0]]
        beyond += (far[:, None] > tails).sum(axis=0)
        total, squares, lag = total + z.sum(), squares + z @ z, lag + z[:-1] @ z[1:]
        if time.perf_counter() - shown > 30:
            shown = time.perf_counter()
            print(f"  {block + 1}/{n_blocks} blocks, {shown - start:.0f} s", file=sys.stderr)
    n = n_blocks * BLOCK
    chi_square = float(np.sum((counts - n * cells) ** 2 / (n * cells)))
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], cells.size - 1)
    print(f"\nshape of {n:.3g} draws at {scale:.3g} lattice steps")
    ok = [low < chi_square < high]
    print(f"  chi-square, {cells.size} cells: {chi_square:.1f}, 99.9% interval [{low:.1f}, {high:.1f}]")
    low, high = (np.sqrt(stats.chi2.ppf(p, n) / n) for p in (ALPHA / 2, 1 - ALPHA / 2))
    ok.append(low < np.sqrt(squares / n) < high)
    print(f"  standard deviation: {np.sqrt(squares / n):.6f}, interval [{low:.6f}, {high:.6f}]")
    bound = stats.norm.ppf(1 - ALPHA / 2)
    for name, value in (("mean", total / np.sqrt(n)), ("lag-one correlation", lag / np.sqrt(n))):
        ok.append(abs(value) < bound)
        print(f"  {name}: {value:+.2f} standard errors, within {bound:.2f}")
    for tail, count in zip(TAILS, beyond, strict=True):
        probability = 2 * stats.norm.sf(tail)
        low, high = stats.binom.ppf([ALPHA / 2, 1 - ALPHA / 2], n, probability)
        ok.append(low <= count <= high)
        print(f"  beyond {tail:.1f}: {count}, expected {n * probability:.2f}, interval [{low:.0f}, {high:.0f}]")
    print("  all inside" if all(ok) else "  OUTSIDE: see above")
    return all(ok)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=float, default=2e7)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    key = InsecureRNG(1).take_key()
    check_bits(key)
    throughput(key, args.repeats)
    return 0 if shape(key, args.draws) else 1


if __name__ == "__main__":
    sys.exit(main())
