"""How often the posterior of a private Newton run warns: where all is as the model says, and where one thing is wrong.

The design is drawn from ``SEED``, which was committed before any threshold was chosen.  Thresholds may look at the even
cells alone; both halves are reported.

    python bench/coverage/newton_warnings.py [--half seen|unseen|both] [--kind KIND ...]
        [--model linear|logistic|own] [--runs 4] [--target model|population]

A cell is a population of records, a declared model and a budget.  Kinds: "well", and one that is wrong on purpose:
"scale" (declared response_scale wrong by 60 to 100 000 times), "prior" (weights of 3 to 30 prior standard deviations),
"collinear" (AR(1) of 0.99 and more, or a feature that is another but for 1%), "outliers" (errors of a t distribution
with 1 to 3 degrees of freedom, or 5 to 20% of them 10 to 50 times larger), "link" (a quadratic or exponential mean;
for outcomes a complementary log-log link, or 10 to 25% of them flipped), "features" (0.05 to 0.3 times their declared
size, reported as "small", or 3 to 20 times) and "whole" (few whole numbers, a quarter to half of them zero).

--model own: the models of any_model.py, n_records right within 28%.  Kinds: "well"; "features" (10 to 10 000 times
their declared size; not for the negative binomial); "records" (n_records ten times too small, or too large); "range"
(20% to all responses negative, or ten to a thousand times as large and one more; not for the ordinal model).
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.models.clipping import ResponseGrid
from dpinfer.testing import InsecureRNG
from newton_runs import autoregressive, logistic_mode

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.own_models import EXAMPLES

FloatArray = npt.NDArray[np.float64]
Release = dpi.NewtonRelease | dpi.GlmNewtonRelease | dpi.PopulationRelease

SEED = 20_261_122_2
KINDS = ("well", "scale", "prior", "collinear", "outliers", "link", "features", "whole")
CELLS = dict.fromkeys(KINDS, 24) | {"well": 120}
LOGISTIC_KINDS = ("well", "prior", "collinear", "link", "features")
OWN_SEED = 20_261_123_9
OWN_CELLS = {"well": 80, "features": 40, "records": 40, "range": 40}
OWN_LEFT_OUT = {"features": "negative binomial", "range": "ordinal"}
# Columns that are sizes, from the first one on; what follows is a censoring time or a group.
OWN_SIZES = {"negative binomial": 5, "censored Weibull": 4, "ordinal": 4, "group effects": 3}


@dataclass(frozen=True)
class Cell:
    """One population, and what is wrong with it: `severity` in [0, 1) and a `variant` of 0 or 1."""

    index: int
    kind: str
    logistic: bool
    n_features: int
    n_records: int
    correlation: float
    intercept: bool
    epsilon: float
    prior_scale: float
    noise_variance: float
    response_error: float
    severity: float
    variant: int

    @property
    def seen(self) -> bool:
        """Whether thresholds may be chosen on this cell."""
        return self.index % 2 == 0

    @property
    def row(self) -> str:
        """The row of the table that it is in."""
        return "small" if self.kind == "features" and self.severity < 0.5 else self.kind


def draw_design(seed: int = SEED) -> list[Cell]:
    """Return all cells; the even ones are the seen half."""
    rng = np.random.default_rng(seed)
    return [_draw_cell(index, kind, rng) for kind in KINDS for index in range(CELLS[kind])]


def _draw_cell(index: int, kind: str, rng: np.random.Generator) -> Cell:
    logistic = bool(rng.uniform() < 0.4)
    return Cell(
        index=index, kind=kind, logistic=logistic and kind in LOGISTIC_KINDS,
        n_features=int(np.rint(np.exp(rng.uniform(np.log(2.0), np.log(15.0))))),
        n_records=int(np.exp(rng.uniform(np.log(2000.0), np.log(20_000.0)))),
        correlation=float(rng.choice([0.0, rng.uniform(0.2, 0.9)])), intercept=bool(rng.uniform() < 0.7),
        epsilon=float(np.exp(rng.uniform(np.log(0.3), np.log(8.0)))), prior_scale=float(rng.choice([1.0, 2.0, 4.0])),
        noise_variance=float(np.exp(rng.uniform(np.log(0.02), np.log(10.0)))),
        response_error=float(10.0 ** rng.uniform(-1.0, 1.0)), severity=float(rng.uniform()),
        variant=int(rng.integers(2)),
    )  # fmt: skip


def make_design(cell: Cell, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return features as the model will see them, and the design matrix in their declared units."""
    p, n = cell.n_features, cell.n_records
    correlation = cell.correlation
    if cell.kind == "collinear" and cell.variant == 0:
        correlation = 1.0 - 0.01 * 0.01**cell.severity
    features = autoregressive(n, p, correlation)(rng)
    if cell.kind == "collinear" and cell.variant == 1:
        features[:, 1] = features[:, 0] + 0.01 * rng.normal(size=n)
    if cell.kind == "features":
        factor = (
            0.05 * 6.0 ** (2.0 * cell.severity) if cell.severity < 0.5 else 3.0 * 6.67 ** (2.0 * cell.severity - 1.0)
        )
        features[:, : 1 if cell.variant else p] *= factor
    design = np.hstack((features, np.ones((n, 1)))) if cell.intercept else features
    return np.ascontiguousarray(features), design


def draw_responses(cell: Cell, design: FloatArray, truth: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return responses of the cell's population."""
    predictor = design @ truth
    if cell.logistic:
        p = special.expit(predictor)
        if cell.kind == "link" and cell.variant == 0:
            p = -np.expm1(-np.exp(np.minimum(predictor, 30.0)))
        if cell.kind == "link" and cell.variant == 1:
            flipped = 0.1 + 0.15 * cell.severity
            p = p * (1.0 - flipped) + (1.0 - p) * flipped
        return (rng.random(len(p)) < p) + 0.0
    sigma = np.sqrt(cell.noise_variance)
    errors = rng.normal(size=len(predictor))
    if cell.kind == "outliers" and cell.variant == 0:
        errors = rng.standard_t(1.0 + 2.0 * cell.severity, size=len(predictor))
    if cell.kind == "outliers" and cell.variant == 1:
        wild = rng.random(len(predictor)) < 0.05 + 0.15 * cell.severity
        errors = np.where(wild, (10.0 + 40.0 * cell.severity) * errors, errors)
    if cell.kind == "link":
        spread = float(predictor.std())
        bent = np.square(predictor) / spread if cell.variant == 0 else spread * np.exp(predictor / spread)
        predictor = predictor + (0.3 + 0.7 * cell.severity) * bent
    response = predictor + sigma * errors
    if cell.kind == "whole":
        unit = (0.7 + 0.7 * cell.severity) * float(response.std())
        response = unit * np.rint((response - response.mean()) / unit)
    return np.asarray(response)


def target_weights(cell: Cell, design: FloatArray, response: FloatArray, truth: FloatArray) -> FloatArray:
    """Return what the intervals are asked to cover: the truth, or without one the estimate without privacy."""
    if cell.kind not in ("link", "whole"):
        return truth
    if not cell.logistic:
        return np.linalg.lstsq(design, response, rcond=None)[0]
    return logistic_mode(design, response, cell.prior_scale)[0]


def simulate(cell: Cell, index: int, target: str) -> tuple[Release, FloatArray, float]:
    """Return one release of the cell, the weights that its intervals should cover, and its :func:`resolution`."""
    rng = np.random.default_rng([SEED, KINDS.index(cell.kind), cell.index, index])
    features, design = make_design(cell, rng)
    sigma = 1.0 if cell.logistic else np.sqrt(cell.noise_variance)
    # The spread of the predictor, not of a weight: logistic outcomes would be separated otherwise.
    scale = cell.prior_scale / np.sqrt(design.shape[1]) if cell.logistic else cell.prior_scale
    size = 3.0 * 10.0**cell.severity if cell.kind == "prior" else 1.0
    truth = rng.normal(size=design.shape[1]) * scale * sigma
    response = draw_responses(cell, design, truth, rng)
    kind = dpi.models.LogisticRegression if cell.logistic else dpi.models.LinearRegression
    model = kind(cell.n_features, prior_scale=scale / size, fit_intercept=cell.intercept)
    plan = dpi.plan_newton(
        model, target_epsilon=cell.epsilon, target_delta=1e-6, n_records=cell.n_records, target=target
    )
    declared = None
    if not cell.logistic:
        wrong = cell.response_error
        if cell.kind == "scale":
            factor = 60.0 * (1e5 / 60.0) ** cell.severity
            wrong = factor if cell.variant else 1.0 / factor
        typical = float(response.std() if cell.kind == "whole" else np.median(np.abs(response)) / 0.6745)
        declared = typical * wrong
    release = dpi.run_newton(
        model, features, response, plan=plan, n_records=cell.n_records, response_scale=declared,
        random_source=InsecureRNG(1000 * cell.index + index),
    )  # fmt: skip
    return release, target_weights(cell, design, response, truth), resolution(release, cell, features)


@dataclass(frozen=True)
class OwnCell:
    """One population of records of a user's own model, and what is wrong with it."""

    index: int
    kind: str
    name: str
    n_records: int
    epsilon: float
    correlation: float
    declared: float
    severity: float
    variant: int
    logistic: None = None

    @property
    def row(self) -> str:
        """The row of the table that it is in."""
        return self.kind

    @property
    def seen(self) -> bool:
        """Whether thresholds may be chosen on this cell."""
        return self.index % 2 == 0


def draw_own_design() -> list[OwnCell]:
    """Return all cells of models of one's own; the even ones are the seen half."""
    rng = np.random.default_rng(OWN_SEED)
    return [_draw_own_cell(index, kind, rng) for kind, cells in OWN_CELLS.items() for index in range(cells)]


def _draw_own_cell(index: int, kind: str, rng: np.random.Generator) -> OwnCell:
    return OwnCell(
        index=index, kind=kind, name=str(rng.choice([name for name in EXAMPLES if name != OWN_LEFT_OUT.get(kind)])),
        n_records=int(np.exp(rng.uniform(np.log(1000.0), np.log(20_000.0)))),
        epsilon=float(np.exp(rng.uniform(np.log(0.3), np.log(8.0)))),
        correlation=float(rng.choice([0.0, rng.uniform(0.2, 0.8)])),
        declared=float(np.exp(rng.uniform(-0.25, 0.25))), severity=float(rng.uniform()),
        variant=int(rng.integers(2)),
    )  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """What one posterior says of itself, and how it does; `unresolved` is not near normal for a model of one's own."""

    cell: Cell | OwnCell
    warnings: tuple[str, ...]
    unresolved: bool
    truly_resolved: float
    covered: float


def resolution(release: Release, cell: Cell, features: FloatArray) -> float:
    """Return the smallest eigenvalue of the exact matrix over the largest that the last release's noise alone has."""
    design = np.hstack((features, np.ones((len(features), 1)))) if cell.intercept else features
    logistic = isinstance(release, dpi.GlmNewtonRelease)
    transform = release.score_transform if logistic else release.transforms[-1]
    radius = release.score_radius if logistic else float(release.moment_bounds[-1])
    z = design @ transform.T
    weight = np.minimum(1.0, radius**2 / np.maximum(np.sum(z**2, axis=1), 1e-300))
    stddev = float(release.moment_stddev[-1])
    if isinstance(release, dpi.GlmNewtonRelease):
        residual = ResponseGrid(dpi.models.model_from_dict(release.model_spec), 1.0 / 64.0).clipped(release.clip)
        nodes = residual.first_node + residual.spacing * np.arange(residual.slope.size)
        slope = np.interp(z @ release.slope_position, nodes, residual.with_slope_at_most(release.slope_bound).slope)
        weight, stddev = weight * slope, release.slope_stddev
    moments = (z * weight[:, None]).T @ z / len(z)
    return float(np.linalg.eigvalsh(moments)[0]) / (stddev * np.sqrt(2.0 * release.n_coef))


def run_cell(cell: Cell, runs: int, target: str) -> list[Fit]:
    """Simulate the runs of a cell and look at their posteriors."""
    fits = []
    for release, wanted, resolved in (simulate(cell, index, target) for index in range(runs)):
        posterior = dpi.noise_aware_posterior(release, check_convergence=False)
        found, d = posterior.diagnostics, release.n_coef
        low, high = posterior.quantile(np.array([0.05, 0.95]))[:, :d]
        covered = float(np.mean((low < wanted) & (wanted < high)))
        warned = found.warnings
        fits.append(Fit(cell, warned, found.n_unresolved > 0, resolved, covered))
    return fits


def run_own_cell(cell: OwnCell, runs: int) -> list[Fit]:
    """Simulate the runs of a cell of a model of one's own and look at their posteriors."""
    fits = []
    for run in range(runs):
        rng = np.random.default_rng([OWN_SEED, list(OWN_CELLS).index(cell.kind), cell.index, run])
        example: Any = EXAMPLES[cell.name]()
        model, prior = example.model, example.model.parameters
        truth = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
        features = example.features(cell.n_records, rng, cell.correlation)
        if cell.kind == "features":
            features[:, : 1 if cell.variant else OWN_SIZES[cell.name]] *= 10.0 ** (1.0 + 3.0 * cell.severity)
        words = rng.integers(0, 2**64, (cell.n_records, model.n_words), dtype=np.uint64)
        response = model.draw_responses(truth, features, words)
        if cell.kind == "range":
            other = -1.0 - response if cell.variant else response * 10.0 ** (1.0 + 2.0 * rng.uniform()) + 1.0
            response = np.where(rng.random(cell.n_records) < 0.2 + 0.8 * cell.severity, other, response)
            given = {name: value for name, value in model.to_dict().items() if name != "kind"} | {"response": "real"}
            model = dpi.models.OwnModel(code=model.code, **given)
        wrong = 10.0 ** (2 * cell.variant - 1) if cell.kind == "records" else 1.0
        n_records = int(cell.n_records * cell.declared * wrong)
        plan = dpi.plan_newton(model, target_epsilon=cell.epsilon, target_delta=1e-6, n_records=n_records)
        release = dpi.run_newton(
            model, features, response, plan=plan, n_records=n_records, n_threads=1,
            random_source=InsecureRNG(1000 * cell.index + run),
        )  # fmt: skip
        posterior = dpi.noise_aware_posterior(release, n_samples=300)
        low, high = posterior.quantile([0.05, 0.95], space="unconstrained")
        said = posterior.diagnostics
        names = said.warnings
        covered = float(np.mean((low < truth) & (truth < high)))
        fits.append(Fit(cell, names, said.curvature_shift is not None, np.nan, covered))
    return fits


def rate(fits: list[Fit], value: Callable[[Fit], float]) -> str:
    """Return a mean over fits with its Monte Carlo error: cells are the independent units; no event counts as one."""
    if not fits:
        return "-".center(15)
    by_cell: dict[int, list[float]] = {}
    for fit in fits:
        by_cell.setdefault(fit.cell.index, []).append(float(value(fit)))
    means = [float(np.mean(values)) for values in by_cell.values()]
    error = float(np.std(means)) / np.sqrt(len(means))
    return f"{np.mean([value(fit) for fit in fits]):.3f} +- {max(error, 1.0 / len(fits)):.3f}"


def report(name: str, fits: list[Fit], own: bool) -> None:
    """Print a line for each kind of cell."""
    print(
        f"\n{name}: fits; warned; {'not near normal' if own else 'any direction unresolved'}; covered: all, unflagged"
    )
    model = {True: "logistic", False: "linear", None: "own"}
    for kind in OWN_CELLS if own else (*KINDS, "small"):
        for logistic in (None,) if own else (False, True):
            these = [fit for fit in fits if fit.cell.row == kind and fit.cell.logistic == logistic]
            if not these:
                continue
            silent = [fit for fit in these if not fit.warnings and not fit.unresolved]
            names = sorted({name for fit in these for name in fit.warnings})
            columns = (
                rate(these, lambda fit: bool(fit.warnings)),
                rate(these, lambda fit: fit.unresolved),
                rate(these, lambda fit: fit.covered),
                f"{rate(silent, lambda fit: fit.covered)} ({len(silent)})",
                ", ".join(f"{name} {np.mean([name in fit.warnings for fit in these]):.3f}" for name in names),
            )
            print(f"{kind:9s} {model[logistic]:8s} {len(these):4d}  {'  '.join(columns)}", flush=True)
    plain = [fit for fit in fits if fit.cell.kind in ("well", "collinear") and not own]
    for words, chosen in (
        ("above 3", [fit for fit in plain if fit.truly_resolved > 3.0]),
        ("below 1", [fit for fit in plain if fit.truly_resolved < 1.0]),
    ):
        if chosen:
            said = rate(chosen, lambda fit: fit.unresolved)
            print(f"unresolved said where the exact ratio is {words}: {said} of {len(chosen)} fits")


def main() -> None:
    """Run the design, or a half of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=("seen", "unseen", "both"), default="both")
    parser.add_argument("--kind", nargs="*", choices=dict.fromkeys((*KINDS, *OWN_CELLS)), default=[*KINDS, *OWN_CELLS])
    parser.add_argument("--model", choices=("linear", "logistic", "own", "both"), default="both")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--target", choices=("model", "population"), default="model")
    arguments = parser.parse_args()
    fits: dict[bool, list[Fit]] = {True: [], False: []}
    own = arguments.model == "own"
    for own_cell in draw_own_design() if own else ():
        if own_cell.kind in arguments.kind and arguments.half in ("both", "seen" if own_cell.seen else "unseen"):
            fits[own_cell.seen].extend(run_own_cell(own_cell, arguments.runs))
    for cell in () if own else draw_design():
        if arguments.model not in ("both", "logistic" if cell.logistic else "linear"):
            continue
        if cell.kind in arguments.kind and arguments.half in ("both", "seen" if cell.seen else "unseen"):
            fits[cell.seen].extend(run_cell(cell, arguments.runs, arguments.target))
    for seen, found in fits.items():
        if found:
            report("seen half" if seen else "unseen half", found, own)


if __name__ == "__main__":
    main()
