"""The trace regression: statistics, burn-in, tests, priors, and one coordinate at a time."""
