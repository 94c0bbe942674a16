"""The published coverage tables and figures (Tables 1 and 2, Figures 2 and 3).

Every method on the same simulated runs: truth from the prior, 5000 records, 10^4 private steps, posterior.  Next to
each published RMSE stands the one measured here, with the Monte Carlo floor (0.017 at the published K = 500), the
p-value of uniformity, the largest mean z-score, coverage and width of 90% intervals over those without privacy, and the
time.

    python bench/coverage/coverage_tables.py [--runs 500] [--tables 1 2] [--out bench/results/coverage]

Runs are kept in the output folder: an interrupted table goes on where it stopped, and a longer one adds runs.
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import dpinfer as dpi

ROOT = Path(__file__).parents[2]
CONJUGATE = (("gamma-exponential", 0.1), ("beta-bernoulli", 0.1), ("dirichlet-categorical", 0.1))
REGRESSION = (("linear-regression", 0.1), ("linear-regression", 0.3), ("linear-regression", 1.0))
TABLES = {"Table 1, Figure 2": CONJUGATE, "Table 2, Figure 3": REGRESSION}
FIGURES = {"Table 1, Figure 2": "figure-2", "Table 2, Figure 3": "figure-3"}


@dataclass(frozen=True)
class Row:
    """One method: what is passed to the study, where it applies, and what was published for it."""

    label: str
    method: str
    recipe: str | None
    published: dict[tuple[str, float], str] = field(default_factory=dict)
    only: tuple[tuple[str, float], ...] = CONJUGATE + REGRESSION
    settings: dict[str, object] = field(default_factory=dict)


def published(*values, panels=CONJUGATE + REGRESSION):
    return dict(zip(panels, values, strict=True))


ROWS = (
    Row(
        "NA-DPVI, paper (exact)",
        "exact",
        "paper",
        published("0.023±0.008", "0.016±0.006", "0.020±0.004", "0.036±0.011", "0.035±0.011", "0.027±0.009"),
    ),
    Row("ours (default)", "exact", None),
    Row("ours, 10^4 steps", "exact", None, settings={"n_steps": 10_000}),
    Row(
        "NA-DPVI, paper (Laplace)",
        "laplace",
        "paper",
        published("0.078±0.011", "0.098±0.006", "0.060±0.007", panels=REGRESSION),
    ),
    Row(
        "naive (last iterate)",
        "naive",
        "paper",
        published("0.232±0.003", "0.273±0.007", "0.355±0.009", "0.512±0.003", "0.307±0.003", "0.360±0.003"),
    ),
    Row("DPVIm", "dpvim", None, published("0.038±0.005", "0.044±0.004", "0.251±0.011", "0.584", "0.584", "0.584")),
    Row(
        "Bernstein-Sheldon",
        "bernstein-sheldon",
        None,
        published("0.034±0.011", "0.018±0.006", "0.017±0.007", panels=CONJUGATE),
        only=CONJUGATE,
    ),
    Row(
        "Gibbs-SS-Noisy",
        "gibbs-ss-noisy",
        None,
        published("0.301±0.001", "0.299±0.001", "0.323±0.003", panels=REGRESSION),
        only=REGRESSION,
    ),
)


def measure(panel, row, arguments):
    """Return the result of one method with its time, or the reason why there is none."""
    study, epsilon = panel
    name = f"{study}-{epsilon:g}-" + "".join(c if c.isalnum() else "-" for c in row.label)
    folder = arguments.out / "runs" / name
    resumed = folder.exists()
    start = time.perf_counter()
    try:
        result = dpi.coverage_study(
            study, method=row.method, recipe=row.recipe, epsilon=epsilon, n_runs=arguments.runs, n_repeats=20,
            seed=arguments.seed, n_threads=arguments.threads, checkpoint=folder, progress=True, **row.settings,
        )  # fmt: skip
    except ValueError as error:
        # Such as a method that the study does not offer.
        return f"not run: {error}", ""
    result.save(arguments.out / f"{name}.npz")
    seconds = time.perf_counter() - start
    print(f"  {study}, epsilon {epsilon:g}, {row.label}: {seconds:.1f} s", flush=True)
    return result, "resumed" if resumed else f"{seconds:.1f} s"


def print_table(title, panels, results, times):
    """Print one line per panel and method."""
    print(f"\n{title}: coverage RMSE")
    print(
        f"  {'study':<22} {'eps':>4} {'method':<25} {'published':>13} {'here':>13} {'floor':>9} {'excess':>8}"
        f" {'KS p':>8} {'worst alone':>12} {'|mean z|/se':>12} {'90% cov.':>13} {'rel. width':>16}"
        f" {'failed':>7} {'time':>8}"
    )
    for panel in panels:
        for row in ROWS:
            result = results.get((panel, row.label))
            if result is None:
                continue
            head = f"  {panel[0]:<22} {panel[1]:>4g} {row.label:<25} {row.published.get(panel, '-'):>13}"
            if isinstance(result, str):
                print(f"{head} {result}")
                continue
            tarp, sbc = result.tarp, result.sbc
            width = np.median(result.relative_width, axis=0)
            cover = result.coverage90
            widths = "-" if not np.isfinite(width).all() else f"{width.min():.2f} to {width.max():.2f}"
            print(
                f"{head} {tarp.rmse:.3f} ± {tarp.rmse_stddev:.3f}"
                + f" {tarp.rmse_floor:>9.3f} {tarp.excess_rmse:>+8.3f} {tarp.ks_pvalue:>8.2g}"
                + f" {tarp.marginal_rmse.max():>12.3f} {np.max(np.abs(sbc.mean_z) / sbc.mean_z_stderr):>12.1f}"
                + f" {f'{cover.min():.2f} to {cover.max():.2f}':>13} {widths:>16} {result.n_failed:>7}"
                + f" {times[panel, row.label]:>8}"
            )


def draw(title, panels, results, path):
    """Coverage in the first row, its error in the second, a column for each panel: mean and sd over the repeats."""
    figure, axes = plt.subplots(2, len(panels), figsize=(4.2 * len(panels), 7.2), layout="constrained", squeeze=False)
    for column, panel in enumerate(panels):
        upper, lower = axes[:, column]
        upper.plot([0, 1], [0, 1], color="0.2", linewidth=0.8)
        lower.axhline(0.0, color="0.2", linewidth=0.8)
        for index, row in enumerate(ROWS):
            result = results.get((panel, row.label))
            if result is None or isinstance(result, str):
                continue
            tarp = result.tarp
            spread = tarp.coverage_by_repeat.std(axis=0, ddof=1)
            style = {"color": f"C{index}", "errorevery": (index, 10), "linewidth": 1.2, "elinewidth": 0.8}
            label = f"{row.label}: {tarp.rmse:.3f}"
            upper.errorbar(tarp.levels, tarp.coverage, yerr=spread, label=label, **style)
            lower.errorbar(tarp.levels, tarp.coverage - tarp.levels, yerr=spread, **style)
            if index == 0:
                lower.fill_between(
                    tarp.levels, tarp.band[0] - tarp.levels, tarp.band[1] - tarp.levels, color="0.85", zorder=0
                )
        upper.set_title(f"{panel[0]}, epsilon {panel[1]:g}")
        upper.legend(frameon=False, fontsize=7)
        lower.set_xlabel("credibility level")
    axes[0, 0].set_ylabel("coverage")
    axes[1, 0].set_ylabel("coverage minus level")
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tables", nargs="+", choices=("1", "2"), default=["1", "2"], help="default: both")
    parser.add_argument("--methods", nargs="+", help="labels of the rows to run (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "coverage")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = ROWS
    if arguments.methods:
        unknown = set(arguments.methods) - {row.label for row in ROWS}
        if unknown:
            parser.error(f"--methods must be of {[row.label for row in ROWS]}, got {sorted(unknown)}")
        rows = [row for row in rows if row.label in arguments.methods]
    results, times = {}, {}
    tables = {title: panels for title, panels in TABLES.items() if title.split()[1].rstrip(",") in arguments.tables}
    for title, panels in tables.items():
        for panel in panels:
            for row in rows:
                if panel in row.only:
                    results[panel, row.label], times[panel, row.label] = measure(panel, row, arguments)
        draw(title, panels, results, arguments.out / f"{FIGURES[title]}.png")
    for title, panels in tables.items():
        print_table(title, panels, results, times)
    print(f"\n{arguments.runs} runs for each; published: 500 runs, mean ± sd over 20 sets of reference points.")
    plain = [
        {"label": label, "result": result if isinstance(result, str) else result.to_dict()}
        for (_, label), result in results.items()
    ]
    (arguments.out / "tables.json").write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
