"""Kinds of coordinates of a model's map to its own parameter space: identity, linear, elementwise, or mixed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.units import Units
from dpinfer.models import Model

_REACH = 20.0  # far out on the unconstrained space, and without overflow in exp
_ROUNDING = 1e-11  # of sums of doubles, with a wide margin


@dataclass(frozen=True)
class ParameterSpace:
    """The map from unconstrained to constrained parameters, coordinate by coordinate.

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    constrain : callable
        The map of unconstrained parameters (..., n).
    identity, linear, elementwise, increasing : (n,) bool arrays
        Coordinates with the identity, other linear ones, those that depend on their own input only, and increasing
        ones of these.
    rows, shift : (n, n) and (n,) arrays
        A linear coordinate j is ``rows[j] @ theta + shift[j]``.
    """

    constrain: Callable[[FloatArray], FloatArray]
    identity: npt.NDArray[np.bool_]
    linear: npt.NDArray[np.bool_]
    elementwise: npt.NDArray[np.bool_]
    increasing: npt.NDArray[np.bool_]
    rows: FloatArray
    shift: FloatArray

    @classmethod
    def of(cls, model: Model | None, n_params: int, units: Units | None = None) -> "ParameterSpace":
        """Determine the kinds for `model` by evaluating its map at a few points.

        Raises ValueError if the model has another number of parameters, or its map changes their number.

        Parameters
        ----------
        model : Model or None
            None: the map is the identity.
        units : Units, optional
            Those of the user, in place of the model's.
        """
        every, unit = np.ones(n_params, dtype=bool), np.eye(n_params)
        if units is None and (model is None or type(model).constrain is Model.constrain):
            return cls(lambda theta: theta, every, ~every, every, every, unit, np.zeros(n_params))
        if model is not None and model.n_params != n_params:
            raise ValueError(f"model must have {n_params} parameters, got {model.n_params}")

        def constrain(theta: FloatArray) -> FloatArray:
            params = theta if model is None else model.constrain(theta)
            return params if units is None else units.parameters(params)

        base = 0.3 * np.cos(np.arange(n_params, dtype=np.float64))
        at_base, at_moved = constrain(base), constrain(base + unit)
        if at_base.shape != base.shape or at_moved.shape != unit.shape:
            raise ValueError("model.constrain must return as many parameters as it is given")
        depends = at_moved != at_base
        elementwise = np.sum(depends, axis=0) == np.diag(depends)
        identity, linear = elementwise.copy(), every.copy()
        rows = (at_moved - at_base).T
        shift = at_base - rows @ base
        for level in (-_REACH, -1.0, 0.0, 1.0, _REACH):
            point = base + level
            value = constrain(point)
            identity &= value == point
            linear &= np.abs(value - rows @ point - shift) <= _ROUNDING * (np.abs(rows) @ np.abs(point) + np.abs(shift))
        return cls(constrain, identity, linear & ~identity, elementwise, np.diag(at_moved) > at_base, rows, shift)

    def constrain_one(self, index: int, values: FloatArray) -> FloatArray:
        """Map values (m,) of one elementwise coordinate."""
        if self.identity[index]:
            return values
        theta = np.zeros((values.size, self.identity.size))
        theta[:, index] = values
        return np.asarray(self.constrain(theta)[:, index])
