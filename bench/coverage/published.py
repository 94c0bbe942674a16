"""Tables that others have published: their cells and numbers, ours beside them, and what the guarantees are.

    python bench/coverage/published.py [--only slope test newton exact] [--runs 200] [--draws FOLDER]
    python -m bench published

Every cell is the authors': records, sizes, budgets, level; rivals' numbers are copied from their result files or read
off their figures.  Ours are `dpi.fit` with its defaults, replace_one adjacency (n is public in all of them), and:

- slope: Awan and Wang (repro samples) against DP-CI-ERM.  95% intervals of a logistic slope, cut to [-10, 10].  Theirs
  are pure epsilon; `dpi.fit` has (epsilon, 1e-6), weaker by that delta.  "A table" is pure epsilon: y by equal bins of
  x's public bounds, released by `run_statistic`; each draw of the shares of its cells gives a slope (maximum
  likelihood, bins at their means).  Fewer runs where n < 500.
- test: the same authors.  A linear slope at level 0.05 under mu-GDP with mu = 1; x and y clamped to [-2, 2].  Ours
  rejects where zero is outside of the 95% interval; a quarter of the runs for the power.  Rivals: a
  parametric bootstrap and repro samples.
- newton: Avella-Medina, Bradshaw and Loh.  95% intervals of the third coefficient of a linear regression under mu-GDP
  with mu = 1.  They know the noise's standard deviation; ours does not.
- exact: Ju, Awan, Gong and Rao; Xiong, Ju and Zhang.  Posteriors of a linear regression (n = 100, noise variance 2)
  from nine sums with Laplace noise: the authors' releases and, in FOLDER, the draws `reference_theta` of the repository
  Yifei-Xiong/Simulation-based-Bayesian-Inference-from-Privacy-Protected-Data.  Ours is the sampler of noisy sums in
  dpinfer.lab.  Exact: importance sampling of simulated tables by the noise's density; effective draws in brackets.

mu-GDP with mu = 1 is our plan with noise multiplier 1: every release is a Gaussian one, so that epsilon at delta = 1e-6
is a translation without loss (Dong, Roth and Su 2022).  Errors are binomial, over runs; the rivals' runs are 1000.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import optimize, special, stats

import dpinfer as dpi
from dpinfer.lab.baselines import RegressionPrior, gibbs_ss_noisy
from dpinfer.testing import InsecureRNG

DELTA, SEED, LEVEL = 1e-6, 20_261_124, 0.95
BINS = 8  # of a table, for any size and budget

# n: coverage and width of DP-CI-ERM, of repro samples.  Awan and Wang, Table of the logistic slope.
SLOPE = {
    0.3: {
        100: (0.810, 5.33, 0.983, 18.98), 200: (0.814, 4.76, 0.979, 15.26), 500: (0.795, 3.23, 0.992, 10.18),
        1000: (0.767, 1.96, 0.994, 4.06), 2000: (0.813, 1.06, 0.994, 1.26),
    },
    1.0: {
        100: (0.831, 4.27, 0.990, 11.07), 200: (0.807, 2.91, 0.986, 7.87), 500: (0.807, 1.32, 0.989, 1.77),
        1000: (0.824, 0.77, 0.994, 0.97), 2000: (0.862, 0.46, 0.996, 0.62),
    },
    3.0: {
        100: (0.847, 2.48, 0.987, 5.48), 200: (0.859, 1.41, 0.990, 2.10), 500: (0.898, 0.76, 0.992, 1.11),
        1000: (0.924, 0.52, 0.990, 0.77), 2000: (0.934, 0.36, 0.994, 0.54),
    },
}  # fmt: skip
SLOPE_WITHOUT = {100: 1.563, 200: 1.105, 500: 0.699, 1000: 0.494, 2000: 0.350}
# Rejections: parametric bootstrap, repro samples.
TEST_SIZES = (100, 200, 300, 400, 500, 1000, 2000, 5000)
TEST = {
    0.0: ((0.002, 0.019, 0.035, 0.036, 0.047, 0.037, 0.078, 0.107), (0.0, 0.0, 0.001, 0.0, 0.0, 0.001, 0.0, 0.002)),
    0.1: ((0.004, 0.104, 0.193, 0.320, 0.460, 0.919, 1.0, 1.0), (0.0, 0.012, 0.023, 0.051, 0.130, 0.718, 1.0, 1.0)),
    0.2: ((0.014, 0.392, 0.715, 0.904, 0.988, 1.0, 1.0, 1.0), (0.007, 0.086, 0.278, 0.562, 0.836, 1.0, 1.0, 1.0)),
}
# n: covered by their corrected and uncorrected intervals, read off the figure.
NEWTON = {
    250: (0.873, 0.570), 500: (0.922, 0.708), 750: (0.930, 0.765), 1000: (0.925, 0.815), 1500: (0.934, 0.850),
    2000: (0.938, 0.870), 4000: (0.942, 0.913),
}  # fmt: skip
# epsilon: their file of draws, and the released sums of y, x1 y, x2 y, y^2, x1, x2, x1^2, x1 x2, x2^2, values over 10.
CENTRE = np.array([0.9, -1.17])  # of the features
EXACT = {
    0.1: ("eps.1", (-333.84, -106.51, -1.31, 399.93, 229.98, 19.67, 84.59, -55.41, 88.90)),
    1.0: ("eps1", (-55.14, -6.0, 15.04, 23.78, 41.30, -16.21, -9.46, -11.33, 35.95)),
    10.0: ("eps10", (-38.2440, -6.6783, 3.1997, 27.1985, 9.8835, -13.8503, 2.1882, -2.2884, 3.4092)),
}
Simulate = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Found:
    """Intervals of one cell's runs, the share of runs that warn or leave directions open, and what was chosen."""

    low: np.ndarray
    high: np.ndarray
    flagged: float
    chosen: str

    def covered(self, truth: float) -> str:
        inside = (self.low <= truth) & (truth <= self.high)
        return f"{inside.mean():.3f} +- {max(inside.std(), 0.5 / inside.size) / math.sqrt(inside.size):.3f}"

    def width(self, unit: float = 1.0) -> str:
        wide = (self.high - self.low) / unit
        return f"{wide.mean():5.2f} +- {wide.std() / math.sqrt(wide.size):.2f}"


def epsilon_of(mu: float) -> float:
    """Return the epsilon of mu-GDP at DELTA."""
    ends = (lambda e: special.ndtr(-e / mu + mu / 2.0), lambda e: math.exp(e) * special.ndtr(-e / mu - mu / 2.0))
    return float(optimize.brentq(lambda e: ends[0](e) - ends[1](e) - DELTA, 1e-6, 100.0))


def fit_cell(
    simulate: Simulate, model: dpi.models.GeneralizedLinearModel, column: int, *, epsilon: float, n: int, runs: int,
    response_scale: float | None = None,
) -> Found:  # fmt: skip
    """Fit the runs of a cell and return intervals of one coefficient."""
    ends, flagged, chosen = [], [], ""
    for run in range(runs):
        X, y = simulate(np.random.default_rng([SEED, n, run]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = dpi.fit(
                model, X, y, epsilon=epsilon, delta=DELTA, n_records=n, adjacency="replace_one",
                response_scale=response_scale, random_source=InsecureRNG(run),
            )  # fmt: skip
        ends.append(fit.posterior.interval(LEVEL)[:, column])
        found = fit.posterior.diagnostics
        flagged.append(bool(found.warnings) or found.n_unresolved > 0)
        chosen = fit.plan.choice.chosen.name
    low, high = np.array(ends).T
    return Found(low, high, float(np.mean(flagged)), chosen)


def of_table(simulate: Simulate, *, epsilon: float, n: int, runs: int) -> np.ndarray:
    """Return 95% intervals of the slope from a noisy table of the response by equal bins of the feature's bounds."""
    ends, model = [], dpi.models.DirichletCategorical(np.full(2 * BINS, 0.5))  # Jeffreys's prior
    for run in range(runs):
        X, y = simulate(np.random.default_rng([SEED, n, run]))
        cells = 2.0 * np.minimum(BINS * (X[:, 0] + 1.0) // 2.0, BINS - 1) + y
        public = {"epsilon": epsilon, "n_records": n, "adjacency": "replace_one"}
        release = dpi.run_statistic(model, cells, random_source=InsecureRNG(run), **public)
        shares = dpi.noise_aware_posterior(release).sample(2000, seed=run)
        shares = np.column_stack((shares, 1.0 - shares.sum(1))).reshape(2000, BINS, 2)
        # The mean within a bin, where the density is a line through its neighbours'.
        mass = shares.sum(2).mean(0)
        at = (2.0 * np.arange(BINS) + 1.0) / BINS - 1.0 + np.clip(np.gradient(mass) / mass / 6.0, -0.5, 0.5) / BINS
        design, weights = np.column_stack((at, np.ones(BINS))), np.zeros((2000, 2))
        for _ in range(25):
            rates, total = special.expit(weights @ design.T), shares.sum(2)
            bread = np.einsum("mk,ki,kj->mij", total * rates * (1.0 - rates), design, design) + 1e-9 * np.eye(2)
            step = np.linalg.solve(bread, ((shares[:, :, 1] - total * rates) @ design)[:, :, None])[:, :, 0]
            weights = np.clip(weights + np.clip(step, -3.0, 3.0), -30.0, 30.0)
        ends.append(np.quantile(weights[:, 0], (0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0)))
    return np.clip(np.array(ends).T, -10.0, 10.0)


def slope(runs: int) -> None:
    """Print coverage and width of a logistic slope beside DP-CI-ERM and repro samples."""
    print("\nLogistic slope, 95% intervals: covered, width (without privacy in brackets); default: flagged")
    print("eps    n     DP-CI-ERM     repro samples   a table, pure epsilon     default")
    model = dpi.models.LogisticRegression(1, fit_intercept=True, prior_scale=5.0)

    def simulate(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = 2.0 * rng.beta(0.5, 0.5, n) - 1.0
        return x[:, None], (rng.random(n) < special.expit(0.5 + 2.0 * x)).astype(float)

    for epsilon, sizes in SLOPE.items():
        for n, (erm, erm_width, repro, repro_width) in sizes.items():
            cell = {"epsilon": epsilon, "n": n, "runs": runs if n >= 500 else max(runs // 4, 1)}
            table = Found(*of_table(lambda rng, n=n: simulate(rng, n), **cell), 0.0, "")
            found = fit_cell(lambda rng, n=n: simulate(rng, n), model, 0, **cell)
            cut = Found(np.clip(found.low, -10, 10), np.clip(found.high, -10, 10), found.flagged, found.chosen)
            told = f"{table.covered(2.0)}  {table.width()}   {cut.covered(2.0)}  {cut.width()}"
            told += f" ({SLOPE_WITHOUT[n]:.2f})  {cut.flagged:.2f}  {cut.chosen}"
            rivals = f"{erm:.3f} {erm_width:5.2f}   {repro:.3f} {repro_width:5.2f}"
            print(f"{epsilon:<4g} {n:5d}  {rivals}    {told}", flush=True)


def clamped_slope(beta: float) -> float:
    """Return the population's slope of clamped responses on a clamped feature."""
    rng = np.random.default_rng(SEED)
    x, y = clamped(rng, 4_000_000, beta)
    return float(np.cov(x[:, 0], y)[0, 1] / np.var(x))


def clamped(rng: np.random.Generator, n: int, beta: float) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(0.5, 1.0, n)
    y = -0.5 + beta * x + rng.normal(0.0, 0.5, n)
    return np.clip(x, -2.0, 2.0)[:, None], np.clip(y, -2.0, 2.0)


def test(runs: int) -> None:
    """Print rejections of a zero slope beside the parametric bootstrap and repro samples."""
    epsilon = epsilon_of(1.0)
    print(f"\nTest of a slope at level 0.05, mu = 1 (epsilon {epsilon:.3f} at delta {DELTA:g}): rejections")
    print("beta     n  bootstrap  repro   ours")
    model = dpi.models.LinearRegression(1, fit_intercept=True, prior_scale=10.0)
    for beta, (bootstrap, repro) in TEST.items():
        truth, own = clamped_slope(beta), runs if beta == 0.0 else max(runs // 4, 1)  # a size is harder to tell
        for n, first, second in zip(TEST_SIZES, bootstrap, repro, strict=True):
            cell = {"epsilon": epsilon, "n": n, "runs": own, "response_scale": 1.0}
            found = fit_cell(lambda rng, n=n, beta=beta: clamped(rng, n, beta), model, 0, **cell)
            rejected = (found.low > 0.0) | (found.high < 0.0)
            error = max(rejected.std(), 0.5 / rejected.size) / math.sqrt(rejected.size)
            told = f"{rejected.mean():.3f} +- {error:.3f}  covered {found.covered(truth)}  {found.chosen}"
            print(f"{beta:<4g} {n:5d}  {first:.3f}      {second:.3f}   {told}", flush=True)


def newton(runs: int) -> None:
    """Print the coverage of a linear coefficient beside noisy Newton steps with a known noise variance."""
    epsilon = epsilon_of(1.0)
    print(f"\nThird coefficient of a linear regression, 95% intervals, mu = 1 (epsilon {epsilon:.3f}): covered")
    print("    n  corrected  uncorrected   ours, noise variance unknown (covered, width over least squares)")
    root = np.linalg.cholesky(np.array([[1.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 2.0]]))
    model = dpi.models.LinearRegression(3, fit_intercept=True, prior_scale=10.0)

    def simulate(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(n, 3)) @ root.T
        return X, 1.0 + X.sum(axis=1) + 2.0 * rng.normal(size=n)

    for n, (corrected, uncorrected) in NEWTON.items():
        cell = {"epsilon": epsilon, "n": n, "runs": runs, "response_scale": 3.0}
        found = fit_cell(lambda rng, n=n: simulate(rng, n), model, 1, **cell)
        # The precision of the second feature given the first.
        least = 2.0 * stats.norm.ppf(0.5 + LEVEL / 2.0) * 2.0 / math.sqrt(n * (2.0 - 0.25))
        told = f"{found.covered(1.0)}  {found.width(least)}  {found.chosen}"
        print(f"{n:5d}  {corrected:.3f}      {uncorrected:.3f}         {told}", flush=True)


def exact(draws: Path | None) -> None:
    """Print exact posteriors, and theirs and ours with their energy distances from these."""
    print("\nLinear regression from nine sums with Laplace noise, n = 100: mean (sd) of each, energy distance")
    # In the sampler's order, x1^2, x1 x2, x1, x2^2, x2, x1 y, x2 y, y, y^2, and in units of x and y.
    order, units = [6, 7, 4, 8, 5, 1, 2, 0, 3], np.array([100.0, 100.0, 10.0, 100.0, 10.0, 100.0, 100.0, 10.0, 100.0])
    rng = np.random.default_rng(SEED)
    x = np.column_stack((CENTRE + rng.normal(size=(1_000_000, 2)), np.ones(1_000_000)))
    first, second = np.triu_indices(3)
    moments = x.T @ x / len(x), np.cov((x[:, first] * x[:, second])[:, :-1].T)
    # A noise variance of 2, and weights N(0, 1) = N(0, variance / 2).
    prior = RegressionPrior(precision=2.0, shape=1e6, rate=2e6)
    for epsilon, (name, sums) in EXACT.items():
        ours = gibbs_ss_noisy(
            np.array(sums)[order] * units, laplace_scale=13.0 / epsilon * units, n_features=2, n_records=100,
            prior=prior, feature_moments=moments, n_burn_in=5000, n_samples=40_000,
        )[::20, [2, 0, 1]]  # fmt: skip
        theta, weights = weighted(np.array(sums), 13.0 / epsilon, ours, rng)
        right, again = (theta[rng.choice(len(theta), 2000, p=weights)] for _ in range(2))
        told = {f"exact ({1.0 / np.sum(weights**2):.0f})": right, "exact, again": again, "ours": ours}
        if draws is not None:
            told["theirs"] = np.loadtxt(draws / f"Da+1_{name}.csv", delimiter=",", skiprows=1)[:, 1:]
        for words, d in told.items():
            each = "; ".join(f"{m:.2f} ({s:.2f})" for m, s in zip(d.mean(0), d.std(0), strict=True))
            print(f"{epsilon:<4g} {words:15s} {each}; {'' if d is right else f'{energy(right, d):.3f}'}", flush=True)


def weighted(sums: np.ndarray, scale: float, near: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return draws of the coefficients near others, and their weights in the exact posterior."""
    proposal = stats.multivariate_normal(near.mean(0), 1.5 * np.cov(near.T))
    found, logs = [], []
    for _ in range(60):
        theta = proposal.rvs(10_000, random_state=rng)
        x = CENTRE + rng.normal(size=(10_000, 100, 2))
        y = theta[:, :1] + np.einsum("nij,nj->ni", x, theta[:, 1:]) + math.sqrt(2.0) * rng.normal(size=(10_000, 100))
        v = np.clip(np.concatenate((y[:, :, None], x), axis=2), -10.0, 10.0) / 10.0
        one, two = v.sum(1), np.einsum("nij,nik->njk", v, v)
        own = np.column_stack((one[:, 0], two[:, 0, 1:], two[:, 0, 0], one[:, 1:], two[:, 1, 1:], two[:, 2, 2]))
        found.append(theta)
        logs.append(-np.abs(own - sums).sum(1) / scale - 0.5 * np.square(theta).sum(1) - proposal.logpdf(theta))
    weights = np.exp(np.concatenate(logs) - np.max(logs))
    return np.concatenate(found), weights / weights.sum()


def energy(a: np.ndarray, b: np.ndarray) -> float:
    """Return the energy distance of two samples, without bias."""
    between = np.mean(np.linalg.norm(a[:, None] - b[None], axis=2))
    within = [np.linalg.norm(c[:, None] - c[None], axis=2).sum() / (len(c) * (len(c) - 1)) for c in (a, b)]
    return float(2.0 * between - sum(within))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    tables = {"slope": slope, "test": test, "newton": newton, "exact": exact}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(tables), default=tuple(tables))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--draws", type=Path, help="exact: the authors' draws")
    options = parser.parse_args(arguments)
    for name in options.only:
        tables[name](options.draws if name == "exact" else options.runs)


if __name__ == "__main__":
    main()
