"""Table 1 and Figure 2: coverage RMSE of conjugate models at epsilon = 0.1."""

from bench.papers._coverage import START
from bench.papers._coverage_table import coverage_table

PAPER = "NA-DPVI"
PANELS = (("gamma-exponential", 0.1), ("beta-bernoulli", 0.1), ("dirichlet-categorical", 0.1))
PUBLISHED = {
    "NA-DPVI (NUTS)": ("0.023 ± 0.008", "0.016 ± 0.006", "0.020 ± 0.004"),
    "Bernstein–Sheldon": ("0.034 ± 0.011", "0.018 ± 0.006", "0.017 ± 0.007"),
    "naive (last iterate)": ("0.232 ± 0.003", "0.273 ± 0.007", "0.355 ± 0.009"),
    "DPVIm": ("0.038 ± 0.005", "0.044 ± 0.004", "0.251 ± 0.011"),
}
REMARKS = (
    "Naive: reproduced in the published measure; in ours, whose references follow the method's own mean, far worse.",
    "NA-DPVI: reproduced in the published measure for Beta–Bernoulli and Dirichlet–Categorical. Gamma–Exponential's "
    "published start lies four units below the prior's mean, and intervals miss the truth; started at the prior's mean "
    "it comes near the published row.",
    "DPVIm: the paper does not say which part of the trace is averaged. Each row passes through its published value "
    "between the last 80% and the last 3%.",
    "Dirichlet–Categorical in our measure: the published posterior covers too little, as its intervals say.",
)


def measure(work):
    """Run every method on the same simulated runs."""
    columns = ["Gamma–Exponential", "Beta–Bernoulli", "Dirichlet–Categorical"]
    baseline = ("Bernstein–Sheldon", "bernstein-sheldon", 1)
    runs = work.size(500, 20)
    return coverage_table(work, PANELS, columns, PUBLISHED, baseline, runs, START, "papers-table-1.png", REMARKS)
