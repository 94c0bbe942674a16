"""The optional packages of the adapters: imported on use, in at least the versions of their extras."""

import re
from importlib import import_module
from typing import Any

from dpinfer.errors import BackendUnavailableError

# As in the extras of pyproject.toml.
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
