"""Pictures of coverage tests, drawn with matplotlib (imported when first needed); as in :mod:`dpinfer.plots`.

**Privacy.** Every function draws a result that it is given; none reads records.
"""

from dpinfer.lab.plots.coverage_curves import coverage, ranks
from dpinfer.lab.plots.rank_histograms import rank_histogram, z_scores

__all__ = ["coverage", "rank_histogram", "ranks", "z_scores"]
