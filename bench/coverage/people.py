"""Mixed models at the level of people: coverage and widths of a random design, agreement with lme4, seconds of a pass.

    python bench/coverage/people.py run --results FILE [--runs 4] [--plain 1] [--lme4]
    python bench/coverage/people.py report --results FILE
    python bench/coverage/people.py agree [--only FAMILY] [--ridge 1]; python bench/coverage/people.py speed

The seed was written before anything ran: 20261132.  It draws 120 cells: family (gaussian, binomial, poisson), people
(1000 to 50 000), largest number of rows (2 to 20, unbalanced), the standard deviation tau of people (0 in one cell of
eight, else even up to 2; gaussian in units of the noise), epsilon (0.5, 1, 3), a slope that varies in a quarter of the
cells.  Even cells are seen, odd ones unseen.  --plain repeats a run with unit= and no effects of people, as it was
before.  --lme4 runs the cells at epsilon 1 with at least 5000 people, and lme4 (R) for its widths of fixed effects.
Flagged: a warning of the summary, or a standard deviation that is not told from zero.  The file takes up again.
"""

import argparse
import csv
import json
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, special

import dpinfer as dpi
from dpinfer.inference.newton import tuning
from dpinfer.mechanism import Units, _native
from dpinfer.mechanism.newton.contributions import ClippedScores, RobustScores
from dpinfer.mechanism.newton.own_rows import OwnRecords, PersonScores
from dpinfer.mechanism.newton.pass_records import MemoryRecords
from dpinfer.mechanism.newton.unit_parts import persons_of
from dpinfer.models.clipping import ResponseGrid
from dpinfer.testing import InsecureRNG

SEED, DELTA, CELLS, PASSES, AGREE_RUNS = 20261132, 1e-6, 120, 15, 16
RESPONSES: dict[str, dict[str, Any]] = {
    "gaussian": {"kind": "continuous", "bounds": [-12, 12]},
    "binomial": {"kind": "target", "positive": "yes", "negative": "no"},
    "poisson": {"kind": "continuous", "bounds": [0, 2000]},
}
R_CODE = """library(lme4); a <- commandArgs(TRUE); d <- read.csv(a[1]); f <- as.formula(a[2])
m <- if (a[3] == "gaussian") lmer(f, d, REML = FALSE) else
  glmer(f, d, family = a[3], nAGQ = if (grepl("1 + x |", a[2], fixed = TRUE)) 1 else 9)
s <- as.data.frame(VarCorr(m)); cat(fixef(m), sqrt(diag(as.matrix(vcov(m)))), s$sdcor[is.na(s$var2)], sep = "\\n")"""


def cell_of(number: int) -> dict[str, Any]:
    """Return what the seed draws for a cell."""
    rng = np.random.default_rng([SEED, number])
    family = ("gaussian", "binomial", "poisson")[number % 3]
    return {
        "number": number,
        "family": family,
        "people": int(np.exp(rng.uniform(np.log(1000), np.log(50_000)))),
        "max_rows": int(rng.choice([2, 4, 6, 10, 20])),
        "epsilon": float(rng.choice([0.5, 1.0, 3.0])),
        "tau": 0.0 if rng.random() < 0.125 else float(rng.uniform(0.0, 2.0)),
        "slope": float(rng.uniform(0.1, 0.8)) if rng.random() < 0.25 else 0.0,
        "correlation": float(rng.uniform(-0.6, 0.6)),
        "coef": rng.normal(scale=0.4, size=3).tolist(),
        "seen": number % 2 == 0,
    }


def simulate(cell: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a table of a cell."""
    people, rows = cell["people"], cell["max_rows"]
    counts = np.minimum(1 + rng.geometric(2.0 / (rows + 1.0), people) - 1, rows)
    own = np.repeat(np.arange(people), counts)
    x = np.clip(rng.normal(size=own.size), -3.0, 3.0)
    group = rng.integers(0, 2, people)[own]
    normal = rng.normal(size=(people, 2))
    r = cell["correlation"]
    effects = np.column_stack(
        (cell["tau"] * normal[:, 0], cell["slope"] * (r * normal[:, 0] + (1 - r * r) ** 0.5 * normal[:, 1]))
    )
    b0, bx, bg = cell["coef"]
    eta = b0 + bx * x + bg * group + effects[own, 0] + effects[own, 1] * x
    if cell["family"] == "gaussian":
        y: Any = eta + rng.normal(size=own.size)
    elif cell["family"] == "poisson":
        y = rng.poisson(np.exp(np.minimum(eta, 7.0))).astype(np.float64)
    else:
        y = np.where(rng.random(own.size) < special.expit(eta), "yes", "no")
    return {"person": own, "x": x, "g": np.array(["a", "b"])[group], "y": y}


def truth_of(cell: dict[str, Any]) -> dict[str, float]:
    """Return the true parameters by the names of the tables."""
    b0, bx, bg = cell["coef"]
    found = {"x": bx, "g[T.b]": bg, "intercept": b0, "sd by person": cell["tau"]}
    if cell["slope"]:
        found |= {"sd of x by person": cell["slope"], "correlation by person": cell["correlation"]}
    return found | ({"sigma": 1.0} if cell["family"] == "gaussian" else {})


def fitted(
    cell: dict[str, Any], table: dict[str, Any], seed: int, *, effects: bool = True, epsilon: float = 0.0
) -> Any:
    """Return a fit of a cell's table, with effects of people or without."""
    schema = {
        "person": {"kind": "ignore"},
        "x": {"kind": "continuous", "bounds": [-3, 3], "mean": 0.0, "sd": 1.0},
        "g": {"kind": "categorical", "categories": ["a", "b"]},
        "y": RESPONSES[cell["family"]],
    }
    mean_rows = round((cell["max_rows"] + 1) / 3, 1)
    term = ("(1 + x | person)" if cell["slope"] else "(1 | person)") if effects else ""
    return dpi.regression(
        "y ~ x + g" + (f" + {term}" if term else ""),
        table,
        family=cell["family"],
        schema=dpi.tabular.Schema.from_dict({"columns": schema}),
        unit=Units("person", max_rows=cell["max_rows"], mean_rows=max(mean_rows, 1.0)),
        epsilon=epsilon or cell["epsilon"],
        delta=DELTA,
        n_records=cell["people"],
        random_source=InsecureRNG(seed),
        method="newton",
    )


def intervals(fit: Any) -> dict[str, list[float]]:
    """Return low, high and sd of every parameter by name."""
    tables = [fit.coefficients(), *([fit.scales()] if hasattr(fit, "compare_effect") else [])]
    return {
        name: [float(part[place]) for part in (table.low, table.high, table.sd, table.mean)]
        for table in tables
        for place, name in enumerate(table.names)
    }


def lme4(cell: dict[str, Any], table: dict[str, Any]) -> list[float]:
    """Return lme4's fixed effects (intercept, x, g), their standard errors, standard deviations; empty if it stops."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        y = (table["y"] == "yes").astype(int) if cell["family"] == "binomial" else table["y"]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["person", "x", "g", "y"])
            writer.writerows(zip(table["person"], table["x"], table["g"], y, strict=True))
        term = "(1 + x | person)" if cell["slope"] else "(1 | person)"
        command = ["Rscript", "-e", R_CODE, str(path), f"y ~ x + g + {term}", cell["family"]]
        one = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=one)
    return [float(line) for line in done.stdout.split()]


def run(arguments: argparse.Namespace) -> None:
    """Run the cells that the file lacks."""
    path = Path(arguments.results)
    done = {(row["number"], row["run"]) for row in _rows(path)}
    # Small cells first: quadrature in two effects takes longest.
    cost = {number: cell_of(number)["people"] * cell_of(number)["max_rows"] for number in range(CELLS)}
    slow = {number: cell_of(number)["slope"] > 0.0 and number % 3 > 0 for number in range(CELLS)}
    for number in sorted(range(CELLS), key=lambda number: cost[number] * (20 if slow[number] else 1)):
        cell = cell_of(number)
        compared = arguments.lme4 and cell["epsilon"] == 1.0 and cell["people"] >= 5000
        for repeat in range(arguments.runs):
            if (number, repeat) in done or (arguments.lme4 and not compared):
                continue
            start = time.process_time()
            table = simulate(cell, np.random.default_rng([SEED, number, repeat]))
            fit = fitted(cell, table, 1000 * number + repeat)
            row = cell | {
                "run": repeat,
                "found": intervals(fit),
                "warned": bool(fit.posterior.summary().warnings) or bool(fit.posterior.diagnostics.warnings),
                "not_told": list(fit.scales().remarks),
                "seconds": time.process_time() - start,
            }
            if repeat < arguments.plain:
                row["plain"] = intervals(fitted(cell, table, 1000 * number + repeat, effects=False))
            if compared:
                row["lme4"] = lme4(cell, table)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _covered(found: dict[str, list[float]], truth: dict[str, float], names: list[str]) -> list[float]:
    return [float(found[name][0] <= truth[name] <= found[name][1]) for name in names if name in found]


def _mean(values: list[list[float]]) -> tuple[float, float]:
    """Return the mean, and its standard error over groups of values."""
    groups = [group for group in values if group]
    if not groups:
        return float("nan"), float("nan")
    size, total = np.array([len(group) for group in groups]), np.array([sum(group) for group in groups])
    mean = total.sum() / size.sum()
    return float(mean), float(np.sqrt(np.sum((total - mean * size) ** 2)) / size.sum())


def report(arguments: argparse.Namespace) -> None:
    """Print coverage by half, family and tau, the cells within, widths, and what unit= covers."""
    rows = _rows(Path(arguments.results))
    fixed, spread = ["intercept", "x", "g[T.b]"], ["sd by person", "sd of x by person"]
    flag = [row["warned"] or bool(row["not_told"]) for row in rows]

    def line(name: str, chosen: list[int]) -> None:
        kinds = (fixed, spread, ["correlation by person"], ["sigma"])
        covered = ([_covered(rows[k]["found"], truth_of(rows[k]), names) for k in chosen] for names in kinds)
        parts = ["{:.3f} +- {:.3f}".format(*_mean(values)) for values in covered]
        plain = _mean([_covered(rows[k].get("plain", {}), truth_of(rows[k]), fixed) for k in chosen])
        told = f"flagged {np.mean([flag[k] for k in chosen]):.2f}  unit= {plain[0]:.3f} +- {plain[1]:.3f}"
        print(f"{name:<22}{len(chosen):>5} runs  {'  '.join(parts)}  {told}")

    print("fixed effects, standard deviations, correlation, noise: covered by 90% intervals")
    every = range(len(rows))
    for half, wanted in (("seen", True), ("unseen", False)):
        line(half, [k for k in every if rows[k]["seen"] == wanted])
    for family in RESPONSES:
        line(family, [k for k in every if rows[k]["family"] == family])
    for epsilon in (0.5, 1.0, 3.0):
        line(f"epsilon {epsilon:g}", [k for k in every if rows[k]["epsilon"] == epsilon])
    for low, high in ((-1.0, 0.0), (0.0, 0.5), (0.5, 1.0), (1.0, 1.5), (1.5, 2.0)):
        line(f"tau up to {high:g}", [k for k in every if low < rows[k]["tau"] <= high])
    for slope in (False, True):
        line(f"slope: {slope}", [k for k in every if bool(rows[k]["slope"]) == slope])
    line("not flagged", [k for k in every if not flag[k]])
    for name, half in (("seen", True), ("unseen", False)):
        within, flagged, number = 0, 0, 0
        for cell in sorted({row["number"] for row in rows if row["seen"] == half}):
            own = [k for k in every if rows[k]["number"] == cell]
            mean, error = _mean([_covered(rows[k]["found"], truth_of(rows[k]), fixed + spread) for k in own])
            inside = abs(mean - 0.9) <= 0.03 + 2.0 * max(error, np.sqrt(0.09 / (3.0 * len(own))))
            number, within = number + 1, within + inside
            flagged += not inside and np.mean([flag[k] for k in own]) >= 0.5
        print(f"{name}: {within} of {number} cells within 0.87 to 0.93 but for two errors; of others {flagged} flagged")
    for family in RESPONSES:
        own = [
            [row["found"][name][2] / row["lme4"][3 + place] for place, name in enumerate(fixed)]
            for row in rows
            if row.get("lme4") and row["family"] == family
        ]
        if own:
            middle = np.sort(np.median(own, axis=1)).round(2)
            print(f"{family}: widths over lme4's {np.min(own):.2f} to {np.max(own):.2f}, medians by cell {middle}")
    seconds = [row["seconds"] for row in rows]
    print(f"processor seconds of a fit: median {np.median(seconds):.1f}, largest {max(seconds):.1f}")


def by_quadrature(cell: dict[str, Any], table: dict[str, Any], start: list[float], n_nodes: int = 45) -> list[float]:
    """Return fixed effects and standard deviations of maximum likelihood, by even steps of the two effects.

    start: fixed effects, the logarithms of two standard deviations, the hyperbolic arctangent of their correlation.
    """
    x, own, binary = table["x"], np.flatnonzero(np.diff(table["person"], prepend=-1)), cell["family"] == "binomial"
    y = (table["y"] == "yes").astype(float) if binary else table["y"]
    X = np.column_stack((np.ones(len(x)), x, table["g"] == "b"))
    e = np.linspace(-5.5, 5.5, n_nodes)
    grid = np.array([(a, b) for a in e for b in e])
    known = -0.5 * np.sum(grid**2, axis=1)

    def loss(theta: Any) -> float:
        sd, r = np.exp(theta[3:5]), np.tanh(theta[5])
        effects = grid @ [[sd[0], r * sd[1]], [0.0, (1.0 - r * r) ** 0.5 * sd[1]]]
        eta = (X @ theta[:3])[:, None] + effects[:, 0] + x[:, None] * effects[:, 1]
        level = y[:, None] * eta - (np.logaddexp(0.0, eta) if binary else np.exp(eta))
        return -float(np.sum(special.logsumexp(np.add.reduceat(level, own) + known, axis=1)))

    found = optimize.minimize(loss, start, method="BFGS").x
    return [*found[:3], *np.exp(found[3:5])]


def agree(arguments: argparse.Namespace) -> None:
    """Print differences from lme4, or by_quadrature(), at epsilon 10**6: means over runs, and the largest in a run.

    Fixed effects in lme4's standard errors.  Standard deviations of effects in their posterior's, first where the
    released scores are zero, then posterior means.  The noise of the least multiplier is 1 to 2% of a standard error.
    """
    names, spread = ("intercept", "x", "g[T.b]"), ("sd by person", "sd of x by person")
    tuning.TUNING = replace(tuning.TUNING, pair_ridge=arguments.ridge)
    for family in arguments.only:
        for tau, slope in ((0.3, 0.0), (1.0, 0.0), (0.8, 0.4), (1.2, 0.6)):
            cell = cell_of(0) | {"family": family, "people": 4000, "max_rows": 10, "tau": tau, "slope": slope}
            table, rows = simulate(cell, np.random.default_rng([SEED, 7])), []
            other = lme4(cell, table)
            for seed in range(AGREE_RUNS):
                fit = fitted(cell, table, seed, epsilon=1e6)
                found, release = intervals(fit), fit.release
                if not rows and slope and family != "gaussian":  # lme4 has Laplace's approximation alone
                    mean = [found[name][3] for name in (*names, *spread, "correlation by person")]
                    exact = by_quadrature(cell, table, [*mean[:3], *np.log(mean[3:5]), np.arctanh(mean[5])])
                    other = [*exact[:3], *other[3:6], *exact[3:]]
                known = dict(zip([name for name in spread if name in found], other[6:], strict=False))
                steps = np.linalg.solve(release.slope, release.scores.T).T @ release.transform
                zero = fit._scale_draws((release.positions + steps).mean(axis=0)[None])
                rows.append(
                    [
                        *[(found[name][3] - other[k]) / other[3 + k] for k, name in enumerate(names)],
                        *[found[name][2] / other[3 + k] for k, name in enumerate(names)],
                        *[(zero[name][0] - sd) / found[name][2] for name, sd in known.items()],
                        *[(found[name][3] - sd) / found[name][2] for name, sd in known.items()],
                    ]
                )
            values = np.array(rows)
            mean, error = np.round(values.mean(axis=0), 3), np.round(values.std(axis=0) / np.sqrt(len(values)), 3)
            print(f"{family} tau {tau} slope {slope}: fixed {mean[:3]} +- {error[:3]}, in a run at most", end=" ")
            print(f"{np.abs(values[:, :3]).max():.3f}, widths {mean[3:6]},", end=" ")
            print(f"sds at zero, means {mean[6:]} +- {error[6:]}", flush=True)


def speed(arguments: argparse.Namespace) -> None:
    """Print processor seconds of one measuring pass over 10**6 rows on one thread, and the plain regression's: medians.

    The passes take turns.  Where a slope varies, too, the pass is over a tenth of the people.
    """
    rng, people, rows, p = np.random.default_rng(0), 50_000, 20, 4
    X, unit = rng.normal(size=(people * rows, p)), np.repeat(np.arange(people), rows)
    logistic, poisson = dpi.models.LogisticRegression(p), dpi.models.PoissonRegression(p)
    for family in RESPONSES:
        shape = {"max_rows": rows, "mean_rows": float(rows), "features": X[:500]}
        names = [f"x{k}" for k in range(p)]
        models = [dpi.models.PersonModel(family, names, slope=slope, **shape) for slope in (-1, 0)]
        y = rng.normal(size=len(unit)) if family == "gaussian" else rng.integers(0, 2, len(unit)).astype(float)
        grid = ResponseGrid(logistic if family == "binomial" else poisson, 0.05).clipped(0.6)
        link = "logistic" if family == "binomial" else family
        query = (
            RobustScores(np.eye(p), 2.0, np.ones(p), clip=0.7, unit=1.3, centre=0.45, scale_weight=0.4)
            if family == "gaussian"
            else ClippedScores(np.eye(p), 2.0, np.ones(p), link, grid)
        )
        scored = [
            PersonScores(model, model.prior_moments()[0], np.eye(model.n_params), 3.0, 0.5, 40.0, 0, 0.99, 0.0, 0.14)
            for model in models
        ]
        few = slice(0, len(unit) // 10)
        cases = (
            (scored[0], OwnRecords(*persons_of(models[0], X, y, unit), n_threads=1)),
            (scored[1], OwnRecords(*persons_of(models[1], X[few], y[few], unit[few]), n_threads=1)),
            (query, MemoryRecords(X, y, intercept=False, n_threads=1)),
        )
        seconds = np.empty((PASSES, len(cases)))
        for repeat, case in np.ndindex(seconds.shape):
            own, records = cases[case]
            total = _native.PartialSum(length=own.length, max_norm=own.max_norm)
            start = time.process_time()
            records.add(total, own)
            seconds[repeat, case] = time.process_time() - start
        level, slope, alone = np.median(seconds, axis=0)
        found = f"{family}: people {level:.3f} s, a slope {10 * slope:.2f} s, rows alone {alone:.3f} s;"
        print(f"{found} a slope over rows alone: {10 * slope / alone:.1f};", end=" ")
        ratios = np.quantile(seconds[:, 0] / seconds[:, 2], (0.25, 0.5, 0.75))
        print(f"people over rows alone: median {ratios[1]:.2f}, quartiles {ratios[0]:.2f} and {ratios[2]:.2f}")


def main() -> None:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("run", "report", "agree", "speed"))
    parser.add_argument("--results", default="bench/results/people.jsonl")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--plain", type=int, default=1)
    parser.add_argument("--lme4", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(RESPONSES), help="families of agree")
    parser.add_argument("--ridge", type=float, default=tuning.TUNING.pair_ridge, help="1: as a pair was before")
    arguments = parser.parse_args()
    {"run": run, "report": report, "agree": agree, "speed": speed}[arguments.part](arguments)


if __name__ == "__main__":
    main()
