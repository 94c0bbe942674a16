"""Predictions of a regression at new points, and average marginal effects, from draws of its posterior."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice
from dpinfer.formulas.coefficients import CoefficientTable, ends_of
from dpinfer.formulas.design import Design
from dpinfer.formulas.factors import Values, category_labels
from dpinfer.formulas.records import predictors
from dpinfer.formulas.sample_points import sample_points
from dpinfer.inference import Posterior
from dpinfer.inference.posterior.predictive import CHUNK_CELLS, draw_records
from dpinfer.models import MultinomialRegression
from dpinfer.release import Release
from dpinfer.tabular import ContinuousColumn

IntArray = npt.NDArray[np.intp]

DRAWS, SEED = 2000, 0  # Monte Carlo error 1.6% of a standard deviation (1 / sqrt(2 * 2000)); the seed is arbitrary
INTERVALS = ("mean", "response")  # of the expected response, and of a new one
_EFFECT_STEP = 1e-4  # of the public range of a column


def predicted_mean(design: Design, posterior: Posterior, values: Values) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of E[y | theta, x] in the user's units, NaN where a value is missing."""
    complete = np.all([np.isfinite(column) for column in values.values()], axis=0)
    shape = (len(complete), *((len(design.classes),) if design.classes else ()))
    mean, sd = np.full(shape, np.nan), np.full(shape, np.nan)
    theta = posterior.sample(DRAWS, seed=SEED, space="unconstrained")
    for place, free in _responses(design, theta, values, np.flatnonzero(complete)):
        drawn = design.within_bounds(free)
        mean[place], sd[place] = drawn.mean(axis=0), drawn.std(axis=0)
    return mean, sd


def predicted_interval(
    design: Design, posterior: Posterior, values: Values, *, of: str, level: float
) -> dict[str, FloatArray]:
    """Return mean and sd of E[y | theta, x], with an interval of it, or of a new response; (N,) each.

    NaN where a value is missing.
    """
    check_choice("interval", of, INTERVALS)
    if design.classes:
        raise ValueError("interval must be None for a multinomial response: predict(return_std=True) has each class")
    tail, _, rest = ends_of(level)
    complete = np.all([np.isfinite(column) for column in values.values()], axis=0)
    found = {name: np.full(len(complete), np.nan) for name in ("mean", "sd", "low", "high")}
    theta = posterior.sample(DRAWS, seed=SEED, space="unconstrained")
    rng = np.random.default_rng(SEED)
    for place, free in _responses(design, theta, values, np.flatnonzero(complete)):
        drawn = design.within_bounds(free)
        found["mean"][place], found["sd"][place] = drawn.mean(axis=0), drawn.std(axis=0)
        if of == "response":
            part = {name: column[place] for name, column in values.items()}
            free = design.response_units(draw_records(design.model, theta, design.encode(part), rng), part)
            drawn = design.within_bounds(free)
        found["low"][place], found["high"][place] = np.quantile(drawn, [tail, rest], axis=0)
    return found


def marginal_effects(
    design: Design, posterior: Posterior, release: Release, new_data: Any, level: float
) -> CoefficientTable:
    """Return average marginal effects; see :meth:`RegressionFit.marginal_effects`."""
    if new_data is None:
        values, matched = sample_points(design, release)
        over = "average over the sample's released moments" if matched else "average over the schema's population"
    else:
        values, over = complete_points(design, new_data), "average over new_data"
    theta = posterior.sample(DRAWS, seed=SEED, space="unconstrained")
    effects = _by_class(design, _effects(design, theta, values))
    ess = min(DRAWS, float(posterior.monte_carlo_error().effective_draws.min()))
    return CoefficientTable.of_draws(effects, level, ess=ess, remarks=dict.fromkeys(effects, over))


def moments_at(values: Values, draw: Callable[[Values], FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of what `draw` returns for complete points, (draws, N); NaN at the others."""
    complete = np.all([np.isfinite(column) for column in values.values()], axis=0)
    drawn = draw({name: column[complete] for name, column in values.items()})
    mean, sd = np.full((2, len(complete)), np.nan)
    mean[complete], sd[complete] = drawn.mean(axis=0), drawn.std(axis=0)
    return mean, sd


def complete_points(design: Design, new_data: Any) -> Values:
    """Return the caller's points that lack no value; raise ValueError if there is none."""
    values = predictors(new_data, design)
    complete = np.all([np.isfinite(column) for column in values.values()], axis=0)
    if not np.any(complete):
        raise ValueError("new_data must hold at least one point without missing values")
    return {name: column[complete] for name, column in values.items()}


def _responses(
    design: Design, theta: FloatArray, values: Values, places: IntArray
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield some of the points `places`, and E[y | theta, x] there, (draws, points), or classes' (draws, points, K)."""
    model = design.model
    step = max(1, CHUNK_CELLS // (len(theta) * max(1, len(design.classes))))
    for first in range(0, len(places), step):
        block = places[first : first + step]
        part = {name: column[block] for name, column in values.items()}
        rows = design.encode(part)
        if isinstance(model, MultinomialRegression):
            yield block, model.predict_probabilities(theta, rows)
        else:
            yield block, design.response_units(model.predict_mean(theta, rows), part)


def _by_class(design: Design, effects: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return draws of effects, (draws,) each, those of a multinomial response class by class."""
    if not design.classes:
        return effects
    return {
        f"{label}: {name}": draws[:, place]
        for place, label in enumerate(design.classes)
        for name, draws in effects.items()
    }


def _effects(design: Design, theta: FloatArray, values: Values) -> dict[str, FloatArray]:
    """Return draws of every average effect, (draws,) each, or (draws, K) of K classes."""
    result: dict[str, FloatArray] = {}
    for column in design.table_columns(response=False):
        if isinstance(column, ContinuousColumn):
            low, high = column.bounds
            step = _EFFECT_STEP * (high - low)
            at = np.clip(values[column.name], low + step, high - step)
            up, down = (_average(design, theta, {**values, column.name: at + sign * step}) for sign in (1.0, -1.0))
            result[column.name] = (up - down) / (2.0 * step)
            continue
        labels = category_labels(column)
        reference = getattr(column, "reference", None)
        base = 0 if reference is None else labels.index(reference)
        ones = np.ones_like(values[column.name])
        least = _average(design, theta, {**values, column.name: base * ones})
        for code, label in enumerate(labels):
            if code != base:
                changed = _average(design, theta, {**values, column.name: code * ones})
                result[f"{column.name}[{label} - {labels[base]}]"] = changed - least
    return result


def _average(design: Design, theta: FloatArray, values: Values) -> FloatArray:
    """Return the average of E[y | theta, x] over the points, (draws,), or (draws, K) of K classes."""
    size = len(next(iter(values.values())))
    parts = [expected.sum(axis=1) for _, expected in _responses(design, theta, values, np.arange(size))]
    return np.asarray(np.sum(parts, axis=0) / size)
