"""Coverage and width for the population's coefficients over a random design of tables with their own responses.

Populations are the numeric columns of UCI tables, each as the response to others, Adult's income, and simulated ones
whose errors are skewed, heavy-tailed or of unequal spread, whose mean is bent, or whose features are long, and normal
ones.  A run is a sample of N records with replacement; the truth is least squares, or maximum likelihood, of the whole
population, and HC0 without privacy stands beside it.  The design is drawn from SEED, which was committed before any
constant looked at it; constants may look at the even cells alone.

    python bench/coverage/real_responses.py run --results FOLDER [--half seen|unseen|both] [--runs 24] [--processes 2]
    python bench/coverage/real_responses.py report --results FOLDER [--list];  real_responses.py far|twins [--runs 100]
    python bench/coverage/real_responses.py targets|small --results FOLDER [--half seen|unseen|both] [--runs 6]  resumes
    python bench/coverage/real_responses.py sketch --results FOLDER [--epsilon 1] [--runs 100] --list            resumes

`targets` sets both targets side by side wherever the population's is predicted more than 10% wider than the model's,
with interval scores (Gneiting and Raftery 2007); `small` does so for 120 other cells, of 300 to 1500 records.
`sketch` runs six populations: 20 000 records, six features.  `far` counts false alarms of a group of far records.
`twins` compares releases of two cells that fail in silence with those of populations that are nearly the same and hold;
no check at 0.05 has more power than its bound, as each release is a Gaussian one (Dong, Roth and Su 2022).
Real tables need DPINFER_DATA; without it their cells are left out, and said so.
"""

import argparse
import gzip
import json
import math
import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

import dpinfer as dpi
from dpinfer.inference.newton.population import Population
from dpinfer.models.clipping import SIZE_EDGES, SizeShares
from dpinfer.testing import InsecureRNG
from newton_runs import median_and_error
from scope_cells import data_folder

SEED = 20_261_123
CELLS, SMALL, SMALL_CELLS, SKETCH = 240, 1000, 120, 2000
DELTA = 1e-6
TABLES = (
    "power-plant", "kin8nm", "protein-tertiary-structure", "wine-quality-red", "concrete", "energy", "yacht",
    "naval-propulsion-plant", "adult",
)  # fmt: skip
KINDS = ("normal", "skew", "t3", "hetero", "bent", "leverage", "t2", "counts")
NORMAL = special.ndtri(0.95)
LOW, HIGH, ANSWERABLE = 0.85, 0.95, 0.86
PARTS = ("noise", "clip", "away", "whole")
LEAST_ERROR = 0.005  # of a cell whose runs all cover alike
# Classes of how much wider the population's target is predicted; below the first of them there is nothing to choose.
RATIOS = {"up to 1.10": 1.1, "1.10 to 1.25": 1.25, "1.25 to 1.60": 1.6, "above 1.60": np.inf, "not predicted": np.nan}
# Cells that fail in silence; their twins lack so many of the longest scores, or have some turned until they cancel.
TWINS, RIDGE = {85: (16, False), 220: (11, True)}, 50.0

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One population, size and budget; declared sizes are wrong by the factors."""

    index: int
    family: str  # gaussian, binomial or poisson
    source: str
    response: int  # of a real table: which column, as a share of those that serve
    n_features: int
    n_records: int
    epsilon: float
    feature_error: float
    response_error: float


def draw_design(first: int = 0, size: int = CELLS) -> list[Cell]:
    """Draw the cells; those from SMALL on are small tables."""
    cells = []
    for index in range(first, first + size):
        rng, small = np.random.default_rng([SEED, index]), index >= SMALL
        real = rng.random() < 0.6
        family = "binomial" if rng.random() < 0.25 else "gaussian"
        source = str(rng.choice(TABLES if real else KINDS[:-1]))
        if not real and family == "gaussian" and rng.random() < 0.15:
            family, source = "poisson", "counts"
        cells.append(
            Cell(
                index=index, family=family, source=source, response=int(rng.integers(1000)),
                n_features=int(rng.integers(1, 9) if small else rng.integers(2, 16)),
                n_records=round(math.exp(rng.uniform(*np.log((300, 1500) if small else (1500, 60_000))))),
                epsilon=round(float(np.exp(rng.uniform(math.log(0.3), math.log(6.0)))), 2),
                feature_error=float(np.exp2(rng.uniform(-0.5, 1.0))),
                response_error=float(np.exp2(rng.uniform(-1.0, 2.0))),
            )
        )  # fmt: skip
    return cells


@cache
def table(name: str) -> FloatArray | None:
    """Return the numeric columns of a table, without copies and constants, or None where it is not at hand."""
    folder = data_folder()
    if folder is None:
        return None
    if name == "adult":
        with gzip.open(folder / "adult.data.csv.gz", "rt") as file:
            rows = [line.rstrip("\n").split(",") for line in file][1:]
        numbers = np.array([[float(row[k]) for k in (0, 4, 12, 2)] for row in rows])
        marks = np.array(
            [[row[9] == "Male", row[5].startswith("Married-civ"), row[14].startswith(">")] for row in rows]
        )
        return np.column_stack((numbers, marks.astype(float)))
    with gzip.open(folder / f"{name}.csv.gz", "rt") as file:
        values = np.loadtxt(file, delimiter=",", skiprows=1)
    return values[:, values.std(axis=0) > 1e-9 * np.abs(values).max(axis=0)]


def independent(X: FloatArray) -> FloatArray:
    """Return the columns that the ones before them do not determine: least squares is defined with them alone."""
    kept: list[int] = []
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    for column in range(X.shape[1]):
        own, others = scaled[:, column], scaled[:, kept]
        if not kept or (own - others @ np.linalg.lstsq(others, own, rcond=None)[0]).std() >= 0.03:
            kept.append(column)
    return X[:, kept]


def real_population(cell: Cell) -> tuple[FloatArray, FloatArray] | None:
    """Return features and response of a real table."""
    values = table(cell.source)
    if values is None:
        return None
    rng = np.random.default_rng([SEED, cell.index, 1])
    distinct = [column for column in range(values.shape[1]) if np.unique(values[:, column]).size >= 10]
    chosen = values.shape[1] - 1 if cell.source == "adult" and cell.family == "binomial" else None
    if chosen is None:
        # The table's own response in half of the cells.
        own = values.shape[1] - 1
        chosen = own if own in distinct and cell.response < 500 else distinct[cell.response % len(distinct)]
    others = [column for column in range(values.shape[1]) if column != chosen]
    if cell.source == "adult" and cell.family != "binomial":
        others = [column for column in others if column != values.shape[1] - 1]
    picked = rng.permutation(others)[: cell.n_features]
    X, y = independent(values[:, np.sort(picked)]), values[:, chosen]
    if cell.family == "binomial" and cell.source != "adult":
        y = (y > np.quantile(y, 0.3 + 0.4 * rng.random())).astype(float)
    return X, y


def drawn_errors(kind: str, X: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return errors, what bends the mean among them."""
    size = len(X)
    return {
        "normal": lambda: rng.normal(size=size),
        "skew": lambda: 1.4 * rng.gamma(0.5, 1.0, size) - 0.7,
        "t3": lambda: rng.standard_t(3.0, size) / 1.7,
        "t2": lambda: rng.standard_t(2.2, size) / 2.0,
        "hetero": lambda: rng.normal(size=size) * np.exp(0.5 * X[:, 0]),
        "bent": lambda: rng.normal(size=size) + 0.7 * X[:, 0] ** 2 - 0.7 + 0.5 * X[:, 1] * X[:, 2],
        "leverage": lambda: rng.normal(size=size) * np.exp(np.minimum(0.3 * X[:, 1], 3.0)) + 0.1 * X[:, 0] ** 2,
        "sketched leverage": lambda: rng.normal(size=size) * np.exp(0.3 * X[:, 1]) + 0.4 * X[:, 0] ** 2,
        "counts": lambda: rng.gamma(2.0, 0.5, size),
    }[kind]()


def simulated_population(cell: Cell, size: int = 200_000) -> tuple[FloatArray, FloatArray]:
    """Return features and response of a simulated population."""
    rng = np.random.default_rng([SEED, cell.index, 2])
    p = max(cell.n_features, 3)
    rho = 0.8 * rng.random()
    root = np.linalg.cholesky(rho ** np.abs(np.subtract.outer(np.arange(p), np.arange(p))))
    X = rng.normal(size=(size, p)) @ root.T
    if cell.source == "leverage":
        X = np.sign(X) * np.abs(X) ** 1.6
    signal = X @ rng.normal(size=p) / math.sqrt(p)
    error = drawn_errors(cell.source, X, rng)
    if cell.family == "poisson":
        return X, rng.poisson(np.exp(np.clip(0.5 * signal + 0.1 * X[:, 0] ** 2, -5.0, 4.0)) * error).astype(float)
    y = signal + error
    return X, (y > np.quantile(y, 0.3 + 0.4 * rng.random())).astype(float) if cell.family == "binomial" else y


def sketched_population(kind: str, size: int = 200_000) -> tuple[FloatArray, FloatArray]:
    """Return features and response of a population of the method's first sketch."""
    rng = np.random.default_rng(3)
    root = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(6), np.arange(6))))
    E = rng.normal(size=(size, 6)) @ root.T
    X = np.sign(E) * np.abs(E) ** 1.6 if kind == "leverage" else E
    error = drawn_errors("sketched leverage" if kind == "leverage" else kind, E, rng)
    return X, X @ rng.normal(size=6) + error


def fitted(family: str, design: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return maximum likelihood and its robust standard errors (HC0); the last column is the intercept's."""
    if family == "gaussian":
        found, slope = np.linalg.lstsq(design, y, rcond=None)[0], np.ones(len(y))
        mean = design @ found
    else:
        link = special.expit if family == "binomial" else lambda eta: np.exp(np.minimum(eta, 30.0))
        start = np.zeros(design.shape[1])
        start[-1] = math.log(max(float(y.mean()), 0.5 / len(y))) if family == "poisson" else 0.0

        def score(beta: FloatArray) -> FloatArray:
            return np.asarray(design.T @ (y - link(design @ beta)) / len(y))

        def slopes(beta: FloatArray) -> FloatArray:
            mean = link(design @ beta)
            return np.asarray(
                -(design * (mean * (1.0 - mean) if family == "binomial" else mean)[:, None]).T @ design / len(y)
            )

        found = optimize.root(score, start, jac=slopes, method="hybr").x
        mean = link(design @ found)
        slope = mean * (1.0 - mean) if family == "binomial" else mean
    # A sample may hold one value of a rare column: HC0 covers nothing there.
    bread = np.linalg.pinv((design * slope[:, None]).T @ design)
    meat = (design * np.square(y - mean)[:, None]).T @ design
    return found, np.sqrt(np.maximum(np.diag(bread @ meat @ bread), 1e-300))


@dataclass(frozen=True)
class Problem:
    """A cell's population with its declared sizes, the population's coefficients, and the model."""

    cell: Cell
    X: FloatArray
    y: FloatArray
    truth: FloatArray
    variance: float  # of the residuals
    model: Any
    options: dict[str, float]  # of a run: the declared size of the responses


def problem_of(cell: Cell) -> Problem | None:
    """Return a cell's problem; None where its table is not at hand."""
    if cell.index >= SKETCH:
        population: tuple[FloatArray, FloatArray] | None = sketched_population(cell.source)
    else:
        population = real_population(cell) if cell.source in TABLES else simulated_population(cell)
    if population is None:
        return None
    X, y = population
    # A public scale of each column about a public centre, wrong by a factor.
    X = (X - X.mean(axis=0)) / (X.std(axis=0) * cell.feature_error)
    scale = 1.0 if cell.family != "gaussian" else float(y.std())
    y = y - y.mean() if cell.family == "gaussian" else y
    design = np.column_stack((X, np.ones(len(y))))
    truth, _ = fitted(cell.family, design, y)
    name = {"gaussian": "Linear", "binomial": "Logistic", "poisson": "Poisson"}[cell.family]
    model = getattr(dpi.models, f"{name}Regression")(X.shape[1], fit_intercept=True, prior_scale=10.0)
    options = {"response_scale": scale * cell.response_error} if cell.family == "gaussian" else {}
    return Problem(cell, X, y, truth, float(np.var(y - design @ truth)), model, options)


def run_cell(cell: Cell, runs: int) -> dict[str, Any] | None:
    """Make the runs of a cell and return what they say, as plain numbers; None where its table is not at hand."""
    problem = problem_of(cell)
    if problem is None:
        return None
    found = [one_run(problem, "population", index) for index in range(runs)]
    return {"cell": asdict(cell), "d": problem.truth.size, "runs": found}


def run_targets(cell: Cell, runs: int) -> dict[str, Any] | None:
    """Make the runs of both targets where the population's is predicted to be wider; None without the table."""
    problem = problem_of(cell)
    if problem is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = dpi.plan_fit(
            problem.model, epsilon=cell.epsilon, delta=DELTA, n_records=cell.n_records, **problem.options
        )
    widths = {item.target: item.predicted_width for item in plan.choice.candidates if item.method == "newton"}
    ratio = widths["population"] / widths["model"]
    found = {
        target: [one_run(problem, target, index) for index in range(runs)]
        if cell.index >= SMALL or not ratio <= RATIOS["up to 1.10"]
        else []
        for target in ("model", "population")
    }
    return {"cell": asdict(cell), "ratio": ratio, **found}


def compared(
    model: Any, X: FloatArray, y: FloatArray, truth: FloatArray, without: tuple[FloatArray, FloatArray], plan: Any,
    seed: int, turn: Callable[[FloatArray], FloatArray] = np.asarray, **options: Any,
) -> tuple[Any, Any, dict[str, Any]]:  # fmt: skip
    """Make a private run; return release, posterior, and numbers beside estimates and errors without privacy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release = dpi.run_newton(
            model, X, y, plan=plan, n_threads=1, random_source=InsecureRNG(seed), **{"n_records": len(y)} | options
        )
        posterior = dpi.noise_aware_posterior(release)
    low, high = (turn(end)[: truth.size] for end in posterior.interval(0.9))
    (estimate, stddev), inside = without, (low <= truth) & (truth <= high)
    return (
        release,
        posterior,
        {
            "covered": float(inside.mean()),
            "without": float(np.mean(np.abs(estimate - truth) <= NORMAL * stddev)),
            "width": float(np.median(0.5 * (high - low) / (NORMAL * stddev))),
            "off": float(np.median(np.abs(0.5 * (low + high) - estimate) / stddev)),
            "flagged": bool(posterior.diagnostics.warnings) or posterior.diagnostics.n_unresolved > 0,
        },
    )


def one_run(problem: Problem, target: str, index: int, told: bool = False) -> dict[str, Any]:
    """Make one run; return coverage, widths and warnings, and with `told` numbers of the release."""
    cell, model, truth = problem.cell, problem.model, problem.truth
    budget = {"target_epsilon": cell.epsilon, "target_delta": DELTA, "n_records": cell.n_records}
    plan = dpi.plan_newton(model, **budget, target=target)
    rng = np.random.default_rng([SEED, cell.index, 3, index])
    rows = rng.integers(len(problem.y), size=cell.n_records)
    features, response = problem.X[rows], problem.y[rows]
    design = np.column_stack((features, np.ones(len(rows))))
    estimate, stddev = fitted(cell.family, design, response)
    seed, own = 1000 * cell.index + index, (estimate, stddev)
    release, posterior, found = compared(model, features, response, truth, own, plan, seed, **problem.options)
    ends = posterior.interval(0.9)
    low, high = ends[:, : truth.size]
    without = estimate - NORMAL * stddev, estimate + NORMAL * stddev
    linear = target == "population" and cell.family == "gaussian"
    return {
        **found,
        **(parts(release, problem, design, response) if linear else {}),
        **({"released": released(Population(release, model)), "multiplier": plan.noise_multiplier} if told else {}),
        "variance": float(ends[0, -1] <= problem.variance <= ends[1, -1]) if cell.family == "gaussian" else math.nan,
        "score": float(np.median(interval_score(low, high, truth) / interval_score(*without, truth))),
        "warnings": ", ".join(posterior.diagnostics.warnings),
        "information": posterior.diagnostics.information_pvalue,
    }


def parts(release: Any, problem: Problem, design: FloatArray, y: FloatArray) -> dict[str, float]:
    """Return noise, clip and distance of the scores' zero over its sampling variance, and the width of one score alone.

    That has the whole budget, and the clip that these records make best.
    """
    own, (n, d), plan = Population(release, problem.model), design.shape, release.settings["plan"]
    (_, weight, covariance), sampling = own.zero, float(np.trace(own.meat[0])) / d / n
    noise = float(np.square(weight * release.score_stddev).sum()) / sampling
    clip = float(weight @ own.clipped @ weight) * covariance[0, -1] / own.clipped[0, -1] / sampling
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    scores = residual[:, None] * (design @ np.linalg.cholesky(np.linalg.pinv(design.T @ design / n)))
    size, square = np.linalg.norm(scores, axis=1), float(np.mean(np.square(scores)))
    costs = [
        (plan["noise_multiplier"] * bound / n) ** 2 + np.mean(np.maximum(size - bound, 0.0)) ** 2 / (4.0 * d)
        for bound in np.geomspace(0.5, 64.0, 57) * math.sqrt(d * square)
    ]
    away = float(weight @ covariance @ weight) / sampling - noise - clip
    return {"noise": noise, "clip": clip, "away": away, "whole": math.sqrt(1.0 + min(costs) * n / square)}


def twin_of(problem: Problem) -> Problem:
    """Return the population without its longest scores, or with some of them turned so that they cancel."""
    cell, (count, turned), y = problem.cell, TWINS[problem.cell.index], problem.y.copy()
    design = np.column_stack((problem.X, np.ones(len(y))))
    mean = special.expit(design @ problem.truth) if cell.family == "binomial" else design @ problem.truth
    scores = (y - mean)[:, None] * (design @ np.linalg.cholesky(np.linalg.pinv(design.T @ design)))
    size, total = np.linalg.norm(scores, axis=1), np.zeros(problem.truth.size)
    *longest, least = np.argsort(-size)[: count + 1]
    for row in longest if turned else ():
        beyond = (1.0 - size[least] / size[row]) * scores[row]
        sign = 1.0 if total @ beyond <= 0.0 else -1.0
        y[row], total = mean[row] + sign * (y[row] - mean[row]), total + sign * beyond
    kept = np.delete(np.arange(len(y)), () if turned else longest)
    return replace(problem, X=problem.X[kept], y=y[kept], truth=fitted(cell.family, design[kept], y[kept])[0])


def released(own: Population) -> FloatArray:
    """Return numbers of a release that do not depend on coordinates: shares, eigenvalues, lengths, what checks use."""
    release, said = own.release, own._scores_at(own.zero[0], own.curvatures(1, None))[:, 0]
    spectra = [np.linalg.eigvalsh(part) for part in (release.bread, release.meat, release.meat / release.size_unit**2)]
    steps = [np.linalg.norm(part, axis=1) for part in (said, np.diff(said, axis=0), said[2:] - said[0])]
    parts = [release.sizes, release.lengths, *spectra, *steps, np.linalg.norm(release.localise_scores, axis=1)]
    checks = [own.fit_pvalue, own.information.pvalue, own.clipped[-1, -1], own.lengths.kurtosis, own.sizes.mean_square]
    parts += [[release.size_unit, release.score_bound, spectra[2].sum() / own.sizes.mean_square, *own.zero[1]], checks]
    return np.concatenate([*parts, *(np.cumsum(part[::-1]) for part in parts[:5])])


def report_twins(runs: int) -> None:
    """Print how cells and their twins cover, and how well a released number, and any check, can tell them apart."""
    for index, (_, turned) in TWINS.items():
        problem, told, rng = problem_of(draw_design()[index]), [], np.random.default_rng(SEED)
        assert problem is not None, "DPINFER_DATA"
        for own in (problem, twin_of(problem)):
            made = [one_run(own, "population", k, told=True) for k in range(runs)]
            told.append(np.array([run["released"] for run in made]))
            changed = len(problem.y) - len(own.y) or np.count_nonzero(own.y != problem.y)
            line = "{} of {} records: covered {covered:.3f} +- {error:.3f}, HC0 {without:.3f}, flagged {flagged:.2f}"
            print(f"cell {index}, changed", line.format(changed, len(problem.y), **means_of(made)), flush=True)
        ranks, half = stats.rankdata(np.concatenate(told), axis=0), 0.5 * (runs + 1)
        order = [np.arange(2 * runs), *(rng.permutation(2 * runs) for _ in range(200))]
        areas = np.array([(ranks[rows[:runs]].mean(axis=0) - half) / runs - 0.5 for rows in order])
        here, there = (np.sign(areas[0]) * part for part in told)
        power = np.mean(here > np.quantile(there, 0.95, axis=0), axis=0).max()
        most, chance = np.abs(areas).max(axis=1)[0] + 0.5, np.abs(areas[1:]).max(axis=1).mean() + 0.5
        table = stats.zscore(np.concatenate(told), axis=0, nan_policy="omit")
        table, said, even = np.nan_to_num(table), np.zeros(2 * runs), np.arange(2 * runs) % 2 == 0
        for some in (even, ~even):  # a sum of all numbers, ridge regression on one half of the runs
            own, label = table[some], np.repeat((0.5, -0.5), runs)[some]
            said[~some] = table[~some] @ np.linalg.solve(own.T @ own + RIDGE * np.eye(own.shape[1]), own.T @ label)
        joint = np.mean(said[:runs] > np.quantile(said[runs:], 0.95))
        law, step = stats.binom(problem.cell.n_records, changed / len(problem.y)), (1 + turned) / made[0]["multiplier"]
        bound = law.expect(lambda k, step=step: special.ndtr(step * k - NORMAL))
        print(f"  {ranks.shape[1]} released numbers: largest area under the curve {most:.3f} ({chance:.3f} by chance), "
              f"largest power at 0.05 {power:.2f}; of a sum {joint:.2f}; of any check at most {bound:.3f}")  # fmt: skip


def report_far(size: int = 60_000) -> None:
    """Print in how many histograms of normal errors noise is taken for records far from all others."""
    rng = np.random.default_rng(SEED)
    sizes = np.abs(rng.normal(size=200_000)) * np.linalg.norm(rng.normal(size=(200_000, 5)), axis=1) / math.sqrt(5.0)
    exact = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0] / sizes.size
    far = [SizeShares(exact + 3e-3 * rng.normal(size=exact.size), 3e-3).far for _ in range(size)]
    print(f"{np.mean(far):.1e} +- {np.std(far) / math.sqrt(size):.0e} of {size} histograms")


def interval_score(low: FloatArray, high: FloatArray, truth: FloatArray) -> FloatArray:
    """Return the score of 90% intervals: width, and twenty times the distance of a truth that is missed."""
    return high - low + 20.0 * (np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0))


def job(argument: tuple[str, Cell, int, str]) -> None:
    """Run a cell and write its numbers."""
    what, cell, runs, folder = argument
    result = (run_cell if what in ("run", "sketch") else run_targets)(cell, runs)
    if result is not None:
        place(what, cell, Path(folder)).write_text(json.dumps(result), encoding="utf-8")


def place(what: str, cell: Cell, folder: Path) -> Path:
    """Return the file of a cell's numbers."""
    return folder / f"{'real' if what in ('run', 'sketch') else 'targets'}-{cell.index}.json"


def report_targets(folder: Path) -> None:
    """Print both targets side by side, by how much wider the population's is predicted to be."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("targets-*.json")]
    print("half    predicted ratio  cells  target      covered          width  score  below 0.8 and not flagged")
    for half, first in (("seen", 0), ("unseen", 1)):
        own = [item for item in results if item["cell"]["index"] % 2 == first and item["model"]]
        for place, words in enumerate(RATIOS):
            cells = [item for item in own if np.searchsorted(list(RATIOS.values()), item["ratio"]) == place]
            for target in ("model", "population") if cells else ():
                _report_target(f"{half:7s} {words:15s}", cells, target)


def _report_target(words: str, cells: list[dict[str, Any]], target: str) -> None:
    width, score = (
        np.median([np.median([run[name] for run in item[target]]) for item in cells]) for name in ("width", "score")
    )
    means = [means_of(item[target]) for item in cells]
    covered, flagged = (np.array([row[key] for row in means]) for key in ("covered", "flagged"))
    error = covered.std(ddof=1) / math.sqrt(covered.size) if covered.size > 1 else math.nan
    silent = int(np.count_nonzero((covered < 0.8) & (flagged < 0.5)))
    numbers = f"{width:5.2f}  {score:5.2f}  {silent}"
    print(f"{words}  {len(cells):5d}  {target:10s}  {covered.mean():.3f} +- {error:.3f}  {numbers}")


def report(folder: Path, listed: bool) -> None:
    """Print what the cells say, by half."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("real-*.json")]
    results.sort(key=lambda item: item["cell"]["index"])
    print(f"{len(results)} of {CELLS} cells, seed {SEED}; 90% intervals, errors of the mean over runs")
    for half, first in (("seen", 0), ("unseen", 1), ("both", 2)):
        own = [item for item in results if first in (2, item["cell"]["index"] % 2)]
        if own:
            _report_half(half, own)
    if listed:
        for item in results:
            cell, means = item["cell"], means_of(item["runs"])
            print(f"{cell['index']:3d} {cell['family']:8s} {cell['source'][:14]:14s} d={item['d']:2d} "
                  f"N={cell['n_records']:5d} eps={cell['epsilon']:4.2f}: {means['covered']:.3f} +- {means['error']:.3f}"
                  f"; {means['width']:.3f} +- {means['width_error']:.3f}; HC0 {means['without']:.3f}; variance "
                  f"{means['variance']:.2f}; flagged {means['flagged']:.2f} "
                  f"{'' if within(means, LOW, HIGH, LEAST_ERROR) else 'OUTSIDE'} {told_parts([means])}")  # fmt: skip


def means_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over a cell's runs, errors of its coverage and median width, and the median distance."""
    covered = np.array([run["covered"] for run in runs])
    flagged = [run["flagged"] if "flagged" in run else bool(run["warnings"]) or run["unresolved"] > 0 for run in runs]
    return {
        "covered": float(covered.mean()),
        "error": float(covered.std(ddof=1) / math.sqrt(covered.size)),
        "without": float(np.mean([run["without"] for run in runs])),
        "variance": float(np.mean([run.get("variance", math.nan) for run in runs])),
        **dict(zip(("width", "width_error"), median_and_error(np.array([run["width"] for run in runs])), strict=True)),
        "off": float(np.median([run.get("off", math.nan) for run in runs])),
        "flagged": float(np.mean(flagged)),
        "runs": float(len(runs)),
        **{name: float(np.median([run.get(name, math.nan) for run in runs])) for name in PARTS},
    }


def within(means: dict[str, float], low: float, high: float, least_error: float = 0.0) -> bool:
    """Return whether a cell's coverage is between low and high, but for two Monte Carlo errors."""
    reach = 2.0 * max(means["error"], least_error)
    return low - reach <= means["covered"] <= high + reach


def tell(name: str, rows: list[dict[str, float]], low: float = LOW, high: float = HIGH, least: float = 0.0) -> None:
    """Print what the cells say in which intervals without privacy cover enough."""
    kept = [row for row in rows if row["without"] >= ANSWERABLE]
    if not kept:
        return
    inside = [row for row in kept if within(row, low, high, least)]
    too_low, too_high = (
        [row for row in kept if row not in inside and (row["covered"] < low) == below] for below in (True, False)
    )

    def flagged(cells: list[dict[str, float]]) -> str:
        shares, runs = (np.array([row[key] for row in cells]) for key in ("flagged", "runs"))
        error = math.sqrt(np.sum(shares * (1.0 - shares) / runs)) / max(len(cells), 1)
        return f"{shares.mean():.2f} +- {error:.2f}" if cells else "in none"

    pooled, share = np.array([row["covered"] for row in kept]), len(inside) / len(kept)
    medians = (median_and_error(np.array([row[key] for row in kept])) for key in ("width", "off"))
    width, off = ("{:.2f} +- {:.2f}".format(*each) for each in medians)
    print(f"{name}: without privacy at least {ANSWERABLE} covered in {len(kept)} of {len(rows)}; there "
          f"{pooled.mean():.3f} +- {pooled.std(ddof=1) / math.sqrt(pooled.size):.3f}; within {low} to {high}, but for "
          f"two errors: {len(inside)} ({share:.1%} +- {math.sqrt(share * (1.0 - share) / len(kept)):.1%}), flagged in "
          f"{flagged(inside)} of the runs; too low {len(too_low)}, flagged {flagged(too_low)}; too high {len(too_high)}"
          f", flagged {flagged(too_high)}; median width {width}, off by {off} standard errors")  # fmt: skip


def _report_half(half: str, items: list[dict[str, Any]]) -> None:
    means = [means_of(item["runs"]) for item in items]
    tell(half, means, LOW, HIGH, LEAST_ERROR)
    kept = [item for item, row in zip(items, means, strict=True) if row["without"] >= ANSWERABLE]
    print(f"  exact intervals would be within in {exact_within(kept):.1%} of these cells")
    large = [(row, item["cell"]) for row, item in zip(means, items, strict=True) if item["cell"]["n_records"] >= 5000]
    for low_epsilon, high_epsilon in ((0.3, 0.75), (0.75, 1.5), (1.5, 3.0), (3.0, 6.1)):
        rows = [row for row, cell in large if low_epsilon <= cell["epsilon"] < high_epsilon]
        tell(f"  eps {low_epsilon} to {high_epsilon}, N >= 5000", rows, LOW, HIGH, LEAST_ERROR)
        print(f"    {told_parts([row for row in rows if row['without'] >= ANSWERABLE])}")
    _report_white([item for item in items if item["cell"]["family"] == "gaussian"])


def exact_within(items: list[dict[str, Any]], repeats: int = 400) -> float:
    """Return the share of cells within the limits if all intervals covered 0.9, as alike in a run as they are."""
    rng, found = np.random.default_rng(SEED), [(np.array([run["covered"] for run in i["runs"]]), i["d"]) for i in items]
    alike = np.mean([own.var(ddof=1) * d for own, d in found])
    alike /= np.mean([own.mean() * (1.0 - own.mean()) for own, _ in found])
    inside = []
    for own, d in found:
        size = max(round(d / max(np.nan_to_num(alike), 1.0)), 1)
        drawn = rng.binomial(size, 0.9, size=(repeats, own.size)) / size
        reach = 2.0 * np.maximum(drawn.std(axis=1, ddof=1) / math.sqrt(own.size), LEAST_ERROR)
        inside.append(np.abs(drawn.mean(axis=1) - 0.5 * (LOW + HIGH)) <= 0.5 * (HIGH - LOW) + reach)
    return float(np.mean(inside))


def told_parts(rows: list[dict[str, float]]) -> str:
    """Return what the variance of linear regressions is made of: medians over cells."""
    medians = {name: np.median([row[name] for row in rows if row[name] >= 0.0] or [math.inf]) for name in PARTS}
    return ", ".join(f"{name} {value:.3f}" for name, value in medians.items())


def _report_white(items: list[dict[str, Any]]) -> None:
    found: dict[str, list[bool]] = {}
    for item in items:
        source = "real" if item["cell"]["source"] in TABLES else item["cell"]["source"]
        found.setdefault(source, []).extend(run["information"] < 0.01 for run in item["runs"])
    shares = (f"{source} {np.mean(below):.3f} of {len(below)}" for source, below in sorted(found.items()))
    print(f"  White's comparison below 0.01, share of linear runs: {', '.join(shares)}")


def main() -> None:
    """Run the cells, or report on them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report", "targets", "small", "sketch", "far", "twins"))
    parser.add_argument("--results", type=Path, default=Path())
    parser.add_argument("--half", choices=("seen", "unseen", "both"), default="both")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    alone = {"far": report_far, "twins": lambda: report_twins(arguments.runs)}
    if arguments.what in ("report", *alone):
        alone.get(arguments.what, lambda: report(arguments.results, arguments.list))()
        return
    arguments.results.mkdir(parents=True, exist_ok=True)
    parity = {"seen": (0,), "unseen": (1,), "both": (0, 1)}[arguments.half]
    if arguments.what == "sketch":
        size = (0, 6, 20_000, arguments.epsilon, 1.0, 1.5)
        design = [Cell(SKETCH + k, "gaussian", kind, *size) for k, kind in enumerate(KINDS[:6])]
    else:
        design = draw_design(SMALL, SMALL_CELLS) if arguments.what == "small" else draw_design()
    jobs = [
        (arguments.what, cell, arguments.runs, str(arguments.results))
        for cell in design
        if cell.index % 2 in parity and not place(arguments.what, cell, arguments.results).exists()
    ]
    if data_folder() is None:
        print("DPINFER_DATA is not set: cells of real tables are left out")
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for done, _ in enumerate(pool.imap_unordered(job, jobs), 1):
            print(f"{done} of {len(jobs)} cells", end="\r", flush=True)
    print()
    both = arguments.what in ("targets", "small")
    report_targets(arguments.results) if both else report(arguments.results, arguments.list)


if __name__ == "__main__":
    main()
