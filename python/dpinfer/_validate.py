"""Argument checks shared by every layer: each error has the argument's name, the requirement and the given value."""

import math
import numbers
from collections.abc import Collection, Mapping
from dataclasses import MISSING, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Settings = TypeVar("Settings")


def check_real(name: str, value: Any) -> float:
    """Return `value` as a finite float; refuse booleans, strings, arrays and non-finite numbers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def check_interval(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = True,
    high_open: bool = True,
) -> float:
    """Return `value` as a float inside the interval from `low` to `high`, whose ends are open by default."""
    result = check_real(name, value)
    above = result > low if low_open else result >= low
    below = result < high if high_open else result <= high
    if not (above and below):
        left = "(" if low_open or math.isinf(low) else "["
        right = ")" if high_open or math.isinf(high) else "]"
        raise ValueError(f"{name} must lie in {left}{low:g}, {high:g}{right}, got {result:g}")
    return result


def check_integer(name: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return `value` as an int inside [minimum, maximum]; refuse booleans and floats."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Integral, np.integer)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    result = int(value)
    if minimum is not None and result < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {result}")
    if maximum is not None and result > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {result}")
    return result


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return `value` when it is one of `choices`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}; got {value!r}")
    return value


def check_float_array(
    name: str, value: Any, shape: tuple[int | None, ...] | None = None, *, finite: bool = True
) -> npt.NDArray[np.float64]:
    """Return `value` as a C-contiguous float64 array of the given shape (None: any length on that axis).

    For *public* quantities (parameters, traces): numbers only, never objects or strings.  Records are checked by the
    mechanism, which must not convert or quote them.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be an array of real numbers, got dtype {array.dtype}")
    result = np.ascontiguousarray(array, dtype=np.float64)
    if shape is not None:
        fits = array.ndim == len(shape) and all(
            want is None or have == want for have, want in zip(array.shape, shape, strict=True)
        )
        if not fits:
            sizes = tuple("any" if want is None else want for want in shape)
            raise ValueError(f"{name} must have shape {sizes}, got {array.shape}".replace("'", ""))
        if array.ndim == 0:
            result = result.reshape(())
    if finite and not np.all(np.isfinite(result)):
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return result


def settings_of(
    function: str,
    kind: type[Settings],
    settings: Settings | None,
    options: Mapping[str, object],
    *,
    argument: str = "settings",
) -> Settings:
    """Return the settings of a call: those given, or the defaults, with single ones replaced by keyword arguments.

    `argument` is the name of the settings in the function's signature, for messages.

    Raises TypeError if `settings` is of another class, a keyword is none of its fields, or one without a default is
    missing.
    """
    if settings is not None and not isinstance(settings, kind):
        raise TypeError(f"{argument} must be a {kind.__name__}, got {type(settings).__name__}")
    known: Any = kind
    required = {item.name: item.default is MISSING for item in known.__dataclass_fields__.values()}
    for name in options:
        if name not in required:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; see {kind.__name__}")
    missing = [name for name, needs in required.items() if needs and name not in options and settings is None]
    if missing:
        raise TypeError(f"{function}() needs {', '.join(missing)}: by keyword, or {argument}={kind.__name__}(...)")
    given: Any = settings
    made: Settings = known(**options) if given is None else replace(given, **options)
    return made
