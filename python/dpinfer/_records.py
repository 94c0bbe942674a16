"""Records on their way to a mechanism: when they are looked at, and what is said when they cannot be."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.errors import DpinferError, RecordError

__all__ = ["DeferredArray", "as_record_array", "check_container", "known_shape", "warn_of_clamped"]


class DeferredArray:
    """Records that are read when NumPy makes an array of them, which private functions do when they are charged.

    **Privacy.** Reads no record until then.

    Parameters
    ----------
    load : callable
        Returns the array.
    """

    def __init__(self, load: Callable[[], npt.NDArray[Any]]) -> None:
        self._load = load

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self._load()
        return array if dtype is None else array.astype(dtype)


def known_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape that an array or a data frame says it has, None where only an array made of it would tell.

    **Privacy.** Reads no record.  The number of rows is in it, which is private under add/remove adjacency.
    """
    try:
        shape = value.shape
    except Exception:
        return None
    if not isinstance(shape, tuple) or not all(isinstance(size, (int, np.integer)) for size in shape):
        return None
    return tuple(int(size) for size in shape)


def warn_of_clamped(argument: str, columns: Sequence[str]) -> None:
    """Say that points to predict at lie beyond the public bounds of the fit, which are the caller's own points.

    Parameters
    ----------
    argument : str
    columns : sequence of str
        Where some lie beyond; nothing is said where there is none.
    """
    if columns:
        warnings.warn(
            f"{argument} has points beyond the public bounds in {', '.join(map(repr, columns))}: they are clamped, as "
            "in the fit, and what is predicted there is what is predicted at the bounds",
            UserWarning,
            stacklevel=4,
        )


def check_container(name: str, value: Any) -> None:
    """Refuse what holds no records, whatever it holds: None, a path, a number, a mapping, a set.

    **Privacy.** Reads no record.

    Raises
    ------
    TypeError
        If NumPy could not make an array with a dimension of it.
    """
    listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
    made = any(hasattr(type(value), way) for way in ("__array__", "__array_interface__", "__array_struct__"))
    if not (listed or made or known_shape(value)) or known_shape(value) == ():
        raise TypeError(f"{name} must be an array, or what NumPy can make one of, got {type(value).__name__}")


def as_record_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return what is to hold records as an array, whatever it is; for what is in it see the mechanism's own checks.

    **Privacy.** Reads records.  NumPy's error for ragged lists tells how many rows there are, and a foreign
    ``__array__`` raises what it likes: neither text passes, nor does the error travel along.

    Raises
    ------
    RecordError
        If it cannot be made an array.
    OSError
        If the system refused to read it.
    """
    try:
        return np.asarray(value)
    except DpinferError:
        raise
    except OSError as error:
        number = error.errno
    except Exception:
        number = None
    if number is not None:
        raise OSError(number, os.strerror(number))
    raise RecordError(
        f"{name} must be an array or what NumPy can make one of, with rows of equal length, and is not (the reason is "
        "withheld: it could quote a record)"
    )
