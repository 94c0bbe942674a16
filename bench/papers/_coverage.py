"""Coverage tables of NA-DPVI: its methods on one set of simulated runs, judged as in the paper's code and as in ours.

Truths from the prior, 5000 records of the model, delta = 1e-5, 10^4 steps at a sampling rate of 0.1, clipping norms,
preconditioners, starts and rates of the published code.  Reference points lie within four of the posterior's own
standard deviations:

- "code": around the mean of loc over the last 80% of the trace, with Euclidean distances between the unconstrained
  parameters as they are, so that the widest decides: the published evaluation;
- "own": around the posterior's mean, with distances in its standard deviations, so that every parameter counts.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from bench.papers._frame import MISSING

import dpinfer as dpi
from dpinfer.lab.coverage.counts import tarp_counts
from dpinfer.lab.studies import recipes
from dpinfer.lab.studies.posteriors import by_coordinate, each, plug_in
from dpinfer.lab.studies.random_streams import REFERENCES, run_generator
from dpinfer.lab.studies.simulation import simulate_data, simulate_releases
from dpinfer.models.base import softplus_inverse

LEVELS = np.concatenate(([0.001], np.arange(1, 20) / 20, [0.999]))  # the published ones
RECORDS, CHUNK, DRAWS, REPEATS, SEED = 5000, 10, 1000, 20, 0
BURN_IN = 0.2  # H.3 leaves it open; the published code drops a fifth
# DPVIm: the share of the trace that is averaged, which the paper leaves open; whether the iterates' variance is added
WINDOWS = {
    "DPVIm": (0.8, True),
    "DPVIm, last half": (0.5, True),
    "DPVIm, last fifth": (0.2, True),
    "DPVIm, last 3%": (0.03, True),
    "DPVIm without the iterates' variance": (0.8, False),
}
METHODS = ("exact", "laplace", "naive", *WINDOWS)
SLOW = "loc's rate × 1/4"  # a comment in the published code has it for higher epsilon
START = "started at the prior's mean"  # with scales of 0.03; the published code starts at 0


@lru_cache(maxsize=4)
def releases_of(name, epsilon, first, count, recipe, change, threads):
    """Return the simulated data and releases of a chunk, with one change of the published settings."""
    study = recipes.find(name)
    model = study.published_model
    settings, _ = study._settings(model, recipe, epsilon, RECORDS, {})
    if change == SLOW:
        rate = np.array(settings.learning_rate)
        # The noise variance's loc keeps its own rate.
        rate[: model.n_params - 1] *= 0.25
        settings = replace(settings, learning_rate=rate)
    elif change == START:
        n = model.n_params
        start = np.concatenate((model.prior_moments()[0], np.full(n, softplus_inverse(0.03))))
        settings = replace(settings, start=start)
    data = simulate_data(model, RECORDS, first=first, count=count, seed=SEED)
    return data, simulate_releases(model, data, settings, first=first, seed=SEED, n_threads=threads)


def shares(draws, truth, centre, first, *, plain):
    """Return (count, REPEATS): the share of draws nearer to each reference point than the truth."""
    count, n = truth.shape
    scale = np.ascontiguousarray(draws.std(axis=0))
    points = np.empty((REPEATS, count, n))
    for row in range(count):
        points[:, row] = run_generator(SEED, REFERENCES, first + row).uniform(-4.0, 4.0, (REPEATS, n))
    unit = np.ones_like(scale) if plain else scale
    return (tarp_counts(np.ascontiguousarray(draws), truth, centre + points * scale, unit)[0] / (2.0 * DRAWS)).T


def chunk(name, epsilon, index, methods, change, threads):
    """Return what the methods say of a chunk of runs: shares, coverage and relative width of intervals, failures."""
    first, found = index * CHUNK, {}
    for method in methods:
        recipe = "dpvim" if method in WINDOWS else "paper"
        data, releases = releases_of(name, epsilon, first, CHUNK, recipe, change, threads)
        n = data.truth.shape[1]
        window, spread = WINDOWS.get(method, (1.0 - BURN_IN, False))
        path = releases.path[:, releases.first_block(1.0 - window) :]
        if method == "naive":
            posteriors = plug_in(releases.final_params)
        elif method in WINDOWS:
            posteriors = plug_in(path.mean(axis=1), path[:, :, :n].var(axis=1) if spread else None)
        else:
            options = {"prior": "empirical", "burn_in": BURN_IN, "extra_noise": False, "n_threads": threads}
            posteriors = each(releases, lambda part, m=method, k=n, o=options: by_coordinate(part, k, method=m, **o))
        kept = [row for row, posterior in enumerate(posteriors) if posterior is not None]
        rng = np.random.default_rng((SEED, first, METHODS.index(method)))
        draws = np.stack([posteriors[row].draw(DRAWS, rng) for row in kept], axis=1)
        truth, middle = data.truth[kept], path[kept][:, :, :n].mean(axis=1)
        low, high = np.quantile(draws, (0.05, 0.95), axis=0)
        found[method] = {
            "code": shares(draws, truth, middle, first, plain=True).round(4).tolist(),
            "own": shares(draws, truth, draws.mean(axis=0), first, plain=False).round(4).tolist(),
            "covered": ((low <= truth) & (truth <= high)).tolist(),
            "width": ((high - low) / data.reference_width90[kept]).round(4).tolist(),
            "failed": CHUNK - len(kept),
        }
    return found


def published_methods(work, panel, methods, runs, change=""):
    """Return {method: {"code", "own", "covered", "width": arrays over runs, "failed": number}} of a panel."""
    name, epsilon = panel
    key = f"{name}-{epsilon:g}" + {"": "", SLOW: "-slow", START: "-start"}[change]
    key += "-aligned" if methods[0] in WINDOWS else ""
    work.say(f"{key}: {', '.join(methods)}")

    def one(index):
        return chunk(name, epsilon, index, methods, change, work.threads)

    chunks = work.runs(key, -(-runs // CHUNK), one)
    join = dict.fromkeys(("code", "own", "covered", "width"), np.concatenate)
    return {
        method: {part: join[part]([np.array(item[method][part]) for item in chunks])[:runs] for part in join}
        | {"failed": sum(item[method]["failed"] for item in chunks)}
        for method in (methods if chunks else ())
    }


def rmse(values, levels=LEVELS):
    """Return the coverage RMSE of shares (runs, repeats), its spread over repeats, and its error over the runs."""
    below = (np.asarray(values)[..., None] < levels).astype(float)
    runs = below.shape[0]

    def each_set(weights):
        return np.sqrt(np.mean((np.einsum("krl,k->rl", below, weights) - levels) ** 2, axis=1))

    rng = np.random.default_rng(3)
    again = [each_set(rng.multinomial(runs, np.full(runs, 1.0 / runs)) / runs).mean() for _ in range(200)]
    sets = each_set(np.full(runs, 1.0 / runs))
    return float(sets.mean()), float(sets.std(ddof=1)), float(np.std(again, ddof=1))


def judged(found, measure):
    """Return a cell: the RMSE in a measure with its error over the runs, and their number."""
    mean, _, error = rmse(found[measure])
    return f"{mean:.3f} ± {error:.3f} ({len(found[measure])})"


def intervals(found):
    """Return a cell: coverage and relative width of 90% intervals, and failed runs."""
    cover, width = found["covered"].mean(axis=0), np.median(found["width"], axis=0)
    return f"{span(cover, 2)}; {span(width, 1)}; {found['failed']} of {len(found['covered']) + found['failed']}"


def study(work, panel, label, runs, **settings):
    """Return the result of the library's own study of a method, with its runs kept in the work's folder."""
    name, epsilon = panel
    # A study goes on only in the version that began it.
    folder = work.folder / f"{name}-{epsilon:g}-{label}-{dpi.__version__}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    work.say(f"{name}-{epsilon:g}: {label}")
    return dpi.coverage_study(
        name, epsilon=epsilon, n_runs=runs, n_repeats=REPEATS, n_threads=work.threads, checkpoint=folder,
        chunk_size=25, **settings,
    )  # fmt: skip


def of_study(result):
    """Return cells of a study: RMSE with its error over the runs, and its intervals."""
    width = np.median(result.relative_width, axis=0)
    widths = span(width, 2) if np.isfinite(width).all() else MISSING
    mean, _, error = rmse(result.tarp.shares.T)
    found = f"{span(result.coverage90, 2)}; {widths}; {result.n_failed} of {result.n_runs}"
    return f"{mean:.3f} ± {error:.3f} ({result.n_runs})", found


def span(values, digits):
    """Return the smallest and the largest value, or the one that both round to."""
    low, high = (f"{value:.{digits}f}" for value in (np.min(values), np.max(values)))
    return low if low == high else f"{low} to {high}"


def floor(runs):
    """Return mean and standard deviation of the RMSE of an exact posterior with so many runs."""
    rng = np.random.default_rng(1)
    exact = [np.sqrt(np.mean((np.mean(rng.random(runs)[:, None] < LEVELS, axis=0) - LEVELS) ** 2)) for _ in range(2000)]
    return float(np.mean(exact)), float(np.std(exact))
