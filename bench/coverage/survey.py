"""Coverage and width with survey weights, clusters and strata, beside design-based intervals without privacy.

Populations are those of real_responses.py: tables with their own responses and simulated ones.  Weights are
Adult's own, or follow a feature and chance, and are cut off at five times their mean.  Clusters are neighbours by a
response's residual and chance, of 2 to 10 rows.  Clusters are protected, or with --rows the rows of the 60 cells that
have them.  The truth is the weighted fit of the population.  No constant of the library was chosen on the design.

With --strata the cells are 24 others, and rows are protected.  Strata, 4 to 24 of unequal size, follow the residual and
chance; where there are weights, small strata are sampled more densely.  Half of the cells are unseen, by SEED.

    python bench/coverage/survey.py run --results FOLDER [--runs 20] [--rows] [--strata]     resumes
    python bench/coverage/survey.py report --results FOLDER [--list]
    python bench/coverage/survey.py check                      the reference beside R's package `survey`, where R is
    Real tables need DPINFER_DATA; without it their cells are left out.
"""

import argparse
import json
import math
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.mechanism import Clusters, Units
from dpinfer.models import SurveyWeights
from real_responses import TABLES, Cell, compared, means_of, real_population, simulated_population, table, tell

SEED = 20_261_124
CELLS, STRATIFIED = 90, 24
LARGEST = 5.0  # weight, in units of the mean
LOW, HIGH = 0.87, 0.93
SOURCES = ("power-plant", "kin8nm", "wine-quality-red", "adult", "adult", "adult", "normal", "skew", "t3", "bent")
KINDS = {"gaussian": "LinearRegression", "binomial": "LogisticRegression"}

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Survey:
    """A population, and how it is sampled."""

    cell: Cell
    weighted: bool
    rows: int  # of a cluster; 1 for none
    strata: int  # 0 for none


def draw_design() -> list[Survey]:
    """Draw the cells: a third weighted, a third in clusters, a third both; then those with strata."""
    surveys = []
    for index in range(CELLS + STRATIFIED):
        rng = np.random.default_rng([SEED, index])
        cell = Cell(
            index=index, family="binomial" if rng.random() < 0.3 else "gaussian", source=str(rng.choice(SOURCES)),
            response=int(rng.integers(1000)), n_features=int(rng.integers(2, 9)),
            n_records=round(float(np.exp(rng.uniform(math.log(4000), math.log(50_000))))),
            epsilon=round(float(np.exp(rng.uniform(math.log(0.7), math.log(4.0)))), 2), feature_error=1.0,
            response_error=1.0,
        )  # fmt: skip
        rows, strata = int(rng.integers(2, 11)) if index % 3 else 1, int(rng.integers(4, 25))
        surveys.append(Survey(cell, weighted=index % 3 != 1, rows=rows, strata=strata if index >= CELLS else 0))
    return surveys


def unseen() -> set[int]:
    """Return the half of the cells with strata that no constant looked at."""
    return set((CELLS + np.random.default_rng(SEED).permutation(STRATIFIED)[: STRATIFIED // 2]).tolist())


def estimated(
    family: str, X: FloatArray, y: FloatArray, weights: FloatArray, cluster: IntArray, stratum: IntArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted estimate and its standard errors: the sandwich of sums by cluster (Binder 1983).

    Clusters are numbered without gaps; with the stratum of each, sums are about the means of strata.
    """
    design, found = np.column_stack((X, np.ones(len(X)))), np.zeros(X.shape[1] + 1)
    for _ in range(1 if family == "gaussian" else 25):
        eta = design @ found
        mean = eta if family == "gaussian" else special.expit(eta)
        slope = np.ones(len(y)) if family == "gaussian" else mean * (1.0 - mean)
        bread = np.linalg.pinv((design * (weights * slope)[:, None]).T @ design)
        found = found + bread @ (design.T @ (weights * (y - mean)))
    mean = design @ found if family == "gaussian" else special.expit(design @ found)
    sums = np.zeros((cluster.max() + 1, design.shape[1]))
    np.add.at(sums, cluster, design * (weights * (y - mean))[:, None])
    for own in () if stratum is None else (stratum == place for place in np.unique(stratum)):
        sums[own] = (sums[own] - sums[own].mean(axis=0)) * math.sqrt(own.sum() / max(own.sum() - 1, 1))
    return found, np.sqrt(np.diag(bread @ sums.T @ sums @ bread))


def population(survey: Survey) -> tuple[FloatArray, FloatArray, FloatArray, IntArray] | None:
    """Return features, responses, weights of mean 1, in clusters of `rows` one after the other, and their strata."""
    cell = survey.cell
    rng = np.random.default_rng([SEED, cell.index, 1])
    found = real_population(cell) if cell.source in TABLES else simulated_population(cell, 100_000)
    if found is None:
        return None
    X, y = found
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (y - y.mean()) / y.std() if cell.family == "gaussian" else y
    weights = np.exp(0.4 * np.clip(X[:, 0], -2.0, 2.0) + 0.4 * rng.normal(size=len(y)))
    if cell.source == "adult":
        numbers = table("adult")
        assert numbers is not None
        weights = numbers[:, 3].copy()
    weights = np.minimum(weights / weights.mean(), LARGEST) if survey.weighted else np.ones(len(y))
    design = np.column_stack((X, np.ones(len(y))))
    rank = (y - design @ np.linalg.lstsq(design, y, rcond=None)[0]).argsort().argsort() / len(y)
    order = np.argsort(0.3 * rank + rng.uniform(size=len(y))) if survey.rows > 1 else np.arange(len(y))
    order = order[: len(y) // survey.rows * survey.rows]
    means = rank[order].reshape(-1, survey.rows).mean(axis=1)
    place = (means + rng.uniform(0.0, 4.0 * means.std(), size=len(means))).argsort().argsort() / len(means)
    stratum = np.floor(survey.strata * place**1.5).astype(np.intp)
    return X[order], y[order], weights[order] / weights.mean(), stratum


def sampled(survey: Survey, stratum: IntArray, n_units: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Draw clusters with replacement, by stratum; return them, and what their weights are multiplied by."""
    if not survey.strata:
        return rng.integers(len(stratum), size=n_units), np.ones(n_units)
    members = [np.flatnonzero(stratum == place) for place in range(survey.strata)]
    size = np.array([own.size for own in members])
    share = size / size.sum()
    dense = share ** (0.6 if survey.weighted else 1.0)
    count = np.maximum(np.round(n_units * dense / dense.sum()).astype(int), 2)
    chosen = np.concatenate([rng.choice(own, n) for own, n in zip(members, count, strict=True)])
    return chosen, (share / count * count.sum())[stratum[chosen]]


def run_survey(survey: Survey, runs: int, *, of_rows: bool = False) -> dict[str, Any] | None:
    """Make the runs of a cell; `of_rows`: rows are protected, and clusters are not."""
    people = population(survey)
    if people is None:
        return None
    X, y, weights, stratum = people
    cell, m, strata = survey.cell, survey.rows, survey.strata
    of_rows = (of_rows or strata > 0) and m > 1
    truth, _ = estimated(cell.family, X, y, weights, np.arange(len(y)))
    most, sd = LARGEST * (2.0 if strata else 1.2), float(weights.std())
    given = SurveyWeights(most, 1.0, sd, strata) if survey.weighted or strata else None
    kind = getattr(dpi.models, KINDS[cell.family])
    model = kind(X.shape[1], fit_intercept=True, prior_scale=10.0, survey_weights=given)
    n_units = max(cell.n_records // m, 500)
    n = n_units * m if of_rows else n_units
    plan = dpi.plan_newton(
        model, target_epsilon=cell.epsilon, target_delta=1e-6, n_records=n, target="population", clusters=of_rows
    )
    options: dict[str, Any] = {"response_scale": 1.0} if cell.family == "gaussian" else {}
    found = []
    for index in range(runs):
        rng = np.random.default_rng([SEED, cell.index, 2, index])
        chosen, factor = sampled(survey, stratum, n_units, rng)
        rows, where = (chosen[:, None] * m + np.arange(m)).ravel(), stratum[chosen]
        cluster, w = np.repeat(np.arange(len(chosen)), m), weights[rows] * np.repeat(factor, m)
        own = estimated(cell.family, X[rows], y[rows], w, cluster, where if strata else None)
        response = np.column_stack((y[rows], w, np.repeat(where, m))[: 3 if strata else 2]) if given else y[rows]
        whose = Clusters(cluster) if of_rows else Units(cluster, max_rows=float(m)) if m > 1 else None
        settings, seed = {"n_records": n, "unit": whose, **options}, 1000 * cell.index + index
        found.append(compared(model, X[rows], response, truth, own, plan, seed, **settings)[2])
    return {"index": cell.index, "epsilon": cell.epsilon, "source": cell.source, "family": cell.family, "runs": found,
            "n": n_units * m, "d": truth.size, "weighted": survey.weighted, "rows": m, "strata": strata}  # fmt: skip


def report(folder: Path, listed: bool) -> None:
    """Print what the cells say, by kind of sample."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("survey-*.json"))]
    print(f"{len(results)} cells, seed {SEED}; 90% intervals; width over the design-based one, no privacy")
    hidden = unseen()
    for name, chosen in (
        ("weighted", lambda item: item["weighted"] and item["rows"] == 1),
        ("clusters", lambda item: not item["weighted"]),
        ("weighted, clusters", lambda item: item["weighted"] and item["rows"] > 1),
        ("strata, seen", lambda item: item.get("strata") and item["index"] not in hidden),
        ("strata, unseen", lambda item: item.get("strata") and item["index"] in hidden),
        ("all", lambda item: True),
    ):
        tell(name, [means_of(item["runs"]) for item in results if chosen(item)], LOW, HIGH)
    if listed:
        for item in results:
            row = means_of(item["runs"])
            print(f"{item['index']:3d} {item['family']:8s} {item['source'][:16]:16s} {'w' if item['weighted'] else '-'}"
                  f" m={item['rows']:2d} H={item.get('strata', 0):2d} d={item['d']} N={item['n']:5d} eps="
                  f"{item['epsilon']:.2f}: {row['covered']:.3f}; {row['width']:.2f}; without {row['without']:.3f}; "
                  f"flagged {row['flagged']:.2f}")  # fmt: skip


def check() -> None:
    """Print how far the reference is from R's package `survey`, in its standard errors."""
    survey = next(item for item in draw_design() if item.weighted and item.rows > 1 and item.cell.source == "normal")
    survey = replace(survey, strata=8)
    for family in KINDS:
        people = population(replace(survey, cell=replace(survey.cell, family=family)))
        assert people is not None
        chosen = np.linspace(0, len(people[3]) - 1, 300).astype(int)
        cluster, stratum = np.repeat(np.arange(300), survey.rows), people[3][chosen]
        X, y, weights = (part.reshape(len(people[3]), survey.rows, -1)[chosen] for part in people[:3])
        X, y, weights = X.reshape(len(cluster), -1), y.ravel(), weights.ravel()
        found, stddev = estimated(family, X, y, weights, cluster, stratum)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sample.csv"
            names = [f"x{k}" for k in range(X.shape[1])]
            np.savetxt(
                path, np.column_stack((X, y, weights, cluster, stratum[cluster])), delimiter=",", comments="",
                header=",".join([*names, "y", "w", "g", "h"]),
            )  # fmt: skip
            kind = "gaussian()" if family == "gaussian" else "quasibinomial()"
            text = (
                "suppressMessages(library(survey)); d <- read.csv(commandArgs(TRUE)[1]);"
                "s <- svydesign(ids=~g, strata=~h, weights=~w, data=d);"
                f"f <- svyglm(y ~ {' + '.join(names)}, s, family={kind}); cat(coef(f), SE(f))"
            )
            said = subprocess.run(["Rscript", "-e", text, str(path)], capture_output=True, text=True, check=True).stdout
        theirs = np.array(said.split(), dtype=float).reshape(2, -1)
        theirs = np.column_stack((theirs[:, 1:], theirs[:, :1]))
        print(
            f"{family}: largest difference of a coefficient {np.max(np.abs(found - theirs[0]) / theirs[1]):.1e} "
            f"standard errors, of a standard error {np.max(np.abs(stddev / theirs[1] - 1.0)):.2%}"
        )


def main() -> None:
    """Run the cells, or report on them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report", "check"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rows", action="store_true", help="protect rows, where there are clusters")
    parser.add_argument("--strata", action="store_true", help="the cells with strata")
    arguments = parser.parse_args()
    if arguments.what == "check":
        check()
        return
    if arguments.what == "run":
        arguments.results.mkdir(parents=True, exist_ok=True)
        for survey in draw_design():
            path = arguments.results / f"survey-{survey.cell.index:03d}.json"
            done = path.exists() or (arguments.rows and survey.rows == 1) or arguments.strata != (survey.strata > 0)
            result = None if done else run_survey(survey, arguments.runs, of_rows=arguments.rows)
            if result is not None:
                path.write_text(json.dumps(result), encoding="utf-8")
                print(f"cell {survey.cell.index}", end="\r", flush=True)
        print()
    report(arguments.results, arguments.list)


if __name__ == "__main__":
    main()
