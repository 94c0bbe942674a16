"""Kinds of coordinates of a model's map to its own parameter space: identity, elementwise, or mixed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.models import Model

__all__ = ["ParameterSpace"]

FloatArray = npt.NDArray[np.float64]

_REACH = 20.0  # far out on the unconstrained space, and without overflow in exp


@dataclass(frozen=True)
class ParameterSpace:
    """The map from unconstrained to constrained parameters, coordinate by coordinate.

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    model : Model or None
        None: the map is the identity.
    identity, elementwise, increasing : (n,) bool arrays
        Coordinates with the identity, those that depend on their own input only, and increasing ones of these.
    """

    model: Model | None
    identity: npt.NDArray[np.bool_]
    elementwise: npt.NDArray[np.bool_]
    increasing: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, model: Model | None, n_params: int) -> "ParameterSpace":
        """Determine the kinds for `model` by evaluating its map at a few points.

        Parameters
        ----------
        model : Model or None
        n_params : int

        Returns
        -------
        ParameterSpace

        Raises
        ------
        ValueError
            If the model has another number of parameters, or its map changes their number.
        """
        every = np.ones(n_params, dtype=bool)
        if model is None or type(model).constrain is Model.constrain:
            return cls(model, every, every, every)
        if model.n_params != n_params:
            raise ValueError(f"model must have {n_params} parameters, got {model.n_params}")
        base = 0.3 * np.cos(np.arange(n_params, dtype=np.float64))
        moved = base + np.eye(n_params)
        at_base, at_moved = model.constrain(base), model.constrain(moved)
        if at_base.shape != base.shape or at_moved.shape != moved.shape:
            raise ValueError("model.constrain must return as many parameters as it is given")
        depends = at_moved != at_base
        elementwise = np.sum(depends, axis=0) == np.diag(depends)
        identity = elementwise.copy()
        for level in (-_REACH, -1.0, 0.0, 1.0, _REACH):
            point = base + level
            identity &= model.constrain(point) == point
        return cls(model, identity, elementwise, np.diag(at_moved) > at_base)

    def constrain(self, theta: FloatArray) -> FloatArray:
        """Map unconstrained parameters (..., n) to the model's space."""
        return theta if self.model is None else self.model.constrain(theta)

    def constrain_one(self, index: int, values: FloatArray) -> FloatArray:
        """Map values (m,) of one elementwise coordinate."""
        if self.identity[index] or self.model is None:
            return values
        theta = np.zeros((values.size, self.identity.size))
        theta[:, index] = values
        return np.asarray(self.model.constrain(theta)[:, index])
