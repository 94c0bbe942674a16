"""Sums of sites: (DP-)SEP for mixtures, regressions and networks."""
