"""Where the spread of aligned draws should come from: public numbers, or the gradient derived from the noisy one.

A NumPy prototype of two designs on models with few distinct records (waiting times in 64 classes of equal count):

- public: s_t = c (N I(mu_t))**(-1/2), no gradient (what ``gradient="aligned"`` with Fisher scaling draws, c = 2);
- derived: the gradient in u is z s' times the noisy gradient in theta (Jalko et al. 2023) and moves u by natural steps,
  at the rate of loc or a tenth of it; s starts at (N I)**(-1/2).

Both take natural steps in loc, at the same clipping norm, and the same posterior: the derived gradient is a function of
what is released anyway, so it can tell the posterior nothing that the regression on theta_t does not.  Printed:
the standard deviation of log(s_t) - log((N I)**(-1/2)) over the last half of the steps; mean and standard deviation of
the z-scores; coverage of 90% intervals; their median relative width; each error is one Monte Carlo standard error.

    python bench/aligned_scales.py [--runs 300]
"""

import argparse
import math

import numpy as np
from scipy import special

import dpinfer as dpi
from dpinfer.inference.mixture import NormalMixtures
from dpinfer.inference.statistics import TraceStatistics
from dpinfer.inference.theta import IndependentTheta
from dpinfer.inference.tied import FisherRun, TiedTrace, fisher_tied_nodes
from dpinfer.mechanism import largest_natural_rate
from dpinfer.models import default_max_grad_norm
from dpinfer.models.bijectors import sigmoid, softplus, softplus_inverse

N_RECORDS, RATE, STEPS, DELTA = 5000, 0.1, 2500, 1e-5
CLASSES, TOLERANCE, DECAY, BURN_IN, WHOLE = 64, 0.1, 3.0, 0.35, 0.06
MODELS = {"gamma-exponential": dpi.models.GammaExponential(), "beta-bernoulli": dpi.models.BetaBernoulli()}


def simulated(model, runs, rng):
    """Return truths (runs,), record values and their counts (runs, values), and widths without privacy."""
    truth, values, counts, width = np.empty(runs), [], [], np.empty(runs)
    for row in range(runs):
        params = model.sample_prior(1, rng)[0]
        records = np.sort(model.simulate(params, N_RECORDS, rng))
        truth[row] = model.unconstrain(params)[0]
        if isinstance(model, dpi.models.GammaExponential):
            parts = np.array_split(records, CLASSES)
            values.append([part.mean() for part in parts])
            counts.append([part.size for part in parts])
        else:
            values.append([0.0, 1.0])
            counts.append(np.bincount(records.astype(int), minlength=2))
        total = model.sufficient_statistics(records).sum(axis=0)
        width[row] = np.ptp(model.posterior_from_total(total, N_RECORDS).interval(0.9, "unconstrained"))
    return truth, np.array(values), np.array(counts), width


def gradients(model, theta, values):
    """Return -d log p(record | theta) / d theta (runs, values), the prior's part (runs,), and the information."""
    if isinstance(model, dpi.models.GammaExponential):
        rate, slope = softplus(theta), sigmoid(theta)
        prior = -((model.shape - 1.0) / rate - model.rate) * slope - sigmoid(-theta)
        return slope[:, None] * (values - 1.0 / rate[:, None]), prior, (slope / rate) ** 2
    spec = model.to_dict()
    p = special.expit(theta)
    return p[:, None] - values, (spec["a"] + spec["b"]) * p - spec["a"], p * (1.0 - p)


def traces(model, values, counts, *, noise_multiplier, norm, excursion, raw_rate, rng):
    """Return positions, gradients over the information and the information, (steps, runs) each, and log s of q.

    `raw_rate`: None for a public spread, else the rate of the derived steps over that of loc.
    """
    runs = counts.shape[0]
    start = model.prior_moments()[0][0]
    loc = np.full(runs, start)
    typical = excursion * (N_RECORDS * gradients(model, loc, values)[2]) ** -0.5
    raw = softplus_inverse(typical)
    largest = largest_natural_rate(STEPS, 1, noise_multiplier * norm / (RATE * N_RECORDS))
    kept = np.empty((4, STEPS, runs))
    for t in range(STEPS):
        scale, slope = softplus(raw), sigmoid(raw)
        z = rng.standard_normal(runs)
        theta = loc + scale * z
        own, prior, information = gradients(model, theta, values)
        beta = information**-0.5
        clipped = own * np.minimum(1.0, norm / np.maximum(np.abs(beta[:, None] * own), 1e-300))
        batch = np.sum(rng.binomial(counts, RATE) * clipped, axis=1)
        noisy = batch + noise_multiplier * norm / beta * rng.standard_normal(runs) + RATE * prior
        here = (N_RECORDS * gradients(model, loc, values)[2]) ** -0.5
        kept[:, t] = theta, noisy / information, information, np.log(scale / here)
        rate = min(largest, DECAY / (t + 1.0))
        loc = loc - rate * noisy / (RATE * N_RECORDS * information)
        if raw_rate is None:
            raw = softplus_inverse(excursion * (N_RECORDS * gradients(model, loc, values)[2]) ** -0.5)
            continue
        derived = z * slope * noisy - RATE * slope / scale
        curvature = slope**2 * (N_RECORDS * information + scale**-2.0)
        raw = np.clip(raw - raw_rate * rate * derived / (RATE * curvature), -40.0, 40.0)
    return kept


def sums(kept, noise, first):
    """Return the trace statistics of the steps from `first` on."""
    position, scaled, information = kept[:3, first:]
    stddev = noise * information**-0.5
    weight = (stddev[0] / stddev) ** 2
    total = weight.sum(axis=0)
    mx, mg = (weight * position).sum(axis=0) / total, (weight * scaled).sum(axis=0) / total
    dx, dg = position - mx, scaled - mg
    squares = [(weight * part).sum(axis=0) for part in (dx * dx, dx * dg, dg * dg)]
    return TraceStatistics(position.shape[0], stddev[0], total, mx, mg, *squares)


def judge(model, kept, truth, width, noise_multiplier, norm):
    """Return mean and standard deviation of z, coverage of 90% intervals, and the median relative width."""
    noise = noise_multiplier * norm
    statistics, whole = (sums(kept, noise, int(share * STEPS)) for share in (BURN_IN, WHOLE))
    zero = np.zeros(truth.size)
    trace = TiedTrace(statistics, None, zero, statistics.position_mean, statistics.spread, whole, None)
    run = FisherRun(model, N_RECORDS, RATE, noise_multiplier, norm, 0.0, TOLERANCE)
    nodes = fisher_tied_nodes(trace, run, model.names * truth.size)
    marginals = IndependentTheta(
        NormalMixtures(nodes.offsets, nodes.weight, nodes.mean, nodes.variance),
        nodes.inflation,
        1.0 / nodes.hessian,
        None,
    ).marginals
    z = (truth - marginals.mean) / np.sqrt(marginals.variance)
    low, high = marginals.quantile(np.array([0.05, 0.95]))
    covered = np.mean((low <= truth) & (truth <= high))
    return z, covered, np.median((high - low) / width)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 1.0])
    runs = (arguments := parser.parse_args()).runs
    designs = {
        "public, c = 2": (2.0, None),
        "public, c = 1": (1.0, None),
        "derived": (1.0, 1.0),
        "derived, a tenth of the rate": (1.0, 0.1),
    }
    for name, model in MODELS.items():
        norm = default_max_grad_norm(model, 0.0)
        truth, values, counts, width = simulated(model, runs, np.random.default_rng(arguments.seed))
        for epsilon in arguments.epsilons:
            plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=DELTA, sample_rate=RATE, n_steps=STEPS)
            noise = plan.noise_multiplier
            step = noise * norm / (RATE * math.sqrt(N_RECORDS))
            print(f"\n{name}, epsilon {epsilon:g}, {runs} runs; noise of a natural step over (N I)^(-1/2): {step:.1f}")
            for label, (excursion, raw_rate) in designs.items():
                rng = np.random.default_rng(arguments.seed + 1)
                settings = {"noise_multiplier": noise, "norm": norm, "excursion": excursion, "raw_rate": raw_rate}
                kept = traces(model, values, counts, **settings, rng=rng)
                log_scale = kept[3, STEPS // 2 :]
                z, covered, relative = judge(model, kept, truth, width, noise, norm)
                print(
                    f"  {label:<29} sd log s {np.sqrt(np.mean(np.square(log_scale - math.log(excursion)))):6.2f}"
                    f"  mean z {z.mean():+.3f} ± {z.std(ddof=1) / math.sqrt(runs):.3f}"
                    f"  sd z {z.std(ddof=1):.3f} ± {z.std(ddof=1) * math.sqrt(0.5 / runs):.3f}"
                    f"  covered {covered:.3f} ± {math.sqrt(covered * (1 - covered) / runs):.3f}  width {relative:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
