"""Theorem 4.1: the divergence of one DP-SEP step from SEP's posterior, over N."""

import math

import numpy as np
from bench.papers._frame import MISSING, Table

import dpinfer as dpi
from dpinfer.lab.comparison import divergence_bound, expected_divergence

PAPER = "DP-SEP"
DELTA, CLIP, D, RECORDS = 1e-5, 1.0, 4, (100, 300, 1000, 3000, 10_000)
SCALES = np.array([0.2, 0.4, 0.6, 0.9]) * CLIP / 2.0  # of the sites' precisions, whose norms are about C


def posterior(n_records):
    """Return natural parameters of N shared sites and a standard normal prior, in rotated coordinates."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    precision = rotation @ np.diag(1.0 + n_records * SCALES) @ rotation.T
    return precision @ np.array([0.5, -0.3, 0.2, 0.1]), 0.5 * (precision + precision.T)


def noise(epsilon, n_records, published):
    """Return the noise in each natural parameter: sigma 2 C / N as published, sigma 2 C as the sensitivity demands."""
    plan = dpi.plan_privacy(
        target_epsilon=epsilon, target_delta=DELTA, sampling="permutation", n_records=1000, n_steps=1000
    )
    return 0.5 * plan.noise_multiplier * 2.0 * CLIP / (n_records if published else 1)


def slope(values):
    """Return the least-squares slope of log values over log N, a dash without values."""
    good = np.isfinite(values)
    if np.count_nonzero(good) < 2:
        return MISSING
    return f"{np.polyfit(np.log(np.array(RECORDS)[good]), np.log(np.array(values)[good]), 1)[0]:.2f}"


def measure(work):
    """Tabulate expected divergences by Monte Carlo, and the bound as printed."""
    draws = work.size(2000, 100)
    rows = []
    for epsilon in (0.1, 1.0, 10.0):
        for published in (True, False):
            results, bounds = [], []
            for n_records in RECORDS:
                eta, precision = posterior(n_records)
                stddev = noise(epsilon, n_records, published)
                least = float(np.linalg.eigvalsh(precision)[0])
                options = {"always_shift": True, "n_draws": draws, "seed": n_records}
                results.append(expected_divergence(eta, precision, stddev, least_eigenvalue=least, **options))
                spread = 4.0 * math.sqrt(D) * stddev
                bounds.append(divergence_bound(eta, precision, stddev, least_eigenvalue=least, spread=spread)[0])
            kind = "noise 2σC/N, as published" if published else "noise 2σC"
            cells = [f"{result.mean:.2g} ± {result.standard_error:.1g}" for result in results]
            rows.append((f"ε = {epsilon:g}, {kind}", [*cells, slope([result.mean for result in results])]))
            text = ["no value" if math.isnan(bound) else f"{bound:.2g}" for bound in bounds]
            rows.append(("the bound as printed", [*text, slope(bounds)]))
    remarks = [
        "E KL(q ‖ p) of a posterior of four coordinates whose precision grows like N, after one noisy step, by Monte "
        "Carlo (± its error); least eigenvalue as in definition 4.2. Slope: of log E KL over log N.",
        "`dpinfer.lab.comparison` has `expected_divergence`, `divergence_bound`, `clipped_divergence` and "
        "`gaussian_divergence`.",
    ]
    return Table([*(f"N = {number}" for number in RECORDS), "slope"], rows, remarks)
