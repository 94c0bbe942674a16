"""The optional packages of the adapters, imported on use, and their code for one record, made to run over many."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.errors import BackendUnavailableError

# As in the extras of pyproject.toml; format.
OLDEST = {"jax": (0, 4, 30), "numpyro": (0, 15), "torch": (2, 2)}
_NAMES = {"jax": "JAX", "numpyro": "NumPyro", "torch": "PyTorch"}


def framework(package: str) -> Any:
    """Return an optional package.

    Raises BackendUnavailableError if it is not installed, or too old.
    """
    try:
        module = import_module(package)
    except ImportError as error:
        raise BackendUnavailableError(
            f"models in {_NAMES[package]} need it: pip install 'dpinfer[{package}]'"
        ) from error
    version = tuple(map(int, re.findall(r"\d+", module.__version__)[:3]))
    if version < OLDEST[package]:
        least = ".".join(map(str, OLDEST[package]))
        raise BackendUnavailableError(
            f"{package} must be at least {least}, got {module.__version__}: pip install -U 'dpinfer[{package}]'"
        )
    return module


FRAMEWORK_BLOCK = 2048  # records that compiled code is called with: enough that a call costs little beside them; time


def in_blocks(
    function: Callable[..., Any],  # ``function(params, *blocks)``, each of `size` rows; returns a row for each
    size: int,
) -> Callable[..., npt.NDArray[np.float64]]:
    """Return ``over(params, *arrays)``: `function` on the rows of the arrays, `size` at a time, the last block padded.

    The same compiled code runs for any number of rows, and memory is bounded by a block's.
    """

    def over(params: Any, *arrays: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        total = len(arrays[0])
        parts = []
        for first in range(0, max(total, 1), size):
            blocks = [array[first : first + size] for array in arrays]
            length = len(blocks[0])
            if length < size:
                blocks = [
                    np.concatenate((part, np.zeros((size - length, *part.shape[1:]), part.dtype))) for part in blocks
                ]
            parts.append(np.asarray(function(params, *blocks))[:length])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return over
