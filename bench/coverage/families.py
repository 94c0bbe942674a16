"""The population's coefficients of families beyond linear and logistic regression, on responses that no model has made.

Probit regressions of binary responses (the link is wrong), negative binomial regressions of real counts and of
simulated ones that no negative binomial law has, multinomial regressions of binned columns, and a censored Weibull
regression as a user's own code.  Every fourth cell has the model's own responses.  A run is a sample with replacement;
the truth is maximum likelihood of the whole population, and HC0 without privacy stands beside it.  Populations without
a maximum likelihood are left out.  SEED was committed before any constant looked at the design; constants may look at
the even cells alone.

    python bench/coverage/families.py run --results FOLDER [--runs 12]     resumes
    python bench/coverage/families.py report --results FOLDER [--list]
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.formulas.own_families import OwnRegression
from real_responses import TABLES, Cell, compared, means_of, real_population, simulated_population, table, tell

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.own_models import censored_weibull

SEED, CELLS, FAMILIES = 20_261_126, 40, ("probit", "negativebinomial", "multinomial", "weibull")
COUNTS = {"adult": (0, 2), "wine-quality-red": (11,)}  # columns that are counts
FARTHEST = 10.0  # of an estimate that exists
FloatArray = npt.NDArray[np.float64]


def draw_design() -> list[tuple[str, bool, Cell]]:
    """Draw the cells: family, whether its model is true, and the population, size and budget."""
    cells = []
    for index in range(CELLS):
        rng = np.random.default_rng([SEED, index])
        family = FAMILIES[index // 2 % 4]
        tables = tuple(COUNTS) if family == "negativebinomial" else TABLES
        source = str(rng.choice(tables if rng.random() < 0.6 else ("bent", "hetero", "skew", "counts")))
        if source == "counts" and family != "negativebinomial":
            source = "bent"
        cell = Cell(
            index=index, family="binomial" if family == "probit" else "gaussian", source=source,
            response=int(rng.integers(1000)), n_features=int(rng.integers(2, 7)),
            n_records=round(float(np.exp(rng.uniform(math.log(3000), math.log(25_000))))),
            epsilon=round(float(np.exp(rng.uniform(math.log(0.7), math.log(5.0)))), 2),
            feature_error=1.0, response_error=1.0,
        )  # fmt: skip
        cells.append((family, index // 2 % 5 == 4, cell))
    return cells


def population(family: str, true: bool, cell: Cell) -> tuple[Any, FloatArray, FloatArray]:
    """Return model, features and responses."""
    rng = np.random.default_rng([SEED, cell.index, 1])
    if family == "negativebinomial" and cell.source in COUNTS:
        values = table(cell.source)
        assert values is not None, "DPINFER_DATA"
        column = COUNTS[cell.source][cell.response % len(COUNTS[cell.source])]
        y, others = values[:, column], np.delete(values, column, axis=1)
        X = others[:, rng.permutation(others.shape[1])[: cell.n_features]]
    else:
        found = real_population(cell) if cell.source in TABLES else simulated_population(cell, 60_000)
        assert found is not None, "DPINFER_DATA"
        X, y = found
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    if family != "probit" and not (family == "negativebinomial" and cell.source in COUNTS):
        y = (y - y.mean()) / y.std()
    p = X.shape[1]
    if family == "probit":
        model: Any = dpi.models.ProbitRegression(p, fit_intercept=True, prior_scale=10.0)
    elif family == "multinomial":
        y = np.searchsorted(np.quantile(y, (0.35, 0.7)), y).astype(float)
        model = dpi.models.MultinomialRegression(p, 3, prior_scale=2.5)
    elif family == "negativebinomial":
        if cell.source not in COUNTS:
            y = rng.poisson(np.exp(np.clip(0.6 * y + 0.3, -4.0, 3.5)) * rng.gamma(1.5, 1.0 / 1.5, len(y))).astype(float)
        model = OwnRegression(
            family, (*(f"x{k}" for k in range(p)), "intercept"), fit_intercept=True, offset=False, prior_scale=2.5,
            intercept_mean=float(np.round(np.log(y.mean()))), features=rng.normal(size=(500, p)),
        )  # fmt: skip
    else:
        X = np.column_stack([X, rng.normal(size=(len(X), 4))])[:, :4]
        time = np.exp(np.clip(0.5 * y, -3.0, 3.0))
        X, y = np.column_stack((X, np.full(len(X), 2.0))), np.minimum(time, 2.0)
        model = censored_weibull().model
    if true:
        theta = model.parameters.prior_mean + 0.3 * rng.normal(size=model.n_params) if family != "probit" else None
        if theta is None:
            y = model.simulate(0.4 * rng.normal(size=p + 1), X, rng)
        else:
            y = model.draw_responses(theta, X, rng.integers(0, 2**64, (len(X), model.n_words), dtype=np.uint64))
    return model, np.ascontiguousarray(X), np.asarray(y, dtype=np.float64)


def estimated(model: Any, X: FloatArray, y: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return maximum likelihood before the maps of the parameters, and its robust standard errors (HC0)."""
    scores = model.scores if hasattr(model, "scores") else lambda X, y, theta: -model.record_gradients(X, y, theta)
    theta = start.copy()
    for _ in range(60):
        columns = [
            scores(X, y, theta - 1e-5 * e).sum(0) - scores(X, y, theta + 1e-5 * e).sum(0) for e in np.eye(theta.size)
        ]
        values, vectors = np.linalg.eigh(np.array(columns) / 4e-5 + np.array(columns).T / 4e-5)
        inverse = (vectors / np.maximum(values, 1e-6 * values[-1])) @ vectors.T
        step = inverse @ scores(X, y, theta).sum(axis=0)
        theta = theta + step * min(1.0, 0.5 / np.max(np.abs(step)))
        if np.max(np.abs(step)) < 1e-7:
            break
    own = scores(X, y, theta)
    return theta, np.sqrt(np.diag(inverse @ (own.T @ own) @ inverse))


def run_cell(family: str, true: bool, cell: Cell, runs: int) -> dict[str, Any]:
    """Make the runs of a cell."""
    model, X, y = population(family, true, cell)
    start = model.parameters.prior_mean if family != "probit" else np.zeros(X.shape[1] + 1)
    truth, _ = estimated(model, X, y, start)
    if np.max(np.abs(truth)) > FARTHEST:
        return {}
    n, found = cell.n_records, []
    plan = dpi.plan_newton(model, target_epsilon=cell.epsilon, target_delta=1e-6, n_records=n, target="population")
    for index in range(runs):
        rows = np.random.default_rng([SEED, cell.index, 2, index]).integers(len(y), size=n)
        own = estimated(model, X[rows], y[rows], truth)
        seed, turn = 1000 * cell.index + index, model.unconstrain if family != "probit" else np.asarray
        found.append(compared(model, X[rows], y[rows], truth, own, plan, seed, turn)[2])
    return {"index": cell.index, "family": family, "true": true, "source": cell.source, "n": n, "d": truth.size,
            "epsilon": cell.epsilon, "runs": found}  # fmt: skip


def report(folder: Path, listed: bool) -> None:
    """Print what the cells say: by half, by family, and where the model is true."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("family-*.json"))]
    results = [item for item in results if item]
    means = {item["index"]: means_of(item["runs"]) for item in results}
    print(f"{len(results)} of {CELLS} cells, seed {SEED}; 90% intervals; width over HC0's without privacy")
    for name, chosen in (
        *((half, lambda item, parity=k: item["index"] % 2 == parity) for k, half in enumerate(("seen", "unseen"))),
        *((family, lambda item, family=family: item["family"] == family) for family in FAMILIES),
        ("model true", lambda item: item["true"]),
        ("model wrong", lambda item: not item["true"]),
    ):
        tell(name, [means[item["index"]] for item in results if chosen(item)])
    for item in results if listed else []:
        row = means[item["index"]]
        model = "true" if item["true"] else "-"
        print(f"{item['index']:3d} {item['family'][:12]:12s} {item['source'][:16]:16s} {model:4s} d={item['d']:2d} N="
              f"{item['n']:5d} eps={item['epsilon']:.2f}: {row['covered']:.3f}; {row['width']:.2f}; without "
              f"{row['without']:.3f}; flagged {row['flagged']:.2f}")  # fmt: skip


def main() -> None:
    """Run the cells, or report on them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for family, true, cell in draw_design() if arguments.what == "run" else []:
        path = arguments.results / f"family-{cell.index:03d}.json"
        if not path.exists():
            path.write_text(json.dumps(run_cell(family, true, cell, arguments.runs)), encoding="utf-8")
            print(f"cell {cell.index} of {CELLS}", end="\r", flush=True)
    report(arguments.results, arguments.list)


if __name__ == "__main__":
    main()
