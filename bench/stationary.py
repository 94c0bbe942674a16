"""Stationary covariances: right against SciPy and long simulations, and how much faster than SciPy.

Checks first: 1e-10 relative against solve_continuous_lyapunov and solve_discrete_lyapunov, and 10^6 simulated steps.
Then medians of alternating runs of ours and SciPy's: one symmetric Hessian of 200 to 1000 coordinates, with equal and
with different learning rates, and batches of 4000 draws against a loop over SciPy calls (of `--loop` of them, scaled).
Before each timed call the same call for `WARM` seconds: NumPy's and SciPy's linear algebra have threads of their own
each, which wait at full speed for a while, in the way of the other library's, before they fall asleep.

    python bench/stationary.py [--repeats 5] [--sizes 200 500 1000] [--draws 4000] [--loop 100]
"""

import argparse
import time

import numpy as np
from scipy import linalg

import dpinfer as dpi

KAPPA = 0.1
WARM = 0.1


def hessian(rng, n, count=None):
    W = rng.normal(size=(count or 1, n, 2 * n))
    A = W @ W.swapaxes(1, 2) / (2 * n) + 0.3 * np.eye(n)
    A = 0.5 * (A + A.swapaxes(1, 2))
    return A if count else A[0]


def by_scipy(A, rate, noise, kind):
    M = KAPPA * rate[:, None] * A
    D = np.diag((rate * noise) ** 2)
    if kind == "continuous":
        return linalg.solve_continuous_lyapunov(M, D)
    return linalg.solve_discrete_lyapunov(np.eye(len(A)) - M, D)


def check_scipy(rng):
    worst = 0.0
    for n in (1, 5, 24, 100):
        for skew in (0.0, 0.5):
            turn = rng.normal(size=(n, n)) / np.sqrt(n)
            A = hessian(rng, n) + skew * (turn - turn.T)
            for rate in (np.full(n, 0.8), rng.uniform(0.2, 1.5, n)):
                noise = rng.uniform(0.5, 3.0, n)
                for kind in ("discrete", "continuous"):
                    want = by_scipy(A, rate, noise, kind)
                    got = dpi.lab.stationary.covariance(A, rate, KAPPA, noise, kind)
                    worst = max(worst, np.max(np.abs(got - want)) / np.max(np.abs(want)))
    print(f"against SciPy: largest relative difference {worst:.1e} (target 1e-10)")
    assert worst < 1e-10


def check_simulation(rng, steps=10**6, chains=500):
    """Print t-scores of simulated second moments against both claims: of the recursion, and of its continuous limit.

    The limit is an approximation; its scores show that the simulation can tell the two apart.
    """
    A = np.array([[1.5, 0.4, -0.2], [0.1, 0.9, 0.3], [0.5, -0.1, 2.0]])
    rate, noise = np.array([3.0, 1.6, 5.0]), np.array([1.0, 2.5, 0.7])
    move = (np.eye(3) - KAPPA * rate[:, None] * A).T
    x = np.zeros((chains, 3))
    total = np.zeros((chains, 3, 3))
    for t in range(300 + steps // chains):
        x = x @ move - rate * noise * rng.normal(size=x.shape)
        if t >= 300:
            total += x[:, :, None] * x[:, None, :]
    total /= steps // chains
    error = total.std(axis=0, ddof=1) / np.sqrt(chains)
    rows = np.tril_indices(3)
    for kind in ("discrete", "continuous"):
        claimed = dpi.lab.stationary.covariance(A, rate, KAPPA, noise, kind)
        score = ((total.mean(axis=0) - claimed) / error)[rows]
        relative = (error / np.abs(claimed))[np.diag_indices(3)]
        print(
            f"against {steps} simulated steps, {kind}: t-scores of the six covariances {np.round(score, 2).tolist()}"
            f" (Monte Carlo error {relative.min():.2%} to {relative.max():.2%} of the variances)"
        )
        if kind == "discrete":
            assert np.max(np.abs(score)) < 5.0


def timed(call):
    """Return the seconds of a call, after WARM seconds of the same; a longer one is its own warm-up."""
    begin = time.perf_counter()
    while True:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        if start - begin > WARM or end - start > 2.0 * WARM:
            return end - start


def alternate(first, second, repeats):
    """Return medians of both and the median of the ratios."""
    times = [(timed(first), timed(second)) for _ in range(repeats)]
    ours, theirs = np.array(times).T
    return np.median(ours), np.median(theirs), np.median(theirs / ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 500, 1000])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--loop", type=int, default=100)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    check_scipy(rng)
    check_simulation(rng)
    print("\none symmetric Hessian: milliseconds, SciPy's and the ratio")
    for n in arguments.sizes:
        A = hessian(rng, n)
        for label, rate in (("equal rates", np.full(n, 0.8)), ("different rates", rng.uniform(0.2, 1.5, n))):
            noise = np.full(n, 2.0)
            for kind in ("discrete", "continuous"):
                ours, theirs, ratio = alternate(
                    lambda A=A, r=rate, s=noise, k=kind: dpi.lab.stationary.covariance(A, r, KAPPA, s, k),
                    lambda A=A, r=rate, s=noise, k=kind: by_scipy(A, r, s, k),
                    arguments.repeats,
                )
                print(f"  n = {n:4d}, {label:<15} {kind:<10} {1e3 * ours:9.2f} {1e3 * theirs:9.2f} {ratio:8.1f} times")
    print(f"\n{arguments.draws} draws of the Hessian: microseconds a draw, SciPy's in a loop, and the ratio")
    n, loop = 24, min(arguments.loop, arguments.draws)
    A = hessian(rng, n, arguments.draws)
    diagonals = rng.uniform(0.3, 2.0, (arguments.draws, n))
    turned = A + 0.3 * np.triu(np.ones((n, n)), 1) / n - 0.3 * np.tril(np.ones((n, n)), -1) / n
    equal, different, noise = np.full(n, 0.8), rng.uniform(0.2, 1.5, n), np.full(n, 2.0)
    cases = (
        ("diagonal", diagonals, equal, "diagonal"),
        ("24 x 24 symmetric, lambda tau^2 equal", A, equal, "auto"),
        ("24 x 24 symmetric, different rates", A, different, "auto"),
        ("24 x 24 general", turned, equal, "auto"),
    )
    for label, batch, rate, form in cases:
        matrices = [np.diag(row) for row in batch[:loop]] if form == "diagonal" else list(batch[:loop])
        for kind in ("discrete", "continuous"):
            ours, theirs, ratio = alternate(
                lambda B=batch, r=rate, f=form, k=kind: dpi.lab.stationary.covariance(B, r, KAPPA, noise, k, form=f),
                lambda M=matrices, r=rate, k=kind: [by_scipy(one, r, noise, k) for one in M],
                arguments.repeats,
            )
            per = 1e6 * ours / arguments.draws
            scipy_per = 1e6 * theirs / loop
            print(f"  {label:<38} {kind:<10} {per:8.2f} {scipy_per:8.1f} {ratio * arguments.draws / loop:8.0f} times")


if __name__ == "__main__":
    main()
