"""Checks that every layer shares: arguments, fields of releases, and records, which are read late and never quoted.

An array has its shape and type without reading a record, so that a run can be refused before it is charged: no check
here reads one. Lists, which have neither, are checked after their conversion to arrays.  Records that are not real
numbers are refused by TypeError, and those of a wrong shape by RecordError.
"""

import math
import numbers
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._types import as_array, column_types, is_frame, is_number_type, refuse_array_type
from dpinfer.errors import DpinferError, RecordError

Array = npt.NDArray[Any]
T = TypeVar("T")
Settings = TypeVar("Settings")

_CHUNK = 4096  # records at once: memory only


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


def check_type(name: str, value: Any, kind: type[T]) -> T:
    """Return `value` when it is of this class."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}")
    return value


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


@dataclass(frozen=True)
class Shape:
    """Shape of a release's array, as names of axes such as "T d".  Axes with the same name have the same length.

    The length of an axis is in `sizes`, or that of the first array with this axis, which must not be empty.
    """

    axes: str
    positive: bool = False

    def checked(self, name: str, value: Any, sizes: dict[str, int]) -> FloatArray:
        """Return a view that cannot be written to, and note the lengths of new axes."""
        axes = self.axes.split()
        sizes |= {axis: int(axis) for axis in axes if axis.isdigit()}
        if np.ndim(value) == len(axes):
            for axis, size in zip(axes, np.shape(value), strict=True):
                if axis not in sizes and size < 1:
                    raise ValueError(f"{name} must not be empty")
                sizes.setdefault(axis, size)
        array = check_float_array(name, value, tuple(sizes.get(axis) for axis in axes)).view()
        if self.positive and not np.all(array > 0.0):
            raise ValueError(f"{name} must be positive")
        array.flags.writeable = False
        return array


@dataclass(frozen=True)
class Range:
    """Interval of a number of a release, which holds its ends where `first` or `last` is set."""

    low: float = 0.0
    high: float = math.inf
    first: bool = False
    last: bool = False

    def checked(self, name: str, value: Any, _: dict[str, int]) -> float:
        """Return the number."""
        return check_interval(name, value, self.low, self.high, low_open=not self.first, high_open=not self.last)


POSITIVE, AT_LEAST_ZERO = Range(), Range(first=True)


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

    Raises TypeError if `settings` is of another class, a keyword is no field, or a field without a default is missing.
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


def check_names(argument: str, names: Any) -> tuple[str, ...]:
    """Return distinct names, at least one."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument} must be a sequence of strings")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{argument} must hold at least one name, and no name twice")
    return tuple(names)


class DeferredArray:
    """Records that are read when NumPy converts them to an array, which private functions do after the charge.

    **Privacy.** Reads no record until then.
    """

    def __init__(self, load: Callable[[], npt.NDArray[Any]]) -> None:
        self._load = load

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self._load()
        return array if dtype is None else array.astype(dtype)


def known_shape(value: Any) -> tuple[int, ...] | None:
    """Return the declared shape of an array or a data frame, or None if only a conversion would show it.

    **Privacy.** Reads no record. The shape holds the number of rows, which is private under add/remove adjacency.
    """
    try:
        shape = value.shape
    except Exception:
        return None
    if not isinstance(shape, tuple) or not all(isinstance(size, (int, np.integer)) for size in shape):
        return None
    return tuple(int(size) for size in shape)


def warn_of_clamped(argument: str, columns: Sequence[str]) -> None:
    """Warn that the caller's points for a prediction lie outside of the public bounds of the fit, in these columns."""
    if columns:
        warnings.warn(
            f"{argument} has points beyond the public bounds in {', '.join(map(repr, columns))}: they are clamped, as "
            "in the fit, so that predictions there equal those at the bounds",
            UserWarning,
            stacklevel=4,
        )


def check_container(name: str, value: Any) -> None:
    """Refuse objects that cannot hold records: None, a path, a number, a mapping, a set.

    Raises TypeError if NumPy could not convert it to an array with at least one dimension.
    """
    listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
    made = any(hasattr(type(value), way) for way in ("__array__", "__array_interface__", "__array_struct__"))
    if not (listed or made or known_shape(value)) or known_shape(value) == ():
        raise TypeError(f"{name} must be an array, or convertible to one by NumPy, got {type(value).__name__}")


def as_record_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Convert records to an array; the mechanism checks its content.

    **Privacy.** Reads records. NumPy's error for ragged lists contains the number of rows, and a foreign
    ``__array__`` may raise any error: neither text nor the error itself is passed on.

    Raises RecordError if it cannot be converted to an array. Raises OSError if the system refused to read it.
    """
    return quietly(
        lambda: as_array(value),
        f"{name} must be an array, or convertible to one by NumPy, with rows of equal length (the reason of the "
        "failure is withheld: it could quote a record)",
    )


def quietly(action: Callable[[], T], message: str) -> T:
    """Return ``action()``; a foreign error, whose text may quote a record, becomes a RecordError with `message`."""
    try:
        return action()
    except DpinferError:
        raise
    except OSError as error:
        number = error.errno
    except Exception:
        number = None
    # Raised outside the handler: otherwise the foreign error would travel along as __context__.
    if number is not None:
        raise OSError(number, os.strerror(number))
    raise RecordError(message)


def check_numbers(name: str, array: Any) -> None:
    """Refuse objects that are not arrays, and arrays and data frames without real numbers, by their types."""
    check_container(name, array)
    refuse_array_type(name, array)
    if is_frame(array):
        _check_frame(name, array)
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind not in "fiub":
        # The width of a type of text is the length of the longest one.
        raise TypeError(f"{name} must be an array of real numbers, got type {dtype.type.__name__}")


def _check_frame(name: str, frame: Any) -> None:
    """Refuse a data frame whose types do not make an array of numbers, whatever its values are."""
    if not hasattr(type(frame), "__array__"):
        raise TypeError(f"{name} must be an array, or a data frame that NumPy converts, got {type(frame).__name__}")
    head = frame.head(0) if hasattr(frame, "head") else frame.slice(0, 0)
    if as_record_array(name, head).dtype.kind not in "fiub":
        others = [column for column, kind in column_types(frame) if not is_number_type(kind)]
        raise TypeError(f"{name} must have columns of numbers alone, and not {', '.join(map(repr, others[:3]))}")


def check_finite(name: str, records: npt.NDArray[Any]) -> None:
    """Refuse a NaN or an infinity among the records.

    **Privacy.** Reads the records, some at a time, and names no value.

    Raises RecordError if there is one.
    """
    for start in range(0, len(records), _CHUNK):
        if not np.all(np.isfinite(records[start : start + _CHUNK])):
            raise RecordError(f"{name} must be finite: it holds a NaN or an infinity")


def check_columns(X: Any, n_columns: int) -> None:
    """Refuse features that are not a table of numbers with so many columns.

    **Privacy.** Does not reveal the number of rows, which is private under add/remove adjacency.
    """
    check_numbers("X", X)
    shape = known_shape(X)
    if shape is not None and (len(shape) != 2 or shape[1] != n_columns):
        raise RecordError(f"X must be two-dimensional with {n_columns} columns, got {_columns(shape)}")


def check_response(X: Any, y: Any, *, beside: int = 0) -> None:
    """Refuse responses that are not one number for each row, or a response, its survey weight, and its stratum.

    **Privacy.** A record is a row with its response, so that no data set has more of one.
    """
    check_numbers("y", y)
    rows, shape = known_shape(X), known_shape(y)
    if beside and shape is not None and (shape[1:] != (1 + beside,) or (rows is not None and rows[0] != shape[0])):
        columns = ("two columns, response and survey weight,", "three columns, response, survey weight and stratum,")
        raise RecordError(f"y must have {columns[beside - 1]} and as many rows as X")
    if not beside and shape is not None and (len(shape) != 1 or (rows is not None and rows[:1] != shape)):
        raise RecordError("y must be one-dimensional with as many entries as X has rows")


def check_values(X: Any, owner: str) -> None:
    """Refuse records that are not one number each."""
    check_numbers("X", X)
    shape = known_shape(X)
    if shape is not None and len(shape) != 1 and shape[1:] != (1,):
        raise RecordError(f"X must have shape (N,) or (N, 1) for {owner}, got {_columns(shape)}")


def check_layout(model: Any, X: Any, y: Any) -> None:
    """Refuse arrays that do not have the form of the model's records."""
    if model.record_form == "values":
        check_values(X, type(model).__name__)
        return
    check_columns(X, model.n_features)
    if model.record_form == "regression":
        check_response(X, y, beside=survey_columns(model))


def survey_columns(model: Any) -> int:
    """Return how many numbers each response of the model has beside it: a survey weight, and then a stratum."""
    weights = getattr(model, "survey_weights", None)
    return 0 if weights is None else 1 + (weights.strata > 0)


def _columns(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} columns" if len(shape) == 2 else f"{len(shape)} dimensions"
