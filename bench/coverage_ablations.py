"""What each part of the default recipe contributes: one change at a time, with coverage first and width second.

    python bench/coverage_ablations.py [--runs 1000] [--regression-runs 400] [--panels gamma-exponential:0.1 ...]

Each line: the change, joint RMSE and its excess over the Monte Carlo floor, the worst marginal excess, the largest mean
z-score over the coordinates (with its Monte Carlo error), the standard deviation of the z-scores there, and the median
90% width relative to the posterior without privacy (smallest and largest coordinate).
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.lab.studies.study import find_study

ROOT = Path(__file__).parents[1]
PANELS = (
    ("gamma-exponential", 0.1),
    ("gamma-exponential", 1.0),
    ("linear-regression", 0.1),
    ("linear-regression", 1.0),
)


def changes(study):
    """Return the default, and one change each."""
    norm = find_study(study).default_max_grad_norm()
    return {
        "default": {},
        "no corrections": {"correct": False},
        "no corrections, 2 C": {"correct": False, "max_grad_norm": 2.0 * norm},
        "C / 1.5": {"max_grad_norm": norm / 1.5},
        "1.5 C": {"max_grad_norm": 1.5 * norm},
        "raw ratio 0.1": {"raw_ratio": 0.1},
        "raw ratio 0.5": {"raw_ratio": 0.5},
        "tolerance 1": {"tolerance": 1.0},
        "tolerance 0.05": {"tolerance": 0.05},
        "burn-in 0.2": {"burn_in": 0.2},
        "burn-in 0.5": {"burn_in": 0.5},
        "noise known": {"extra_noise": False},
        "10000 steps": {"n_steps": 10_000},
        "constant scaling (plain)": {"recipe": "plain"},
        "constant scaling, empirical prior": {"recipe": "plain", "prior": "empirical"},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--regression-runs", type=int, default=400)
    parser.add_argument("--panels", nargs="+", default=[f"{study}:{epsilon:g}" for study, epsilon in PANELS])
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "ablations")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for study, epsilon in PANELS:
        if f"{study}:{epsilon:g}" not in arguments.panels:
            continue
        runs = arguments.regression_runs if study == "linear-regression" else arguments.runs
        print(f"\n{study}, epsilon {epsilon:g}, {runs} runs (error of a mean z: {1 / math.sqrt(runs):.3f})")
        print(f"  {'change':<34} {'RMSE':>7} {'excess':>8} {'marginal':>9} {'mean z':>7} {'sd z':>6} {'width':>13}")
        for label, settings in changes(study).items():
            if study == "linear-regression" and label.startswith(("10000", "constant")):
                continue  # minutes each; the tables have them
            try:
                result = dpi.coverage_study(
                    study,
                    epsilon=epsilon,
                    n_runs=runs,
                    seed=3,
                    checkpoint=arguments.out
                    / "runs"
                    / f"{study}-{epsilon:g}-{label.replace(' ', '-').replace('/', 'by')}",
                    **settings,
                )
            except ValueError as error:  # a change may let a run diverge, which is what there is to say of it
                print(f"  {label:<34} {error}", flush=True)
                continue
            tarp, sbc = result.tarp, result.sbc
            worst = int(np.argmax(np.abs(sbc.mean_z)))
            width = np.nanmedian(result.relative_width, axis=0)
            rows.append({"study": study, "epsilon": epsilon, "change": label, "runs": runs} | result.to_dict())
            print(
                f"  {label:<34} {tarp.rmse:7.4f} {tarp.excess_rmse:+8.4f}"
                f" {np.max(tarp.marginal_rmse) - tarp.rmse_floor:+9.4f} {sbc.mean_z[worst]:+7.3f}"
                f" {sbc.sd_z[worst]:6.3f} {width.min():6.2f} {width.max():6.2f}",
                flush=True,
            )
            (arguments.out / "ablations.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
