"""Coverage, width and warnings of the private Newton posterior over a random design of cells, half of it unseen.

The design (scope_cells.py) is drawn from a seed that was committed before any constant looked at it: linear, logistic,
probit and Poisson regression; normal, mixed (numbers and indicators) and real columns with simulated responses; 1 to 60
features, 1000 to 50 000 records, epsilon from 0.1 to 8; truths from the prior or fixed; declared scales wrong by 10 and
30%, the number of records by 10%.  Constants and thresholds look at the even cells alone.

    python bench/coverage/newton_scope.py run --results FOLDER [--half seen|unseen|both] [--cells 320] [--intervals 48]
    python bench/coverage/newton_scope.py report --results FOLDER [--list]     run goes on where it was stopped
    python bench/coverage/newton_scope.py ablate [--every 2] [--far] [--model Poisson] [--cell mean=60] [--runs 4]
    python bench/coverage/newton_scope.py agree [--cells 320] [--every 7] [--judge chains|long|nuts]
    python bench/coverage/newton_scope.py auto [--cells 320] [--half seen|unseen|both] [--intervals 48]
    python bench/coverage/newton_scope.py concrete     its columns with simulated responses, all declared as it is

``ablate`` runs seen cells with one chosen number at a time as if it had not been chosen, same records and keys:
coverage, width and interval score less those of the default; --far with responses 1000 sd from zero.  ``agree``
compares quantiles given sigma with those of many Hamiltonian chains (`long`: eight times as many draws), or NUTS
(NumPyro), on the same density, written anew, in cells of at most 24 weights; linear ones with an intercept come again
with responses far from zero.  All cells count, those that are `every` apart first.  ``auto`` sets the default's
target beside the model's.  Real columns need DPINFER_DATA; without it their cells are left out, and said so.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.inference.newton import tuning as posterior_tuning
from dpinfer.inference.newton.error_law import ErrorDraws
from dpinfer.inference.newton.moments_law import MomentsLaw
from dpinfer.inference.newton.posterior import mixture_of, noise_prior
from dpinfer.inference.newton.scores import BoundedScores, LinearScores
from dpinfer.inference.request import NewtonRequest
from dpinfer.lab.comparison.newton_chains import N_CHAINS, N_STEPS, sampled_weights
from dpinfer.mechanism.newton import tuning as run_tuning
from dpinfer.models import tuning as common_tuning
from dpinfer.testing import InsecureRNG
from newton_runs import LEVELS, NORMAL_WIDTH, median_and_error
from scope_cells import SEED, Cell, Population, draw_design

CELLS = 320
INTERVALS, LEAST_RUNS, MOST_RUNS = 48, 12, 3  # intervals of a cell; over these, its fewest and most runs
LOW, HIGH, NOMINAL = 0.85, 0.95, 0.90

FloatArray = npt.NDArray[np.float64]
Release = dpi.NewtonRelease | dpi.GlmNewtonRelease


@dataclass(frozen=True)
class Run:
    """One simulated private run: its release, the truth, and the weights' covariance without privacy."""

    release: Release
    truth: FloatArray
    covariance: FloatArray


def simulate(population: Population, index: int, shift: float = 0.0, target: str = "model") -> Run:
    """Simulate one private run, with responses and the intercept moved by `shift`."""
    cell, model = population.cell, population.model
    rng = np.random.default_rng([SEED, cell.index, index])
    features = population.features(rng)
    design = np.hstack((features, np.ones((len(features), 1)))) if model.fit_intercept else features
    truth = population.truth(design, rng)
    response = population.responses(design, truth, rng) + shift
    n_records = round(len(features) * cell.records_error)
    budget = {"target_epsilon": cell.epsilon, "target_delta": cell.delta, "n_records": n_records}
    plan = dpi.plan_newton(model, target=target, **budget)
    scale = float(np.sqrt(np.mean(response**2))) * cell.response_error if cell.model == "linear" else None
    release = dpi.run_newton(
        model, features, response, plan=plan, n_records=n_records, response_scale=scale,
        random_source=InsecureRNG(100_000 * cell.index + index),
    )  # fmt: skip
    covariance = np.linalg.inv(population.information(design, truth))
    truth = np.append(truth[:-1], truth[-1] + shift)  # of a linear regression with an intercept
    return Run(release, truth, covariance)


def run_cell(population: Population, intervals: int, target: str = "model") -> list[dict[str, Any]]:
    """Make the runs of a cell and return what their posteriors say, as plain numbers."""
    fewest, most = max(intervals // LEAST_RUNS, 2), max(intervals // MOST_RUNS, 2)
    size = int(np.clip(np.ceil(intervals / population.model.n_coef), fewest, most))
    told = []
    for index in range(size):
        run = simulate(population, index, target=target)
        begun = time.process_time()
        posterior = dpi.noise_aware_posterior(run.release, model=population.model, check_convergence=False)
        told.append(in_numbers(population, run, posterior) | {"seconds": time.process_time() - begun})
    return told


def on_concrete(cell: Cell) -> None:
    """Print width and coverage of a linear regression on the columns of concrete at epsilon = 1."""
    cell = replace(
        cell, index=CELLS, model="linear", columns="concrete", n_features=8, n_records=1030, correlation=0.0,
        intercept=True, spread=2.0, noise_variance=1.0, mean=None, tail=False, scale_error=1.0, records_error=1.0,
        response_error=1.0, epsilon=1.0, delta=1e-5,
    )  # fmt: skip
    population = Population.of(cell)
    if population is None:
        raise SystemExit("DPINFER_DATA must name the folder with concrete.csv.gz")
    found = Result(cell, run_cell(population, 900))
    widths = np.array([np.median(run["width"]) for run in found.runs])
    print(found, "width {:.2f} +- {:.2f}".format(*median_and_error(widths)))


def in_numbers(population: Population, run: Run, posterior: dpi.Posterior) -> dict[str, Any]:
    """Return how one posterior does, and what it says of itself."""
    d, truth, found = run.truth.size, run.truth, posterior.diagnostics
    ends, stddev = posterior.quantile(LEVELS), posterior.stddev[:d]
    (low, high), variance = ends[:, :d], ends[:, d:].ravel()
    actual = population.cell.noise_variance
    return {
        "covered": ((low < truth) & (truth < high)).tolist(),
        "width": ((high - low) / (NORMAL_WIDTH * np.sqrt(np.diag(run.covariance)))).tolist(),
        "z": ((posterior.mean[:d] - truth) / stddev).tolist(),
        "variance_covered": [bool(variance[0] < actual < variance[1])] if variance.size else [],
        "warnings": sorted(found.warnings),
        "n_unresolved": found.n_unresolved,
        "checks": {"fit_pvalue": found.fit_pvalue, "prior_pvalue": found.prior_pvalue},
        "resolution": resolution(run.release).tolist(),
        "mcse": float(np.max(found.mcse)),
    }


def resolution(release: Release) -> FloatArray:
    """Return the eigenvalues of the last released matrix over the norm that its noise has, ascending."""
    linear = not isinstance(release, dpi.GlmNewtonRelease)
    matrix = release.moments[-1] if linear else release.slope
    stddev = float(release.moment_stddev[-1]) if linear else release.slope_stddev
    return np.linalg.eigvalsh(matrix) / (stddev * np.sqrt(2.0 * release.n_coef))


def auto(cells: Sequence[Cell], intervals: int) -> None:
    """Print what the default's target does beside the model's, where it is another one."""
    rows = []
    for population in filter(None, map(Population.of, cells)):
        cell, scale = population.cell, {"response_scale": 1.0} if population.cell.model == "linear" else {}
        budget = {"epsilon": cell.epsilon, "delta": cell.delta, "n_records": cell.n_records}
        if dpi.plan_fit(population.model, **budget, **scale).choice.chosen.target == "population":
            own, other = (Result(cell, run_cell(population, intervals, each)) for each in ("model", "population"))
            rows.append((other.width / own.width, own.coverage, other.coverage))
    ratio, own, other = np.array(rows).T
    ends = [f"{own.mean():.3f} +- {own.std(ddof=1) / np.sqrt(own.size):.3f}" for own in (other, own, other - own)]
    width, wide = "{:.3f} +- {:.3f}".format(*median_and_error(ratio)), float(np.mean(ratio > 1.03))
    print(
        f"another target in {own.size} of {len(cells)} cells: median width over the model's {width}, above 1.03 in "
        f"{wide:.2f} +- {np.sqrt(wide * (1.0 - wide) / own.size):.2f}; covered {ends[0]} ({ends[1]}), {ends[2]} more"
    )


def run_cells(cells: Sequence[Cell], folder: Path, intervals: int) -> None:
    """Make the runs of all cells that the folder lacks, and print a line for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        path = folder / f"cell-{cell.index:03d}.json"
        if path.exists():
            continue
        population = Population.of(cell)
        if population is None:
            print(f"{cell}: left out, DPINFER_DATA is not set", flush=True)
            continue
        begun = time.process_time()
        found = run_cell(population, intervals)
        path.write_text(json.dumps({"cell": cell.index, "runs": found}), encoding="utf-8")
        print(f"{Result(cell, found)} {time.process_time() - begun:.1f} s", flush=True)


@dataclass(frozen=True)
class Result:
    """A cell and its runs."""

    cell: Cell
    runs: list[dict[str, Any]]

    @property
    def by_run(self) -> FloatArray:
        """Share of the weights that each run's intervals cover."""
        return np.array([np.mean(run["covered"]) for run in self.runs])

    @property
    def coverage(self) -> float:
        return float(self.by_run.mean())

    @property
    def error(self) -> float:
        """Monte Carlo error: that between runs, and at least that of independent intervals."""
        size = sum(len(run["covered"]) for run in self.runs)
        between = float(self.by_run.std(ddof=1)) / np.sqrt(len(self.runs))
        return max(between, float(np.sqrt(NOMINAL * (1.0 - NOMINAL) / size)))

    @property
    def state(self) -> str:
        """Whether the coverage is "within" [0.85, 0.95], "low" or "high", beyond two Monte Carlo errors."""
        if self.coverage + 2.0 * self.error < LOW:
            return "low"
        return "high" if self.coverage - 2.0 * self.error > HIGH else "within"

    @property
    def width(self) -> float:
        return float(np.median(np.concatenate([run["width"] for run in self.runs])))

    def flagged(self, said: Callable[[dict[str, Any]], bool]) -> float:
        """Return the share of the runs of which something is said."""
        return float(np.mean([said(run) for run in self.runs]))

    def __str__(self) -> str:
        z = np.concatenate([run["z"] for run in self.runs])
        warned = sorted({name for run in self.runs for name in run["warnings"]})
        return (
            f"{self.cell}: {self.state} {self.coverage:.3f} +- {self.error:.3f} width {self.width:6.2f} rms z "
            f"{np.sqrt(np.mean(z**2)):.2f} warned {self.flagged(warns):.2f} ({', '.join(warned)}) open "
            f"{self.flagged(leaves_open):.2f} MCSE {np.median([run['mcse'] for run in self.runs]):.2f}"
        )


def warns(run: dict[str, Any]) -> bool:
    return bool(run["warnings"])


def leaves_open(run: dict[str, Any]) -> bool:
    return run["n_unresolved"] > 0


def says_something(run: dict[str, Any]) -> bool:
    """Return whether the verdict is another one than that no check fails."""
    return warns(run) or leaves_open(run)


def pooled(results: Sequence[Result]) -> str:
    """Return coverage over cells with its Monte Carlo error; cells are the independent units."""
    values = np.array([result.coverage for result in results])
    return f"{values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(values.size):.3f}" if values.size > 1 else "–"


def share(values: Sequence[float]) -> str:
    """Return a mean with its Monte Carlo error; no event counts as one."""
    if not values:
        return "–"
    error = float(np.std(values)) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {max(error, 1.0 / (4.0 * len(values))):.3f}"


def row(name: str, results: Sequence[Result]) -> str:
    """Return a row of the table of a group of cells."""
    states = [result.state for result in results]
    width = np.median([result.width for result in results]) if results else float("nan")
    silent = [result for result in results if result.state == "low" and result.flagged(says_something) < 0.8]
    counts = " | ".join(str(states.count(state)) for state in ("within", "low", "high"))
    return f"| {name} | {len(results)} | {pooled(results)} | {counts} | {len(silent)} | {width:.2f} |"


def report(results: list[Result], listed: bool) -> None:
    """Print the tables of what is there."""
    for half in (True, False):
        own = [result for result in results if result.cell.seen == half]
        if not own:
            continue
        print(f"\n{'Seen' if half else 'Unseen'} half\n")
        print("| cells | number | covered | within | below | above | below, not flagged | width |")
        print("|---|---|---|---|---|---|---|---|")
        print(row("all", own))
        groups: list[tuple[str, Callable[[Cell], bool]]] = [
            *((k, lambda cell, k=k: cell.model == k) for k in ("linear", "logistic", "probit", "Poisson")),
            ("normal features", lambda cell: cell.columns == "normal"),
            ("numbers and indicators", lambda cell: cell.columns == "mixed"),
            ("UCI columns", lambda cell: cell.columns not in ("normal", "mixed", "adult")),
            ("Adult's columns", lambda cell: cell.columns == "adult"),
            ("ε < 0.3", lambda cell: cell.epsilon < 0.3),
            ("0.3 ≤ ε < 1", lambda cell: 0.3 <= cell.epsilon < 1.0),
            ("1 ≤ ε < 3", lambda cell: 1.0 <= cell.epsilon < 3.0),
            ("ε ≥ 3", lambda cell: cell.epsilon >= 3.0),
            ("truths from the prior", lambda cell: not cell.tail),
            ("a truth in the prior's tail", lambda cell: cell.tail),
            ("declared scale wrong", lambda cell: cell.scale_error != 1.0),
            ("number of records wrong", lambda cell: cell.records_error != 1.0),
        ]
        for name, chosen in groups:
            print(row(name, [result for result in own if chosen(result.cell)]))
        _report_flags(own)
        print(*(result for result in own if listed and result.state != "within"), sep="\n")


def _report_flags(own: list[Result]) -> None:
    """Print how often something is said where intervals hold and where they do not, and what the study can see."""
    print()
    for state in ("within", "low", "high"):
        these = [result for result in own if result.state == state]
        told = [f"{name} {share([result.flagged(said) for result in these])}" for name, said in (
            ("warned", warns), ("hidden directions", leaves_open), ("any of it", says_something)
        )]  # fmt: skip
        print(f"{state} ({len(these)} cells): {', '.join(told)}")
    within = [result for result in own if result.state == "within"]
    right = [result for result in within if result.cell.scale_error == 1.0]
    for name in ("scale", "features", "tails", "fit", "prior"):
        rates = [share([result.flagged(lambda run, name=name: name in run["warnings"]) for result in these])
                 for these in (within, right)]  # fmt: skip
        print(f"  {name}: {rates[0]} where intervals hold, {rates[1]} of them where the declared scale is right")
    quiet = [result for result in own if result.flagged(says_something) < 0.5]
    print(f"where the verdict is mostly that no check fails: {len(quiet)} cells, covered {pooled(quiet)}")
    variance = [float(np.mean([run["variance_covered"] for run in r.runs])) for r in own if r.cell.model == "linear"]
    print(f"noise variance covered {share(variance)}")
    for name, most in (("all runs", 1000), ("up to 25 weights", 25)):
        runs = [run for result in own for run in result.runs if len(run["covered"]) <= most]
        seconds, errors = (np.array([run[key] for run in runs]) for key in ("seconds", "mcse"))
        for what, x in ((f"{name} ({len(runs)}): CPU seconds", seconds), ("  Monte Carlo error", errors)):
            print(f"{what}: median {np.median(x):.3f}, 95% {np.quantile(x, 0.95):.3f}, most {x.max():.3f}")
        print(f"  above 5% in {np.mean(errors > 0.05):.3f}")


def chosen_by(module: Any, **changes: Any) -> tuple[Any, str, Any]:
    """Return what sets chosen numbers of a run or a posterior."""
    return module, "TUNING", replace(module.TUNING, **changes)


of_run, of_posterior, of_both = (partial(chosen_by, one) for one in (run_tuning, posterior_tuning, common_tuning))


def evenly(rounds: int | None, table: tuple[tuple[float, tuple[float, ...]], ...]) -> Any:
    """Return the shares of a table of rounds, as large in all, in equal ones."""
    return tuple((least, (sum(own) / (rounds or len(own)),) * (rounds or len(own))) for least, own in table)


DEFAULT = run_tuning.TUNING
# What is left out, or put in the place of what was chosen.
ABLATIONS: dict[str, tuple[Any, str, Any]] = {
    "as chosen": of_run(),
    "posterior: all taken for normal": of_posterior(many_weights=0),
    "posterior: sampled only where hidden": of_posterior(near_hidden=np.inf),
    "posterior: no error of slopes": of_posterior(slope_error=0.0),
    "posterior: none that grows with the predictor's": of_posterior(slope_error_of_excess=0.0),
    "posterior: none of scale scores with it": of_posterior(scale_error_of_excess=0.0),
    "posterior: mean weight as of normal features": of_posterior(weight_error=0.0),
    "posterior: number of records as declared": of_posterior(records_error=1e-3),
    "posterior: last score alone": of_posterior(scores=1, near=0.0),
    "posterior: last three scores alone": of_posterior(near=0.0),
    "posterior: second moments of any sign": of_posterior(definite=1.1),
    "posterior: all scores": of_posterior(scores=20),
    "run: rounds of geometry with equal shares": of_run(
        geometry=evenly(None, DEFAULT.geometry), sloped_geometry=evenly(None, DEFAULT.sloped_geometry)
    ),
    "run: two rounds of geometry": of_run(
        geometry=evenly(2, DEFAULT.geometry), sloped_geometry=evenly(2, DEFAULT.sloped_geometry)
    ),
    "run: no carried coordinates": of_both(lost=np.inf),
    "run: half of the floor": of_both(floor=0.35),
    "run: no floor but the noise's": of_both(relative_floor=0.0),
    "run: matrices may show no spread": of_both(least_energy=1e-9),
    "run: the whole floor in matrices": of_both(kept_floor=1.0),
    "run: four steps": of_run(localise=(0.02, 0.02, 0.026, 0.026)),
    "run: clips of the present spread": of_run(clip_decay=0.0, least_clip=0.0),
    "run: no least clip": of_run(least_clip=0.0),
    "run: no largest clip": of_run(largest_clip=1e9),
    "run: no error of scale scores": of_run(scale_error=0.0),
    "run: no error of early scores": of_run(score_error=0.0),
    "run: counts placed exactly": of_run(misplaced=0.0),
    "run: slopes of any steepness": of_run(steepest=1e9),
    "run: smaller bounds on lengths": of_run(bound=1.0),
    "run: rounds of geometry do not stop": of_run(white=np.inf),
    "run: rounds of geometry stop earlier": of_run(white=0.4),
}


def ablate(cells: Sequence[Cell], shift: float, runs: int, only: str) -> None:
    """Make runs of each cell with each change whose name has the text `only`, and print what it does."""
    print("| | cells | covered | width | interval score | warned | noise variance |\n|---|---|---|---|---|---|---|")
    cells = [cell for cell in cells if not shift or (cell.model == "linear" and cell.intercept)]
    populations = list(filter(None, map(Population.of, cells)))
    usual = None
    rows = {name: change for name, change in ABLATIONS.items() if name == "as chosen" or only in name}
    for name, (module, attribute, value) in rows.items():
        with mock.patch.object(module, attribute, value):
            each = [[_in_short(one, index, shift) for index in range(runs)] for one in populations]
        changed = np.mean(each, axis=1)
        usual = changed if usual is None else usual
        mean, number = np.nanmean(changed - usual, axis=0), np.sum(~np.isnan(changed), axis=0)
        error = np.nanstd(changed - usual, axis=0, ddof=1) / np.sqrt(number)
        ratios = [f"{np.exp(mean[k]):.3f} ± {np.exp(mean[k]) * error[k]:.3f}" for k in (1, 2, 4)]
        covered, warned = (f"{changed[:, k].mean():.3f}, {mean[k]:+.4f} ± {error[k]:.4f}" for k in (0, 3))
        print(f"| {name} | {len(each)} | {covered} | {' | '.join([*ratios[:2], warned, ratios[2]])} |", flush=True)


def _in_short(population: Population, index: int, shift: float = 0.0) -> list[float]:
    """Return coverage, logs of mean width and interval score, any warning, and the noise variance's log score of a run.

    Width and score are relative to no privacy; a model without a noise variance has NaN for it.
    """
    level, noise = 1.0 - NOMINAL, population.cell.noise_variance
    run = simulate(population, index, shift * noise**0.5)
    posterior = dpi.noise_aware_posterior(run.release, model=population.model, check_convergence=False)
    truth = np.append(run.truth, noise) if population.cell.model == "linear" else run.truth
    low, high = posterior.quantile(LEVELS)[:, : len(truth)]
    missed = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    unit, own = NORMAL_WIDTH * np.sqrt(np.diag(run.covariance)), slice(len(run.truth))
    both = (high - low, high - low + 2.0 / level * missed)
    width, score = (np.log(np.mean(value[own] / unit)) for value in both)
    scale = np.log(both[1][-1] / noise) if len(truth) > len(run.truth) else np.nan
    return [float(v) for v in (np.mean(missed[own] == 0.0), width, score, bool(posterior.diagnostics.warnings), scale)]


def agree(cells: Sequence[Cell], judge: str) -> None:
    """Print how far quantiles are from a judge's, in posterior standard deviations, both errors and both times."""
    told: list[tuple[float, ...]] = []
    compiled: set[int] = set()
    for cell, moved in [(cell, moved) for cell in cells for moved in (False, True)]:
        population = Population.of(cell) if cell.n_features <= 24 else None
        linear = cell.model == "linear" and population is not None and population.model.fit_intercept
        if population is None or population.model.n_coef > 24 or (moved and not linear):
            continue
        run = simulate(population, 0, 1000.0 * np.sqrt(cell.noise_variance) if moved else 0.0)
        scores: Any
        if isinstance(run.release, dpi.NewtonRelease):
            scores = LinearScores(run.release, population.model, noise_prior(run.release, population.model, "weak")[0])
            scores._nodes, scores._shares = np.array([scores._shares @ scores._nodes]), np.ones(1)  # given sigma
        else:
            scores = BoundedScores(run.release, population.model)
        d, begun = population.model.n_coef, time.process_time()
        found = mixture_of(scores, NewtonRequest(check_convergence=False, progress=False))
        seconds, own = time.process_time() - begun, found.error.quantile[:d]
        law = MomentsLaw(scores.noisy, scores.stddev, scores.middle().mean_scores(scores.whitening))
        errors = ErrorDraws(law)
        errors.draw(512, 32, np.random.default_rng(0))  # as it was decided there
        definite, begun = errors.counted >= posterior_tuning.TUNING.definite, time.process_time()
        drawn, moving = sampled_weights(law, errors.turn, errors.seen, judge, definite=definite)
        spent = time.process_time() - begun
        spent = spent if d in compiled else np.nan
        compiled.add(d)
        groups = [part @ (scores.whitening.T @ law.basis).T for part in drawn]
        stddev = np.concatenate(groups).std(axis=0)
        by_chain = np.array([np.quantile(part, LEVELS, axis=0) for part in groups])
        theirs, error = by_chain.mean(axis=0), by_chain.std(axis=0, ddof=1) / np.sqrt(len(drawn)) / stddev
        away = np.abs(found.distribution.marginals.quantile(LEVELS)[:, :d] - theirs) / stddev
        beyond, hidden = float(np.max(np.maximum(away - 2.0 * error, 0.0))), bool(resolution(run.release)[0] < 2.0)
        ratio = spent * np.mean(np.square(error)) / (seconds * max(float(np.mean(own**2)), 1e-4))
        told.append((beyond, float(np.max(error)), np.sqrt(np.mean(away**2)), hidden, moved, ratio))
        share = sum(map(len, drawn)) / (N_CHAINS * N_STEPS)
        print(f"{cell}{' hidden' * hidden}{' far' * moved}, bent {law.bent:.3f}: {away.max():.3f}, less the judge's "
              f"{beyond:.3f}, error {own.max():.3f}; judge {error.max():.3f}, {moving:.3f}, of its draws {share:.2f}, "
              f"{spent:.1f} s; {seconds:.2f} s; time to equal error {ratio:.0f} times", flush=True)  # fmt: skip
        if len(told) % 20 == 0:
            _agreement(np.array(told, dtype=np.float64))
    _agreement(np.array(told, dtype=np.float64))


def _agreement(values: FloatArray) -> None:
    """Print the differences of all releases together."""
    hides, far = values[:, 3] > 0, values[:, 4] > 0
    for name, chosen in (("all", hides | ~hides), ("hidden", hides), ("not hidden", ~hides), ("far", far)):
        if not np.any(chosen):
            continue
        own, error, typical, _, _, ratio = values[chosen].T
        low, middle, high = np.nanquantile(ratio, (0.25, 0.5, 0.75))
        print(f"{name}: {len(own)} releases; largest difference of each less two errors of the judge below 5% in "
              f"{np.mean(own < 0.05):.3f}, median {np.median(own):.3f}, most {own.max():.3f}; error of the judge "
              f"{np.median(error):.3f}; root mean square {np.median(typical):.3f}; time to equal error "
              f"{middle:.0f} times ({low:.0f} to {high:.0f})")  # fmt: skip


def main() -> None:
    """Run the design, or tabulate what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "report", "ablate", "agree", "auto", "concrete"))
    parser.add_argument("--results", type=Path, default=Path("bench/results/newton_scope"))
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--intervals", type=int, default=INTERVALS, help="of a cell's runs together")
    parser.add_argument("--half", choices=("seen", "unseen", "both"), default="both")
    parser.add_argument("--every", type=int, default=1, help="of the seen cells for ablate; agree")
    parser.add_argument("--judge", choices=("chains", "long", "nuts"), default="chains", help="of agree")
    parser.add_argument("--far", action="store_true", help="ablate with responses 1000 sd from zero, of linear cells")
    parser.add_argument("--model", help="linear, logistic, probit or Poisson alone")
    parser.add_argument("--only", default="", help="text in the name of a change, for ablate")
    parser.add_argument("--cell", nargs="+", default=(), help="of all cells, for ablate: mean=60 intercept=true")
    parser.add_argument("--runs", type=int, default=1, help="of each cell, for ablate")
    parser.add_argument("--list", action="store_true", help="also every cell that is not within")
    arguments = parser.parse_args()
    cells = draw_design(arguments.cells)
    cells = [cell for cell in cells if arguments.half in ("both", "seen" if cell.seen else "unseen")]
    cells = [cell for cell in cells if arguments.model in (None, cell.model)]
    seen, apart = [cell for cell in cells if cell.seen], arguments.every
    for name, _, number in (text.partition("=") for text in arguments.cell):
        seen = [replace(cell, **{name: json.loads(number)}) for cell in seen]
    todo: dict[str, Callable[[], None]] = {
        "agree": lambda: agree([cell for k in range(apart) for cell in cells[k::apart]], arguments.judge),
        "auto": lambda: auto(cells, arguments.intervals),
        "concrete": lambda: on_concrete(cells[0]),
        "ablate": lambda: ablate(seen[::apart], 1000.0 * arguments.far, arguments.runs, arguments.only),
        "run": lambda: run_cells(cells, arguments.results, arguments.intervals),
    }
    if arguments.what in todo:
        todo[arguments.what]()
        return
    there = [(cell, arguments.results / f"cell-{cell.index:03d}.json") for cell in cells]
    texts = [(cell, path.read_text(encoding="utf-8")) for cell, path in there if path.exists()]
    report([Result(cell, json.loads(text)["runs"]) for cell, text in texts], arguments.list)


if __name__ == "__main__":
    main()
