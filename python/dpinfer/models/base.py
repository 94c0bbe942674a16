"""Interfaces of models to the mechanism, to the posterior and to runs of (DP-)SEP, and the table of kinds of models."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._lazy import find_plugin
from dpinfer._validate import check_float_array, check_integer

GAUSS_HERMITE_NODES = 64  # exact to degree 127
START_RAW_SCALE = -6.0  # small scales: the start is near the prior's centre; tolerance


def softplus(x: npt.ArrayLike) -> FloatArray:
    """Return log(1 + exp(x)).

    Examples
    --------
    >>> float(softplus(0.0)) == float(np.log(2.0))
    True
    """
    return np.logaddexp(0.0, np.asarray(x, dtype=np.float64))


def softplus_inverse(y: npt.ArrayLike) -> FloatArray:
    """Return log(exp(y) - 1) for positive y.

    Examples
    --------
    >>> round(float(softplus_inverse(softplus(-4.0))), 12)
    -4.0
    """
    values = np.asarray(y, dtype=np.float64)
    return values + np.log(-np.expm1(-values))


def sigmoid(x: npt.ArrayLike) -> FloatArray:
    """Return 1 / (1 + exp(-x)), the derivative of softplus."""
    values = np.asarray(x, dtype=np.float64)
    return np.exp(np.minimum(values, 0.0)) / (1.0 + np.exp(-np.abs(values)))


def log_sigmoid(x: npt.ArrayLike) -> FloatArray:
    """Return log(sigmoid(x))."""
    return -softplus(-np.asarray(x, dtype=np.float64))


@cache
def gauss_hermite(nodes: int) -> tuple[FloatArray, FloatArray]:
    """Return nodes z and weights with sum(weights * f(z)) = E[f(Z)], Z standard normal."""
    z, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return z, weights / np.sqrt(2.0 * np.pi)


class Model(ABC):
    """A Bayesian model with n parameters theta on an unconstrained space, and its interface to the mechanism.

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
    has_statistic: ClassVar[bool] = False  # whether run_statistic takes the model
    published_raw_scale: ClassVar[float] = 550.0

    def check_points(self, n_nodes: int) -> None:
        """Refuse a quadrature of too many points, given its nodes in each parameter; by default none is refused."""
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


class IndependentNormalPriors(Model):
    """Base of models whose unconstrained parameters have independent normal priors."""

    @abstractmethod
    def _prior_law(self) -> tuple[FloatArray | float, FloatArray | float]:
        """Return mean and standard deviation: numbers for all parameters, or (n,)."""

    def log_prior(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log prior density on the unconstrained space, (...,) for (..., n)."""
        mean, stddev = self._prior_law()
        scaled = (check_float_array("theta", theta, finite=False) - mean) / stddev
        return np.asarray(-np.sum(0.5 * scaled**2 + np.log(stddev) + 0.5 * np.log(2.0 * np.pi), axis=-1))

    def log_prior_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log prior at one theta (n,)."""
        mean, stddev = self._prior_law()
        return np.asarray(-(theta - mean) / stddev**2)

    def expected_log_prior_gradient(self, loc: FloatArray, raw_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient of E_q[log prior] in loc and raw_scale, in closed form."""
        mean, stddev = self._prior_law()
        variance = stddev**2
        return -(loc - mean) / variance, -softplus(raw_scale) * sigmoid(raw_scale) / variance

    def prior_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the prior's mean and standard deviation of each unconstrained parameter, two (n,) arrays."""
        mean, stddev = self._prior_law()
        return np.full(self.n_params, mean), np.full(self.n_params, stddev)

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return loc at the prior's mean and raw_scale = -6, the paper's start for Adult."""
        return self.prior_moments()[0], np.full(self.n_params, START_RAW_SCALE)

    def sample_prior(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw constrained parameters from the prior, (size, n)."""
        mean, stddev = self._prior_law()
        z = np.random.default_rng(rng).standard_normal((check_integer("size", size, 0), self.n_params))
        return self.constrain(mean + stddev * z)


class NormalPriorModel(IndependentNormalPriors):
    """Base of models with independent N(0, prior_scale**2) priors.

    Attributes
    ----------
    prior_scale : float
        Prior standard deviation of every parameter, positive.
    """

    prior_scale: float

    def _prior_law(self) -> tuple[FloatArray | float, FloatArray | float]:
        return 0.0, self.prior_scale


_KINDS: dict[str, type[Model]] = {}

_Kind = TypeVar("_Kind", bound=type[Model])


def register_model(kind: _Kind) -> _Kind:
    """Make a model of your own known by its class name, so that its releases can be loaded; a class decorator.

    The constructor of `kind` takes the fields of ``to_dict`` except "kind".

    Raises ValueError if the library has a model of that name.

    Examples
    --------
    >>> from dpinfer.models import LogisticRegression
    >>> @register_model
    ... class MyRegression(LogisticRegression):
    ...     pass
    >>> type(model_from_dict(MyRegression(2).to_dict())).__name__
    'MyRegression'
    """
    if not isinstance(kind, type) or not issubclass(kind, Model):
        raise TypeError(f"kind must be a subclass of Model, got {kind!r}")
    registered = _KINDS.get(kind.__name__)
    if registered is not None and registered.__module__.startswith("dpinfer."):
        raise ValueError(f"kind must have another name: {kind.__name__!r} is the library's")
    _KINDS[kind.__name__] = kind
    return kind


def model_from_dict(spec: Mapping[str, Any]) -> Model:
    """Return the model that ``to_dict`` described: ``{"kind": class name, ...its parameters}``.

    An unregistered kind is looked up among the installed packages' entry points of "dpinfer.models".

    Raises ValueError if the kind is unknown or a parameter is missing or wrong.

    Examples
    --------
    >>> model_from_dict({"kind": "LogisticRegression", "n_features": 2, "prior_scale": 1.0}).n_params
    2
    """
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec must be a mapping, got {type(spec).__name__}")
    values = {str(name): value for name, value in spec.items()}
    kind = values.pop("kind", None)
    if isinstance(kind, str) and kind not in _KINDS and (found := find_plugin("dpinfer.models", kind)) is not None:
        register_model(found[0])
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"spec must have a known kind ({', '.join(sorted(_KINDS))}), got {kind!r}")
    try:
        return _KINDS[kind](**values)
    except TypeError as error:
        raise ValueError(f"spec does not describe a {kind}: {error}") from error


@runtime_checkable
class SiteModel(Protocol):
    """A model whose posterior is approximated by J independent Gaussian blocks, and whose records have sites."""

    @property
    def n_features(self) -> int:
        """Number of columns of X."""

    @property
    def prior_scale(self) -> float:
        """Prior standard deviation of every coordinate of the blocks."""

    @property
    def site_sum(self) -> str | None:
        """Code that sums the records' sites; None without sites."""

    @property
    def exchangeable_blocks(self) -> bool:
        """Whether blocks are interchangeable, so that runs must start apart and may be annealed."""

    @property
    def record_form(self) -> str:
        """Form of a record: see :class:`dpinfer.models.Model`."""

    @property
    def isotropic(self) -> bool:
        """Whether the blocks' precisions are multiples of the identity."""

    @property
    def block_scale(self) -> float:
        """Spread of a record about its block, by which starts of exchangeable blocks are kept apart."""

    @property
    def site_prior_loc(self) -> FloatArray:
        """Prior mean of the blocks, (J, d); the prior's standard deviation is `prior_scale`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""

    def expected_site_precision(self, n_records: int) -> FloatArray:
        """Return the posterior precision that the model expects before any record is seen, (J, d, d)."""

    def typical_site_norm(self, block_weight: float, quantile: float, size: int, rng: np.random.Generator) -> float:
        """Return a quantile of the norm of centred contributions of `size` records that the model expects."""

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
