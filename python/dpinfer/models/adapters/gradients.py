"""Models whose gradients are NumPy code: ``from_gradient``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.models.adapters.checks import check_own_model
from dpinfer.models.adapters.own_model import ModelCode, OwnModel, Words
from dpinfer.models.adapters.parameters import Numbers, ParameterSet

_CALLS = {
    "gradients": "gradient(params, X, y) with params (n,), X (B, p) and y (B,), and returns (B, n)",
    "log_likelihood": "log_likelihood(params, X, y) with params (n,), X (B, p) and y (B,), and returns (B,)",
    "sampler": "sampler(params, X, u) with params (n,), X (B, p) and u (B, n_uniforms), an array of uniform numbers "
    "and no generator, and returns (B,)",
}


def uniforms_of(words: Words) -> FloatArray:
    """Return numbers strictly between 0 and 1 from 64 random bits each."""
    # The largest would be rounded to 1.
    return np.minimum(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53, 1.0 - 2.0**-53)


def check_callables(required: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Refuse objects that cannot be called, by the name of the argument; None if optional.

    Raises TypeError if an argument is wrong.
    """
    present = dict(required) | {argument: function for argument, function in optional.items() if function is not None}
    for argument, function in present.items():
        if not callable(function):
            raise TypeError(f"{argument} must be callable, got {type(function).__name__}")


def finished(
    code: ModelCode, parameters: ParameterSet, n_features: int, public_data: Any, declared: Mapping[str, Any]
) -> OwnModel:
    """Return the model of this code, tried on public records.

    Raises TypeError or ValueError if something else is declared than `response` and `name`, or the code fails a trial.
    """
    for name in declared.keys() - {"response", "name"}:
        raise TypeError(f"{name} is no argument of this function; `response` and `name` are the only further ones")
    model = OwnModel(code=code, parameters=parameters, n_features=n_features, **declared)
    check_own_model(model, public_data)
    model.take_fingerprint()
    return model


def from_gradient(
    gradient: Callable[[FloatArray, FloatArray, FloatArray], Any],
    parameters: int | Sequence[str] | Mapping[str, Sequence[int]],
    *,
    n_features: int,
    log_likelihood: Callable[[FloatArray, FloatArray, FloatArray], Any] | None = None,
    sampler: Callable[[FloatArray, FloatArray, FloatArray], Any] | None = None,
    n_uniforms: int = 1,
    features: Callable[[int, np.random.Generator], Any] | npt.NDArray[Any] | None = None,
    prior_mean: Numbers = 0.0,
    prior_scale: Numbers = 1.0,
    bijectors: Mapping[str, str] | None = None,
    public_data: Any = None,
    **declared: str,
) -> OwnModel:
    """Make a model for :func:`dpinfer.run_dpvi` from NumPy code for the gradient of a record's log-likelihood.

    **Privacy.** Reads no records: the code is tried on simulated or public ones, before anything is spent. It must not
    store or print private ones, or let one record's row depend on another.

    Raises TypeError or ValueError if an argument is wrong, or the code fails a trial: docs/any-model.md lists them.

    Parameters
    ----------
    gradient : callable
        ``gradient(params, X, y)`` returns (B, n): the gradient of log p(y | x, params) in the flat params (n,), which
        are in the model's own space, for X (B, n_features) and y (B,).
    parameters : int, sequence of names, or mapping from name to shape
    n_features : int
    log_likelihood : callable, optional
        ``log_likelihood(params, X, y)`` returns (B,): to try the gradient against its differences.
    sampler : callable, optional
        ``sampler(params, X, u)`` returns y (B,) drawn from p(y | x, params) as a function of u (B, n_uniforms),
        uniform on (0, 1), by inverse distribution functions say.  :func:`dpinfer.run_newton` needs it.
    n_uniforms : int
    features : callable or (M, n_features) array, optional
        Public, made-up features like the private ones: ``features(size, rng)``, or rows to draw from.  Standard normal
        by default.
    prior_mean, prior_scale : number, (n,) array, or mapping from name to number or array
        Of independent normal priors before the map of `bijectors`; finite, and the scale positive.
    bijectors : mapping from name to {"identity", "exp", "softplus", "sigmoid"}, optional
        Maps of the entries of an array to their range: "exp" for positive numbers.
    public_data : (X, y), optional
        Records that are no secret, to try the code on instead of made-up ones.
    **declared
        `response`, "real" (default), "binary", "count" or "positive"; and `name`, for messages.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> def gradient(theta, X, y):  # a Poisson regression
    ...     rate = np.exp(np.sum(X * theta, axis=1))
    ...     return X * (y - rate)[:, None]
    >>> model = dpi.models.from_gradient(gradient, {"coef": (2,)}, n_features=2, response="count", name="Poisson")
    >>> model
    OwnModel('Poisson': 2 parameters, 2 features)
    """
    uniform_count = check_integer("n_uniforms", n_uniforms, 1, 64)
    check_callables({"gradient": gradient}, {"log_likelihood": log_likelihood, "sampler": sampler})
    draw = None
    if sampler is not None:
        chosen = sampler

        def draw(params: FloatArray, X: FloatArray, words: Words) -> Any:
            return chosen(params, X, uniforms_of(words))

    code = ModelCode(gradient, log_likelihood, draw, uniform_count, features, _CALLS)
    parameter_set = ParameterSet(parameters, bijectors, prior_mean, prior_scale)
    return finished(code, parameter_set, n_features, public_data, declared)
