"""Both private routes of a user's own model on a posterior that is not near normal: coverage and width.

    python bench/coverage/curved.py [--runs 60] [--first 0] [--seed 5] [--epsilon 1 3] [--records 500] [--steps 400]
                           [--route NAME ...] [--kept FILE]

Rare counts with structural zeros: the share of those and the rate are hardly told apart, and the posterior bends.
Parameters are drawn from the prior. "newton" is ``run_newton``, whose normal posterior is widened by the curvature that
is simulated; "newton, simulated" has the shape of simulated scores. "full rank" is the trace of gradients along a q
with a full covariance, with the normal posterior of its linear regression, or the "simulated" one.
A signal to stop prints what there is.  Intervals are 90%; widths are relative to the normal approximation without
privacy, medians; below and above: the shares of truths beyond the 5% and the 95% end; flagged: the shares of posteriors
whose summary says that they are not near normal.  --kept, --first: as in ``bench/coverage/any_model.py``.
"""

import argparse
import contextlib
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.own_models import CURVED

from any_model import LEVELS, NORMAL_HALF_WIDTH, Kept, mode, responses, stopped, told

FloatArray = npt.NDArray[np.float64]

ROUTES = ("newton", "newton, simulated", "full rank", "full rank, simulated")
DELTA = 1e-5


def posteriors(
    model: dpi.models.OwnModel, X: FloatArray, y: FloatArray, epsilon: float, seed: int, steps: int, routes: list[str]
) -> dict[str, dpi.Posterior]:
    """Return the posterior of each of these routes."""
    public: dict[str, Any] = {"target_epsilon": epsilon, "target_delta": DELTA}
    run: dict[str, Any] = {"n_records": len(y), "n_threads": 1}
    found = {}
    asked = {"model": model, "seed": seed}
    if {"newton", "newton, simulated"} & set(routes):
        plan = dpi.plan_newton(model, n_records=len(y), **public)
        release = dpi.run_newton(model, X, y, plan=plan, random_source=InsecureRNG(seed), **run)
        found["newton"] = dpi.noise_aware_posterior(release, seed=seed)
        if "newton, simulated" in routes:
            found["newton, simulated"] = dpi.noise_aware_posterior(release, approximation="simulated", **asked)
    steps_plan = dpi.plan_privacy(sample_rate=1.0, n_steps=steps, **public)
    with warnings.catch_warnings():
        # Where a full Hessian fails, the posterior falls back to a diagonal one, and says so.
        warnings.simplefilter("ignore")
        if any(route.startswith("full rank") for route in routes):
            run |= {"plan": steps_plan, "random_source": InsecureRNG(seed)}
            trace = dpi.run_dpvi(model, X, y, guide="full_rank", **run)
            found["full rank"] = dpi.noise_aware_posterior(trace, **asked)
            found["full rank, simulated"] = dpi.noise_aware_posterior(trace, approximation="simulated", **asked)
    return {route: found[route] for route in routes}


def measured(posterior: dpi.Posterior, truth: FloatArray, normal: FloatArray) -> dict[str, Any]:
    """Return what one posterior's intervals cover and miss, their widths in units of `normal`, and its flag."""
    low, high = posterior.quantile(LEVELS, space="unconstrained")
    return {
        "below": (truth <= low).tolist(),
        "above": (truth >= high).tolist(),
        "ratio": ((high - low) / normal).tolist(),
        "flagged": posterior.diagnostics.curvature_shift is not None,
    }


def line(runs: list[dict[str, Any]]) -> str:
    """Return what the runs of one route at one epsilon have shown, in words."""
    below, above = (np.mean([run[end] for run in runs], axis=1) for end in ("below", "above"))
    width = np.median([run["ratio"] for run in runs])
    return (
        f"runs {len(runs):3d}  covered {told(1.0 - below - above)}  width {width:.2f}  below {told(below)}  "
        f"above {told(above)}  flagged {np.mean([run['flagged'] for run in runs]):.2f}"
    )


def main() -> None:
    """Print a line for each epsilon and route."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--route", choices=ROUTES, nargs="+", default=list(ROUTES))
    parser.add_argument("--kept", type=Path)
    chosen = parser.parse_args()
    example = CURVED["zero-inflated"]()
    model, prior = example.model, example.model.parameters
    tallies = {(epsilon, route): {} for epsilon in chosen.epsilon for route in chosen.route}
    kept = Kept(chosen.kept)
    signal.signal(signal.SIGTERM, stopped)
    with contextlib.suppress(KeyboardInterrupt):
        for index in range(chosen.first, chosen.first + chosen.runs):
            rng = np.random.default_rng([chosen.seed, index])
            truth = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
            X = example.features(chosen.records, rng)
            y = responses(model, truth, X, rng, wrong=False)
            _, root = mode(model, X, y, truth)
            normal = 2.0 * NORMAL_HALF_WIDTH * np.sqrt(np.sum(root**2, axis=1))
            for epsilon in chosen.epsilon:
                keys = {route: [route, chosen.records, chosen.steps, chosen.seed, index, epsilon] for route in ROUTES}
                missing = [route for route in chosen.route if kept.get(keys[route]) is None]
                found = posteriors(model, X, y, epsilon, 1000 * chosen.seed + index, chosen.steps, missing)
                for route, posterior in found.items():
                    kept.add(keys[route], measured(posterior, truth, normal))
                for route in chosen.route:
                    tallies[epsilon, route][index] = kept.get(keys[route])
    for (epsilon, route), runs in sorted(tallies.items()):
        if runs:
            print(f"eps {epsilon:3.1f}  {route:20s} {line(list(runs.values()))}")


if __name__ == "__main__":
    main()
