"""Who is narrowest at equal (epsilon, delta) among intervals that cover: this library's default beside its rivals.

    python bench/peers/league.py [--runs 40] [--epsilons 0.3 1 3] [--problems linear logistic]

The same simulated data for every method: normal features with AR(1) correlation 0.5, held inside a public ball (and
responses inside a public interval), which the rivals need; weights from the prior that the library is told.  Coverage
of 90% intervals is pooled over weights, with its Monte Carlo error over runs; widths are medians, relative to the
posterior without privacy.  A narrow interval is worth nothing where coverage is far below 0.90.  The rivals are written
here, from their papers, in floating point and without secure noise: for comparison only.  Gaussian noise is calibrated
exactly (Balle and Wang 2018) but where the paper's own formula is part of the method.

Linear regression, noise variance unknown:
- "Analyze-Gauss, noise-aware": Dwork et al. (2014), one noisy matrix of (x, y); a normal posterior whose covariance has
  the matrix's noise, as errors in variables.
- "AdaSSP, bootstrap": Wang (2018), its ridge and its split; parametric bootstrap of Ferrando, Wang and Sheldon (2022),
  for which a quarter of the budget releases the responses' squares; "basic": the estimate less the errors' quantiles.
- "Hessian mixing": Lev, Shenfeld, Srinivasan, Ligett and Wilson (2026), as in the authors' code; three quarters of the
  budget, the responses' squares one.  It has no intervals: "bootstrap", basic, or a normal posterior of its release.
- "Gibbs-SS-Noisy": Bernstein and Sheldon (2019), the library's baseline, with public moments; features bounded by 4.
Logistic regression:
- "objective perturbation": Kifer, Smith and Thakurta (2012) with half of the budget; normal intervals after Wang,
  Kifer and Lee (2019), Hessian and squared gradients with a quarter each.
- "noisy gradient descent": Avella-Medina, Bradshaw and Loh (2023), Mallows weights, 0.9 of the budget; sandwich
  intervals with the noise of the steps.  It is told the extreme slopes at the truth, from which its steps follow.
- "the same, noise not counted": plug-in intervals at a private estimate, as after DP-SGD.
The bound is the least width of one noisy bounded sum of scores with everything else known.
"""

import argparse
import functools
import math
import time
import warnings

import numpy as np
from scipy import optimize, special, stats

import dpinfer as dpi
from dpinfer.lab import baselines
from dpinfer.testing import InsecureRNG

D, CORRELATION, DELTA, PRIOR, Z = 8, 0.5, 1e-6, 1.0, stats.norm.ppf(0.95)
RADIUS, FEATURE, RESPONSE = 2.0 * math.sqrt(D), 4.0, 12.0
N = {"linear": 5000, "logistic": 20_000}
BOOTSTRAPS = 400
MIXING_ROUNDS, MIXING_SIZE = 3, 6.0


def multiplier(epsilon, delta=DELTA):
    """Return the noise of a Gaussian release in units of its sensitivity, exactly (Balle and Wang 2018)."""

    def excess(log_s):
        s = math.exp(log_s)
        a, b = 0.5 / s - epsilon * s, -0.5 / s - epsilon * s
        return special.ndtr(a) - math.exp(epsilon + special.log_ndtr(b)) - delta

    return math.exp(optimize.brentq(excess, -6.0, 12.0))


def covariance():
    return CORRELATION ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))


def inside(X, radius=RADIUS):
    return X * np.minimum(1.0, radius / np.linalg.norm(X, axis=1))[:, None]


class Data:
    def __init__(self, problem, rng):
        self.problem, self.n = problem, N[problem]
        self.X = inside(rng.normal(size=(self.n, D)) @ np.linalg.cholesky(covariance()).T)
        self.theta = PRIOR * rng.normal(size=D)
        eta = self.X @ self.theta
        if problem == "linear":
            self.y = np.clip(eta + rng.normal(size=self.n), -RESPONSE, RESPONSE)
            weights = np.ones(self.n)
        else:
            self.y = (rng.random(self.n) < special.expit(eta)).astype(float)
            weights = special.expit(eta) * special.expit(-eta)
        self.information = (self.X * weights[:, None]).T @ self.X
        without = np.linalg.inv(self.information + np.eye(D) / PRIOR**2)
        self.width = 2.0 * Z * np.sqrt(np.diag(without))


def symmetric(rng, stddev, d):
    """Return symmetric noise whose upper triangle, off-diagonals times sqrt(2), has this standard deviation."""
    noise = np.triu(rng.normal(size=(d, d)), 1) * stddev / math.sqrt(2.0)
    return noise + noise.T + np.diag(stddev * rng.normal(size=d))


def positive(matrix, least):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, least)) @ vectors.T


def ends(centre, cov):
    half = Z * np.sqrt(np.diag(cov))
    return centre - half, centre + half


# --- the library


def library(data, epsilon, seed, rng):
    kind = dpi.models.LinearRegression if data.problem == "linear" else dpi.models.LogisticRegression
    model = kind(D, prior_scale=PRIOR)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=data.n)
    scale = {"response_scale": 3.0} if data.problem == "linear" else {}
    release = dpi.run_newton(
        model, data.X, data.y, plan=plan, n_records=data.n, random_source=InsecureRNG(seed), **scale
    )
    posterior = dpi.noise_aware_posterior(release, seed=seed)
    low, high = posterior.quantile([0.05, 0.95])
    return low[:D], high[:D]


# --- linear regression


def noisy_moments(data, epsilon, rng):
    """Return X'X, X'y, y'y with noise, in units in which both bounds are 1, and its standard deviation."""
    rows = np.column_stack([data.X / RADIUS, data.y / RESPONSE])
    stddev = multiplier(epsilon) * 2.0
    noisy = rows.T @ rows + symmetric(rng, stddev, D + 1)
    return noisy[:D, :D], noisy[:D, D], noisy[D, D], stddev


def residual_variance(matrix, cross, square, theta, n):
    return max((square - 2.0 * theta @ cross + theta @ matrix @ theta) / n, 1e-6)


def analyze_gauss(data, epsilon, seed, rng):
    matrix, cross, square, stddev = noisy_moments(data, epsilon, rng)
    matrix = positive(matrix, stddev)
    ridge = np.eye(D) * (RADIUS / RESPONSE) ** -2 / PRIOR**2
    variance = residual_variance(matrix, cross, square, np.linalg.solve(matrix, cross), data.n)
    inverse = np.linalg.inv(matrix + variance * ridge)
    theta = inverse @ cross
    # Noise of the matrix times theta, and of the cross products.
    noise = 0.5 * stddev**2 * ((1.0 + theta @ theta) * np.eye(D) + np.outer(theta, theta))
    cov = inverse @ (variance * matrix + noise) @ inverse
    scale = RESPONSE / RADIUS
    return ends(theta * scale, cov * scale**2)


def bootstrapped(estimate, matrix, theta, variance, draw, rng, basic=False):
    """Return percentile intervals of the estimates from data and noise drawn anew, or basic ones."""
    root = np.linalg.cholesky(variance * matrix)
    found = []
    for _ in range(BOOTSTRAPS):
        new_matrix, noise = draw()
        found.append(estimate(new_matrix, matrix @ theta + root @ rng.normal(size=D) + noise))
    low, high = np.quantile(found, [0.05, 0.95], axis=0) * RESPONSE / RADIUS
    centre = 2.0 * theta * RESPONSE / RADIUS
    return (centre - high, centre - low) if basic else (low, high)


def adassp_bootstrap(data, epsilon, seed, rng, basic=False):
    """Wang's algorithm 2 with bounds 1, its three releases in (epsilon, delta) / 4 each, y'y in the fourth."""
    rows, y = data.X / RADIUS, data.y / RESPONSE
    part, log = epsilon / 4.0, math.log(8.0 / DELTA)
    noise = math.sqrt(log) / part
    gram = rows.T @ rows
    smallest = max(np.linalg.eigvalsh(gram)[0] + noise * rng.normal() - log / part, 0.0)
    ridge = max(0.0, math.sqrt(D * log * math.log(2.0 * D**2 / 0.05)) / part - smallest)
    stddev = multiplier(part, DELTA / 4.0)

    def symmetric_unweighted():
        upper = np.triu(rng.normal(size=(D, D))) * noise
        return upper + np.triu(upper, 1).T

    matrix = gram + symmetric_unweighted()
    cross = rows.T @ y + noise * rng.normal(size=D)
    square = y @ y + stddev * rng.normal()

    def estimate(new, products):
        return np.linalg.solve(positive(new + ridge * np.eye(D), 1e-3 * noise), products)

    theta = estimate(matrix, cross)
    kept = positive(matrix, noise)
    variance = residual_variance(kept, cross, square, theta, data.n)

    def draw():
        return kept + symmetric_unweighted(), noise * rng.normal(size=D)

    return bootstrapped(estimate, kept, theta, variance, draw, rng, basic)


def mixing_level(epsilon, delta, size):
    """Return the least eigenvalue that makes the sketches (epsilon, delta)-private, for rows of norm 1.

    Renyi divergences of sketches of `size` rows (Lev et al. 2025), composed over the rounds, then converted; a third
    of delta each for these, for the noisy least eigenvalue, and for that to be too large.
    """

    def spent(log_level):
        level = math.exp(log_level)
        order = 1.0 + (level - 1.0) * np.geomspace(1e-6, 1.0 - 1e-6, 2000)
        renyi = 0.5 * size * (order * np.log1p(-1.0 / level) - np.log1p(-order / level)) / (order - 1.0)
        cost = (math.log(3.0 / delta) - np.log(order)) / (order - 1.0) + np.log1p(-1.0 / order)
        eigenvalue = math.sqrt(2.0 * math.log(3.75 / delta) * size) / level
        return float(np.min(MIXING_ROUNDS * renyi + cost)) + eigenvalue

    return math.exp(optimize.brentq(lambda log_level: spent(log_level) - epsilon, math.log(1.1), 25.0))


class Mixing:
    """Newton steps whose matrices are sketches of the rows; sketches have half of the steps' budget."""

    def __init__(self, data, epsilon, rng):
        rows, y = data.X / RADIUS, data.y / RESPONSE
        part, delta = 0.75 * epsilon, 0.75 * DELTA
        self.size = int(MIXING_SIZE * max(D, math.log(40.0 * MIXING_ROUNDS / delta)))
        level = mixing_level(0.5 * part, 0.75 * delta, self.size)
        self.noise = multiplier(0.5 * part, 0.25 * delta) * math.sqrt(MIXING_ROUNDS)
        self.square = y @ y + multiplier(0.25 * epsilon, 0.25 * DELTA) * rng.normal()
        least = level / math.sqrt(self.size)
        known = np.linalg.eigvalsh(rows.T @ rows)[0] + least * (rng.normal() - math.sqrt(2.0 * math.log(40.0 / delta)))
        self.added = max(level - max(known, 0.0), 0.0)
        self.theta, self.steps, matrix = self.run(
            lambda: rng.normal(size=(self.size, data.n)) @ rows,
            lambda theta: rows.T @ np.clip(y - rows @ theta, -1.0, 1.0),
            rng,
        )
        self.matrix = positive(matrix - self.added * np.eye(D), least)

    def run(self, sketch, products, rng):
        """Return the estimate, each step's point and noisy products, and the mean of the sketched matrices."""
        theta, steps, matrices = np.zeros(D), [], []
        for _ in range(MIXING_ROUNDS):
            root = sketch() + math.sqrt(self.added) * rng.normal(size=(self.size, D))
            matrices.append(root.T @ root / self.size)
            steps.append((theta, products(theta) + self.noise * rng.normal(size=D)))
            theta = theta + np.linalg.solve(matrices[-1], steps[-1][1])
        return theta, steps, np.mean(matrices, axis=0)

    def variance(self, theta, n):
        """Return that of the residuals: at most the responses', as a point that is far off says nothing of it."""
        found = residual_variance(self.matrix, self.matrix @ theta, self.square, theta, n)
        return min(found, max(self.square / n, 1e-6))


def mixing_bootstrap(data, epsilon, seed, rng):
    mixing = Mixing(data, epsilon, rng)
    theta, matrix = mixing.theta, mixing.matrix
    root = np.linalg.cholesky(matrix)
    errors = []
    for _ in range(BOOTSTRAPS):
        cross = matrix @ theta + math.sqrt(mixing.variance(theta, data.n)) * root @ rng.normal(size=D)
        new, *_ = mixing.run(
            lambda: rng.normal(size=(mixing.size, D)) @ root.T, lambda at, cross=cross: cross - matrix @ at, rng
        )
        errors.append(new - theta)
    low, high = np.quantile(errors, [0.05, 0.95], axis=0)
    return (theta - high) * RESPONSE / RADIUS, (theta - low) * RESPONSE / RADIUS


def mixing_aware(data, epsilon, seed, rng):
    """Products plus matrix times point are those of the responses: from the last steps whose mean is most certain."""
    mixing = Mixing(data, epsilon, rng)
    inverse, sketched = np.linalg.inv(mixing.matrix), mixing.matrix + mixing.added * np.eye(D)
    found = []
    for first in range(MIXING_ROUNDS):
        points, products = (np.mean(part, axis=0) for part in zip(*mixing.steps[first:], strict=True))
        theta = inverse @ (products + mixing.matrix @ points)
        # Noise of the products, and of the matrix (Wishart) where points are off.
        off = points - theta
        noise = mixing.noise**2 / (MIXING_ROUNDS - first) * np.eye(D)
        wishart = (off @ sketched @ off) * sketched + np.outer(sketched @ off, sketched @ off)
        noise = noise + wishart / (MIXING_ROUNDS * mixing.size)
        cov = inverse @ (mixing.variance(theta, data.n) * mixing.matrix + noise) @ inverse
        found.append((np.trace(cov), theta, cov))
    _, theta, cov = min(found, key=lambda one: one[0])
    scale = RESPONSE / RADIUS
    return ends(theta * scale, cov * scale**2)


def gibbs_ss_noisy(data, epsilon, seed, rng):
    """Everything on S, with the covariates' law public: the best of its variants; delta is 0."""
    release = baselines.release_regression_statistics(
        data.X, data.y, epsilon=epsilon, n_records=data.n, feature_bound=FEATURE, response_bound=RESPONSE,
        moment_share=0.0, random_source=InsecureRNG(seed),
    )  # fmt: skip
    prior, moments = baselines.RegressionPrior(1.0 / PRIOR**2, 2.0, 2.0), baselines.gaussian_moments(covariance())
    draws = baselines.gibbs_ss_noisy(
        release.noisy_statistics, laplace_scale=release.laplace_scale, n_features=D, n_records=data.n, prior=prior,
        feature_moments=moments, n_burn_in=1000, n_samples=2000, seed=seed,
    )  # fmt: skip
    return np.quantile(draws[:, :D], [0.05, 0.95], axis=0)


# --- logistic regression


def objective_perturbation(data, epsilon, seed, rng):
    X, y = data.X / RADIUS, data.y
    part, delta = 0.5 * epsilon, 0.5 * DELTA
    ridge = 2.0 * 0.25 / part
    noise = math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * part) / part
    linear = noise * rng.normal(size=D)

    def objective(theta):
        eta = X @ theta
        value = np.sum(np.logaddexp(0.0, eta) - y * eta) + 0.5 * ridge * theta @ theta + linear @ theta
        return value, X.T @ (special.expit(eta) - y) + ridge * theta + linear

    theta = optimize.minimize(objective, np.zeros(D), jac=True, method="BFGS").x
    p = special.expit(X @ theta)
    quarter = multiplier(0.25 * epsilon, 0.25 * DELTA)
    hessian = (X * (p * (1.0 - p))[:, None]).T @ X + symmetric(rng, 0.25 * quarter, D)
    squares = (X * ((p - y) ** 2)[:, None]).T @ X + symmetric(rng, quarter, D)
    inverse = np.linalg.inv(positive(hessian, 0.25 * quarter) + ridge * np.eye(D))
    cov = inverse @ (positive(squares, 0.0) + noise**2 * np.eye(D)) @ inverse
    return ends(theta / RADIUS, cov / RADIUS**2)


def gradient_descent(data, epsilon, rng):
    """Return the estimate, its covariance from the records, and that from the noise of the steps."""
    bound = math.sqrt(D)
    X = data.X
    weights = np.minimum(1.0, bound / np.linalg.norm(X, axis=1))
    # Told: the slope's extreme eigenvalues, for the step length and for steps enough to forget the start.
    true = special.expit(X @ data.theta)
    flattest, *_, steepest = np.linalg.eigvalsh((X * (weights * true * (1.0 - true))[:, None]).T @ X / data.n)
    rate = 1.0 / steepest
    steps = math.ceil(0.5 * math.log(data.n) / (rate * flattest))
    # Shares of the squared sensitivities in units of the noise: they add up in Gaussian DP.
    whole = multiplier(epsilon)
    stddev = whole * bound * math.sqrt(steps / 0.9) / data.n
    theta, total = np.zeros(D), 0.0
    for _ in range(steps):
        gradient = (weights * (special.expit(X @ theta) - data.y)) @ X / data.n
        theta = theta - rate * (gradient + stddev * rng.normal(size=D))
    p = special.expit(X @ theta)
    noise = whole / math.sqrt(0.1)
    # Both matrices in one release: a record's are at most bound RADIUS / 4 and bound^2 long.
    size = math.hypot(0.25 * bound * RADIUS, bound**2)
    slope = (X * (weights * p * (1.0 - p))[:, None]).T @ X / data.n + symmetric(rng, noise * size / data.n, D)
    square = (X * ((weights * (p - data.y)) ** 2)[:, None]).T @ X / data.n
    square = square + symmetric(rng, noise * size / data.n, D)
    slope = positive(slope, noise * size / data.n)
    inverse = np.linalg.inv(slope)
    sampling = inverse @ positive(square, 0.0) @ inverse / data.n
    shrink = np.eye(D) - rate * slope
    for _ in range(steps):
        total = shrink @ (total * np.eye(D) if np.isscalar(total) else total) @ shrink
        total = total + rate**2 * stddev**2 * np.eye(D)
    return theta, sampling, total


def noisy_descent(data, epsilon, seed, rng):
    theta, sampling, noise = gradient_descent(data, epsilon, rng)
    return ends(theta, sampling + noise)


def naive_descent(data, epsilon, seed, rng):
    theta, sampling, _ = gradient_descent(data, epsilon, rng)
    return ends(theta, sampling)


METHODS = {
    "linear": {
        "dpinfer, private Newton": library,
        "Analyze-Gauss, noise-aware": analyze_gauss,
        "AdaSSP, bootstrap": adassp_bootstrap,
        "Gibbs-SS-Noisy": gibbs_ss_noisy,
        "AdaSSP, basic bootstrap": functools.partial(adassp_bootstrap, basic=True),
        "Hessian mixing, bootstrap": mixing_bootstrap,
        "Hessian mixing, noise-aware": mixing_aware,
    },
    "logistic": {
        "dpinfer, private Newton": library,
        "objective perturbation": objective_perturbation,
        "noisy gradient descent": noisy_descent,
        "the same, noise not counted": naive_descent,
    },
}


def bound_of(problem, epsilon, rng):
    """Return the least relative width of one bounded noisy sum of whitened scores, by simulation of 100 000 records."""
    data, sigma = Data(problem, rng), multiplier(epsilon)
    values, vectors = np.linalg.eigh(data.information / data.n)
    z = data.X @ (vectors / np.sqrt(values))
    norm = np.linalg.norm(z, axis=1)
    residual = data.y - (data.X @ data.theta if problem == "linear" else special.expit(data.X @ data.theta))
    slope = 1.0 if problem == "linear" else special.expit(data.X @ data.theta) * special.expit(-data.X @ data.theta)
    best = np.inf
    for radius in np.quantile(norm, [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0]):
        weight = np.minimum(1.0, radius / norm)
        for cut in np.geomspace(0.05, 4.0, 25) if problem == "linear" else (1.0,):
            psi = np.clip(residual, -cut, cut)
            kept = slope * ((np.abs(residual) < cut) if problem == "linear" else 1.0)
            a = np.mean((weight * kept)[:, None] * z**2, axis=0)
            v = np.mean((weight * psi)[:, None] ** 2 * z**2, axis=0) + (sigma * radius * cut) ** 2 / data.n
            best = min(best, float(np.mean(np.sqrt(v) / a)))
    return best


def study(problem, epsilon, runs, seed, only):
    methods = METHODS[problem]
    found = {name: [] for name in methods if not only or any(part in name for part in only)}
    for run in range(runs):
        data = Data(problem, np.random.default_rng([seed, run]))
        for index, (name, method) in enumerate(methods.items()):
            if name not in found:
                continue
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                low, high = method(data, epsilon, 10_000 * seed + run, np.random.default_rng([seed, run, index]))
            seconds = time.process_time() - start
            covered = np.mean((low < data.theta) & (data.theta < high))
            found[name].append((covered, float(np.median((high - low) / data.width)), seconds))
    return {name: np.array(rows) for name, rows in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--problems", nargs="+", choices=sorted(METHODS), default=sorted(METHODS))
    parser.add_argument("--only", nargs="+", help="parts of the methods' names")
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    for problem in arguments.problems:
        for epsilon in arguments.epsilons:
            bound = np.mean([bound_of(problem, epsilon, np.random.default_rng([7, k])) for k in range(10)])
            print(f"{problem}, N = {N[problem]}, {D} features, epsilon {epsilon:g}, delta {DELTA:g}; bound {bound:.2f}")
            for name, rows in study(problem, epsilon, arguments.runs, arguments.seed, arguments.only).items():
                covered, error = rows[:, 0].mean(), rows[:, 0].std(ddof=1) / math.sqrt(len(rows))
                width = float(np.median(rows[:, 1]))
                low, high = np.quantile(rows[:, 1], [0.25, 0.75])
                print(
                    f"  {name:28s} covered {covered:.3f} +- {error:.3f}  width {width:6.2f} ({low:.2f}-{high:.2f})  "
                    f"{np.median(rows[:, 2]):.2f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
