"""Table 1: coverage RMSE, conjugate models.

Truths from the prior, 5000 records of the model, epsilon = 0.1, delta = 1e-5, 10^4 steps at a sampling rate of 0.1.
"""

from bench.papers._coverage import CONJUGATE, cell, study
from bench.papers._frame import Table

PAPER = "NA-DPVI"
PUBLISHED = {
    "NA-DPVI (NUTS)": ("0.023 ± 0.008", "0.016 ± 0.006", "0.020 ± 0.004"),
    "Bernstein–Sheldon": ("0.034 ± 0.011", "0.018 ± 0.006", "0.017 ± 0.007"),
    "naive (last iterate)": ("0.232 ± 0.003", "0.273 ± 0.007", "0.355 ± 0.009"),
    "DPVIm": ("0.038 ± 0.005", "0.044 ± 0.004", "0.251 ± 0.011"),
}
OURS = {
    "NA-DPVI (NUTS)": {"method": "exact", "recipe": "paper", "extra_noise": False},
    "Bernstein–Sheldon": {"method": "bernstein-sheldon"},
    "naive (last iterate)": {"method": "naive", "recipe": "paper"},
    "DPVIm": {"method": "dpvim"},
}


def measure(work):
    """Run every method on the same simulated runs."""
    runs = work.size(500, 20)
    rows = []
    for label, published in PUBLISHED.items():
        rows.append((f"{label}, published", published))
        found = [study(work, panel, label.split()[0].lower(), runs, **OURS[label]) for panel in CONJUGATE]
        rows.append((f"the same here, {runs} runs", [cell(result) for result in found]))
    found = [study(work, panel, "default", runs) for panel in CONJUGATE]
    rows.append((f"**the default**, {runs} runs", [cell(result) for result in found]))
    floor = found[0].tarp.rmse_floor
    return Table(
        [name.replace("-", " ") for name, _ in CONJUGATE],
        rows,
        [
            "In brackets: coverage of 90% intervals; median width relative to the posterior without privacy. "
            f"The floor, the RMSE of an exact posterior with {runs} runs, is {floor:.3f}.",
            "Published deviations are over sets of reference points for one set of runs; ours, ±, are over the runs.",
        ],
    )
