"""Aligned gradients with natural steps next to the default recipe, on the same truths and records.

    python bench/aligned_natural.py [--runs 1000] [--regression-runs 300] [--panels gamma-exponential:0.1 ...]
                                    [--excursions 1 3 10] [--largest-rates 0.1] [--seed 1]

Per panel and row: joint TARP RMSE less its floor, the largest marginal one; of the z-scores the largest mean (and which
coordinate) and the extreme standard deviations; the coverage of 90% intervals, lowest and highest; the median relative
width, smallest and largest; and the mean over runs and coordinates of log(width / the default's width in the same run),
with its Monte Carlo error.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

import dpinfer as dpi

ROOT = Path(__file__).parents[1]
PANELS = (
    *(
        (study, epsilon)
        for study in ("gamma-exponential", "beta-bernoulli", "dirichlet-categorical")
        for epsilon in (0.1, 1.0)
    ),
    ("linear-regression", 0.3),
    ("linear-regression", 1.0),
)


def rows_of(arguments):
    yield "tied (default)", {"recipe": "tied"}
    for excursion in arguments.excursions:
        yield f"aligned, c = {excursion:g}", {"recipe": "aligned", "excursion": excursion}
    for tolerance in arguments.tolerances:
        yield f"tied, tolerance {tolerance:g}", {"recipe": "tied", "tolerance": tolerance}
        for excursion in arguments.excursions:
            settings = {"recipe": "aligned", "excursion": excursion, "tolerance": tolerance}
            yield f"aligned, c = {excursion:g}, tolerance {tolerance:g}", settings


def describe(result, base):
    """Return one line: the criteria, and the width against `base` run by run."""
    tarp, sbc = result.tarp, result.sbc
    floor = tarp.rmse_floor
    worst = int(np.argmax(np.abs(sbc.mean_z)))
    width = np.nanmedian(result.relative_width, axis=0)
    covered = result.coverage90
    both = ~(result.runs.failed | base.runs.failed)
    ratio = np.log(result.runs.width90[both] / base.runs.width90[both]).mean(axis=1)
    error = ratio.std(ddof=1) / math.sqrt(ratio.size)
    return (
        f"{tarp.rmse - floor:+8.4f} {np.max(tarp.marginal_rmse) - floor:+8.4f} {sbc.mean_z[worst]:+7.3f} ({worst:2d})"
        f" {sbc.sd_z.min():6.3f} {sbc.sd_z.max():6.3f}  {covered.min():.3f} {covered.max():.3f}"
        f"  {width.min():6.3f} {width.max():6.3f}  {ratio.mean():+.4f} ± {error:.4f} {result.n_failed:4d}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--regression-runs", type=int, default=300)
    parser.add_argument("--panels", nargs="+", default=[f"{study}:{epsilon:g}" for study, epsilon in PANELS])
    parser.add_argument("--excursions", nargs="+", type=float, default=[1.0, 3.0, 10.0])
    parser.add_argument("--tolerances", nargs="*", type=float, default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "aligned")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = []
    for panel in arguments.panels:
        study, epsilon = panel.rsplit(":", 1)
        runs = arguments.regression_runs if study == "linear-regression" else arguments.runs
        errors = f"mean z ± {1.0 / math.sqrt(runs):.3f}, sd z ± {math.sqrt(0.5 / runs):.3f}, share ± {0.3 / math.sqrt(runs):.3f}"
        print(f"\n{study}, epsilon {epsilon}, {runs} runs: floor {1 / math.sqrt(6 * runs):.4f}, {errors}")
        base = None
        for label, settings in rows_of(arguments):
            name = f"{study}-{epsilon}-{arguments.seed}-{runs}-{label.replace(' ', '-').replace(',', '')}"
            result = dpi.coverage_study(
                study,
                epsilon=float(epsilon),
                n_runs=runs,
                seed=arguments.seed,
                n_threads=1,
                checkpoint=arguments.out / "runs" / name,
                **settings,
            )
            base = result if base is None else base
            print(f"  {label:<30} {describe(result, base)}  [{result.seconds:.0f} s]", flush=True)
            kept.append({"panel": panel, "row": label, "seed": arguments.seed, "runs": runs} | result.to_dict())
        (arguments.out / f"aligned-{arguments.seed}.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
