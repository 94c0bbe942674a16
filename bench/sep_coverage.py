"""Coverage of noise-aware SEP against SEP's last and average iterates: probit, logistic regression, the mixture.

Simulated parameters from the prior, records from the model, one private run each; TARP coverage with centred references
(20 repeats), joint and marginal, next to the Monte Carlo floor of its RMSE, and z-scores.  Widths are mean posterior
standard deviations over those of exact SEP.  Where the z-scores are off: for regressions, how far the steps that are
used lie from exact SEP's mean, in its direction; for the mixture, the fifth of the runs with the closest components.

    python bench/sep_coverage.py [--runs 400] [--epsilon 1.0] [--records 2000] [--damping 0.3]
"""

import argparse
import time

import numpy as np
from scipy import special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

METHODS = ("naive", "averaged", "exact")
LABELS = {"naive": "last iterate", "averaged": "average of the last half", "exact": "noise-aware"}
N_STEPS, N_DRAWS = 50, 1000
STUDIES = ("ProbitRegression", "LogisticRegression", "GaussianMixture")


def regression(kind, n_features):
    model = getattr(dpi.models, kind)(n_features)
    link = special.ndtr if kind == "ProbitRegression" else special.expit

    def simulate(n, rng):
        theta = model.sample_prior(1, rng)[0]
        X = rng.normal(size=(n, n_features))
        return theta, X, (rng.random(n) < link(X @ theta)).astype(float), None

    return model, simulate


def mixture():
    model = dpi.models.GaussianMixture(3, 2, covariance=0.25, prior_scale=5.0)

    def simulate(n, rng):
        theta = model.sample_prior(1, rng)[0]
        return theta, model.simulate(theta, n, rng), None, (theta + 0.3 * rng.normal(size=6)).reshape(3, 2)

    return model, simulate


def behind(release, burn_in, exact):
    """How far the mean position of the steps used lies from the exact mean, in its direction; negative: too near 0."""
    mean = exact.loc.ravel()
    return (release.loc[burn_in:-1].mean(axis=0).ravel() - mean) @ mean / np.linalg.norm(mean)


def closest(theta):
    means = theta.reshape(3, 2)
    return min(np.linalg.norm(means[i] - means[j]) for i in range(3) for j in range(i))


def study(name, model, simulate, n, plan, arguments):
    draws = {method: [] for method in METHODS}
    thetas, scores, outward, lags, widths = [], [], [], [], {method: [] for method in METHODS}
    begun, runs = time.perf_counter(), arguments.runs
    damping = "auto" if arguments.damping is None else arguments.damping
    for seed in range(arguments.first_seed, arguments.first_seed + runs):
        rng = np.random.default_rng(10_000 + seed)
        theta, X, y, start = simulate(n, rng)
        release = dpi.run_dp_sep(
            model, X, y, plan=plan, n_records=n, damping=damping, start=start, random_source=InsecureRNG(seed),
            n_threads=1,
        )  # fmt: skip
        exact = dpi.run_sep(model, X, y, start=start, tolerance=1e-4, n_threads=1)
        own = np.sqrt(np.diagonal(exact.cov, axis1=1, axis2=2)).ravel()
        thetas.append(theta)
        for method in METHODS:
            posterior = dpi.noise_aware_posterior(release, method=method)
            draws[method].append(posterior.sample(N_DRAWS, seed=seed))
            widths[method].append(posterior.stddev / own)
            if method == "exact":
                scores.append((theta - posterior.mean) / posterior.stddev)
                outward.append(scores[-1] * np.sign(posterior.mean))
                lags.append(behind(release, posterior.burn_in, exact))
    thetas, scores = np.array(thetas), np.array(scores)
    print(f"\n{name}: N = {n}, {runs} runs, clipping norm {release.max_site_norm:.2f}, {plan.n_steps} steps, ", end="")
    print(f"{(time.perf_counter() - begun) / runs:.2f} s a run")
    for method in METHODS:
        samples = np.ascontiguousarray(np.array(draws[method]).transpose(1, 0, 2))
        result = dpi.lab.coverage.run_tarp(samples, thetas, references="centred", n_repeats=20, seed=0)
        print(
            f"  {LABELS[method]:24s} joint RMSE {result.rmse:.4f} (floor {result.rmse_floor:.4f} +- "
            f"{result.rmse_floor_stddev:.4f}, excess {result.excess_rmse:+.4f}, KS p {result.ks_pvalue:.1g})  "
            f"marginal {np.mean(result.marginal_rmse):.4f}  median width {np.median(widths[method]):.2f}"
        )
    error = 1.0 / np.sqrt(scores.size)
    print(
        f"  noise-aware z-scores: mean {scores.mean():+.3f} +- {error:.3f}, sd {scores.std():.3f} +- {error:.3f}; ",
        end="",
    )
    outward = np.array(outward)
    print(f"in the posterior mean's direction {outward.mean():+.3f} +- {outward.std() * error:.3f}")
    if name == "GaussianMixture":
        near = np.argsort([closest(theta) for theta in thetas])
        fifth = len(near) // 5
        sds = [np.sqrt(np.mean(scores[part] ** 2)) for part in (near[:fifth], near[fifth:])]
        print(f"  root mean square of z: closest fifth {sds[0]:.3f}, the others {sds[1]:.3f}", flush=True)
    else:
        print(
            f"  mean position of the steps used, from exact SEP's mean in its direction: {np.mean(lags):+.3f} +- "
            f"{np.std(lags) / np.sqrt(len(lags)):.3f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--damping", type=float, help="rate r of each step; the default of run_dp_sep if not given")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=STUDIES)
    arguments = parser.parse_args()
    plan = dpi.plan_privacy(target_epsilon=arguments.epsilon, target_delta=1e-5, sample_rate=1.0, n_steps=N_STEPS)
    print(
        f"epsilon = {plan.epsilon:.3f}, delta = 1e-5, noise multiplier {plan.noise_multiplier:.2f}, every record a step"
    )
    for name in arguments.studies:
        model, simulate = mixture() if name == "GaussianMixture" else regression(name, 4)
        study(name, model, simulate, arguments.records, plan, arguments)


if __name__ == "__main__":
    main()
