"""Table 2 and Figure 3: coverage RMSE of the 10-dimensional linear regression."""

from bench.papers._coverage import SLOW
from bench.papers._coverage_table import coverage_table

PAPER = "NA-DPVI"
PANELS = (("linear-regression", 0.1), ("linear-regression", 0.3), ("linear-regression", 1.0))
PUBLISHED = {
    "NA-DPVI (NUTS)": ("0.036 ± 0.011", "0.035 ± 0.011", "0.027 ± 0.009"),
    "NA-DPVI (Laplace)": ("0.078 ± 0.011", "0.098 ± 0.006", "0.060 ± 0.007"),
    "naive (last iterate)": ("0.512 ± 0.003", "0.307 ± 0.003", "0.360 ± 0.003"),
    "Gibbs-SS-Noisy": ("0.301 ± 0.001", "0.299 ± 0.001", "0.323 ± 0.003"),
    "DPVIm": ("0.584 ± 0.000", "0.584 ± 0.000", "0.584 ± 0.000"),
}
REMARKS = (
    "NA-DPVI and Laplace answer in every run. In the published measure NA-DPVI's rows are reproduced: one distance "
    "decides there, that of the widest parameter. A comment in the published code has a quarter of loc's rate for "
    "higher epsilon, but not for Laplace.",
    "By the coverage of its intervals the published posterior of the noise variance is too narrow: 0.74 to 0.75.",
    "Naive: in the published measure the noise variance decides alone; in ours no region ever holds the truth (0.584).",
    "DPVIm: 0.584 means that no region ever held the truth, at any level. Without the iterates' variance that is so "
    "here; with it no window gives it.",
    "Gibbs-SS-Noisy: the published row has noise and moments that are not private (docs/derivations/baselines.md); "
    "with private ones no region holds the truth.",
    "Each number is near its own floor for the default; the record has it with 500 runs (docs/coverage-record.md).",
)


def measure(work):
    """Run every method on the same simulated runs."""
    columns = [f"ε = {epsilon:g}" for _, epsilon in PANELS]
    baseline = ("Gibbs-SS-Noisy", "gibbs-ss-noisy", 25)
    runs = work.size(500, 20)
    return coverage_table(work, PANELS, columns, PUBLISHED, baseline, runs, SLOW, "papers-table-2.png", REMARKS, 100)
