"""Draws of a regression of a table in ArviZ's containers, in the table's units."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._sinks import variable_names
from dpinfer._validate import check_integer
from dpinfer.formulas.design import Design
from dpinfer.formulas.factors import Values, category_labels
from dpinfer.formulas.own_families import SIZE, OwnRegression
from dpinfer.inference import Posterior
from dpinfer.inference.posterior.arviz_export import POINT, Groups, attributes_of, require_arviz
from dpinfer.inference.posterior.predictive import draw_records
from dpinfer.models import LinearRegression

Drawn = tuple[FloatArray, dict[str, tuple[str, list[str], FloatArray]]]
_ALONG, _CLASS = "coefficient", "outcome_class"
_TAKEN = ("coef", "intercept", "sigma", SIZE, _ALONG, _CLASS, POINT, "scale", "scale_of", "effect", "effect_of")


def regression_to_arviz(
    design: Design,
    posterior: Posterior,
    points: Values | None,  # decoded columns without missing values
    *,
    n_samples: int,
    n_chains: int,
    seed: int,
    # (theta, variables): draws of the posterior on the unconstrained space, and more variables of the same draws:
    # dimension, coordinates and values of each
    drawn: Drawn | None = None,
) -> Any:
    """Return draws of the coefficients, and of responses at `points`, in the table's units.

    Raises BackendUnavailableError if ArviZ is not installed.
    """
    size = check_integer("n_samples", n_samples, 1) * check_integer("n_chains", n_chains, 1)
    require_arviz()
    model = design.model
    rng = np.random.default_rng([seed, 1])
    built = Groups(dims={"coef": [_ALONG]}, coords={_ALONG: list(variable_names(design.names))})
    if design.classes:
        built.dims |= {"coef": [_CLASS, _ALONG], "intercept": [_CLASS]}
        built.coords[_CLASS] = list(variable_names(design.classes[1:]))
    draws = {
        "posterior": posterior.sample(size, seed=seed, space="unconstrained") if drawn is None else drawn[0],
        "prior": model.unconstrain(model.sample_prior(size, rng)),
    }
    # Names that no other variable or dimension has.
    response, *names = variable_names([*_TAKEN, design.response.label, *(points or {})])[len(_TAKEN) :]
    for group, theta in draws.items():
        variables = _parameters(design, theta)
        built.groups[group] = {
            name: value.reshape(n_chains, n_samples, *value.shape[1:]) for name, value in variables.items()
        }
        if group == "posterior" and drawn is not None:
            for name, (along, labels, value) in drawn[1].items():
                built.groups[group][name] = value.reshape(n_chains, n_samples, -1)
                built.dims[name], built.coords[along] = [along], list(variable_names(labels))
        if points is not None:
            y = design.response_units(draw_records(model, theta, design.encode(points), rng), points)
            built.groups[f"{group}_predictive"] = {response: y.reshape(n_chains, n_samples, -1)}
            built.dims[response] = [POINT]
    if points is not None:
        built.groups["constant_data"] = {
            name: shown(design, column, values) for name, (column, values) in zip(names, points.items(), strict=True)
        }
        built.dims |= {name: [POINT] for name in names}
    return built.build(attributes_of(posterior) | {"formula": design.formula.text, "family": design.family})


def _parameters(design: Design, theta: FloatArray) -> dict[str, FloatArray]:
    """Return coefficients in the table's units, and other parameters of the family, from unconstrained draws (S, n)."""
    matrix, shift = design.user_units()
    weights = theta[:, : len(matrix)] @ matrix.T + shift
    size = len(design.columns)
    if design.classes:
        blocks = weights.reshape(len(weights), design.n_blocks, -1)
        variables = {"coef": blocks[:, :, :size]}
        return variables | ({"intercept": blocks[:, :, size]} if design.formula.intercept else {})
    variables = {"coef": weights[:, :size]}
    if design.formula.intercept:
        variables["intercept"] = weights[:, size]
    if isinstance(design.model, LinearRegression):
        sigma = np.sqrt(design.model.constrain(theta)[:, -1]) * design.response_scale
        variables["sigma"] = np.minimum(sigma, design.largest_sigma)
    elif isinstance(design.model, OwnRegression) and design.model.has_size:
        variables[SIZE] = design.model.constrain(theta)[:, -1]
    return variables


def shown(design: Design, name: str, values: FloatArray) -> npt.NDArray[Any]:
    """Return values of a column, or of a function of columns, as in the table: labels for codes."""
    labels = [label for column in design.schema.columns if column.name == name for label in category_labels(column)]
    return np.array(labels)[values.astype(np.intp)] if labels else values
