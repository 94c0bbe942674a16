"""Coverage and width of the private Newton posterior of four models that a user might bring, against no privacy.

    python bench/any_model.py [--runs 100] [--epsilon 1.0] [--records 10000] [--model NAME] [--wrong]

Parameters are drawn from the model's prior, features are AR(1) with 0.5 where the bounds of a run are simulated with
independent ones.  Intervals are 90%.  Without privacy: the normal approximation at the mode.  Widths are ratios of
standard deviations before the maps of the parameters, medians over runs and parameters.  --wrong: the records are not
quite the model's (3% of the responses are drawn at another parameter).
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.reference.own_models import EXAMPLES

FloatArray = npt.NDArray[np.float64]

LEVELS = [0.05, 0.95]
NORMAL_HALF_WIDTH = 1.6449
SHARE_WRONG = 0.03


def mode(model: dpi.models.OwnModel, X: FloatArray, y: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mode without privacy and the standard deviations of its normal approximation."""
    prior = model.parameters

    def slope(theta: FloatArray) -> FloatArray:
        return model.scores(X, y, theta).sum(axis=0) + model.log_prior_gradient(theta)

    def height(theta: FloatArray) -> float:
        density = model.code.log_likelihood(prior.constrain(theta), X, y)
        return float(np.sum(density) + model.log_prior(theta))

    theta, step = start.copy(), 1e-5
    for _ in range(30):
        columns = [(slope(theta + step * e) - slope(theta - step * e)) / (2.0 * step) for e in np.eye(theta.size)]
        curvature = -0.5 * (np.array(columns) + np.array(columns).T)
        move = np.linalg.solve(curvature, slope(theta))
        here, size = height(theta), 1.0
        while not height(theta + size * move) >= here - 1e-6 and size > 1e-3:
            size *= 0.5
        theta = theta + size * move
        if np.max(np.abs(move)) < 1e-6:
            break
    return theta, np.sqrt(np.diag(np.linalg.inv(curvature)))


def responses(
    model: dpi.models.OwnModel, truth: FloatArray, X: FloatArray, rng: np.random.Generator, wrong: bool
) -> FloatArray:
    """Draw responses at the unconstrained truth, some of them elsewhere where asked for."""
    words = rng.integers(0, 2**64, (len(X), model.n_words), dtype=np.uint64)
    y = model.draw_responses(truth, X, words)
    if wrong:
        other = model.draw_responses(truth + 0.5 * model.parameters.prior_scale, X, words)
        y = np.where(rng.random(len(X)) < SHARE_WRONG, other, y)
    return y


def run(name: str, runs: int, epsilon: float, n_records: int, seed: int, wrong: bool) -> str:
    """Return a line about the runs of one model."""
    example = EXAMPLES[name]()
    model = example.model
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=n_records)
    covered, plain, ratio, seconds = [], [], [], []
    for index in range(runs):
        rng = np.random.default_rng([seed, index])
        truth = model.parameters.prior_mean + model.parameters.prior_scale * rng.standard_normal(model.n_params)
        X = example.features(n_records, rng)
        y = responses(model, truth, X, rng, wrong)
        centre, spread = mode(model, X, y, truth)
        begun = time.process_time()
        source = InsecureRNG(1000 * seed + index)
        release = dpi.run_newton(model, X, y, plan=plan, n_records=n_records, n_threads=1, random_source=source)
        posterior = dpi.noise_aware_posterior(release, seed=index, n_samples=400)
        seconds.append(time.process_time() - begun)
        low, high = posterior.quantile(LEVELS, space="unconstrained")
        covered.append((low < truth) & (truth < high))
        plain.append(np.abs(truth - centre) < NORMAL_HALF_WIDTH * spread)
        ratio.append((high - low) / (2.0 * NORMAL_HALF_WIDTH * spread))
    inside = np.array(covered, dtype=float)
    share, awkward = inside.mean(axis=1), inside[:, list(example.awkward)].mean(axis=1)

    def told(values: FloatArray) -> str:
        return f"{values.mean():.3f} +- {values.std(ddof=1) / np.sqrt(len(values)):.3f}"

    return (
        f"{name:18s} eps {epsilon:3.1f} N {n_records} runs {runs}{' wrong' if wrong else ''}  covered {told(share)}  "
        f"awkward {told(awkward)}  no privacy {told(np.array(plain, dtype=float).mean(axis=1))}  width "
        f"{np.median(ratio):.2f}  awkward {np.median(np.array(ratio)[:, list(example.awkward)]):.2f}  run "
        f"{np.median(seconds):.1f} s"
    )


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--model", choices=list(EXAMPLES))
    parser.add_argument("--wrong", action="store_true")
    chosen = parser.parse_args()
    for name in [chosen.model] if chosen.model else EXAMPLES:
        print(run(name, chosen.runs, chosen.epsilon, chosen.records, chosen.seed, chosen.wrong), flush=True)


if __name__ == "__main__":
    main()
