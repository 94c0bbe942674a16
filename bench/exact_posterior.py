"""Exact posterior against NumPyro's NUTS on the same trace: first that the answers agree, then the time of each.

    python bench/exact_posterior.py [--wide]

The check: medians and 90% intervals of the optimum and of the Hessian from ``method="exact"`` must lie within five
Monte Carlo standard errors of those of a long emcee run (estimated from independent batches of its chain), and NUTS
must agree with both within its own error.  Only then are the two timed, in the same process: exact by the median of
repeated calls, burn-in test and statistics of the trace included; NUTS by one run of 1000 warm-up and 4000 kept
iterations after a first run that compiles.  ``--wide`` adds d = 24.
"""

import argparse
import time

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.samplers.ensemble import emcee_nodes
from dpinfer.inference.samplers.nuts import nuts_nodes
from dpinfer.inference.trace.burn_in import choose_burn_in
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes, collapsed_nodes
from dpinfer.inference.trace.priors import coordinate_priors
from dpinfer.models.bijectors import softplus, softplus_inverse
from dpinfer.release import Release, release_from_arrays

FloatArray = npt.NDArray[np.float64]

STEPS = 10_000
BURN_IN = 0.2
SAMPLE_RATE = 0.1
NUTS_WARMUP = 1000
NUTS_SAMPLES = 4000
LEVELS = np.array([0.05, 0.5, 0.95])
BATCHES = 20


def make_release(width: int, seed: int) -> Release:
    """Return a simulated DPVI trace with `width` variational parameters and a quadratic loss."""
    rng = np.random.default_rng(seed)
    hessian = rng.lognormal(np.log(50.0), 0.5, width)
    optimum = rng.normal(size=width)
    tau = rng.uniform(0.5, 3.0, width)
    learning_rate = 100.0 / (STEPS * SAMPLE_RATE * hessian)
    x, g = np.empty((STEPS, width)), np.empty((STEPS, width))
    at = optimum + rng.normal(size=width)
    for t in range(STEPS):
        x[t] = at
        g[t] = SAMPLE_RATE * hessian * (at - optimum) + tau * rng.standard_normal(width)
        at = at - learning_rate * g[t]
    return release_from_arrays(x, g, noise_stddev=tau, sample_rate=SAMPLE_RATE)


def mixture_quantiles(weight: FloatArray, mean: FloatArray, stddev: FloatArray) -> FloatArray:
    """Return LEVELS quantiles of a mixture of normals by bisection on its distribution function."""
    low, high = np.full(LEVELS.size, np.min(mean - 9.0 * stddev)), np.full(LEVELS.size, np.max(mean + 9.0 * stddev))
    for _ in range(100):
        middle = 0.5 * (low + high)
        below = stats.norm.cdf((middle[:, None] - mean) / stddev) @ weight < LEVELS
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def optimum_quantiles(nodes: Nodes, coordinate: int) -> FloatArray:
    """Return LEVELS quantiles of the optimum of one coordinate."""
    own = slice(int(nodes.offsets[coordinate]), int(nodes.offsets[coordinate + 1]))
    return mixture_quantiles(nodes.weight[own], nodes.mean[own], np.sqrt(nodes.variance[own]))


def drawn_quantiles(nodes: Nodes, coordinate: int) -> FloatArray:
    """Return quantiles of optimum and Hessian from draws, (2, 3)."""
    own = slice(int(nodes.offsets[coordinate]), int(nodes.offsets[coordinate + 1]))
    return np.stack([optimum_quantiles(nodes, coordinate), np.quantile(nodes.hessian[own], LEVELS)])


def exact_quantiles(nodes: Nodes, problems: CollapsedProblems, coordinate: int) -> FloatArray:
    """Return quantiles of optimum and Hessian from the quadrature, (2, 3); the Hessian's on a fine grid."""
    own = slice(int(nodes.offsets[coordinate]), int(nodes.offsets[coordinate + 1]))
    ends = softplus_inverse(nodes.hessian[own][[0, -1]] / problems.hessian_unit[coordinate])
    y = np.linspace(ends[0], ends[1], 20_001)
    log_density = problems.log_density(np.repeat(y[:, None], problems.spread.size, axis=1))[:, coordinate]
    density = np.exp(log_density - log_density.max())
    cumulative = np.cumsum(density) - 0.5 * density
    at = np.interp(LEVELS, cumulative / density.sum(), y)
    return np.stack([optimum_quantiles(nodes, coordinate), problems.hessian_unit[coordinate] * softplus(at)])


def problems_of(release: Release) -> CollapsedProblems:
    """Return the collapsed problems that every method works on."""
    statistics = choose_burn_in(BURN_IN, release.positions, release.noisy_gradients, release.noise_stddev).statistics
    priors = coordinate_priors("weak", statistics, SAMPLE_RATE)
    return CollapsedProblems.build(statistics, priors, SAMPLE_RATE, extra_noise=False)


def check(release: Release, nuts: Nodes, seed: int) -> float:
    """Return the largest disagreement with the long emcee run in its Monte Carlo errors; stop when it is too large."""
    problems, names = problems_of(release), release.gradient_names
    exact = collapsed_nodes(problems, names)
    runs = [
        emcee_nodes(problems, names, n_samples=4000, n_walkers=32, seed=seed + batch, check_convergence=batch == 0)[0]
        for batch in range(BATCHES)
    ]
    worst = 0.0
    for coordinate in range(len(names)):
        parts = np.stack([drawn_quantiles(run, coordinate) for run in runs])
        centre, error = parts.mean(axis=0), parts.std(axis=0, ddof=1) / np.sqrt(BATCHES)
        gap = np.abs(exact_quantiles(exact, problems, coordinate) - centre) / error
        worst = max(worst, float(gap.max()))
        # NUTS keeps 4000 correlated draws: six errors of an eighth of them.
        spread = np.diff(centre[:, [0, 2]], axis=1)[:, 0] / 3.29
        off = np.abs(drawn_quantiles(nuts, coordinate) - centre) / (spread[:, None] * 2.1 / np.sqrt(NUTS_SAMPLES / 8.0))
        if off.max() > 6.0:
            raise SystemExit(f"NUTS disagrees with emcee by {off.max():.1f} errors in coordinate {coordinate}")
    if worst > 5.0:
        raise SystemExit(f"exact disagrees with emcee by {worst:.1f} Monte Carlo errors")
    return worst


def main() -> None:
    """Check, time and print one line per width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wide", action="store_true", help="add d = 24")
    arguments = parser.parse_args()
    print(f"T = {STEPS}, burn-in {BURN_IN:g}, NUTS {NUTS_WARMUP} + {NUTS_SAMPLES}, no extra noise unless said")
    print(f"{'d':>3s} {'check':>9s} {'exact':>10s} {'+ noise':>10s} {'NUTS':>9s} {'compile':>9s} {'ratio':>9s}")
    for width in (2, 4, 24) if arguments.wide else (2, 4):
        release = make_release(width, seed=width)
        problems = problems_of(release)
        start = int(BURN_IN * STEPS)
        trace = (release.positions[start:], release.noisy_gradients[start:], release.noise_stddev)

        def run_nuts(trace: tuple[FloatArray, ...] = trace, problems: CollapsedProblems = problems) -> Nodes:
            names = tuple(str(index) for index in range(trace[0].shape[1]))
            options = {"n_samples": NUTS_SAMPLES, "n_warmup": NUTS_WARMUP, "seed": 1}
            return nuts_nodes(problems, *trace, names, sample_rate=SAMPLE_RATE, **options)[0]

        began = time.perf_counter()
        run_nuts()
        first = time.perf_counter() - began
        began = time.perf_counter()
        nuts = run_nuts()
        nuts_time = time.perf_counter() - began
        worst = check(release, nuts, seed=100 * width)
        medians = []
        for extra_noise in (False, True):
            times = []
            for _ in range(200):
                began = time.perf_counter()
                noise_aware_posterior(release, burn_in=BURN_IN, extra_noise=extra_noise)
                times.append(time.perf_counter() - began)
            medians.append(float(np.median(times)))
        print(
            f"{width:3d} {worst:6.1f} se {1e3 * medians[0]:7.2f} ms {1e3 * medians[1]:7.2f} ms {nuts_time:7.1f} s "
            f"{max(first - nuts_time, 0.0):7.1f} s {nuts_time / medians[0]:8.0f}x"
        )


if __name__ == "__main__":
    main()
