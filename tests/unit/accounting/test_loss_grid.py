"""One step on the grid: dominates the exact law, by hardly anything, and catches wrong variants."""


