"""Models whose log-likelihood of one record is JAX code: ``from_jax``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.models.adapters.frameworks import FRAMEWORK_BLOCK, framework, in_blocks
from dpinfer.models.adapters.gradients import check_callables, finished
from dpinfer.models.adapters.own_model import ModelCode, OwnModel, Words, named_failure
from dpinfer.models.adapters.parameters import Numbers, ParameterSet

_TRACED = (
    "; it is compiled by JAX, so write jax.numpy for numpy, jax.numpy.where for if, value.astype(float) for "
    "float(value), and jax.random with the key for a generator"
)
_CALLS = {
    "log_likelihood": f"log_likelihood(params, x, y) of one record, x (p,) and a number y, returns a number{_TRACED}",
    "sampler": f"sampler(key, params, x) with a key of jax.random and one record's x (p,), returns a number{_TRACED}",
}


def double_precision() -> Any:
    """Return a context in which JAX computes in double precision, for any setting of the user."""
    jax = framework("jax")
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()


def from_jax(
    log_likelihood: Callable[[Any, Any, Any], Any],
    parameters: int | Sequence[str] | Mapping[str, Sequence[int]],
    *,
    n_features: int,
    sampler: Callable[[Any, Any, Any], Any] | None = None,
    features: Callable[[int, np.random.Generator], Any] | npt.NDArray[Any] | None = None,
    prior_mean: Numbers = 0.0,
    prior_scale: Numbers = 1.0,
    bijectors: Mapping[str, str] | None = None,
    public_data: Any = None,
    vectorize: bool = True,
    **declared: str,
) -> OwnModel:
    """Make a model from the log-likelihood of one record, written in JAX.

    Gradients are those of JAX, mapped over records and compiled, in double precision and in blocks of 2048 records.

    **Privacy.** As :func:`dpinfer.models.from_gradient`.

    Raises BackendUnavailableError if JAX is not installed (the extra ``dpinfer[jax]``), or too old. Raises TypeError or
    ValueError if an argument is wrong, or the code fails a trial.

    Parameters
    ----------
    log_likelihood : callable
        ``log_likelihood(params, x, y)`` of one record: x (n_features,), y a number; returns a number.  `params` are in
        the model's own space: an array (n,) where `parameters` is a number, else a dict of named arrays.
    sampler : callable, optional
        ``sampler(key, params, x)`` returns one y drawn from p(y | x, params) with that key of ``jax.random``.
    vectorize : bool
        Map over a block at once (default), or record by record: for code whose rows are rounded together otherwise.
    parameters, n_features, features, prior_mean, prior_scale, bijectors, public_data, **declared
        As in :func:`dpinfer.models.from_gradient`.
    """
    framework("jax")
    check_callables({"log_likelihood": log_likelihood}, {"sampler": sampler})
    count = check_integer("n_features", n_features, 1)
    parameter_set = ParameterSet(parameters, bijectors, prior_mean, prior_scale)
    flat = not isinstance(parameters, Mapping | Sequence)
    code = jax_code(log_likelihood, sampler, parameter_set, features, flat=flat, vectorize=vectorize, n_features=count)
    return finished(code, parameter_set, count, public_data, declared)


def jax_code(
    # log_likelihood, sampler, features, vectorize: as in :func:`from_jax`
    log_likelihood: Callable[[Any, Any, Any], Any],
    sampler: Callable[[Any, Any, Any], Any] | None,
    kept: ParameterSet,
    features: Any,
    *,
    flat: bool,  # whether the code takes one array rather than named ones
    vectorize: bool,
    n_features: int,
) -> ModelCode:
    """Return JAX code for one record as NumPy code for many."""
    jax = framework("jax")

    named: Callable[[Any], Any] = (lambda params: params) if flat else kept.named

    def density(params: Any, x: Any, y: Any) -> Any:
        return log_likelihood(named(params), x, y)

    def drawn(params: Any, x: Any, words: Any) -> Any:
        key = jax.random.wrap_key_data(jax.numpy.stack((words[0] >> 32, words[0] & 0xFFFFFFFF)).astype("uint32"))
        return sampler(key, named(params), x)  # type: ignore[misc]

    def mapped(function: Any) -> Any:
        if vectorize:
            over = jax.vmap(function, (None, 0, 0))
        else:

            def over(params: Any, *rows: Any) -> Any:
                return jax.lax.map(lambda row: function(params, *row), rows)

        compiled = in_blocks(jax.jit(over), FRAMEWORK_BLOCK)

        def run(params: FloatArray, *rows: npt.NDArray[Any]) -> FloatArray:
            with double_precision():
                return compiled(params, *rows)

        return run

    with double_precision():
        blank = (np.zeros(kept.size), np.zeros(n_features), np.zeros(()))
        here = f"; n = {kept.size} and p = {n_features} here"
        with named_failure("log_likelihood", _CALLS["log_likelihood"] + here):
            result = jax.eval_shape(density, *blank)
        _one_number("log_likelihood", result)
        if sampler is not None:
            with named_failure("sampler", _CALLS["sampler"] + here):
                result = jax.eval_shape(drawn, blank[0], blank[1], np.zeros(1, dtype=np.uint64))
            _one_number("sampler", result, real=False)
    draw: Callable[[FloatArray, FloatArray, Words], Any] | None = None if sampler is None else mapped(drawn)
    calls = _CALLS | {"gradients": _CALLS["log_likelihood"]}
    return ModelCode(mapped(jax.grad(density)), mapped(density), draw, 1, features, calls)


def _one_number(what: str, result: Any, *, real: bool = True) -> None:
    kind = np.dtype(getattr(result, "dtype", object)).kind
    if getattr(result, "shape", None) != () or kind not in ("f" if real else "fiub"):
        shape = getattr(result, "shape", type(result).__name__)
        raise ValueError(f"{what} must return one real number for one record, got {shape} of kind {kind!r}")
