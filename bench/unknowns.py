"""Coverage and width where the number of records, bounds or categories are unknown in public, and released.

    DPINFER_DATA=../shared/data python bench/unknowns.py power [--runs 24]
    DPINFER_DATA=../shared/data python bench/unknowns.py adult [--runs 24]
    python bench/unknowns.py count [--runs 150]

Real columns, simulated responses.  One privacy target is split by plan_unknown; what is released before the fit is
released by release_unknown, and the fit gets the rest.  Coverage of 90% intervals, pooled over weights, with its Monte
Carlo error over runs; widths relative to the posterior without privacy of the same columns in the same units.

power: linear regression on the features of power-plant by run_newton.  "public" knows means and standard deviations of
features and the scale of the responses; "n_records" releases the number of records alone; "bounds" the bounds of
features and responses, which set centres and scales; "both" both.
adult: logistic regression on Adult's columns by run_newton.  "public" has the schema of examples/adult.toml; "all"
releases the number of records, the bounds of age, fnlwgt and hours, and all categories.  Rare labels are then "other",
so that only weights of columns and labels that both schemas have are compared; what merging alone does, without
privacy, is printed beside it.
count: a proportion by run_statistic where the number of records is released: plugged in, and integrated out.
"""

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.tabular import Schema, SchemaDraft, UnknownRelease, plan_unknown, read_table, release_unknown
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, CellSettings, evaluate
from scope_cells import real_columns

FloatArray = npt.NDArray[np.float64]

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


def power(runs: int, seed: int, epsilons: list[float]) -> None:
    """Print a line for each epsilon and for each of what is unknown."""
    features = real_columns("power-plant")
    if features is None:
        raise SystemExit("DPINFER_DATA must name the folder with power-plant.csv.gz")
    n_records, width = features.shape
    # As they would come: units that nobody has standardised.
    centre, unit = np.array([20.0, 54.0, 1013.0, 73.0]), np.array([7.5, 12.7, 5.9, 14.6])
    for epsilon in epsilons:
        for name, unknown in POWER.items():
            rng = np.random.default_rng(seed)
            releases, truths, widths = [], [], []
            for index in range(runs):
                weights = PRIOR_SCALE * np.sqrt(NOISE_VARIANCE) * rng.normal(size=width + 1)
                noise = np.sqrt(NOISE_VARIANCE) * rng.normal(size=n_records)
                response = np.column_stack((features, np.ones(n_records))) @ weights + noise
                columns = {f"x{place}": centre[place] + unit[place] * features[:, place] for place in range(width)}
                found, left = released({**columns, "y": response}, unknown, epsilon, 7000 * seed + index)
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
                releases.append(newton_fit(scaled, response - location, left, count, scale, 9000 * seed + index))
                design = np.column_stack((scaled, np.ones(n_records)))
                precision = design.T @ design + np.eye(width + 1) / PRIOR_SCALE**2
                truths.append(np.append(truth, NOISE_VARIANCE))
                widths.append(NORMAL_WIDTH * np.sqrt(NOISE_VARIANCE * np.diag(np.linalg.inv(precision))))
            spread = np.full(runs, NORMAL_WIDTH * np.sqrt(2.0 / n_records))
            settings = CellSettings(epsilon=epsilon, prior_scale=PRIOR_SCALE)
            result = evaluate(releases, np.array(truths), np.array(widths), spread, settings, seed)
            print(f"power-plant  epsilon {epsilon:3.1f}  {name:10s} {result}", flush=True)


def newton_fit(
    features: FloatArray, response: FloatArray, epsilon: float, n_records: int, scale: float, seed: int
) -> dpi.NewtonRelease:
    """Run the private Newton method for a linear regression."""
    model = dpi.models.LinearRegression(features.shape[1], prior_scale=PRIOR_SCALE, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=n_records)
    return dpi.run_newton(
        model, features, response, plan=plan, n_records=n_records, response_scale=scale, random_source=InsecureRNG(seed)
    )


def adult(runs: int, seed: int, epsilons: list[float]) -> None:
    """Print a line for each epsilon and for each of what is unknown."""
    folder = os.environ.get("DPINFER_DATA")
    if not folder:
        raise SystemExit("DPINFER_DATA must name the folder with adult.data.csv.gz")
    path = Path(folder) / "adult.data.csv.gz"
    text = (Path(__file__).parents[1] / "examples" / "adult.toml").read_text()
    public = Schema.from_toml(text)
    full = read_table(path, public).X
    design = np.column_stack((full, np.ones(len(full))))
    for epsilon in epsilons:
        for name in ("public", "all"):
            rng = np.random.default_rng(seed)
            rows = []
            for index in range(runs):
                truth = rng.normal(size=design.shape[1])
                p = special.expit(design @ truth)
                response = (rng.random(len(p)) < p) + 0.0
                schema, left, count = public, epsilon, len(full)
                if name == "all":
                    schema, left, count = adult_schema(path, text, epsilon, 7000 * seed + index)
                table = full if schema is public else read_table(path, schema).X
                rows.append(adult_run(schema, public, table, response, truth, left, count, 9000 * seed + index))
            mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(runs)
            print(
                f"Adult  epsilon {epsilon:3.1f}  {name:7s} covered {mean[0]:.3f} +- {error[0]:.3f}  without privacy "
                f"{mean[1]:.3f} +- {error[1]:.3f}  width {np.median(rows, axis=0)[2]:5.2f} (standard error "
                f"{error[2]:.2f})  weights {mean[3]:.0f}",
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


def adult_run(
    schema: Schema,
    public: Schema,
    features: FloatArray,
    response: FloatArray,
    truth: FloatArray,
    epsilon: float,
    n_records: int,
    seed: int,
) -> tuple[float, float, float, float]:
    """Return coverage with and without privacy, and relative width, of the weights that both schemas have."""
    model = dpi.models.LogisticRegression(features.shape[1], fit_intercept=True, feature_moments=schema.feature_moments)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=DELTA, n_records=n_records)
    release = dpi.run_newton(model, features, response, plan=plan, n_records=n_records, random_source=InsecureRNG(seed))
    low, high = dpi.noise_aware_posterior(release, n_samples=40, seed=seed).quantile(LEVELS)
    mode, spread = without_privacy(features, response)
    there = [place for place, name in enumerate(schema.feature_names) if name in public.feature_names]
    units = {column.name: column.offset_and_scale[1] for column in public.columns if hasattr(column, "bounds")}
    own = {column.name: column.offset_and_scale[1] for column in schema.columns if hasattr(column, "bounds")}
    names = [schema.feature_names[place] for place in there]
    factor = np.array([own[name] / units[name] if name in own else 1.0 for name in names])
    right = truth[[public.feature_names.index(name) for name in names]] * factor
    half = 0.5 * NORMAL_WIDTH * spread[there]
    return (
        float(np.mean((low[there] < right) & (right < high[there]))),
        float(np.mean(np.abs(mode[there] - right) < half)),
        float(np.median((high - low)[there] / (2.0 * half))),
        float(len(there)),
    )


def without_privacy(features: FloatArray, response: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mode and standard deviations of the normal approximation without privacy, with prior N(0, 1)."""
    design = np.column_stack((features, np.ones(len(features))))
    mode = np.zeros(design.shape[1])
    for _ in range(30):
        p = special.expit(design @ mode)
        precision = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(mode.size)
        step = np.linalg.solve(precision, design.T @ (response - p) - mode)
        mode += step
        if np.max(np.abs(step)) < 1e-8:
            break
    return mode, np.sqrt(np.diag(np.linalg.inv(precision)))


def main() -> None:
    """Run one of the studies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    studies: dict[str, Any] = {"power": power, "adult": adult, "count": count}
    parser.add_argument("study", choices=sorted(studies))
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    arguments = parser.parse_args()
    studies[arguments.study](arguments.runs, arguments.seed, arguments.epsilon)


if __name__ == "__main__":
    main()
