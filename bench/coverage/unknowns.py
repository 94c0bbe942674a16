"""Coverage and width where the number of records, bounds or categories are unknown in public, and released.

    DPINFER_DATA=... python bench/coverage/unknowns.py power [--runs 24] [--processes 1]
    DPINFER_DATA=... python bench/coverage/unknowns.py adult [--runs 24] [--processes 1]
    python bench/coverage/unknowns.py count [--runs 150]

Real columns, simulated responses.  One privacy target is split by plan_unknown; what is released before the fit is
released by release_unknown, and the fit gets the rest.  Coverage of 90% intervals, pooled over weights, with its Monte
Carlo error over runs; widths relative to the posterior without privacy of the same columns in the same units, whose
coverage stands beside it.  Posteriors are as users get them: their Monte Carlo error is printed too.

power: linear regression on power-plant's features.  "public" knows means and standard deviations of features and the
scale of the responses; "n_records" releases the number of records alone; "bounds" all bounds; "both" both.
adult: logistic regression on Adult's columns. "public" has the schema of examples/adult.toml; "all" releases n, the
bounds of age, fnlwgt and hours, and all categories. Rare labels are then "other": only weights that both schemas have
are compared; what merging alone does is in the line without privacy.
count: a proportion by run_statistic where the number of records is released: plugged in, and integrated out.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.release import Release
from dpinfer.tabular import Schema, SchemaDraft, UnknownRelease, plan_unknown, read_table, release_unknown
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, logistic_mode
from scope_cells import real_columns

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

EPSILONS, DELTA = (1.0, 3.0), 1e-5
PRIOR_SCALE, NOISE_VARIANCE, REACH = 2.0, 1.0, 4.0
POWER = {"public": (), "n_records": ("n_records",), "bounds": ("bounds",), "both": ("n_records", "bounds")}


def released(
    columns: dict[str, FloatArray], unknown: tuple[str, ...], epsilon: float, seed: int
) -> tuple[UnknownRelease | None, float]:
    """Return what is released of columns of numbers, and what is left of epsilon for the fit."""
    if not unknown:
        return None, epsilon
    known = {} if "bounds" in unknown else {"bounds": [-1e6, 1e6]}
    draft = SchemaDraft({"columns": {name: {"kind": "continuous", **known} for name in columns}})
    plan = plan_unknown(draft, unknown, target_epsilon=epsilon, target_delta=DELTA)
    public = None if "n_records" in unknown else len(next(iter(columns.values())))
    source = InsecureRNG(seed)
    return release_unknown(columns, draft, plan=plan, n_records=public, random_source=source), plan.fit_epsilon


@dataclass(frozen=True)
class Run:
    """One fit, averaged over the weights that are looked at.

    Parameters
    ----------
    covered, covered_without : float
        Shares of the weights that the 90% intervals hold, with privacy and without.
    width : float
        Median over the weights, relative to the posterior without privacy.
    n_weights : int
    monte_carlo : float
        Largest Monte Carlo error of a quantile, in posterior standard deviations.
    """

    covered: float
    covered_without: float
    width: float
    n_weights: int
    monte_carlo: float


def compared(release: Release, there: IntArray, truth: FloatArray, mode: FloatArray, spread: FloatArray) -> Run:
    """Return how the intervals of the weights `there` do; mode and spread are those without privacy, (len(there),)."""
    posterior = dpi.noise_aware_posterior(release, fallback=True)
    low, high = posterior.quantile(LEVELS)[:, there]
    half = 0.5 * NORMAL_WIDTH * spread
    error = posterior.diagnostics.mcse
    return Run(
        covered=float(np.mean((low < truth) & (truth < high))),
        covered_without=float(np.mean(np.abs(mode - truth) < half)),
        width=float(np.median((high - low) / (2.0 * half))),
        n_weights=len(there),
        monte_carlo=float("nan" if error is None else np.max(error[there])),
    )


def power_run(epsilon: float, name: str, seed: int, index: int) -> Run:
    """Simulate responses of the power plant, release what `name` says is unknown, and fit with what is left."""
    features = real_columns("power-plant")
    if features is None:
        raise SystemExit("DPINFER_DATA must name the folder with power-plant.csv.gz")
    n_records, width = features.shape
    # As they would come: units that nobody has standardised.
    centre, unit = np.array([20.0, 54.0, 1013.0, 73.0]), np.array([7.5, 12.7, 5.9, 14.6])
    rng = np.random.default_rng([seed, index])
    weights = PRIOR_SCALE * np.sqrt(NOISE_VARIANCE) * rng.normal(size=width + 1)
    noise = np.sqrt(NOISE_VARIANCE) * rng.normal(size=n_records)
    response = np.column_stack((features, np.ones(n_records))) @ weights + noise
    columns = {f"x{place}": centre[place] + unit[place] * features[:, place] for place in range(width)}
    found, left = released({**columns, "y": response}, POWER[name], epsilon, 100_000 * seed + index)
    scaled, location, scale = features, 0.0, float(np.sqrt(np.mean(response**2)))
    truth = weights.copy()
    if found is not None and found.bounds is not None:
        bounds, ends = found.bounds, found.bounds.bounds(REACH)
        raw = np.clip(np.column_stack([*columns.values()]), ends[:-1, 0], ends[:-1, 1])
        scaled = (raw - bounds.centre[:-1]) / bounds.scale[:-1]
        location, scale = float(bounds.centre[-1]), float(bounds.scale[-1])
        truth[:-1] *= bounds.scale[:-1] / unit
        truth[-1] += weights[:-1] @ ((bounds.centre[:-1] - centre) / unit) - location
    count = n_records if found is None or found.n_records is None else found.n_records
    release = newton_fit(scaled, response - location, left, count, scale, 200_000 * seed + index)
    design = np.column_stack((scaled, np.ones(n_records)))
    precision = design.T @ design + np.eye(width + 1) / PRIOR_SCALE**2
    mode = np.linalg.solve(precision, design.T @ (response - location))
    spread = np.sqrt(NOISE_VARIANCE * np.diag(np.linalg.inv(precision)))
    return compared(release, np.arange(width + 1), truth, mode, spread)


def newton_fit(
    features: FloatArray, response: FloatArray, epsilon: float, n_records: int, scale: float, seed: int
) -> dpi.NewtonRelease:
    """Run the private Newton method for a linear regression."""
    model = dpi.models.LinearRegression(features.shape[1], prior_scale=PRIOR_SCALE, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=n_records)
    return dpi.run_newton(
        model, features, response, plan=plan, n_records=n_records, response_scale=scale, random_source=InsecureRNG(seed)
    )


@functools.cache
def adult_columns() -> tuple[Path, str, Schema, FloatArray]:
    """Return the file, the text of the public schema, and the rows that it makes of the file."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("DPINFER_DATA must name the folder with adult.data.csv.gz")
    path = Path(folder) / "adult.data.csv.gz"
    text = (Path(__file__).parents[2] / "examples" / "adult.toml").read_text()
    public = Schema.from_toml(text)
    return path, text, public, np.asarray(read_table(path, public).X)


def adult_run(epsilon: float, name: str, seed: int, index: int) -> Run:
    """Simulate outcomes of Adult's people, release what `name` says is unknown, and fit with what is left."""
    path, text, public, full = adult_columns()
    rng = np.random.default_rng([seed, index])
    truth = rng.normal(size=full.shape[1] + 1)
    response = (rng.random(len(full)) < special.expit(np.column_stack((full, np.ones(len(full)))) @ truth)) + 0.0
    schema, left, count, features = public, epsilon, len(full), full
    if name == "all":
        schema, left, count = adult_schema(path, text, epsilon, 100_000 * seed + index)
        features = np.asarray(read_table(path, schema).X)
    model = dpi.models.LogisticRegression(features.shape[1], fit_intercept=True, feature_moments=schema.feature_moments)
    plan = dpi.plan_newton(model, target_epsilon=left, target_delta=DELTA, n_records=count)
    source = InsecureRNG(200_000 * seed + index)
    release = dpi.run_newton(model, features, response, plan=plan, n_records=count, random_source=source)
    mode, precision = logistic_mode(np.column_stack((features, np.ones(len(features)))), response, 1.0)
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    there = np.array([place for place, label in enumerate(schema.feature_names) if label in public.feature_names])
    units = {column.name: column.offset_and_scale[1] for column in public.columns if hasattr(column, "bounds")}
    own = {column.name: column.offset_and_scale[1] for column in schema.columns if hasattr(column, "bounds")}
    names = [schema.feature_names[place] for place in there]
    factor = np.array([own[label] / units[label] if label in own else 1.0 for label in names])
    right = truth[[public.feature_names.index(label) for label in names]] * factor
    return compared(release, there, right, mode[there], spread[there])


def study(name: str, runs: int, seed: int, epsilons: list[float], processes: int) -> None:
    """Print a line for each epsilon and for each of what is unknown; run k is the same in any number of processes."""
    single, cases = {"power": (power_run, tuple(POWER)), "adult": (adult_run, ("public", "all"))}[name]
    cells = [(epsilon, case) for epsilon in epsilons for case in cases]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting = [pool.submit(single, *cell, seed, index) for cell in cells for index in range(runs)]
        for place, (epsilon, case) in enumerate(cells):
            found = [each.result() for each in waiting[place * runs : (place + 1) * runs]]
            rows = np.array([(run.covered, run.covered_without, run.width) for run in found])
            mean, error = rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(runs)
            difference = rows[:, 0] - rows[:, 1]
            print(
                f"{name}  epsilon {epsilon:3.1f}  {case:9s} {runs} runs  covered {mean[0]:.3f} +- {error[0]:.3f}  "
                f"without privacy {mean[1]:.3f} +- {error[1]:.3f}  difference {difference.mean():+.3f} +- "
                f"{difference.std(ddof=1) / np.sqrt(runs):.3f}  width {np.median(rows[:, 2]):5.2f} (mean {mean[2]:.2f} "
                f"+- {error[2]:.2f})  weights {np.mean([run.n_weights for run in found]):.0f}  MCSE "
                f"{np.median([run.monte_carlo for run in found]):.3f}, at most "
                f"{np.max([run.monte_carlo for run in found]):.3f}",
                flush=True,
            )


def count(runs: int, seed: int, epsilons: list[float]) -> None:
    """Print a line for each epsilon: a proportion, its number of records released for a tenth of epsilon."""
    model, n_records = dpi.models.BetaBernoulli(1.0, 1.0), 500
    for epsilon in epsilons:
        rng = np.random.default_rng(seed)
        covered, width = np.zeros((2, runs)), np.zeros((2, runs))
        for index in range(runs):
            truth = rng.beta(model.a, model.b)
            records = (rng.random(n_records) < truth) + 0.0
            source = InsecureRNG(7000 * seed + index)
            number = dpi.release_count(records, epsilon=0.1 * epsilon, random_source=source)
            counted = dpi.run_statistic(model, records, epsilon=0.9 * epsilon, n_records=number, random_source=source)
            plugged = dpi.release.StatisticRelease(**{**vars(counted), "settings": {}})
            for place, release in enumerate((counted, plugged)):
                low, high = dpi.noise_aware_posterior(release).quantile(LEVELS)[:, 0]
                covered[place, index], width[place, index] = low < truth < high, high - low
        error = covered.std(axis=1, ddof=1) / np.sqrt(runs)
        for place, name in enumerate(("integrated", "plugged in")):
            print(
                f"proportion, {n_records} records  epsilon {epsilon:3.1f}  {name:10s} covered "
                f"{covered[place].mean():.3f} +- {error[place]:.3f}  width {np.median(width[place]):.4f}",
                flush=True,
            )


def adult_schema(path: Path, text: str, epsilon: float, seed: int) -> tuple[Schema, float, int]:
    """Release the gaps of Adult's schema; return it, what is left of epsilon, and the number of records."""
    document = tomllib.loads(text)
    for name, column in document["columns"].items():
        for key in {"continuous": ("bounds", "mean", "sd"), "categorical": ("categories",)}.get(column["kind"], ()):
            if not name.startswith("capital"):
                del column[key]
    draft = SchemaDraft(document)
    plan = plan_unknown(draft, target_epsilon=epsilon, target_delta=DELTA)
    release = release_unknown(path, draft, plan=plan, random_source=InsecureRNG(seed))
    return release.schema, plan.fit_epsilon, release.n_records or 1


def main() -> None:
    """Run one of the studies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=["adult", "count", "power"])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--processes", type=int, default=1, help="of power and adult")
    arguments = parser.parse_args()
    if arguments.study == "count":
        count(arguments.runs, arguments.seed, arguments.epsilon)
        return
    study(arguments.study, arguments.runs, arguments.seed, arguments.epsilon, arguments.processes)


if __name__ == "__main__":
    main()
