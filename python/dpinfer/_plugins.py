"""Entry points of other packages, looked up by name and loaded on use."""

from importlib.metadata import entry_points
from typing import Any


def find_plugin(group: str, name: str) -> tuple[Any, str] | None:
    """Return the object that an installed package registers under a name, and the package with its version, or None.

    Raises ValueError if two packages register that name.

    Parameters
    ----------
    group : str
        ``"dpinfer.models"``, ``"dpinfer.methods"``, ``"dpinfer.sources"`` or ``"dpinfer.noise_laws"``.
    name : str
    """
    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(entries) > 1:
        packages = ", ".join(sorted(entry.dist.name for entry in entries.values() if entry.dist is not None))
        raise ValueError(f"two packages ({packages}) register {name!r} in {group}: remove one of them")
    for entry in entries.values():
        package = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        return entry.load(), package
    return None
