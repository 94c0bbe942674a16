"""Why rows of the published coverage tables differ from ours: one setting changed at a time, beside the published rows.

Truths, records and noise are the same for every setting of a model.  Each line changes one thing in the settings of the
NA-DPVI experiments and prints coverage RMSEs, measured in three ways, all with reference points within four standard
deviations of the method's own posterior:

- own: references around the posterior's own mean, coordinates divided by their posterior standard deviation;
- iterate: references around the mean of loc over the used part of the trace;
- code: as the published evaluation code has it, references as for "iterate" and distances between the unconstrained
  parameters as they are, so that the widest coordinate decides.

The levels are the published ones (0.001, 0.05, ..., 0.95, 0.999: where nothing is ever covered that makes 0.584).

- paper: the recipe's noise-aware posterior; laplace: Laplace's approximation of it; naive: q at the last iterate;
- average, spread: aligned gradients, q at the average of the last 80% (or the stated window) of the iterates; "spread"
  adds the variance of those iterates, DPVIm's third part, to the variance of q.

Behind an RMSE stands its standard deviation over simulated data sets (bootstrap over the runs), which the published
deviations leave out: those are over sets of reference points for one set of 500 runs.  A star marks a difference within
twice the root of the sum of squares of the published deviation and those of two sets of simulations, theirs and ours,
once the published row has been moved from the Monte Carlo floor of its 500 runs to that of ours.

    python bench/published_rows.py [--models ...] [--runs 100] [--final-runs 500]
    python bench/published_rows.py --models linear-regression --epsilons 0.1 0.3 1 --runs 0 --final-runs 100
"""

import argparse
import math
import time
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from dpinfer.accounting import plan_privacy
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.theta import IndependentTheta
from dpinfer.inference.trace.collapsed import CollapsedProblems, collapsed_nodes
from dpinfer.inference.trace.priors import coordinate_priors
from dpinfer.lab.coverage.counts import tarp_counts
from dpinfer.lab.studies import find_study
from dpinfer.lab.studies.posteriors import each
from dpinfer.lab.studies.random_streams import REFERENCES, run_generator
from dpinfer.lab.studies.simulation import Settings, simulate_data, simulate_releases
from dpinfer.models.bijectors import softplus

N, KAPPA, DELTA, STEPS = 5000, 0.1, 1e-5, 10_000
DRAWS, REPEATS, CHUNK, GRID = 1000, 20, 50, 2001
LEVELS = np.concatenate(([0.001], np.arange(1, 20) / 20, [0.999]))
CONJUGATE = ("beta-bernoulli", "dirichlet-categorical", "gamma-exponential")
METHODS = ("paper", "laplace", "naive", "average", "spread")
PUBLISHED = {  # method: (mean, standard deviation over sets of reference points)
    ("gamma-exponential", 0.1): {"paper": (0.023, 0.008), "naive": (0.232, 0.003), "DPVIm": (0.038, 0.005)},
    ("beta-bernoulli", 0.1): {"paper": (0.016, 0.006), "naive": (0.273, 0.007), "DPVIm": (0.044, 0.004)},
    ("dirichlet-categorical", 0.1): {"paper": (0.020, 0.004), "naive": (0.355, 0.009), "DPVIm": (0.251, 0.011)},
    ("linear-regression", 0.1): {
        "paper": (0.036, 0.011),
        "laplace": (0.078, 0.011),
        "naive": (0.512, 0.003),
        "DPVIm": (0.584, 0.0),
    },
    ("linear-regression", 0.3): {
        "paper": (0.035, 0.011),
        "laplace": (0.098, 0.006),
        "naive": (0.307, 0.003),
        "DPVIm": (0.584, 0.0),
    },
    ("linear-regression", 1.0): {
        "paper": (0.027, 0.009),
        "laplace": (0.060, 0.007),
        "naive": (0.360, 0.003),
        "DPVIm": (0.584, 0.0),
    },
}


@dataclass(frozen=True)
class Setting:
    """Factors on the settings of the experiments, and the choices that they leave open."""

    label: str
    loc_rate: float = 1.0
    raw_rate: float = 1.0
    last_rate: float = 1.0  # of the last parameter's loc, besides loc_rate
    noise: float = 1.0
    clip: float = 1.0
    aligned_raw_rate: float = 1.0
    start: tuple[float, ...] | None = None
    window: float = 0.2
    prior: str = "empirical"


def published_noise(epsilon):
    """Noise multiplier of a search that stops once epsilon is within 0.01 of the target, over a multiplier's own.

    That is Opacus' search with its PRV accountant, which adds its error bound of 0.01 to epsilon.  Near the target,
    epsilon is inversely proportional to the multiplier to a percent, enough to follow the bisection.
    """
    own = noise_multiplier(epsilon)

    def spent(noise):
        return epsilon * own / noise + 0.01

    low, high = 0.0, 10.0
    while spent(high) > epsilon:
        high *= 2.0
    while epsilon - spent(high) > 0.01:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if spent(middle) < epsilon else (middle, high)
    return high / own


def settings_of(study, setting, multiplier, kind):
    """Return the engine's settings: "draws" for the paper's mechanism, "aligned" for DPVIm's."""
    paper, n = study.published, study.published_model.n_params
    noise, norm = multiplier * setting.noise, paper.max_grad_norm * setting.clip
    aligned = kind == "aligned"
    raw = 1.0 if aligned else paper.raw_grad_scale
    rates = np.concatenate((np.resize(paper.loc_rate, n) * setting.loc_rate, np.full(n, paper.raw_rate)))
    rates[n - 1] *= setting.last_rate
    rates[n:] *= setting.aligned_raw_rate if aligned else setting.raw_rate * raw
    start = (*np.resize(paper.loc, n), *np.full(n, paper.raw_scale)) if setting.start is None else setting.start
    return Settings(
        n_steps=STEPS,
        n_records=N,
        sample_rate=KAPPA,
        noise_multiplier=noise,
        max_grad_norm=norm,
        kind=kind,
        n_draws=10,
        per_example=True,
        fisher=False,
        raw_ratio=1.0,
        excursion=1.0,
        grad_scale=np.repeat([1.0, raw], n),
        learning_rate=rates / (math.sqrt(STEPS * 2 * n) * noise * norm),
        schedule=np.ones(STEPS),
        start=np.array(start, dtype=np.float64),
    )


def collapsed(releases, n, setting):
    """Return the recipe's posterior of every run, None where the quadrature fails."""

    def solve(part):
        statistics = part.statistics(setting.window, 2 * n)
        priors = coordinate_priors(setting.prior, statistics, KAPPA)
        problems = CollapsedProblems.build(statistics, priors, KAPPA, extra_noise=True)
        names = tuple(f"coordinate {index}" for index in range(problems.table.shape[0]))
        nodes = collapsed_nodes(problems, names)
        mixtures = NormalMixtures(nodes.offsets, nodes.weight, nodes.mean, nodes.variance)
        posteriors = []
        for first in range(0, problems.table.shape[0], 2 * n):
            inflation = nodes.inflation[nodes.offsets[first] : nodes.offsets[first + n]]
            loc, scale = mixtures.take(first, first + n), mixtures.take(first + n, first + 2 * n)
            posteriors.append(IndependentTheta(loc, inflation, np.zeros_like(inflation), scale))
        return posteriors

    return each(releases, solve)


def by_grid(releases, n, setting, rng, *, laplace):
    """Return draws (S, k, n) from the recipe's posterior with the privacy noise alone, by a grid over the raw slope.

    Without the noise of subsampling (a hundredth of the privacy noise at these settings) the posterior of a coordinate
    has one unknown that is not normal given the rest; a grid also serves where the slope is hardly identified.
    "laplace" is a normal posterior at the joint mode, with q's scale at its mode.
    """
    statistics = releases.statistics(setting.window, 2 * n)
    priors = coordinate_priors("empirical", statistics, KAPPA)
    runs = statistics.xx.shape[0] // (2 * n)
    draws = np.empty((DRAWS, runs, 2 * n))
    for index in range(statistics.xx.shape[0]):
        raw = priors.raw_loc[index] + priors.raw_scale[index] * np.linspace(-7.0, 7.0, GRID)
        slope = KAPPA * softplus(raw)
        variance, count = statistics.reference_stddev[index] ** 2, statistics.count
        xbar, gbar = statistics.position_mean[index], statistics.gradient_mean[index]
        precision = count * slope**2 / variance + 1.0
        mean = xbar - count * slope * gbar / variance / precision
        fit = -(slope**2 * statistics.xx[index] - 2.0 * slope * statistics.xg[index]) / (2.0 * variance)
        about = variance / count + slope**2
        density = fit - 0.5 * np.linspace(-7.0, 7.0, GRID) ** 2 - 0.5 * np.log(about) - gbar**2 / (2.0 * about)
        row, column = divmod(index, 2 * n)
        if laplace:
            profile = density + 0.5 * np.log(precision)
            top = int(np.clip(np.argmax(profile), 1, GRID - 2))
            step = raw[1] - raw[0]
            curvature = -(profile[top + 1] - 2.0 * profile[top] + profile[top - 1]) / step**2
            turn = (mean[top + 1] - mean[top - 1]) / (2.0 * step)
            width = math.sqrt(1.0 / precision[top] + turn**2 / curvature) if column < n else 0.0
            draws[:, row, column] = mean[top] + width * rng.standard_normal(DRAWS)
            continue
        weight = np.cumsum(np.exp(density - density.max()))
        node = np.searchsorted(weight, weight[-1] * rng.random(DRAWS))
        draws[:, row, column] = mean[node] + rng.standard_normal(DRAWS) / np.sqrt(precision[node])
    return draws[:, :, :n] + softplus(draws[:, :, n:]) * rng.standard_normal((DRAWS, runs, n))


@cache
def noise_multiplier(epsilon):
    """Return the smallest noise multiplier that the library certifies."""
    plan = plan_privacy(target_epsilon=epsilon, target_delta=DELTA, sample_rate=KAPPA, n_steps=STEPS)
    return plan.noise_multiplier


def mechanism_of(setting):
    """Return the setting with what only the posteriors look at reset."""
    return replace(setting, label="", window=BASE.window, prior=BASE.prior)


@lru_cache(maxsize=64)
def release(study, setting, epsilon, first, count, seed, kind):
    """Return the releases of one kind; settings that differ in their posteriors alone share them."""
    model = study.published_model
    data = simulate_data(model, N, first=first, count=count, seed=seed)
    own = settings_of(study, setting, noise_multiplier(epsilon), kind)
    return simulate_releases(model, data, own, first=first, seed=seed, n_threads=0)


def draws_of(study, setting, epsilon, first, count, seed):
    """Return {method: draws (S, k, n)}, truths, the centre of the published references, and the noiseless widths."""
    model = study.published_model
    n = model.n_params
    data = simulate_data(model, N, first=first, count=count, seed=seed)
    rng = np.random.default_rng((seed, first, 1))
    normal = rng.standard_normal((DRAWS, count, n))
    found, centre = {}, {}

    releases = release(study, mechanism_of(setting), epsilon, first, count, seed, "draws")
    middle = releases.path[:, releases.first_block(setting.window) :, :n].mean(axis=1)
    if setting.prior == "empirical":
        found["paper"] = by_grid(releases, n, setting, rng, laplace=False)
        if "laplace" in PUBLISHED[study.name, epsilon]:
            found["laplace"] = by_grid(releases, n, setting, rng, laplace=True)
    else:
        found["paper"] = np.full((DRAWS, count, n), np.nan)
        for row, posterior in enumerate(collapsed(releases, n, setting)):
            if posterior is not None:
                found["paper"][:, row] = posterior.draw(DRAWS, rng)
    found["naive"] = releases.final_params[:, :n] + softplus(releases.final_params[:, n:]) * normal
    centre |= dict.fromkeys(("paper", "laplace", "naive"), middle)
    releases = release(study, mechanism_of(setting), epsilon, first, count, seed, "aligned")
    path = releases.path[:, releases.first_block(setting.window) :]
    middle, scale = path[:, :, :n].mean(axis=1), softplus(path[:, :, n:].mean(axis=1))
    found["average"] = middle + scale * normal
    spread = releases.statistics(setting.window, n).spread.reshape(count, n)
    found["spread"] = middle + np.hypot(scale, spread) * normal
    centre |= dict.fromkeys(("average", "spread"), middle)
    return found, data.truth, centre, data.reference_width90


def shares(draws, truth, centre, first, seed, *, plain=False):
    """Return (R, k) shares of draws nearer to each reference point than the truth; "plain" does not standardise."""
    count, n = truth.shape
    scale = np.ascontiguousarray(draws.std(axis=0))
    points = np.empty((REPEATS, count, n))
    for row in range(count):
        points[:, row] = run_generator(seed, REFERENCES, first + row).uniform(-4.0, 4.0, (REPEATS, n))
    points = centre + points * scale
    unit = np.ones_like(scale) if plain else scale
    return tarp_counts(np.ascontiguousarray(draws), truth, points, unit)[0] / (2.0 * len(draws))


def rmse(below, weights):
    """Coverage RMSE of every set of reference points, from (R, K, levels) indicators and weights of the runs."""
    coverage = np.einsum("rkl,k->rl", below, weights)
    return np.sqrt(np.mean((coverage - LEVELS) ** 2, axis=1))


def summary(parts):
    """Return the RMSE, its standard deviation over sets of references, and over simulated data sets."""
    below = (np.concatenate(parts, axis=1)[..., None] < LEVELS).astype(np.float64)
    runs = below.shape[1]
    each_set = rmse(below, np.full(runs, 1.0 / runs))
    rng = np.random.default_rng(3)
    again = [rmse(below, rng.multinomial(runs, np.full(runs, 1.0 / runs)) / runs).mean() for _ in range(100)]
    return float(each_set.mean()), float(each_set.std(ddof=1)), float(np.std(again, ddof=1))


def measure(study, setting, epsilon, runs, seed):
    """Return {method: (summaries in the three measures, spread of z, relative width, runs kept)}."""
    measures, z, widths = {}, {}, {}
    for first in range(0, runs, CHUNK):
        count = min(CHUNK, runs - first)
        found, truth, centre, reference = draws_of(study, setting, epsilon, first, count, seed)
        for method, draws in found.items():
            ok = np.isfinite(draws).all(axis=(0, 2)) & (draws.std(axis=0) > 0.0).all(axis=1)
            if not ok.any():
                continue
            kept = np.ascontiguousarray(draws[:, ok])
            target, mean = np.ascontiguousarray(truth[ok]), kept.mean(axis=0)
            around = centre[method][ok]
            for measure, part in (
                ("own", shares(kept, target, mean, first, seed)),
                ("iterate", shares(kept, target, around, first, seed)),
                ("code", shares(kept, target, around, first, seed, plain=True)),
            ):
                measures.setdefault(method, {}).setdefault(measure, []).append(part)
            z.setdefault(method, []).append((target - mean) / kept.std(axis=0))
            low, high = np.quantile(kept, (0.05, 0.95), axis=0)
            widths.setdefault(method, []).append((high - low) / reference[ok])
    return {
        method: (
            [summary(parts) for parts in measures[method].values()],
            float(np.median(np.abs(np.concatenate(z[method])))) / 0.6745,
            np.median(np.concatenate(widths[method]), axis=0),
            sum(part.shape[1] for part in measures[method]["own"]),
        )
        for method in measures
    }


def agrees(found, wanted, runs):
    """Whether a row is reproduced, given the published deviation and the error of two sets of simulations.

    The Monte Carlo floor adds 1 / (6 K) to the mean square, so that of the published 500 runs makes way for ours.
    """
    aim = math.sqrt(max(wanted[0] ** 2 - 1.0 / 3000.0, 0.0) + 1.0 / (6.0 * runs))
    return abs(found[0] - aim) <= 2.0 * math.hypot(wanted[1], math.sqrt(2.0) * found[2])


def report(name, epsilon, setting, runs, seed, *, full=False):
    """Print one setting: a line, or a line for each method."""
    began = time.perf_counter()
    rows = measure(find_study(name), setting, epsilon, runs, seed)
    seconds = time.perf_counter() - began
    published = PUBLISHED[name, epsilon]
    cells = []
    for method in METHODS:
        if method not in rows:
            continue
        wanted = published.get("DPVIm" if method in ("average", "spread") else method)
        found, spread, width, kept = rows[method]
        mark = ["*" if wanted is not None and agrees(value, wanted, kept) else " " for value in found]
        if full:
            known = "      -      " if wanted is None else f"{wanted[0]:.3f} ± {wanted[1]:.3f}"
            cell = " | ".join(f"{a:.3f} ± {b:.3f} ({c:.3f}){m}" for (a, b, c), m in zip(found, mark, strict=True))
            print(
                f"  {name:<22} {epsilon:>4g} {setting.label:<24} {method:<8} {known} | {cell}"
                f" | {spread:5.2f} | {width.min():6.2f} to {width.max():6.2f} | {kept}"
            )
        cells.append(f"{method} {found[0][0]:.3f}{mark[0]}/ {found[2][0]:.3f}{mark[2]}±{found[2][2]:.3f}")
    if not full:
        print(f"  {name:<22} {setting.label:<34} " + "  ".join(cells) + f"  [{seconds:.0f} s]", flush=True)
    else:
        print(f"  [{seconds:.0f} s]", flush=True)


def one_at_a_time(study):
    """Return the settings of the scan."""
    model = study.published_model
    n = model.n_params
    loc = model.prior_moments()[0]
    optimum = tuple(loc) + (math.log(math.expm1(0.03)),) * n
    rates = [replace(BASE, label=f"both rates x {r:g}", loc_rate=r, raw_rate=r) for r in (1 / 4, 1 / 2, 2, 4)]
    noise = published_noise(0.1)
    return [
        BASE,
        *(replace(BASE, label=f"window: last {1.0 - w:.2g}", window=w) for w in (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)),
        replace(BASE, label="prior of the slope: weak", prior="weak"),
        *rates,
        replace(BASE, label="raw_scale rate x 4", raw_rate=4.0),
        replace(BASE, label="start: prior mean, scale 0.03", start=optimum),
        replace(BASE, label="C x 1/2", clip=0.5),
        replace(BASE, label="C x 2", clip=2.0),
        replace(BASE, label=f"noise x {noise:.2f}", noise=noise),
        replace(BASE, label="aligned: raw_scale rate x beta", aligned_raw_rate=study.published.raw_grad_scale),
    ]


BASE = Setting("as printed")


def main():
    """Scan, then the settings of the published code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(CONJUGATE), choices=(*CONJUGATE, "linear-regression"))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1])
    parser.add_argument("--runs", type=int, default=100, help="of the scan; 0 leaves it out")
    parser.add_argument("--final-runs", type=int, default=500, help="of the last table; 0 leaves it out")
    parser.add_argument("--only", help="of the scan: settings whose label holds this, a line for each method")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.models if arguments.runs else ():
        print(f"{name}: published {PUBLISHED[name, 0.1]}; {arguments.runs} runs, own/ code, * agrees")
        for setting in one_at_a_time(find_study(name)):
            full = arguments.only is not None
            if not full or arguments.only in setting.label:
                report(name, arguments.epsilons[0], setting, arguments.runs, arguments.seed, full=full)
    if not arguments.final_runs:
        return
    print(
        f"{arguments.final_runs} runs | published | own (over the runs) | iterate | code"
        " | median |z| / 0.6745 | relative width | runs kept"
    )
    for name in arguments.models:
        for epsilon in arguments.epsilons:
            settings = [BASE]
            if name == "linear-regression":
                # A comment in the published code: better for higher epsilon.
                settings.append(replace(BASE, label="weights' rate x 1/4", loc_rate=0.25, last_rate=4.0))
            for setting in settings:
                report(name, epsilon, setting, arguments.final_runs, arguments.seed, full=True)


if __name__ == "__main__":
    main()
