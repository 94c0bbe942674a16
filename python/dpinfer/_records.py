"""Records on their way to a mechanism: delayed reading, and errors that quote no record."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer.errors import DpinferError, RecordError

T = TypeVar("T")


class DeferredArray:
    """Records that are read when NumPy converts them to an array, which private functions do after the charge.

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
    """Warn that the caller's points for a prediction lie outside of the public bounds of the fit.

    Parameters
    ----------
    columns : sequence of str
        Columns with such points; no warning if there are none.
    """
    if columns:
        warnings.warn(
            f"{argument} has points beyond the public bounds in {', '.join(map(repr, columns))}: they are clamped, as "
            "in the fit, so that predictions there equal those at the bounds",
            UserWarning,
            stacklevel=4,
        )


def check_container(name: str, value: Any) -> None:
    """Refuse objects that cannot hold records: None, a path, a number, a mapping, a set.

    **Privacy.** Reads no record.

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
        lambda: np.asarray(value),
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
