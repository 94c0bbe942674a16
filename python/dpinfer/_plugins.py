"""What other packages bring: entry points, looked for by name and loaded when they are asked for."""

from importlib.metadata import entry_points
from typing import Any

__all__ = ["find_plugin"]


def find_plugin(group: str, name: str) -> tuple[Any, str] | None:
    """Return what an installed package brings under a name, and the package with its version; None where none does.

    Parameters
    ----------
    group : str
        ``"dpinfer.models"``, ``"dpinfer.methods"``, ``"dpinfer.sources"`` or ``"dpinfer.noise_laws"``.
    name : str

    Raises
    ------
    ValueError
        If two packages bring that name.
    """
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(found) > 1:
        packages = ", ".join(sorted(entry.dist.name for entry in found.values() if entry.dist is not None))
        raise ValueError(f"{name!r} is brought to {group} by two packages ({packages}): remove one of them")
    for entry in found.values():
        package = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        return entry.load(), package
    return None
