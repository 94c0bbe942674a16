"""How well the default method is calibrated, beyond what 500 runs can show, and how near its intervals come to a bound.

For each study, over 10^4 runs: the excess of the coverage RMSE over its Monte Carlo floor, jointly and for every
coordinate alone; exact p-values; mean and standard deviation of the z-scores with their Monte Carlo errors; coverage
of 90% intervals; and widths relative to the posterior without privacy, next to what T noisy sums of gradients allow.
Also the RMSE of every disjoint set of 500 runs, the size of the published studies, and how many of them come out at or
below the published RMSE: a single set varies by a third of itself.

The bound: a step releases kappa N I (mu - mu*), in a coordinate of information I per record, with noise of standard
deviation sigma C sqrt(I) under the preconditioner 1 / sqrt(I).  T such steps hold the information T (kappa N)^2 I /
(sigma C)^2 about mu*, so for a flat prior a normal posterior is at least sqrt(1 + (sigma C / kappa)^2 / (N T)) times as
wide as without privacy.  It is one for this C: a smaller C that clips less than it biases would lower it.

    python bench/coverage_defaults.py [--runs 10000] [--studies gamma-exponential ...] [--out bench/results/defaults]
"""

import argparse
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import ndtr

import dpinfer as dpi
from dpinfer.lab.coverage.tarp_result import tarp_from_shares
from dpinfer.lab.studies.study import find_study

ROOT = Path(__file__).parents[1]
N_RECORDS, SAMPLE_RATE, N_STEPS, DELTA = 5000, 0.1, 2500, 1e-5
EPSILONS = {
    "gamma-exponential": (0.1, 0.3, 1.0),
    "beta-bernoulli": (0.1, 0.3, 1.0),
    "dirichlet-categorical": (0.1, 0.3, 1.0),
    "linear-regression": (0.1, 0.3, 1.0),
}
SET = 500
PUBLISHED = {  # NA-DPVI with NUTS
    ("gamma-exponential", 0.1): 0.023,
    ("beta-bernoulli", 0.1): 0.016,
    ("dirichlet-categorical", 0.1): 0.020,
    ("linear-regression", 0.1): 0.036,
    ("linear-regression", 0.3): 0.035,
    ("linear-regression", 1.0): 0.027,
}


def information_bound(epsilon, max_grad_norm):
    """Return the smallest relative width that T steps at this clipping norm allow."""
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=DELTA, sample_rate=SAMPLE_RATE, n_steps=N_STEPS)
    noise = plan.noise_multiplier * max_grad_norm / SAMPLE_RATE
    return math.sqrt(1.0 + noise**2 / (N_RECORDS * N_STEPS))


def check_bound():
    """Compare the bound with a weighted least-squares fit of simulated steps."""
    rng = np.random.default_rng(0)
    information, noise, steps, optimum = 0.3, 2000.0, 400, 0.7
    slope = SAMPLE_RATE * N_RECORDS * information
    deviation = noise * math.sqrt(information)
    position = rng.normal(size=(20_000, 1)) * 0.01 + optimum
    gradient = slope * (position - optimum) + deviation * rng.normal(size=(20_000, steps))
    estimate = (position - gradient / slope).mean(axis=1)
    expected = math.sqrt(noise**2 / (SAMPLE_RATE**2 * N_RECORDS * steps) / (N_RECORDS * information))
    assert abs(estimate.std() / expected - 1.0) < 0.03, (estimate.std(), expected)


@cache
def exact_rmse(sets=1000):
    """Return the RMSEs of sets of published size for an exact normal posterior of one coordinate, with 20 repeats."""
    rng, rmse = np.random.default_rng(0), np.empty(sets)
    for index in range(sets):
        truth, reference = rng.standard_normal(SET), rng.uniform(-4.0, 4.0, (20, SET))
        radius = np.abs(truth - reference)
        shares = ndtr(reference + radius) - ndtr(reference - radius)
        rmse[index] = tarp_from_shares(shares, shares[:, :, None], n_draws=1000, references="centred", seed=0).rmse
    return rmse


def sets_of_published_size(result, published):
    """Return a line on the RMSEs of the disjoint sets of as many runs as the published studies have."""
    firsts = range(0, result.n_runs - SET + 1, SET)
    rmse = np.array([replace(result, runs=result.runs.rows(first, first + SET)).tarp.rmse for first in firsts])
    error = rmse.std(ddof=1) / math.sqrt(rmse.size)
    line = f"  {rmse.size} sets of {SET} runs: RMSE {rmse.mean():.4f} ± {error:.4f}, deviation {rmse.std(ddof=1):.4f}"
    if published is None:
        return line
    exact = np.mean(exact_rmse() <= published)
    return (
        f"{line}; {np.count_nonzero(rmse <= published)} of them at or below the published {published:.3f}"
        f" (of an exact posterior's, {exact:.0%} ± {math.sqrt(exact * (1.0 - exact) / exact_rmse().size):.1%})"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--studies", nargs="+", choices=list(EPSILONS), default=list(EPSILONS))
    parser.add_argument("--method", default="exact")
    parser.add_argument("--recipe")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "defaults")
    arguments = parser.parse_args()
    check_bound()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for study in arguments.studies:
        for epsilon in EPSILONS[study]:
            name = f"{study}-{epsilon:g}-{arguments.method}-{arguments.recipe or 'default'}"
            result = dpi.coverage_study(
                study,
                method=arguments.method,
                recipe=arguments.recipe,
                epsilon=epsilon,
                n_runs=arguments.runs,
                seed=arguments.seed,
                n_threads=arguments.threads,
                checkpoint=arguments.out / "runs" / name,
                progress=True,
            )
            result.save(arguments.out / f"{name}.npz")
            bound = information_bound(epsilon, find_study(study).default_max_grad_norm())
            rows.append(result.to_dict() | {"information_bound": bound})
            print(f"\n{result}")
            tarp, sbc = result.tarp, result.sbc
            excess = tarp.marginal_rmse - tarp.rmse_floor
            print(
                f"  excess RMSE: joint {tarp.excess_rmse:+.4f}, alone {excess.min():+.4f} to {excess.max():+.4f}"
                f" (floor {tarp.rmse_floor:.4f}); largest |mean z| {np.max(np.abs(sbc.mean_z)):.3f}"
                f" (error {sbc.mean_z_stderr.max():.3f}); smallest p, all tests, Bonferroni: {sbc.pvalue:.2g};"
                f" relative width at least {bound:.2f} (bound)",
                flush=True,
            )
            if result.n_runs >= 2 * SET:
                print(sets_of_published_size(result, PUBLISHED.get((study, epsilon))), flush=True)
            (arguments.out / "defaults.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
