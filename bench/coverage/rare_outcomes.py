"""Coverage and width where events are rare, and of counts with small and large means.

    python bench/coverage/rare_outcomes.py [--runs 24] [--target population] [--family binomial poisson]

Four normal features and an intercept, coefficients 0.5, -0.5, 0.3 and 0; the model is true.  One line a cell: events,
records, epsilon; share of the coefficients inside 90% intervals, with the standard error over runs; the intercept's
alone; median width over robust intervals without privacy (HC0); median distance of a centre from the estimate without
privacy, in standard errors; share of runs with a warning.  The last lines pool the cells by whether noise hides the
events.  Run k has seed k.  The rule for the clip was chosen with a look at cells of both halves at epsilon 1 and 3:
they are no independent test of it.
"""

import argparse
import itertools
import math
import warnings

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG
from real_responses import NORMAL, fitted

FloatArray = npt.NDArray[np.float64]

SLOPES = np.array([0.5, -0.5, 0.3, 0.0])
EVENTS = {"binomial": (0.005, 0.01, 0.02, 0.05, 0.2), "poisson": (0.02, 0.1, 0.5, 5.0, 50.0)}
SIZES, EPSILONS, DELTA = (2000, 8000, 50_000), (0.5, 1.0, 3.0), 1e-6
HIDDEN = 4.0  # events without privacy noise in standard deviations of a count's noise at the whole budget


def intercept(family: str, events: float) -> float:
    """Return the intercept at which that share of the records, or mean count, is expected."""
    spread = float(np.linalg.norm(SLOPES))
    if family == "poisson":
        return math.log(events) - 0.5 * spread**2
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)

    def excess(at: float) -> float:
        return float(special.expit(at + spread * nodes) @ weights / weights.sum()) - events

    return float(optimize.brentq(excess, -15.0, 5.0))


def one_run(family: str, events: float, size: int, epsilon: float, target: str, seed: int) -> tuple[float, ...]:
    """Return coverage, coverage of the intercept, width, distance from the estimate, whether something was said."""
    rng = np.random.default_rng(seed)
    truth = np.append(SLOPES, intercept(family, events))
    X = rng.normal(size=(size, SLOPES.size))
    eta = X @ truth[:-1] + truth[-1]
    y = (rng.random(size) < special.expit(eta)).astype(float) if family == "binomial" else rng.poisson(np.exp(eta))
    y = np.asarray(y, dtype=np.float64)
    estimate, error = fitted(family, np.column_stack((X, np.ones(size))), y)
    kind = dpi.models.LogisticRegression if family == "binomial" else dpi.models.PoissonRegression
    model = kind(SLOPES.size, fit_intercept=True, prior_scale=10.0)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=size, target=target)
    release = dpi.run_newton(model, X, y, plan=plan, n_records=size, random_source=InsecureRNG(seed), n_threads=1)
    posterior = dpi.noise_aware_posterior(release)
    low, high = posterior.interval(0.9)
    inside = (low <= truth) & (truth <= high)
    said = bool(posterior.diagnostics.warnings) or posterior.diagnostics.n_unresolved > 0
    width = np.median((high - low) / (2.0 * NORMAL * error))
    off = np.median(np.abs(0.5 * (low + high) - estimate) / error)
    return float(inside.mean()), float(inside[-1]), float(width), float(off), float(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--target", choices=("population", "model"), default="population")
    parser.add_argument("--family", nargs="*", choices=tuple(EVENTS), default=tuple(EVENTS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    pooled: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for family in arguments.family:
        cells = itertools.product(EVENTS[family], SIZES, EPSILONS)
        for index, (events, size, epsilon) in enumerate(cells):
            found = np.array(
                [one_run(family, events, size, epsilon, arguments.target, seed) for seed in range(arguments.runs)]
            )
            covered, alone, _, _, said = found.mean(axis=0)
            stderr = found[:, 0].std(ddof=1) / math.sqrt(arguments.runs)
            width, off = np.median(found[:, 2:4], axis=0)
            print(
                f"{family:8s} events {events:<5g} N {size:5d} eps {epsilon:3g}: {covered:.3f} +- {stderr:.3f}, "
                f"intercept {alone:.2f}; width {width:.2f}; off {off:.2f}; said {said:.2f}",
                flush=True,
            )
            known = "told" if min(events, 1.0) * size * epsilon > HIDDEN * 2.0 * math.sqrt(2.0 * 14.0) else "hidden"
            half = "unseen" if index % 2 else "seen"
            pooled.setdefault((known, half), []).append((covered, width, said))
    for (known, half), rows in sorted(pooled.items()):
        values = np.array(rows)
        print(
            f"events {known} by the noise, {half}: {len(rows)} cells, covered {values[:, 0].mean():.3f} (least "
            f"{values[:, 0].min():.3f}), median width {np.median(values[:, 1]):.2f}, said in {values[:, 2].mean():.2f}"
        )


if __name__ == "__main__":
    main()
