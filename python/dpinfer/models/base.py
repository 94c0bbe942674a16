"""Interface of every model to the mechanism (gradients of its prior) and to the posterior (its parameter space)."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray


class Model(ABC):
    """A Bayesian model with n parameters theta on an unconstrained space, and its interface to the mechanism.

    **Privacy.** Public; holds no records.

    Attributes
    ----------
    record_form : {"regression", "values", "points"}
        Form of a record: a row of X with a response in y, a number in X, or a row of X alone.
    gradient_sum : str or None
        Code that sums its records' gradients: "numpy", or a compiled kernel; None if :func:`dpinfer.run_dpvi` does
        not support the model.
    site_sum : str or None
        Code that sums its records' sites in :func:`dpinfer.run_dp_sep`; None without sites.
    exchangeable_blocks : bool
        Whether q's blocks are interchangeable, so that runs must start apart and may be annealed.
    has_quadrature : bool
        Whether expectations of a record's gradient under q are known without draws.
    natural_steps : bool
        Whether "tied" is the recipe of :func:`dpinfer.run_dpvi` by default.
    published_raw_scale : float
        Preconditioner of raw_scale in NA-DPVI's experiments: the default without another one.
    """

    record_form: ClassVar[str] = "regression"
    gradient_sum: ClassVar[str | None] = None
    site_sum: ClassVar[str | None] = None
    exchangeable_blocks: ClassVar[bool] = False
    has_quadrature: ClassVar[bool] = False
    natural_steps: ClassVar[bool] = False
    published_raw_scale: ClassVar[float] = 550.0

    def check_points(self, n_nodes: int) -> None:
        """Refuse a quadrature with so many nodes in each parameter if it is too large; by default none is."""
        return

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return a description of valid responses, or records, if finite `values` (N,) are not valid; else None.

        The description is public and must not depend on the wrong values.
        """
        return None

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
        """Return the data-independent (loc, raw_scale) at which a run starts by default."""

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map unconstrained parameters (..., n) to the model's own space; by default the identity."""
        return np.asarray(theta, dtype=np.float64)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""
        return np.asarray(params, dtype=np.float64)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values; ``model_from_dict`` reads it back."""
