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
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

import dpinfer as dpi
from real_responses import compared, fitted, means_of

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


def one_run(family: str, events: float, size: int, epsilon: float, target: str, seed: int) -> dict[str, Any]:
    """Return numbers of one run beside those without privacy, and whether the intercept is covered."""
    rng = np.random.default_rng(seed)
    truth = np.append(SLOPES, intercept(family, events))
    X = rng.normal(size=(size, SLOPES.size))
    eta = X @ truth[:-1] + truth[-1]
    y = (rng.random(size) < special.expit(eta)).astype(float) if family == "binomial" else rng.poisson(np.exp(eta))
    y = np.asarray(y, dtype=np.float64)
    own = fitted(family, np.column_stack((X, np.ones(size))), y)
    kind = dpi.models.LogisticRegression if family == "binomial" else dpi.models.PoissonRegression
    model = kind(SLOPES.size, fit_intercept=True, prior_scale=10.0)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=size, target=target)
    _, posterior, told = compared(model, X, y, truth, own, plan, seed)
    low, high = posterior.interval(0.9)[:, -1]
    return told | {"intercept": low <= truth[-1] <= high}


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
            made = [one_run(family, events, size, epsilon, arguments.target, seed) for seed in range(arguments.runs)]
            told, alone = means_of(made), np.mean([run["intercept"] for run in made])
            print(f"{family:8s} events {events:<5g} N {size:5d} eps {epsilon:3g}: {told['covered']:.3f} +- "
                  f"{told['error']:.3f}, intercept {alone:.2f}; width {told['width']:.2f} +- {told['width_error']:.2f};"
                  f" off {told['off']:.2f}; said {told['flagged']:.2f}", flush=True)  # fmt: skip
            known = "told" if min(events, 1.0) * size * epsilon > HIDDEN * 2.0 * math.sqrt(2.0 * 14.0) else "hidden"
            half = "unseen" if index % 2 else "seen"
            pooled.setdefault((known, half), []).append((told["covered"], told["width"], told["flagged"]))
    for (known, half), rows in sorted(pooled.items()):
        values = np.array(rows)
        print(
            f"events {known} by the noise, {half}: {len(rows)} cells, covered {values[:, 0].mean():.3f} (least "
            f"{values[:, 0].min():.3f}), median width {np.median(values[:, 1]):.2f}, said in {values[:, 2].mean():.2f}"
        )


if __name__ == "__main__":
    main()
