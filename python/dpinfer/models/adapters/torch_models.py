"""Models whose log-likelihood of one record is PyTorch code, or a module: ``from_torch``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.models.adapters.frameworks import FRAMEWORK_BLOCK, framework, in_blocks
from dpinfer.models.adapters.gradients import check_callables, finished, uniforms_of
from dpinfer.models.adapters.own_model import ModelCode, OwnModel, Words
from dpinfer.models.adapters.parameters import Numbers, ParameterSet

_CALLS = {
    "log_likelihood": "log_likelihood(params, x, y) of one record with tensors x (p,) and y (), or "
    "log_likelihood(output, y) with a module, and returns a tensor with one number",
    "sampler": "sampler(params, x, u) with tensors x (p,) and u (1,), a uniform number and no generator, or "
    "sampler(output, u) with a module, and returns a tensor with one number",
}


def from_torch(
    log_likelihood: Callable[..., Any],
    parameters: int | Sequence[str] | Mapping[str, Sequence[int]] | None = None,
    *,
    n_features: int,
    module: Any = None,
    sampler: Callable[..., Any] | None = None,
    features: Callable[[int, np.random.Generator], Any] | npt.NDArray[Any] | None = None,
    prior_mean: Numbers = 0.0,
    prior_scale: Numbers = 1.0,
    bijectors: Mapping[str, str] | None = None,
    public_data: Any = None,
    vectorize: bool = True,
    **declared: str,
) -> OwnModel:
    """Make a model from the log-likelihood of one record, written in PyTorch, or from a module.

    Gradients are those of ``torch.func``, mapped over records, in double precision and in blocks of 2048 records.

    **Privacy.** As :func:`dpinfer.models.from_gradient`.

    Raises BackendUnavailableError if PyTorch is not installed (the extra ``dpinfer[torch]``), or too old. Raises
    TypeError or ValueError if an argument is wrong, the module mixes records, or the code fails a trial.

    Parameters
    ----------
    log_likelihood : callable
        ``log_likelihood(params, x, y)`` of one record: tensors x (n_features,) and y (); returns a tensor with one
        number.  `params` are in the model's own space: a tensor (n,) if `parameters` is a number, else a dict of
        named tensors. With a `module`: ``log_likelihood(output, y)`` of the module's output for x.
    parameters : int, sequence of names, or mapping from name to shape
        None with a module, whose parameters they are.
    module : torch.nn.Module, optional
        Its weights are the parameters, and those it has do not matter.  A module with buffers (batch norm) is refused.
    sampler : callable, optional
        ``sampler(params, x, u)`` returns one y drawn as a function of u (1,), uniform on (0, 1); with a module
        ``sampler(output, u)``.
    vectorize : bool
        Map over a block at once (default), or record by record: slow, for code whose rows are rounded together.
    n_features, features, prior_mean, prior_scale, bijectors, public_data, **declared
        As in :func:`dpinfer.models.from_gradient`.
    """
    torch = framework("torch")
    check_callables({"log_likelihood": log_likelihood}, {"sampler": sampler})
    count = check_integer("n_features", n_features, 1)
    if module is not None:
        if parameters is not None:
            raise ValueError("parameters must be None with a module, whose parameters they are")
        parameters = _of_module(torch, module)
        log_likelihood, sampler = _through(torch, module, log_likelihood, sampler)
    if parameters is None:
        raise TypeError("parameters must be given without a module")
    parameter_set = ParameterSet(parameters, bijectors, prior_mean, prior_scale)
    flat = not isinstance(parameters, Mapping | Sequence)
    code = _code(torch, log_likelihood, sampler, parameter_set, features, flat=flat, vectorize=vectorize)
    return finished(code, parameter_set, count, public_data, declared)


def _of_module(torch: Any, module: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise ValueError(
            f"module must have no buffers, and has {buffers[0]!r}: batch norm and its like mix records, which no "
            "clipping of single records bounds; use layer norm or group norm"
        )
    return {name: tuple(value.shape) for name, value in module.named_parameters()}


def _through(
    torch: Any, module: Any, log_likelihood: Callable[..., Any], sampler: Callable[..., Any] | None
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return a function of a module's output as a function of its parameters and x."""

    def output(params: Any, x: Any) -> Any:
        return torch.func.functional_call(module, params, (x,))

    def density(params: Any, x: Any, y: Any) -> Any:
        return log_likelihood(output(params, x), y)

    def drawn(params: Any, x: Any, u: Any) -> Any:
        return sampler(output(params, x), u)  # type: ignore[misc]

    return density, None if sampler is None else drawn


def _code(
    torch: Any,
    log_likelihood: Callable[..., Any],
    sampler: Callable[..., Any] | None,
    kept: ParameterSet,
    features: Any,
    *,
    flat: bool,
    vectorize: bool,
) -> ModelCode:
    named: Callable[[Any], Any] = (lambda params: params) if flat else kept.named

    def density(params: Any, x: Any, y: Any) -> Any:
        value = log_likelihood(named(params), x, y)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
            raise ValueError("log_likelihood must return a tensor with one real number for one record")
        return value.reshape(())

    def drawn(params: Any, x: Any, u: Any) -> Any:
        return sampler(named(params), x, u).reshape(()).double()  # type: ignore[misc]

    def mapped(function: Any) -> Any:
        over = torch.func.vmap(function, (None, 0, 0)) if vectorize else function

        def block(params: FloatArray, *rows: npt.NDArray[Any]) -> Any:
            # Copies: tensors can be written to.
            tensors = [torch.from_numpy(np.array(row, order="C")) for row in rows]
            tensor = torch.from_numpy(np.array(params))
            if vectorize:
                return over(tensor, *tensors).detach().numpy()
            return torch.stack([over(tensor, *row) for row in zip(*tensors, strict=True)]).detach().numpy()

        return in_blocks(block, FRAMEWORK_BLOCK if vectorize else 1)

    gradient, value = mapped(torch.func.grad(density)), mapped(density)
    draw: Callable[[FloatArray, FloatArray, Words], Any] | None = None
    if sampler is not None:
        simulate = mapped(drawn)

        def draw(params: FloatArray, X: FloatArray, words: Words) -> Any:
            return simulate(params, X, uniforms_of(words))

    calls = _CALLS | {"gradients": _CALLS["log_likelihood"]}
    return ModelCode(gradient, value, draw, 1, features, calls)
