"""Rows of coverage tables: production runs of a method, its coverage RMSE beside the published one."""

import numpy as np
from bench.papers._frame import MISSING

import dpinfer as dpi

LEVELS = np.concatenate(([0.001], np.arange(1, 20) / 20, [0.999]))  # the published ones
CONJUGATE = (("gamma-exponential", 0.1), ("beta-bernoulli", 0.1), ("dirichlet-categorical", 0.1))
REGRESSION = (("linear-regression", 0.1), ("linear-regression", 0.3), ("linear-regression", 1.0))


def study(work, panel, label, runs, **settings):
    """Return the result of one method on one panel, with its runs kept in the work's folder."""
    name, epsilon = panel
    folder = work.folder / f"{name}-{epsilon:g}-{label}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    work.say(f"{label}, {name}, epsilon {epsilon:g}")
    return dpi.coverage_study(
        name, epsilon=epsilon, n_runs=runs, n_repeats=20, n_threads=work.threads, checkpoint=folder, chunk_size=25,
        **settings,
    )  # fmt: skip


def error_of_runs(shares, levels):
    """Return the standard deviation of the mean RMSE over simulated data sets, by a bootstrap over the runs."""
    below = (shares[..., None] < levels).astype(float)
    runs = below.shape[1]
    rng = np.random.default_rng(3)
    again = []
    for _ in range(200):
        coverage = np.einsum("rkl,k->rl", below, rng.multinomial(runs, np.full(runs, 1.0 / runs)) / runs)
        again.append(np.sqrt(np.mean((coverage - levels) ** 2, axis=1)).mean())
    return float(np.std(again, ddof=1))


def cell(result):
    """Return RMSE with its error over the runs, coverage and width of 90% intervals, and how many runs failed."""
    tarp, cover = result.tarp, result.coverage90
    width = np.median(result.relative_width, axis=0)
    widths = span(width, 2) if np.isfinite(width).all() else MISSING
    failed = f"; {result.n_failed} failed" if result.n_failed else ""
    error = error_of_runs(tarp.shares, tarp.levels)
    return f"{tarp.rmse:.3f} ± {error:.3f} ({span(cover, 2)}; {widths}){failed}"


def span(values, digits):
    """Return the smallest and the largest value, or the one that both round to."""
    low, high = (f"{value:.{digits}f}" for value in (np.min(values), np.max(values)))
    return low if low == high else f"{low} to {high}"
