"""Aligned gradients with natural steps next to the default recipe, on the same truths and records.

    python bench/aligned_natural.py [--runs 1000] [--regression-runs 1000] [--panels gamma-exponential:0.1 ...]
                                    [--excursions 2 1] [--tolerances 0.5] [--seed 101]
    python bench/aligned_natural.py --time

Per panel and row: joint TARP RMSE less its floor, the largest marginal one; of the z-scores the largest mean (and which
coordinate) and the extreme standard deviations; the coverage of 90% intervals, lowest and highest; the median relative
width, smallest and largest; and the mean over runs and coordinates of log(width / the default's width in the same run),
with its Monte Carlo error.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.lab.studies.study import find_study
from dpinfer.mechanism import FisherScaling
from dpinfer.models import default_max_grad_norm
from dpinfer.testing import InsecureRNG

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


def print_times(repeats=5, n_steps=300):
    """Time one private run of each design on the same records, alternating: medians and the median of the ratios."""
    rng = np.random.default_rng(0)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=n_steps)
    for name, model in (
        ("Gamma-Exponential", dpi.models.GammaExponential()),
        ("linear regression, 11 weights", dpi.models.LinearRegression(10, fit_intercept=True)),
        ("linear regression, 51 weights", dpi.models.LinearRegression(50, fit_intercept=True)),
    ):
        truth = model.sample_prior(1, rng)[0]
        if isinstance(model, dpi.models.LinearRegression):
            features = model.simulate_features(5000, rng)
            records = (features, model.simulate(truth, features, rng))
        else:
            records = (model.simulate(truth, 5000, rng),)
        times = {"reparameterised": [], "aligned": []}
        for repeat in range(repeats + 1):
            for gradient, seconds in times.items():
                begin = time.perf_counter()
                release = dpi.run_dpvi(
                    model,
                    *records,
                    plan=plan,
                    n_records=5000,
                    recipe="tied",
                    max_grad_norm=5.0,
                    gradient=gradient,
                    n_threads=1,
                    random_source=InsecureRNG(repeat),
                )
                assert release.noisy_gradients.shape[1] == model.n_params * (1 if gradient == "aligned" else 2)
                seconds.append((time.perf_counter() - begin) / n_steps * 1e6)
        both, one = (np.array(seconds[1:]) for seconds in times.values())  # the first fills caches
        print(
            f"  {name:<30} a step: reparameterised {np.median(both):6.1f} us, aligned {np.median(one):6.1f} us,"
            f" ratio {np.median(both / one):.2f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--regression-runs", type=int, default=1000)
    parser.add_argument("--panels", nargs="+", default=[f"{study}:{epsilon:g}" for study, epsilon in PANELS])
    parser.add_argument("--excursions", nargs="+", type=float, default=[2.0, 1.0])
    parser.add_argument("--tolerances", nargs="*", type=float, default=[])
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "aligned")
    parser.add_argument("--time", action="store_true", help="time a private run instead")
    arguments = parser.parse_args()
    if arguments.time:
        print_times()
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = []
    for panel in arguments.panels:
        study, epsilon = panel.rsplit(":", 1)
        runs = arguments.regression_runs if study == "linear-regression" else arguments.runs
        errors = f"{1 / math.sqrt(runs):.3f}, {math.sqrt(0.5 / runs):.3f}, {0.3 / math.sqrt(runs):.3f}"
        print(f"\n{study}, epsilon {epsilon}, {runs} runs; errors of mean z, sd z, coverage of a coordinate: {errors}")
        model = find_study(study).model
        norms = [default_max_grad_norm(model, ratio) for ratio in (FisherScaling.raw_ratio, 0.0)]
        print(f"  clipping norms: default {norms[0]:.3f}, aligned {norms[1]:.3f}")
        print(f"  {'':<30} {'joint':>8} {'marginal':>8} {'mean z':>12} {'sd z':>13} {'covered':>12} {'width':>14}")
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
