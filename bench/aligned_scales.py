"""Where the spread of aligned draws should come from: public numbers, or the gradient derived from the noisy one.

A NumPy prototype of two designs, apart from the library's own mechanism (waiting times in 64 classes of equal count):

- public: s_t = c (N I(mu_t))**(-1/2), no gradient (what ``gradient="aligned"`` with Fisher scaling draws, c = 2);
- derived: the gradient in u is z s' times the noisy gradient in theta (Jalko et al. 2023) and moves u by natural steps,
  at the rate of loc or a tenth of it; s starts at (N I)**(-1/2).

Both take natural steps in loc, at the same clipping norm, and the same posterior: the derived gradient is a function of
what is released anyway, so it can tell the posterior nothing that the regression on theta_t does not.  Printed, for
linear regression over the weights and for the noise variance: the root mean square of log(s_t / c (N I)**(1/2)) over
the last half of the steps; mean and standard deviation of the z-scores; coverage of 90% intervals; their median
relative width.  Errors are one Monte Carlo standard error over the runs.

    python bench/aligned_scales.py [--runs 200] [--regression-runs 40]
"""

import argparse
import math

import numpy as np
from scipy import special

import dpinfer as dpi
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.theta import IndependentTheta
from dpinfer.inference.scales.fisher import WHOLE_TRACE, FisherRun, TiedTrace
from dpinfer.inference.scales.posteriors import fisher_burn_in
from dpinfer.inference.scales.tied import fisher_tied_nodes
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.lab.studies.recipes import find
from dpinfer.lab.studies.simulation import simulate_data
from dpinfer.mechanism import largest_natural_rate
from dpinfer.models import default_max_grad_norm
from dpinfer.models.bijectors import sigmoid, softplus, softplus_inverse

N_RECORDS, RATE, STEPS, DELTA = 5000, 0.1, 2500, 1e-5
CLASSES, TOLERANCE, DECAY = 64, 0.1, 3.0


class Counted:
    """Runs of a conjugate model with one parameter, by the counts of few record values."""

    def __init__(self, name, runs, seed):
        self.model = find(name).model
        data = simulate_data(self.model, N_RECORDS, first=0, count=runs, seed=seed)
        self.truth, self.width, self.waiting = data.truth, data.reference_width90, data.counts.size == 0
        if self.waiting:
            parts = np.array_split(np.sort(data.statistics[..., 0], axis=1), CLASSES, axis=1)
            self.values = np.stack([part.mean(axis=1) for part in parts], axis=1)
            self.counts = np.tile([part.shape[1] for part in parts], (runs, 1))
        else:
            self.values, self.counts = data.statistics[:, 0], data.counts

    def prior(self, theta):
        if self.waiting:
            rate = softplus(theta)
            return -((self.model.shape - 1.0) / rate - self.model.rate) * sigmoid(theta) - sigmoid(-theta)
        return (self.model.a + self.model.b) * special.expit(theta) - self.model.a

    def batch(self, theta, root, norm, rng):
        """Return sums of a Poisson batch's gradients, clipped where over `root` they are longer than `norm`."""
        own = sigmoid(theta) * (self.values - 1.0 / softplus(theta)) if self.waiting else sigmoid(theta) - self.values
        clipped = np.clip(own / root, -norm, norm) * root
        return np.sum(rng.binomial(self.counts, RATE) * clipped, axis=1, keepdims=True)

    def linear(self, theta):
        return theta, np.ones_like(theta)


class Regression:
    """Runs of the study's linear regression, with all their records."""

    def __init__(self, name, runs, seed):
        self.model = find(name).model
        data = simulate_data(self.model, N_RECORDS, first=0, count=runs, seed=seed)
        self.truth, self.width = data.truth, data.reference_width90
        self.features = np.concatenate((data.features, np.ones((runs, N_RECORDS, 1))), axis=2)
        self.squares, self.response = np.square(self.features).sum(axis=2), data.response

    def prior(self, theta):
        weights, rho = theta[:, :-1], theta[:, -1:]
        variance, scale2 = softplus(rho), self.model.prior_scale**2
        quadratic = 0.5 * np.sum(weights**2, axis=1, keepdims=True) / scale2 + self.model.variance_rate
        power = 0.5 * weights.shape[1] + self.model.variance_shape + 1.0
        last = -(quadratic / variance**2 - power / variance) * sigmoid(rho) - sigmoid(-rho)
        return np.concatenate((weights / (scale2 * variance), last), axis=1)

    def batch(self, theta, root, norm, rng):
        variance = softplus(theta[:, -1:])
        residual = self.response - np.matmul(self.features, theta[:, :-1, None])[..., 0]
        level, last = residual / np.sqrt(variance), (1.0 - residual**2 / variance) / math.sqrt(2.0)
        factor = norm / np.maximum(np.sqrt(level**2 * self.squares + last**2), norm)
        factor *= rng.random(residual.shape, dtype=np.float32) < RATE
        sums = -np.matmul((factor * level)[:, None], self.features)[:, 0]
        return root * np.concatenate((sums, np.sum(factor * last, axis=1, keepdims=True)), axis=1)

    def linear(self, theta):
        return np.append(theta[:, :-1], softplus(theta[:, -1:]), axis=1), np.append(
            np.ones_like(theta[:, :-1]), sigmoid(theta[:, -1:]), axis=1
        )


def traces(runs, noise, norm, excursion, raw_rate, rng):
    """Return positions, scaled gradients, their noise, and log s over c (N I)**(-1/2): (steps, runs, n) each.

    `raw_rate`: None for a public spread, else the rate of the derived steps over that of loc.
    """
    model = runs.model
    loc = np.tile(model.prior_moments()[0], (runs.truth.shape[0], 1))
    raw = softplus_inverse(excursion * (N_RECORDS * model.information(loc)) ** -0.5)
    largest = largest_natural_rate(STEPS, model.n_params, noise / (RATE * N_RECORDS))
    kept = np.empty((4, STEPS, *loc.shape))
    for t in range(STEPS):
        scale, slope = softplus(raw), sigmoid(raw)
        z = rng.standard_normal(loc.shape)
        theta = loc + scale * z
        information = model.information(theta)
        root = np.sqrt(information)
        noisy = runs.batch(theta, root, norm, rng) + noise * root * rng.standard_normal(loc.shape)
        noisy += RATE * runs.prior(theta)
        position, chain = runs.linear(theta)
        typical = excursion * (N_RECORDS * model.information(loc)) ** -0.5
        kept[:, t] = position, noisy / information * chain, noise / root * chain, np.log(scale / typical)
        rate = min(largest, DECAY / (t + 1.0))
        loc = loc - rate * noisy / (RATE * N_RECORDS * information)
        if raw_rate is None:
            raw = softplus_inverse(excursion * (N_RECORDS * model.information(loc)) ** -0.5)
            continue
        derived = z * slope * noisy - RATE * slope / scale
        curvature = slope**2 * (N_RECORDS * information + scale**-2.0)
        raw = np.clip(raw - raw_rate * rate * derived / (RATE * curvature), -40.0, 40.0)
    return kept


def sums(kept, share):
    """Return the statistics of all steps but a first share, and moments with the weights of the last parameter."""
    position, scaled, stddev = kept[:3, int(share * STEPS) :]
    weight = (stddev[0] / stddev) ** 2
    total = weight.sum(axis=0)
    mx, mg = (weight * position).sum(axis=0) / total, (weight * scaled).sum(axis=0) / total
    dx, dg = position - mx, scaled - mg
    squares = [(weight * part).sum(axis=0) for part in (dx * dx, dx * dg, dg * dg)]
    own = weight[..., -1:] / total[:, -1:]
    last = (own * position).sum(axis=0)
    spread = np.sqrt((own * (position - last) ** 2).sum(axis=0))
    fields = (part.ravel() for part in (stddev[0], total, mx, mg, *squares))
    return TraceStatistics(position.shape[0], *fields), last.ravel(), spread.ravel()


def judge(runs, kept, noise_multiplier, norm):
    """Return z-scores, whether 90% intervals hold the truth, and their relative widths, (runs, n) each."""
    model, shape = runs.model, runs.truth.shape
    statistics, last, spread = sums(kept, fisher_burn_in(model))
    zero = np.zeros(runs.truth.size)
    trace = TiedTrace(statistics, None, zero, last, spread, sums(kept, WHOLE_TRACE)[0], None)
    run = FisherRun(model, N_RECORDS, RATE, noise_multiplier, norm, 0.0, TOLERANCE)
    nodes = fisher_tied_nodes(trace, run, model.names * shape[0])
    mixtures = NormalMixtures(nodes.offsets, nodes.weight, nodes.mean, nodes.variance)
    marginals = IndependentTheta(mixtures, nodes.inflation, 1.0 / nodes.hessian, None).marginals
    mean, stddev = marginals.mean.reshape(shape), np.sqrt(marginals.variance).reshape(shape)
    low, high = marginals.quantile(np.array([0.05, 0.95])).reshape(2, *shape)
    covered = (low <= runs.truth) & (runs.truth <= high)
    return (runs.truth - mean) / stddev, covered, (high - low) / runs.width


def print_row(label, log_scale, z, covered, width):
    count = z.shape[0]
    errors = [values.mean(axis=1).std(ddof=1) / math.sqrt(count) for values in (z, np.square(z), covered)]
    spread = math.sqrt(np.mean(np.square(z)) - np.mean(z) ** 2)
    print(
        f"  {label:<44} log s {np.sqrt(np.mean(np.square(log_scale))):5.2f}"
        f"  mean z {z.mean():+.3f} ± {errors[0]:.3f}  sd z {spread:.3f} ± {0.5 * errors[1] / spread:.3f}"
        f"  covered {covered.mean():.3f} ± {errors[2]:.3f}  width {np.median(width):.3f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--regression-runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--studies", nargs="+", default=["gamma-exponential", "beta-bernoulli", "linear-regression"])
    arguments = parser.parse_args()
    designs = {"public, c = 2": (2.0, None), "derived": (1.0, 1.0), "derived, a tenth of the rate": (1.0, 0.1)}
    for name in arguments.studies:
        regression = name == "linear-regression"
        count = arguments.regression_runs if regression else arguments.runs
        runs = (Regression if regression else Counted)(name, count, arguments.seed)
        norm = default_max_grad_norm(runs.model, 0.0)
        for epsilon in (0.3, 1.0) if regression else (0.1, 1.0):
            plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=DELTA, sample_rate=RATE, n_steps=STEPS)
            noise = plan.noise_multiplier * norm
            step = noise / (RATE * math.sqrt(N_RECORDS))
            print(f"\n{name}, epsilon {epsilon:g}, {count} runs; noise of a natural step over (N I)^(-1/2): {step:.1f}")
            for label, (excursion, raw_rate) in designs.items():
                kept = traces(runs, noise, norm, excursion, raw_rate, np.random.default_rng(arguments.seed + 1))
                log_scale = kept[3, STEPS // 2 :]
                found = judge(runs, kept, plan.noise_multiplier, norm)
                for part, own in (("weights", slice(0, -1)), ("noise variance", slice(-1, None))):
                    if regression:
                        print_row(f"{label}, {part}", log_scale[..., own], *(item[:, own] for item in found))
                if not regression:
                    print_row(label, log_scale, *found)


if __name__ == "__main__":
    main()
