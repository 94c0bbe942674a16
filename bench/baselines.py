"""Coverage of the Bernstein-Sheldon baselines at the published settings, next to the published numbers.

N = 5000 records.  Conjugate models at epsilon = 0.1 (500 + 1000 Gibbs iterations); linear regression with 10 features
at epsilon = 0.1, 0.3, 1 (2000 + 5000 iterations), in four variants:

- honest: noisy moments, half of epsilon each;
- public moments: the covariates' law N(0, I) is public, all of epsilon on S;
- as coded: two of the steps of the authors' public code that are not private, its scale (a sensitivity of
  66 (sum of ranges)^2 + ...) and exact fourth moments that are sums where means are due;
- sums throughout: with the second moments from the same array too, as that code has it, so that all moments are sums
  (their expectations here), and the covariance is what is positive semidefinite of N E4 - N^2 E2 E2.

Printed: RMSE of the coverage curve over 20 draws of the reference points (centre +- 4 posterior standard deviations,
unconstrained space) with its deviation over them, in brackets that over the runs (bootstrap) and the floor
sqrt(1 / (6 K)), the mean over runs (with its error) of the 90% width relative to the non-private posterior, and the
share of true parameters inside their 90% interval.

    python bench/baselines.py [--runs 500] [--regression-runs 100] [--threads 2]
"""

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy import stats

from dpinfer.lab.baselines import (
    BinomialFamily,
    CategoricalFamily,
    ExponentialFamily,
    RegressionPrior,
    gaussian_moments,
    gibbs_posterior,
    gibbs_ss_noisy,
    release_regression_statistics,
    release_statistics,
)
from dpinfer.lab.baselines.gibbs.regression_indices import moment_indices, statistic_indices
from dpinfer.testing import InsecureRNG
from published_rows import summary

N, EPSILON = 5000, 0.1
PUBLISHED = {
    "Gamma-Exponential": "0.034 +- 0.011",
    "Beta-Bernoulli": "0.018 +- 0.006",
    "Dirichlet-Categorical": "0.017 +- 0.007",
    0.1: "0.301 +- 0.001",
    0.3: "0.299 +- 0.001",
    1.0: "0.323 +- 0.003",
}
SECTION = (0.0, 2.0)
FEATURE_BOUND, RESPONSE_BOUND, FEATURES = 3.0, 4.0, 10


def coverage_rmse(samples, thetas, rng, repeats=20):
    """RMSE of the coverage curve, its standard deviations over repeats and over runs; (S, K, n), (K, n)."""
    centre, spread = samples.mean(axis=0), samples.std(axis=0)
    shares = np.empty((repeats, centre.shape[0]))
    for row in range(repeats):
        reference = centre + 4.0 * spread * rng.uniform(-1.0, 1.0, centre.shape)
        nearer = np.sum((samples - reference) ** 2, axis=-1) < np.sum((thetas - reference) ** 2, axis=-1)
        shares[row] = nearer.mean(axis=0)
    return summary([shares])


def report(name, published, samples, thetas, widths, rng, seconds, unconstrain=lambda value: value):
    mapped, truth = unconstrain(samples), unconstrain(thetas)
    mean, sd, error = coverage_rmse(mapped, truth, rng)
    low, high = np.quantile(samples, [0.05, 0.95], axis=0)
    inside = np.mean((thetas >= low) & (thetas <= high))
    relative = (high - low) / widths
    groups = (relative,) if relative.shape[1] < 4 else (relative[:, :-1], relative[:, -1:])
    means = [group.mean(axis=1) for group in groups]
    parts = ", variance x".join(f"{m.mean():.2f} +- {m.std(ddof=1) / np.sqrt(m.size):.2f}" for m in means)
    floor = np.sqrt(1.0 / (6.0 * truth.shape[0]))
    print(
        f"{name:34s} published {published:15s} here {mean:.3f} +- {sd:.3f} ({error:.3f}; floor {floor:.3f})"
        f"  width x{parts}  inside {inside:.2f}  {seconds:.0f} s",
        flush=True,
    )


def softplus_inverse(value):
    return value + np.log(-np.expm1(-value))


def log_ratios(value):
    return np.log(value[..., :2] / value[..., 2:])


def conjugate_rows(runs, rng):
    source = InsecureRNG(11)
    theta = rng.gamma(8.0, 0.5, (runs, 1))
    data = rng.exponential(1.0 / theta, (runs, N))
    posterior = stats.gamma(8.0 + N, scale=1.0 / (2.0 + data.sum(axis=1)))
    cases = [("Gamma-Exponential", ExponentialFamily(SECTION), theta, data, posterior, softplus_inverse)]
    theta = rng.beta(10.0, 10.0, (runs, 1))
    data = (rng.random((runs, N)) < theta).astype(np.int64)
    count = data.sum(axis=1)
    posterior = stats.beta(10.0 + count, 10.0 + N - count)
    cases.append(("Beta-Bernoulli", BinomialFamily(), theta, data, posterior, lambda t: np.log(t / (1.0 - t))))
    theta = rng.dirichlet((5.0, 5.0, 5.0), runs)
    data = np.sum(rng.random((runs, N, 1)) > np.cumsum(theta, axis=1)[:, None, :2], axis=2)
    count = np.stack([np.sum(data == category, axis=1) for category in range(3)], axis=1)
    posterior = stats.beta(5.0 + count, 10.0 + N - count)
    cases.append(
        (
            "Dirichlet-Categorical",
            CategoricalFamily(),
            theta,
            data,
            posterior,
            lambda t: np.log(t[..., :2] / t[..., 2:]),
        )
    )
    for name, family, truth, records, exact, unconstrain in cases:
        start = time.perf_counter()
        releases = [
            release_statistics(family, row, epsilon=EPSILON, n_records=N, random_source=source) for row in records
        ]
        noisy = np.array([release.noisy_statistics for release in releases])
        draws = gibbs_posterior(family, noisy, laplace_scale=releases[0].laplace_scale, n_records=N, seed=1)
        widths = exact.ppf(0.95) - exact.ppf(0.05)
        widths = widths if widths.ndim == 2 else widths[:, None]
        report(name, PUBLISHED[name], draws, truth, widths, rng, time.perf_counter() - start, unconstrain)


def regression_data(rng):
    variance = 0.5 / rng.standard_gamma(20.0)
    weights = 2.0 * np.sqrt(variance) * rng.standard_normal(FEATURES + 1)
    X = rng.standard_normal((N, FEATURES))
    y = X @ weights[:-1] + weights[-1] + np.sqrt(variance) * rng.standard_normal(N)
    return np.append(weights, variance), X, y


def nonprivate_widths(X, y):
    design = np.column_stack((X, np.ones(N)))
    precision = design.T @ design + 0.25 * np.eye(FEATURES + 1)
    mean = np.linalg.solve(precision, design.T @ y)
    shape, rate = 20.0 + N / 2.0, 0.5 + 0.5 * (y @ y - mean @ precision @ mean)
    scale = np.sqrt(rate / shape * np.diag(np.linalg.inv(precision)))
    weights = 2.0 * scale * stats.t.ppf(0.95, 2.0 * shape)
    exact = stats.invgamma(shape, scale=rate)
    return np.append(weights, exact.ppf(0.95) - exact.ppf(0.05))


def coded_statistics(X, y, epsilon, width, rng):
    """Return the noisy S and moments, with the scale, that the authors' code would use (not private)."""
    ranges = np.ptp(X, axis=0).sum()
    response = np.ptp(y)
    p = FEATURES + 1
    total = p * (p + 1) / 2 * ranges**2 + p * ranges + p * ranges * response + response**2
    columns = np.column_stack((X, np.ones(N), y)).T
    exact = np.array([np.prod(columns[list(index)], axis=0).sum() for index in statistic_indices(FEATURES)])
    fourth = np.array([np.prod(columns[list(index)], axis=0).sum() for index in moment_indices(FEATURES)])
    scale = total / (0.5 * epsilon)
    return np.concatenate((exact + rng.laplace(0.0, scale, exact.size), N * fourth)), np.full(width, scale)


VARIANTS = ("honest", "public moments", "as coded", "sums throughout")


def sums_for_means(second, covariance):
    """Return second moments and covariance of x x' with sums over the records in place of means."""
    i, j = np.array([pair for pair in statistic_indices(FEATURES) if pair[1] <= FEATURES]).T
    entries = second[i, j]
    scaled = N * second
    scaled[-1, -1] = 1.0  # the sampler knows the number of records
    return scaled, N * covariance + (N - N**2) * np.outer(entries, entries)


def regression_rows(runs, rng, threads, chain, epsilons, variants):
    source = InsecureRNG(12)
    truth, widths, data = [], [], []
    for _ in range(runs):
        theta, X, y = regression_data(rng)
        truth.append(theta)
        widths.append(nonprivate_widths(X, y))
        data.append((X, y))
    truth, widths = np.array(truth), np.array(widths)
    public = gaussian_moments(np.eye(FEATURES))
    for epsilon in epsilons:
        moments_of = (None, public, None, sums_for_means(*public))
        for variant, share, moments in zip(VARIANTS, (0.5, 0.0, None, None), moments_of, strict=True):
            if variant not in variants:
                continue
            start = time.perf_counter()
            if share is None:
                coded = [coded_statistics(X, y, epsilon, 77 + 935, rng) for X, y in data]
                noisy, scale = np.array([item[0] for item in coded]), np.mean([item[1] for item in coded], axis=0)
            else:
                releases = [
                    release_regression_statistics(
                        X,
                        y,
                        epsilon=epsilon,
                        n_records=N,
                        feature_bound=FEATURE_BOUND,
                        response_bound=RESPONSE_BOUND,
                        moment_share=share,
                        random_source=source,
                    )
                    for X, y in data
                ]
                noisy, scale = np.array([item.noisy_statistics for item in releases]), releases[0].laplace_scale
            draws = gibbs_ss_noisy(
                noisy,
                laplace_scale=scale,
                n_features=FEATURES,
                n_records=N,
                prior=RegressionPrior(),
                feature_moments=moments,
                n_burn_in=chain[0],
                n_samples=chain[1],
                n_threads=threads,
                seed=2,
            )[::5]

            def unconstrain(value):
                return np.concatenate((value[..., :-1], softplus_inverse(value[..., -1:])), axis=-1)

            name = f"regression eps={epsilon:g}, {variant}"
            report(name, PUBLISHED[epsilon], draws, truth, widths, rng, time.perf_counter() - start, unconstrain)


def check_answers():
    """Without noise to speak of, the posterior is the non-private one."""
    rng = np.random.default_rng(3)
    theta, X, y = regression_data(rng)
    release = release_regression_statistics(
        X, y, epsilon=1e5, n_records=N, feature_bound=6.0, response_bound=8.0, random_source=InsecureRNG(1)
    )
    draws = gibbs_ss_noisy(
        release.noisy_statistics,
        laplace_scale=release.laplace_scale,
        n_features=FEATURES,
        n_records=N,
        n_burn_in=200,
        n_samples=1000,
    )
    ratio = np.diff(np.quantile(draws, [0.05, 0.95], axis=0), axis=0)[0] / nonprivate_widths(X, y)
    assert np.all(np.abs(ratio - 1.0) < 0.2), ratio
    assert np.all(np.abs(draws.mean(axis=0) - theta) < 5.0 * draws.std(axis=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="of the conjugate models; 0 leaves them out")
    parser.add_argument("--regression-runs", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chain", type=int, nargs=2, default=(2000, 5000))
    parser.add_argument("--epsilons", type=float, nargs="+", default=(0.1, 0.3, 1.0))
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS, help="of linear regression")
    arguments = parser.parse_args()
    check_answers()
    rng = np.random.default_rng(7)
    if arguments.runs:
        conjugate_rows(arguments.runs, rng)
    regression_rows(
        arguments.regression_runs, rng, arguments.threads, arguments.chain, arguments.epsilons, arguments.variants
    )


if __name__ == "__main__":
    main()
