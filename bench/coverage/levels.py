"""Partial pooling on one release: errors of sites' effects beside no pooling, coverage of scales, agreement, seconds.

    python bench/coverage/levels.py [--adult] [--agree] [--cells 160] [--out bench/results/levels.jsonl]

Cells: 50 sites of unequal size (Dirichlet shares of 5), one covariate, effects of sites from N(0, tau**2).  The seed
was written before anything ran: 20261124.  It draws family (gaussian, binomial, poisson), records (2000 to 30 000),
epsilon (0.5, 1, 3) and tau (0.03 to 1.2; gaussian in units of the noise).  Even cells are seen, odd ones unseen; no
constant was tuned on either.  A row takes cells by tau over the standard error that an effect has without pooling.
Ratio: squared errors of the effects about their mean over the square of that standard error, summed over cells, pooled
over not.  Flagged: over a fifth of the features' directions are hidden, or a warning.  The file takes up again.

--agree: without noise to speak of (epsilon 10**6), effects and fixed coefficients beside lme4 (R), and the law of tau
beside quadrature on the records; differences in standard errors.

--adult: Adult, income over 50K by age, hours and occupation; effects of occupations from a release of some rows beside
those of a fit without privacy of the others.  Summed squared errors, weighed by occupations' shares, pooled over not:
then less private house service, and both by fits of the same rows without privacy (prior sd: of the others, or 2.5).
"""

import argparse
import csv
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
SEED, SITES, DELTA, HIDDEN = 20261124, 50, 1e-6, 0.2
LABELS = tuple(f"s{place:02d}" for place in range(SITES))
RATIOS = ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, np.inf))
RESPONSES: dict[str, dict[str, Any]] = {
    "gaussian": {"kind": "continuous", "bounds": [-6, 6]},
    "binomial": {"kind": "target", "positive": "yes", "negative": "no"},
    "poisson": {"kind": "continuous", "bounds": [0, 60]},
}


def schema_of(family: str) -> dpi.tabular.Schema:
    """Return the public schema."""
    columns = {
        "x": {"kind": "continuous", "bounds": [0, 10]},
        "site": {"kind": "categorical", "categories": list(LABELS)},
        "y": RESPONSES[family],
    }
    return dpi.tabular.Schema.from_dict({"columns": columns})


def simulate(family: str, size: int, tau: float, rng: np.random.Generator) -> tuple[dict[str, Any], FloatArray]:
    """Return a table, and the effects of its sites."""
    shares = rng.dirichlet(np.full(SITES, 5.0))
    site, x = rng.choice(SITES, size=size, p=shares), rng.uniform(0, 10, size)
    effects = rng.normal(scale=tau, size=SITES)
    eta = 0.1 * (x - 5.0) + effects[site]
    if family == "gaussian":
        y: Any = eta + rng.normal(size=size)
    elif family == "poisson":
        y = rng.poisson(np.exp(eta)).astype(np.float64)
    else:
        y = np.where(rng.random(size) < special.expit(eta), "yes", "no")
    return {"x": x, "site": np.array(LABELS)[site], "y": y}, effects


def effects_without_pooling(fit: Any, labels: tuple[str, ...], column: str) -> tuple[FloatArray, float]:
    """Return posterior means of the effects about their mean under independent priors, and their usual sd."""
    matrix, _ = fit.design.user_units()
    names, total = fit.design.model.names, len(matrix)
    rows = np.zeros((len(labels), total))
    for place, label in enumerate(labels):
        if f"{column}[T.{label}]" in names:
            rows[place, names.index(f"{column}[T.{label}]")] = 1.0
    rows = (rows - rows.mean(axis=0)) @ matrix
    posterior = fit.posterior
    variance = np.einsum("ij,jk,ik->i", rows, posterior.cov[:total, :total], rows)
    return rows @ posterior.mean[:total], float(np.sqrt(variance.mean()))


def one_cell(number: int) -> dict[str, Any]:
    """Run one cell of the design."""
    rng = np.random.default_rng([SEED, number])
    family = ("gaussian", "binomial", "poisson")[rng.integers(3)]
    size = int(np.exp(rng.uniform(np.log(2000), np.log(30_000))))
    epsilon = float(rng.choice([0.5, 1.0, 3.0]))
    tau = float(np.exp(rng.uniform(np.log(0.03), np.log(1.2))))
    table, effects = simulate(family, size, tau, rng)
    fit = dpi.regression(
        "y ~ x + (1 | site)",
        table,
        family=family,
        schema=schema_of(family),
        epsilon=epsilon,
        delta=DELTA,
        n_records=size,
        random_source=InsecureRNG(number),
    )
    start = time.process_time()
    fit.with_prior("(1 | site)", scale=0.5, df=np.inf)
    seconds = time.process_time() - start
    truth = effects - effects.mean()
    raw, error = effects_without_pooling(fit.plain, LABELS, "site")
    table_of = fit.effects("site")
    found = table_of.mean - table_of.mean.mean()
    scales = fit.scales()
    row = scales["sd by site"]
    return {
        "cell": number,
        "family": family,
        "n": size,
        "epsilon": epsilon,
        "tau": tau,
        "error": error,
        "raw": float(np.sum((raw - truth) ** 2)),
        "pooled": float(np.sum((found - truth) ** 2)),
        "covered": bool(row["low"] <= tau <= row["high"]),
        "told": not scales.remarks,
        "effects_covered": float(np.mean((table_of.low <= effects) & (effects <= table_of.high))),
        "seconds": seconds,
        "warned": bool(fit.posterior.diagnostics.warnings),
        "hidden": float(fit.posterior.diagnostics.n_unresolved or 0) / (SITES + 1),
    }


def share(values: list[float]) -> str:
    """Return a share with its standard error."""
    size = max(len(values), 1)
    mean = float(np.mean(values)) if values else float("nan")
    return f"{mean:.3f} +- {np.sqrt(max(mean * (1 - mean), 0.0) / size):.3f}"


def is_flagged(row: dict[str, Any]) -> bool:
    """Return whether a user is told that the noise hides much, or that the fit is doubtful."""
    return bool(row["hidden"] > HIDDEN or row["warned"])


def line(low: float, high: float, own: list[dict[str, Any]]) -> str:
    """Return a row of the table."""
    pooled, raw = (np.array([row[name] / row["error"] ** 2 for row in own]) for name in ("pooled", "raw"))
    ratio = pooled.sum() / raw.sum()
    error = np.sqrt(np.sum((pooled - ratio * raw) ** 2)) / raw.sum()
    effects = np.array([row["effects_covered"] for row in own])
    return (
        f"  {low:g} to {high:g}  {len(own):3d}  {ratio:.3f} +- {error:.3f}, largest {np.max(pooled / raw):.2f}  "
        f"tau {share([row['covered'] for row in own])}  "
        f"told {share([row['told'] for row in own])}  "
        f"effects {effects.mean():.3f} +- {effects.std() / np.sqrt(len(own)):.3f}"
    )


def tabulate(rows: list[dict[str, Any]]) -> None:
    """Print the tables."""
    for half, parity in (("seen", 0), ("unseen", 1), ("both", None)):
        print(f"\n{half}: tau over se, cells, ratio of squared errors, then shares covered by 90% intervals")
        chosen = [row for row in rows if parity is None or row["cell"] % 2 == parity]
        for name, flagged in (("all", (True, False)), ("not flagged", (False,)), ("flagged", (True,))):
            print(f"{name}:")
            for low, high in (*RATIOS, (0.0, np.inf)):
                own = [row for row in chosen if low <= row["tau"] / row["error"] < high and is_flagged(row) in flagged]
                if own:
                    print(line(low, high, own))
    seconds = np.array([row["seconds"] for row in rows])
    print(f"\nanother prior: processor seconds, median {np.median(seconds):.2f}, largest {seconds.max():.2f}")


def run_cells(count: int, path: Path) -> None:
    """Run the cells that the file lacks, and tabulate all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {row["cell"] for row in rows}
    for number in range(count):
        if number not in done:
            rows.append(one_cell(number))
            with path.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    tabulate([row for row in rows if row["cell"] < count])


def tau_on_records(table: dict[str, Any], scale: float) -> tuple[float, float]:
    """Return mean and sd of tau on the records, flat priors of beta and log sigma, half-t of tau, by quadrature."""
    site = np.searchsorted(LABELS, table["site"])
    rows = np.column_stack([np.ones(len(site)), table["x"]])
    counts = np.bincount(site, minlength=SITES).astype(np.float64)
    sums = np.column_stack([np.bincount(site, each, SITES) for each in (*rows.T, table["y"])])
    total = np.column_stack([rows, table["y"]])
    grid, spreads = np.exp(np.linspace(np.log(0.02), np.log(3.0), 600)), np.linspace(0.97, 1.03, 61)
    density = np.empty((grid.size, spreads.size))
    for place, tau in enumerate(grid):
        for at, sigma in enumerate(spreads):
            weight = tau**2 / (sigma**2 + counts * tau**2)
            cross = (total.T @ total - (sums * weight[:, None]).T @ sums) / sigma**2
            inner, right = cross[:2, :2], cross[:2, 2]
            rest = cross[2, 2] - right @ np.linalg.solve(inner, right)
            log_det = np.sum(np.log1p(counts * tau**2 / sigma**2)) + 2 * len(site) * np.log(sigma)
            density[place, at] = -0.5 * (rest + log_det + np.linalg.slogdet(inner)[1]) - np.log(sigma)
    log_tau = special.logsumexp(density, axis=1) - 2.0 * np.log1p((grid / scale) ** 2 / 3.0) + np.log(grid)
    weight = np.exp(log_tau - log_tau.max())
    weight /= weight.sum()
    mean = float(weight @ grid)
    return mean, float(np.sqrt(weight @ (grid - mean) ** 2))


def lme4(table: dict[str, Any]) -> dict[str, Any]:
    """Return what lme4 makes of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["x", "site", "y"])
            writer.writerows(zip(table["x"], table["site"], table["y"], strict=True))
        code = (
            "library(lme4); d <- read.csv(commandArgs(TRUE)[1]); m <- lmer(y ~ x + (1 | site), d);"
            "r <- as.data.frame(ranef(m)); s <- summary(m)$coefficients;"
            "cat(as.data.frame(VarCorr(m))$sdcor, s[, 1], s[, 2], r$condval, r$condsd, sep = ' ')"
        )
        out = subprocess.run(["Rscript", "-e", code, str(path)], capture_output=True, text=True, check=True).stdout
    numbers = np.array(out.split(), dtype=np.float64)
    return {"sd": numbers[:2], "fixed": numbers[2:4], "se": numbers[4:6], "effects": numbers[6 : 6 + SITES]} | {
        "effect_sd": numbers[6 + SITES :]
    }


def agree() -> None:
    """Compare with lme4, and with quadrature, without noise to speak of."""
    rng = np.random.default_rng([SEED, 1, 1])
    for tau, target in ((0.1, "model"), (0.1, "population"), (0.4, "model"), (0.4, "population")):
        table, _ = simulate("gaussian", 20_000, tau, rng)
        fit = dpi.regression(
            "y ~ x + (1 | site)",
            table,
            schema=schema_of("gaussian"),
            epsilon=1e6,
            delta=DELTA,
            n_records=20_000,
            target=target,
            random_source=InsecureRNG(1),
        )
        found, row = fit.effects("site"), fit.scales()["sd by site"]
        scale = fit.priors[0][0].scale * fit.design.response_scale
        mean, sd = tau_on_records(table, scale)
        print(f"tau {tau}, target {target}: posterior mean {row['mean']:.4f}, sd {row['sd']:.4f}")
        print(f"  on the records {mean:.4f}, {sd:.4f}")
        print(f"  difference of means {abs(row['mean'] - mean) / sd:.3f} sd, ratio of sds {row['sd'] / sd:.3f}")
        if shutil.which("Rscript"):
            other = lme4(table)
            away = np.abs(found.mean - other["effects"]) / other["effect_sd"]
            fixed = fit.coefficients()
            ours = np.array([fixed["intercept"]["mean"], fixed["x"]["mean"]])
            print(
                f"  lme4: sd {other['sd'][0]:.4f}; effects differ by {np.median(away):.3f} sd, largest {away.max():.3f}"
            )
            print(f"  fixed coefficients differ by {np.round(np.abs(ours - other['fixed']) / other['se'], 3)} se")


def adult(repeats: int = 4) -> None:
    """Compare effects of occupations with those of the other half of Adult."""
    with gzip.open(DATA / "adult.data.csv.gz", "rt") as file:
        table = list(csv.DictReader(file, skipinitialspace=True))
    occupation = np.array([row["occupation"].strip() for row in table])
    known = occupation != "?"
    columns = {
        "age": np.array([float(row["age"]) for row in table])[known],
        "hours": np.array([float(row["hours-per-week"]) for row in table])[known],
        "occupation": occupation[known],
        "income": np.array([row["income"].strip().rstrip(".") for row in table])[known],
    }
    labels = tuple(np.unique(columns["occupation"]).tolist())
    schema = dpi.tabular.Schema.from_dict(
        {
            "columns": {
                "age": {"kind": "continuous", "bounds": [17, 90]},
                "hours": {"kind": "continuous", "bounds": [1, 99]},
                "occupation": {"kind": "categorical", "categories": list(labels)},
                "income": {"kind": "target", "positive": ">50K", "negative": "<=50K"},
            }
        }
    )
    print(f"Adult: {known.sum()} rows, {len(labels)} occupations")
    # Weighed by the occupations' shares: two of them have a hundred rows or less.
    share_of = np.array([np.mean(columns["occupation"] == label) for label in labels])
    for size in (1000, 15_000):
        for epsilon in (0.5, 1.0, 3.0):
            errors = np.zeros((repeats, 4, len(labels)))
            for repeat in range(repeats):
                order = np.random.default_rng([SEED, 2, repeat]).permutation(int(known.sum()))
                parts = order[:size], order[size:]
                own, others = ({name: value[part] for name, value in columns.items()} for part in parts)
                truth = _maximum_likelihood(others, labels)
                fit = dpi.regression(
                    "income ~ age + hours + (1 | occupation)",
                    own,
                    family="binomial",
                    schema=schema,
                    epsilon=epsilon,
                    delta=DELTA,
                    n_records=size,
                    random_source=InsecureRNG(repeat),
                )
                raw, _ = effects_without_pooling(fit.plain, labels, "occupation")
                alone = [_maximum_likelihood(own, labels, each) for each in (1.0 / truth.var(), 2.5**-2.0)]
                for place, each in enumerate((fit.effects().mean, raw, *alone)):
                    errors[repeat, place] = share_of * (each - share_of @ each - truth + share_of @ truth) ** 2
            chosen = errors[:, :, np.array(labels) != "Priv-house-serv"]
            text = []
            for part in (errors[:, :2], chosen[:, :2], errors[:, 2:], chosen[:, 2:]):
                pooled, plain = part.sum(axis=2).T
                ratio = pooled.sum() / plain.sum()
                text.append(f"{ratio:.3f} +- {np.sqrt(np.sum((pooled - ratio * plain) ** 2)) / plain.sum():.3f}")
            row = fit.scales()["sd by occupation"]
            print(
                f"n {size:6d}  epsilon {epsilon:3g}: squared errors, pooled over not {', '.join(text)}; "
                f"sd by occupation {row['mean']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
            )


def _maximum_likelihood(columns: dict[str, Any], labels: tuple[str, ...], precision: float = 0.0) -> FloatArray:
    """Return effects of occupations, weakly penalised, or pooled, from a logistic regression without privacy."""
    code = np.searchsorted(labels, columns["occupation"])
    rows = np.column_stack([(columns["age"] - 40) / 13, (columns["hours"] - 40) / 12, np.eye(len(labels))[code]])
    y = columns["income"] == ">50K"

    def loss(beta: FloatArray) -> tuple[float, FloatArray]:
        eta, away = rows @ beta, beta - beta[2:].mean()
        away[:2] = 0.0
        value = np.sum(np.logaddexp(0.0, eta) - y * eta) + 0.01 * np.sum(beta**2) + 0.5 * precision * away @ away
        return float(value), rows.T @ (special.expit(eta) - y) + 0.02 * beta + precision * away

    return np.asarray(optimize.minimize(loss, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B").x[2:])


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=160)
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--adult", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "levels.jsonl")
    asked = parser.parse_args()
    if asked.adult:
        adult()
    elif asked.agree:
        agree()
    else:
        run_cells(asked.cells, asked.out)


if __name__ == "__main__":
    main()
