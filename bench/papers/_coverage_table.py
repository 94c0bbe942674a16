"""A coverage table of NA-DPVI: published rows, the same methods in two measures, and the library's default."""

from pathlib import Path

import numpy as np
from bench.papers._coverage import CHUNK, LEVELS, WINDOWS, floor, intervals, judged, of_study, published_methods, study
from bench.papers._frame import Table

ROOT = Path(__file__).parents[2]
COLORS = ("tab:blue", "tab:cyan", "tab:green", "tab:red", "tab:purple", "black")

NAMES = {"exact": "NA-DPVI (NUTS)", "laplace": "NA-DPVI (Laplace)", "naive": "naive (last iterate)", "DPVIm": "DPVIm"}
REMARKS = (
    "Errors behind ± are over the runs, whose number follows; the published ones are over sets of reference points of "
    "one set of runs, which leaves the runs' own error out. Floor, the RMSE of an exact posterior: {floors}.",
    "*Code*: references around the mean iterate, distances between parameters as they are, as the published evaluation "
    "has it. *Own*: around the posterior's mean, distances in its standard deviations. *Intervals*: coverage of 90% "
    "intervals; median width relative to the posterior without privacy; runs without a posterior.",
    "NA-DPVI (NUTS) here is the same posterior by quadrature, which NUTS and emcee sample "
    "(`tests/unit/inference/test_prior_below_zero.py`).",
)


def draw(path, columns, found, methods, own):
    """Draw coverage less its level, in the published measure and in ours: mean and spread over sets of references."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(columns), figsize=(11.0, 6.4), layout="constrained", sharex=True, sharey=True)
    for index, title in enumerate(columns):
        for row, measure in enumerate(("code", "own")):
            axis = axes[row, index]
            axis.axhline(0.0, color="0.4", linewidth=0.8)
            curves = {NAMES[name]: found[index][name][measure] for name in methods}
            if measure == "own":
                curves |= {label: results[index].tarp.shares.T for label, results in own.items()}
            for label, shares in curves.items():
                error = np.mean(np.asarray(shares)[..., None] < LEVELS, axis=0) - LEVELS
                color = COLORS[[*NAMES.values(), *own].index(label)]
                options = {"color": color, "linewidth": 1.1, "elinewidth": 0.7, "label": label}
                axis.errorbar(LEVELS, error.mean(axis=0), error.std(axis=0), **options)
        axes[0, index].set_title(f"{title}\npublished measure")
        axes[1, index].set_title("own measure")
        axes[1, index].set_xlabel("credibility level")
    for axis in axes[:, 0]:
        axis.set_ylabel("coverage less level")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, dpi=80)
    plt.close(figure)


def coverage_table(work, panels, columns, published, baseline, runs, change, picture, remarks, default_runs=500):
    """Return the table; `change` is one of the published settings.

    `baseline` is (label, method of the study, how many times fewer runs it and DPVIm have).
    """
    methods = tuple(method for method, label in NAMES.items() if label in published)
    changed = tuple(method for method in methods if method != "DPVIm")
    own = {}
    label, method, fewer = baseline
    # In stages, so that a run that ends early has about as many runs of each panel.
    for stage in (*range(50, runs, 50), runs):
        found = [published_methods(work, panel, changed, stage) for panel in panels]
        windows = [published_methods(work, panel, tuple(WINDOWS), max(stage // fewer, CHUNK)) for panel in panels]
        other = [published_methods(work, panel, changed, max(stage // 2, CHUNK), change) for panel in panels]
    found = [main | own for main, own in zip(found, windows, strict=True)]
    for text, title, settings, count in (
        (method, label, {"method": method}, max(runs // fewer, CHUNK)),
        ("default", "default of a trace", {}, min(runs, default_runs)),
    ):
        own[title] = [study(work, panel, text, count, **settings) for panel in panels]
    draw(ROOT / "docs" / "images" / picture, columns, found, methods, own)
    rows = []
    for name in methods:
        rows.append((f"{NAMES[name]}, published", published[NAMES[name]]))
        rows += [(f"here, {measure}", [judged(panel[name], measure) for panel in found]) for measure in ("code", "own")]
        rows.append(("intervals", [intervals(panel[name]) for panel in found]))
        if name in changed:
            rows.append((f"{change}, code", [judged(panel[name], "code") for panel in other]))
            rows.append(("intervals", [intervals(panel[name]) for panel in other]))
        else:
            for text in list(WINDOWS)[1:]:
                rows.append((f"{text}, code", [judged(panel[text], "code") for panel in found]))
    rows.append((f"{label}, published", published[label]))
    for text, title in ((label, "here, own"), ("default of a trace", "**the default of a trace**, own")):
        cells = [of_study(result) for result in own[text]]
        rows += [(title, [cell[0] for cell in cells]), ("intervals", [cell[1] for cell in cells])]
    done = min(len(panel["exact"]["own"]) for panel in found)
    floors = []
    for number in sorted({done, own["default of a trace"][0].n_runs}):
        mean, spread = floor(number)
        floors.append(f"{mean:.3f} ± {spread:.3f} with {number} runs")
    texts = [text.format(floors=", ".join(floors)) for text in REMARKS]
    return Table(columns, rows, [*texts, *remarks], [f"images/{picture}"])
