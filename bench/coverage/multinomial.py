"""Coverage and width of private multinomial logistic regressions, against no privacy.

    python bench/coverage/multinomial.py [--runs 60] [--epsilon 1 ...] [--classes 3] [--features 4] [--records 10000]

Weights and intercepts from the prior N(0, 1), features AR(1) with correlation 0.5 where the bounds of a run are
simulated with independent ones.  90% intervals: share that holds the truth, parameters of a run taken together, with
its standard error over runs; median width relative to the normal approximation at the mode without privacy, under the
same prior; root mean square error of class probabilities at 200 other points, each in units of its posterior standard
deviation.  Runs share their records between epsilons.
"""

import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

DELTA, HALF_WIDTH, N_POINTS = 1e-5, 1.6448536269514722, 200
CORRELATION = 0.5


def features(size: int, d: int, rng: np.random.Generator) -> FloatArray:
    """Return AR(1) features."""
    z = rng.standard_normal((size, d))
    for column in range(1, d):
        z[:, column] = CORRELATION * z[:, column - 1] + np.sqrt(1.0 - CORRELATION**2) * z[:, column]
    return z


def mode(model: dpi.models.MultinomialRegression, X: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mode without privacy, and the standard deviations of the normal approximation there."""
    rows = np.column_stack([X, np.ones(len(X))])
    theta = np.zeros(model.n_params)
    for _ in range(50):
        p = model.predict_probabilities(theta, X)[:, 1:]
        gradient = model.scores(X, y, theta).sum(axis=0) + model.log_prior_gradient(theta)
        weights = p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])
        hessian = np.einsum("pkl,pf,pg->kflg", weights, rows, rows).reshape(theta.size, theta.size)
        covariance = np.linalg.inv(hessian + np.diag(model.parameters.prior_scale**-2))
        step = covariance @ gradient
        theta = theta + step
        if np.max(np.abs(step)) < 1e-10:
            break
    else:
        raise RuntimeError("the mode was not found")
    return theta, np.sqrt(np.diag(covariance))


@dataclass
class Found:
    """What runs at one epsilon have shown."""

    covered: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    widths: list[FloatArray] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def row(self, epsilon: float) -> str:
        """Return a row of the table."""
        width, error = np.median(self.widths), np.sqrt(np.mean(np.square(self.errors)))
        return (
            f"| {epsilon:g} | {len(self.covered)} | {told(self.covered)} | {told(self.plain)} | {width:.2f} "
            f"| {error:.2f} | {np.median(self.seconds):.1f} |"
        )


def told(shares: list[float]) -> str:
    """Return a mean with its Monte Carlo error."""
    error = np.std(shares, ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else np.nan
    return f"{np.mean(shares):.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--features", type=int, default=4)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=91)
    asked = parser.parse_args()
    model = dpi.models.MultinomialRegression(asked.features, asked.classes)
    plans = {
        epsilon: dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=asked.records)
        for epsilon in asked.epsilon
    }
    found = {epsilon: Found() for epsilon in plans}
    for index in range(asked.runs):
        rng = np.random.default_rng([asked.seed, index])
        truth = rng.standard_normal(model.n_params)
        X, points = (features(size, asked.features, rng) for size in (asked.records, N_POINTS))
        y = model.draw_responses(truth, X, rng.integers(0, 2**64, (asked.records, 1), dtype=np.uint64))
        centre, spread = mode(model, X, y)
        probabilities = model.predict_probabilities(truth, points)
        for epsilon, plan in plans.items():
            begun = time.process_time()
            source = InsecureRNG(1000 * asked.seed + index)
            release = dpi.run_newton(model, X, y, plan=plan, n_records=asked.records, n_threads=1, random_source=source)
            posterior = dpi.noise_aware_posterior(release)
            own = found[epsilon]
            own.seconds.append(time.process_time() - begun)
            low, high = posterior.quantile([0.05, 0.95])
            own.covered.append(float(np.mean((low < truth) & (truth < high))))
            own.plain.append(float(np.mean(np.abs(truth - centre) < HALF_WIDTH * spread)))
            own.widths.append((high - low) / (2.0 * HALF_WIDTH * spread))
            drawn = model.predict_probabilities(posterior.sample(2000, seed=0, space="unconstrained"), points)
            errors = (drawn.mean(axis=0) - probabilities) / drawn.std(axis=0)
            own.errors.append(float(np.sqrt(np.mean(errors**2))))
    print(f"{asked.classes} classes, {asked.features} features, {asked.records} records, {model.n_params} parameters")
    heads = ("ε", "runs", "covered", "without privacy", "width", "error of probabilities", "seconds")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for epsilon, own in found.items():
        print(own.row(epsilon), flush=True)


if __name__ == "__main__":
    main()
