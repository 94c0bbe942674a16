"""Theory: what clipping and noise do to a Gaussian posterior (appendix A and Theorem 4.1), over N and epsilon.

    python bench/sep_theory.py [--draws 400] [--plot docs/images/sep-divergence.png]

1. Appendix A's divergence between SEP's and clipped SEP's posterior as printed, next to the exact one.
2. Theorem 4.1's bound as printed next to a Monte Carlo expectation of the true divergence of one DP-SEP step, with the
   noise of the paper (sigma 2 C / N, damping 1), for posteriors of d coordinates whose precision grows like N.  Both
   for a diagonal precision and for a rotated one, where Lambda and A commute but E does not: the proof's step needs
   all to commute.
"""

import argparse
import math

import numpy as np

import dpinfer as dpi
from dpinfer.inference.sites.divergence import clipped_divergence, divergence_bound, expected_divergence

DELTA, CLIP, DIMENSION = 1e-5, 1.0, 4


def posterior(n_records, rotated, seed=0):
    """Shared site natural parameters times N, plus a standard normal prior; sites have norm about C."""
    rng = np.random.default_rng(seed)
    scales = np.array([0.2, 0.4, 0.6, 0.9]) * CLIP / 2
    rotation = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0] if rotated else np.eye(DIMENSION)
    precision = rotation @ np.diag(1.0 + n_records * scales) @ rotation.T
    mean = np.array([0.5, -0.3, 0.2, 0.1])
    return precision @ mean, 0.5 * (precision + precision.T)


def noise_multiplier(epsilon):
    """One step on one record: a plain Gaussian mechanism under replacement of a record."""
    plan = dpi.plan_privacy(
        target_epsilon=epsilon, target_delta=DELTA, sampling="permutation", n_records=1000, n_steps=1000
    )
    return plan.noise_multiplier / 2.0  # the plan's unit is C, the paper's 2 C


def appendix_a():
    print("clipped SEP: divergence from SEP, exact and as printed in appendix A")
    for n_records in (1, 10, 100):
        eta, precision = posterior(n_records, True)
        for norm in (1.0, 5.0, 20.0, 1000.0):
            exact, published = clipped_divergence(eta, precision, norm)
            print(f"  N = {n_records:4d}, C = {norm:6.0f}: exact {exact:10.4f}, printed {published:10.4f}")


def theorem(n_draws):
    print("\none step of DP-SEP: E KL(q || p) by Monte Carlo, and Theorem 4.1's bound as printed")
    print(
        "(noise sigma 2 C / N in each natural parameter; floored: shifted where an eigenvalue is below the prior's 1;"
    )
    print("definition 4.2: always shifted, to rho = the least eigenvalue of SEP's precision)")
    print("           epsilon      N   floored              definition 4.2           bound  claimed")
    rows = []
    for rotated in (False, True):
        for epsilon in (0.1, 1.0, 10.0):
            sigma = noise_multiplier(epsilon)
            for n_records in (10, 30, 100, 300, 1000, 10_000):
                eta, precision = posterior(n_records, rotated)
                stddev = sigma * 2 * CLIP / n_records
                least = float(np.linalg.eigvalsh(precision)[0])
                result = expected_divergence(
                    eta, precision, stddev, least_eigenvalue=1.0, n_draws=n_draws, seed=n_records
                )
                shifted = expected_divergence(
                    eta, precision, stddev, least_eigenvalue=least, always_shift=True, n_draws=n_draws, seed=n_records
                )
                bound, probability = divergence_bound(
                    eta, precision, stddev, least_eigenvalue=least, spread=4 * math.sqrt(DIMENSION) * stddev
                )
                rows.append((rotated, epsilon, n_records, result.mean, bound))
                holds = "no value" if math.isnan(bound) else "holds" if bound >= shifted.mean else "FAILS"
                print(
                    f"  {'rotated ' if rotated else 'diagonal'} {epsilon:7.1f} {n_records:6d}   {result.mean:9.2e} "
                    f"+- {result.standard_error:.0e}   {shifted.mean:9.2e} +- {shifted.standard_error:.0e}   "
                    f"{bound:9.2e} {probability:8.3f}  {holds}"
                )
    return rows


def plot(rows, path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for epsilon in sorted({row[1] for row in rows}):
        chosen = [row for row in rows if row[0] and row[1] == epsilon]
        n_records, values = [row[2] for row in chosen], [row[3] for row in chosen]
        (line,) = axes.loglog(n_records, values, marker="o", label=f"Monte Carlo, ε = {epsilon:g}")
        axes.loglog(n_records, [row[4] for row in chosen], ls="--", color=line.get_color(), label="bound as printed")
    axes.set_xlabel("records N")
    axes.set_ylabel("KL(SEP || DP-SEP) after one step, nats")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    print(f"\nwrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--plot", default="")
    arguments = parser.parse_args()
    appendix_a()
    rows = theorem(arguments.draws)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
