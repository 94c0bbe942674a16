"""Table 2: coverage RMSE of the 10-dimensional linear regression."""

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


def measure(work):
    """Run every method on the same simulated runs."""
    columns = [f"ε = {epsilon:g}" for _, epsilon in PANELS]
    baseline = ("Gibbs-SS-Noisy", "gibbs-ss-noisy", 10)
    return coverage_table(work, PANELS, columns, PUBLISHED, baseline, work.size(500, 20), SLOW)
