"""Names that are found on first use: public names of a package (PEP 562), and entry points of other packages."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # typing would take most of the time of ``import dpinfer``
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str,  # its ``__name__``
    homes: Mapping[str, str],  # names, separated by spaces, by the module that defines them; a relative one has a dot
    *,
    modules: str = "",  # submodules that are attributes themselves, separated by spaces
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``."""
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


def find_plugin(group: str, name: str) -> tuple[Any, str] | None:
    """Return the object that an installed package registers under a name, and the package with its version, or None.

    Groups are ``"dpinfer.models"``, ``"dpinfer.methods"``, ``"dpinfer.sources"`` and ``"dpinfer.noise_laws"``.

    Raises ValueError if two packages register that name.
    """
    from importlib.metadata import entry_points  # tens of milliseconds

    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(entries) > 1:
        packages = ", ".join(sorted(entry.dist.name for entry in entries.values() if entry.dist is not None))
        raise ValueError(f"two packages ({packages}) register {name!r} in {group}: remove one of them")
    for entry in entries.values():
        package = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        return entry.load(), package
    return None
