"""Public names of a package that are imported on first use (PEP 562)."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *, modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        The names, separated by spaces, by the module that defines them; a relative module begins with a dot.
    modules : str
        Submodules that are attributes themselves, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    submodules = modules.split()

    def find(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f".{name}", package)
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name], package), name)

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return find, names
