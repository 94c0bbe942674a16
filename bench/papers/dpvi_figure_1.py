"""Figure 1: the linear model of the perturbed gradients, Gamma–Exponential at epsilon = 0.1."""

from pathlib import Path

import numpy as np
from bench.papers._frame import Table

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

PAPER = "NA-DPVI"
PICTURE = "images/papers-figure-1.png"
RECORDS, STEPS, RATE, DELTA, EPSILON = 5000, 10_000, 0.1, 1e-5, 0.1


def measure(work):
    """Run the mechanism once with the published recipe, fit its trace, and draw it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    truth = 1.2
    records = np.random.default_rng(1).exponential(1.0 / truth, RECORDS)
    plan = dpi.plan_privacy(target_epsilon=EPSILON, target_delta=DELTA, sample_rate=RATE, n_steps=STEPS)
    release = dpi.run_dpvi(
        dpi.models.GammaExponential(), records[:, None], plan=plan, n_records=RECORDS, recipe="paper",
        max_grad_norm=2.0, n_threads=work.threads, random_source=InsecureRNG(1),
    )  # fmt: skip
    options = {"prior": "empirical", "burn_in": 0.2, "extra_noise": False, "hessian": "diagonal", "fallback": False}
    rows = []
    for label, approximation in (("NA-DPVI, exact", "exact"), ("NA-DPVI, Laplace", "laplace")):
        posterior = dpi.noise_aware_posterior(release, approximation=approximation, **options)
        cells = [
            f"{mean:.4g} ± {stddev:.2g}"
            for mean, stddev in (
                (posterior.optimum_mean[0], posterior.optimum_stddev[0]),
                (posterior.hessian_mean[0], posterior.hessian_stddev[0]),
                (posterior.mean[0], posterior.stddev[0]),
            )
        ]
        rows.append((label, cells))
        if approximation == "exact":
            axes = dpi.plots.gradient_fit(release, posterior, parameter=release.gradient_names[0])
            axes.figure.set_size_inches(6.0, 3.6)
            axes.figure.savefig(Path(__file__).parents[2] / "docs" / PICTURE, dpi=80)
            plt.close(axes.figure)
    remarks = [
        f"One run with rate {truth} of {RECORDS} records; posterior means ± posterior standard deviations. The paper "
        "gives no numbers."
    ]
    return Table(["optimum of loc", "Hessian", "rate"], rows, remarks, [PICTURE])
