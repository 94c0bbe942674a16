"""What every model offers to the mechanism (gradients of its prior) and to the posterior (its parameter space)."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FloatArray", "Model"]

FloatArray = npt.NDArray[np.float64]


class Model(ABC):
    """A Bayesian model with n parameters theta on an unconstrained space.

    **Privacy.** Public; holds no records.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the n parameters, in order."""

    @property
    def n_params(self) -> int:
        """Number of parameters n."""
        return len(self.names)

    @abstractmethod
    def log_prior(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log prior density on the unconstrained space (Jacobian included), shape (...,) for (..., n)."""

    @abstractmethod
    def log_prior_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of :meth:`log_prior` at one theta, (n,) for (n,)."""

    @abstractmethod
    def expected_log_prior_gradient(self, loc: FloatArray, raw_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return d E_q[log prior] / d(loc, raw_scale) for q = N(loc, diag(softplus(raw_scale)**2)); two (n,) arrays."""

    @abstractmethod
    def prior_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the prior's mean and standard deviation of each unconstrained parameter, two (n,) arrays."""

    @abstractmethod
    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return the data-independent (loc, raw_scale) at which a run starts unless told otherwise."""

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map unconstrained parameters (..., n) to the model's own space; by default the identity."""
        return np.asarray(theta, dtype=np.float64)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""
        return np.asarray(params, dtype=np.float64)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values; ``model_from_dict`` reads it back."""
