"""The parameters of a model of the user's own: named arrays, elementwise maps to their spaces, normal priors."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer
from dpinfer.models.base import log_sigmoid, sigmoid, softplus, softplus_inverse

# Maps from the real line, their inverses, and their derivatives.
_Elementwise = Mapping[str, Callable[[FloatArray], FloatArray]]
_MAPS: _Elementwise = {"identity": np.positive, "exp": np.exp, "softplus": softplus, "sigmoid": sigmoid}
INVERSES: _Elementwise = {
    "identity": np.positive,
    "exp": np.log,
    "softplus": softplus_inverse,
    "sigmoid": lambda y: np.log(y) - np.log1p(-y),
}
_SLOPES: _Elementwise = {
    "identity": np.ones_like,
    "exp": np.exp,
    "softplus": sigmoid,
    "sigmoid": lambda x: np.exp(log_sigmoid(x) + log_sigmoid(-x)),
}

Numbers = npt.ArrayLike | Mapping[str, npt.ArrayLike]


class ParameterSet:
    """Names, shapes, maps and priors of the parameters, flat: all arrays one after another.

    Raises TypeError or ValueError if a name, shape or map is wrong, or a prior is not proper.

    Parameters
    ----------
    parameters : int, sequence of names, or mapping from name to shape
        ``{"intercept": (), "coef": (3,)}``; a number n stands for theta[0] ... theta[n - 1].
    bijectors : mapping from name to {"identity", "exp", "softplus", "sigmoid"}, optional
        Map of each array from the real line to the range of its entries; by default the identity.
    prior_mean, prior_scale : number, (n,) array, or mapping from name to number or array
        Of independent normal priors *before* the map: "exp" makes them log-normal.

    Examples
    --------
    >>> kept = ParameterSet({"coef": (2,), "rate": ()}, {"rate": "exp"}, 0.0, {"coef": 3.0, "rate": 1.0})
    >>> kept.names, kept.prior_scale.tolist()
    (('coef[0]', 'coef[1]', 'rate'), [3.0, 3.0, 1.0])
    >>> kept.constrain([1.0, 2.0, 0.0]).tolist()
    [1.0, 2.0, 1.0]
    """

    def __init__(
        self,
        parameters: int | Sequence[str] | Mapping[str, Sequence[int]],
        bijectors: Mapping[str, str] | None,
        prior_mean: Numbers,
        prior_scale: Numbers,
    ) -> None:
        self.shapes = _shapes(parameters)
        self.names = tuple(name for array, shape in self.shapes.items() for name in _entries(array, shape))
        if len(set(self.names)) != len(self.names):
            raise ValueError("parameters must give distinct names to all entries")
        bounds = np.cumsum([0, *(math.prod(shape) for shape in self.shapes.values())])
        self.slices = {array: slice(int(bounds[k]), int(bounds[k + 1])) for k, array in enumerate(self.shapes)}
        self.bijectors = dict.fromkeys(self.shapes, "identity")
        for array, kind in ({} if bijectors is None else bijectors).items():
            if array not in self.shapes:
                raise ValueError(f"bijectors must name arrays of parameters, got {array!r}")
            self.bijectors[array] = check_choice(f"bijectors[{array!r}]", kind, _MAPS)
        self.prior_mean = self._flat("prior_mean", prior_mean)
        self.prior_scale = self._flat("prior_scale", prior_scale)
        if not (np.all(np.isfinite(self.prior_mean)) and np.all(np.isfinite(self.prior_scale))):
            raise ValueError(
                "prior_mean and prior_scale must be finite: an improper prior has no posterior to speak of"
            )
        if not np.all(self.prior_scale > 0.0):
            raise ValueError("prior_scale must be positive")

    @property
    def size(self) -> int:
        """Number of entries n."""
        return len(self.names)

    @property
    def unmapped(self) -> bool:
        """Whether every map is the identity."""
        return all(kind == "identity" for kind in self.bijectors.values())

    def _flat(self, argument: str, given: Numbers) -> FloatArray:
        """Return numbers for all entries from one for all, one for each array, or one for each entry."""
        if not isinstance(given, Mapping):
            return _broadcast(argument, given, (self.size,)).copy()
        if set(given) != set(self.shapes):
            raise ValueError(f"{argument} must have a number for each array: {', '.join(self.shapes)}")
        parts = [
            _broadcast(f"{argument}[{array!r}]", given[array], shape).reshape(-1)
            for array, shape in self.shapes.items()
        ]
        return np.concatenate(parts)

    def unflatten(self, values: npt.ArrayLike) -> dict[str, FloatArray]:
        """Return flat parameters (..., n) as named arrays, (..., *shape) each."""
        flat = np.asarray(values, dtype=np.float64)
        return {
            array: flat[..., self.slices[array]].reshape(*flat.shape[:-1], *shape)
            for array, shape in self.shapes.items()
        }

    def named(self, params: Any) -> dict[str, Any]:
        """Return flat parameters (n,), an array or tensor of any framework, as named ones."""
        return {array: params[self.slices[array]].reshape(shape) for array, shape in self.shapes.items()}

    def _mapped(self, values: npt.ArrayLike, functions: _Elementwise) -> FloatArray:
        """Return flat values (..., n) after the function of each array's map."""
        result = np.array(values, dtype=np.float64)
        with np.errstate(over="ignore"):
            for array, kind in self.bijectors.items():
                part = result[..., self.slices[array]]
                part[...] = functions[kind](part)
        return result

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map unconstrained parameters (..., n) to their spaces."""
        return self._mapped(theta, _MAPS)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""
        return self._mapped(params, INVERSES)

    def slopes(self, theta: FloatArray) -> FloatArray:
        """Return the derivative of each entry's map at theta, (n,)."""
        return self._mapped(theta, _SLOPES)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values that the constructor takes."""
        return {
            # Pairs, as files do not keep the order of a mapping.
            "parameters": [[array, list(shape)] for array, shape in self.shapes.items()],
            "bijectors": dict(self.bijectors),
            "prior_mean": self.prior_mean.tolist(),
            "prior_scale": self.prior_scale.tolist(),
        }


def _shapes(parameters: Any) -> dict[str, tuple[int, ...]]:
    if isinstance(parameters, Mapping):
        shapes = {array: _shape(array, shape) for array, shape in parameters.items()}
    elif isinstance(parameters, Sequence) and not isinstance(parameters, str):
        pairs = [(item, ()) if isinstance(item, str) else item for item in parameters]
        shapes = {array: _shape(array, shape) for array, shape in pairs}
        if len(shapes) != len(parameters):
            raise ValueError("parameters must be distinct names")
    else:
        shapes = {"theta": (check_integer("parameters", parameters, 1),)}
    if not shapes:
        raise ValueError("parameters must name at least one array")
    for array, shape in shapes.items():
        if not isinstance(array, str) or not array.strip() or not array.isprintable():
            raise TypeError("parameters must have names that are printable text")
        for length in shape:
            check_integer(f"parameters[{array!r}]", length, 1)
    return shapes


def _shape(array: Any, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"parameters[{array!r}] must be a shape, as () or (3,), got {type(shape).__name__}")
    return tuple(shape)


def _entries(array: str, shape: tuple[int, ...]) -> list[str]:
    """Return a name for each entry, ``coef[2]`` or ``weight[0, 3]``."""
    if not shape:
        return [array]
    return [f"{array}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]


def _broadcast(argument: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{argument} must hold real numbers, got dtype {array.dtype}")
    try:
        return np.broadcast_to(array.astype(np.float64), shape)
    except ValueError as error:
        raise ValueError(f"{argument} must be one number or have shape {shape}, got shape {array.shape}") from error
