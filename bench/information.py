"""What intervals cost: passes and seconds of a private Newton fit, and of DP-SGD until its intervals are as good.

    python -m bench --peers DIR information [--arguments "--runs 10 --epsilon 1 --processes 2"]

Adult's columns (DPINFER_DATA), labels simulated from weights that are known; equal epsilon and delta.  The library's
intervals are those of its posterior, from one run.  DP-SGD takes what peers take: clipped gradients of a
Poisson sample at rate 0.1, Gaussian noise, a step along them, from 0.  Its sums tell the weights through the slope of
the clipped score, which it does not release: here it is *given* that slope at the true weights, without noise and for
no budget, and the exact posterior that follows from it under the prior.  So no intervals from such a trace can be
better.  Of several clipping norms, learning rates and shares of steps left out, what is best for it in these very runs
is shown, for each number of steps: the narrowest intervals whose coverage is not below 0.90 by two Monte Carlo errors,
or those that cover most.

Last, processor seconds in one process, interleaved: our run and the peers' steps; peers that are not installed are left
out.  Neither counts the posterior; whole fits are in bench/peers.py.
"""

import argparse
import itertools
import math
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np

import peers

STEPS = (30, 100, 300, 1000, 3000, 10_000)
NORMS = (peers.ROOT_MEAN_SQUARE, 8.0, peers.LARGEST)
LEARNING_RATES = (0.3, 1.0, 3.0)
LEFT_OUT = (0.0, 0.5)
LEVEL = 0.90


class Field:
    """The clipped score's mean slope and variance at the true weights, which DP-SGD is given."""

    def __init__(self, X, truth, norm):
        p, length = peers.sigmoid(X @ truth), np.linalg.norm(X, axis=1)
        slope, variance = np.zeros(len(X)), np.zeros(len(X))
        for chance, residual in ((p, 1.0 - p), (1.0 - p, p)):
            inside = residual * length <= norm
            slope += chance * inside * p * (1.0 - p)
            variance += chance * np.minimum(residual, norm / length) ** 2
        self.slope, self.variance = ((X * weight[:, None]).T @ X for weight in (slope, variance))

    def intervals(self, total, count, noise):
        """Return the ends of intervals: `total` of `count` sums over the rate, each plus slope times its point."""
        spread = self.variance * (1.0 + (1.0 / peers.RATE - 1.0) / count) + np.eye(len(self.slope)) * noise**2 / count
        gain = np.linalg.solve(spread, self.slope).T
        covariance = np.linalg.inv(np.eye(len(self.slope)) + gain @ self.slope)
        mean, half = covariance @ (gain @ (total / count)), peers.Z * np.sqrt(np.diag(covariance))
        return mean - half, mean + half


def trace(X, y, norm, field, plan, rate, seed):
    """Return the ends of DP-SGD's intervals for each share of steps that is left out."""
    from dpinfer.mechanism import _native

    n, d = X.shape
    session = _native.StepSession(
        features=X, response=y, likelihood="logistic", intercept=False, aligned=True, sample_rate=peers.RATE,
        max_grad_norm=norm, key=np.random.default_rng(seed).bytes(32), n_threads=1,
    )  # fmt: skip
    session.set_scales(np.ones(d), np.zeros(d))
    point, totals = np.zeros(d), np.zeros((len(LEFT_OUT), d))
    first = [math.floor(share * plan.n_steps) for share in LEFT_OUT]
    for step in range(plan.n_steps):
        session.set_draws(point[None], np.zeros((1, d)), np.empty((0, 1)))
        gradient = session.noisy_sum(step + 1, plan.noise_multiplier) / peers.RATE
        told = field.slope @ point - gradient
        for total, start in zip(totals, first, strict=True):
            if step >= start:
                total += told
        point = point - rate / n * gradient
        if not np.all(np.abs(point) < 1e6):
            point = np.zeros(d)
    noise = plan.noise_multiplier * norm / peers.RATE
    return [field.intervals(total, plan.n_steps - start, noise) for total, start in zip(totals, first, strict=True)]


def shown(results):
    cover, width = map(np.array, zip(*results, strict=True))
    return f"covered {cover.mean():.3f} +- {standard_error(cover):.3f}, width {np.median(width):.2f}"


def standard_error(values):
    return values.std(ddof=1) / math.sqrt(len(values))


def rank(results):
    """Return what sorts settings, the best for DP-SGD first."""
    cover, width = map(np.array, zip(*results, strict=True))
    holds = cover.mean() >= LEVEL - 2.0 * max(standard_error(cover), 0.005)
    return (0, np.median(width)) if holds else (1, -cover.mean())


def one_run(run, chosen, fields, plans):
    """Return coverage and width of our intervals, and of DP-SGD's by number of steps and setting."""
    import dpinfer as dpi

    warnings.filterwarnings("ignore")  # Of the posterior; intervals are judged by what they cover.
    X, y, model = peers.adult_records()
    features, n = np.ascontiguousarray(X[:, :-1]), len(X)
    truth, _ = peers.without_privacy(features, y)
    labels = (np.random.default_rng(1000 + run).random(n) < peers.sigmoid(X @ truth)) * 1.0
    _, scale = peers.without_privacy(features, labels)

    def judged(low, high):
        return float(np.mean((low < truth) & (truth < high))), np.median((high - low) / (2.0 * peers.Z * scale))

    own, found = None, {}
    if not chosen.rivals_only:
        fit = dpi.fit(model, features, labels, epsilon=chosen.epsilon, delta=peers.DELTA, n_records=n)
        own = judged(*peers.ends(fit.posterior)[1:])
    for steps, norm, rate in itertools.product(chosen.steps, NORMS, LEARNING_RATES):
        several = trace(X, labels, norm, fields[norm], plans[steps], rate, (run, steps))
        found |= {(steps, norm, rate, share): judged(*ends) for share, ends in zip(LEFT_OUT, several, strict=True)}
    return own, found


def compare(chosen):
    """Print coverage and width of both."""
    import dpinfer as dpi

    X, y, model = peers.adult_records()
    truth, _ = peers.without_privacy(X[:, :-1], y)
    fields = {norm: Field(X, truth, norm) for norm in NORMS}
    common = {"target_epsilon": chosen.epsilon, "target_delta": peers.DELTA, "sample_rate": peers.RATE}
    plans = {steps: dpi.plan_privacy(**common, n_steps=steps) for steps in chosen.steps}
    with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
        runs = list(pool.map(one_run, *zip(*((run, chosen, fields, plans) for run in range(chosen.runs)), strict=True)))
    print(f"{len(X)} records, Adult's columns, simulated labels, epsilon {chosen.epsilon:g}, {len(runs)} runs")
    plan = dpi.plan_newton(model, target_epsilon=chosen.epsilon, target_delta=peers.DELTA, n_records=len(X))
    if not chosen.rivals_only:
        print(f"  library, {len(plan.phases)} passes: {shown([own for own, _ in runs])}")
    for steps in chosen.steps:
        results = {setting: [found[setting] for _, found in runs] for setting in runs[0][1] if setting[0] == steps}
        setting = min(results, key=lambda setting: rank(results[setting]))
        _, norm, rate, share = setting
        print(
            f"  DP-SGD given its slope, {steps} steps ({steps * peers.RATE:g} passes): {shown(results[setting])}; "
            f"norm {norm:.1f}, learning rate {rate:g}, {share:.0%} of the steps left out"
        )


def seconds(chosen):
    """Print processor seconds of our fit and of the peers' steps."""
    from scipy.sparse import csr_array

    import dpinfer as dpi

    X, y, model = peers.adult_records()
    n, rng = len(X), np.random.default_rng(1)
    plan = dpi.plan_newton(model, target_epsilon=chosen.epsilon, target_delta=peers.DELTA, n_records=n)
    rows = csr_array(X[:, :-1])
    batches = [rng.choice(n, size=round(peers.RATE * n), replace=False) for _ in range(10)]
    timed = {"run": lambda: dpi.run_newton(model, rows, y, plan=plan, n_records=n, n_threads=1)}
    for name, (maker, needed) in peers.PEERS.items():
        if find_spec(needed):
            step = maker(X, y, np.full(X.shape[1], 0.1), 1.0)[0]
            timed[name] = lambda step=step: [step(batch) for batch in batches]
        else:
            print(f"{name}: not installed, left out")
    times = peers.interleaved(timed, chosen.repeats)
    run = np.array(times.pop("run"))
    print(f"our run of {len(plan.phases)} passes, by codes: {1e3 * np.median(run):.0f} ms")
    for name, ten in times.items():
        told = []
        for steps in (100, 1000, 10_000):
            low, middle, high = np.quantile(steps / 10 * np.array(ten) / run, [0.25, 0.5, 0.75])
            told.append(f"{steps} steps {middle:.1f} ({low:.1f} to {high:.1f})")
        print(f"  {name}, {1e2 * statistics.median(ten):.2f} ms a step: {', '.join(told)} times that")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="simulated runs; 0 for seconds alone")
    parser.add_argument("--rivals-only", action="store_true", help="without our fits: see bench/newton_glm.py adult")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--repeats", type=int, default=9, help="of what is timed; 0 for intervals alone")
    chosen = parser.parse_args()
    if chosen.runs:
        compare(chosen)
    if chosen.repeats:
        seconds(chosen)


if __name__ == "__main__":
    main()
