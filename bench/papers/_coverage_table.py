"""A coverage table of NA-DPVI: published rows, the same methods in two measures, and the library's default."""

from bench.papers._coverage import WINDOWS, floor, intervals, judged, of_study, published_methods, study
from bench.papers._frame import Table

NAMES = {"exact": "NA-DPVI (NUTS)", "laplace": "NA-DPVI (Laplace)", "naive": "naive (last iterate)", "DPVIm": "DPVIm"}
REMARKS = (
    "Errors behind ± are over the runs, whose number follows; the published ones are over sets of reference points of "
    "one set of runs, which leaves the runs' own error out. Floor: the RMSE of an exact posterior with {runs} "
    "runs is {floor:.3f} ± {spread:.3f}.",
    "*Code*: references around the mean iterate, distances between parameters as they are, as the published evaluation "
    "has it. *Own*: around the posterior's mean, distances in its standard deviations. *Intervals*: coverage of 90% "
    "intervals; median width relative to the posterior without privacy; runs without a posterior.",
    "NA-DPVI (NUTS) here is the same posterior by quadrature, which NUTS and emcee sample "
    "(`tests/unit/inference/test_prior_below_zero.py`).",
)


def coverage_table(work, panels, columns, published, baseline, runs, change, remarks=()):
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
        windows = [published_methods(work, panel, tuple(WINDOWS), stage // fewer) for panel in panels]
        other = [published_methods(work, panel, changed, stage // 2, change) for panel in panels]
    found = [main | own for main, own in zip(found, windows, strict=True)]
    for text, settings, count in ((method, {"method": method}, runs // fewer), ("default", {}, runs)):
        own[text] = [of_study(study(work, panel, text, count, **settings)) for panel in panels]
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
    for text, title in ((method, "here, own"), ("default", "**the default of a trace**, own")):
        rows += [(title, [cells[0] for cells in own[text]]), ("intervals", [cells[1] for cells in own[text]])]
    done = min(len(panel["exact"]["own"]) for panel in found)
    mean, spread = floor(done)
    texts = [text.format(runs=done, floor=mean, spread=spread) for text in REMARKS]
    return Table(columns, rows, [*texts, *remarks])
