"""Sources of records from other packages."""

from typing import Any

from dpinfer._lazy import find_plugin
from dpinfer.mechanism.sources.row_source import Records

_GROUP = "dpinfer.sources"


def open_source(name: str, *arguments: Any, **options: Any) -> Records:
    """Return a source of records that an installed package registers under a name, for any run that takes such records.

    **Privacy.** Calls the package's own code, which opens the records: it must not read them before a run asks for
    blocks, and a block must depend on its own records alone, as of any :class:`RowSource`.  dpinfer cannot check that.

    Parameters
    ----------
    name : str
        Among the entry points of ``dpinfer.sources`` (docs/stability.md).
    *arguments, **options
        Arguments of the package's function.

    Raises
    ------
    TypeError
        If it gives no Records.
    ValueError
        If no package, or more than one, registers the name.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    plugin = find_plugin(_GROUP, name)
    if plugin is None:
        raise ValueError(f"name must be an entry point of {_GROUP} of an installed package, got {name!r}")
    source = plugin[0](*arguments, **options)
    if not isinstance(source, Records):
        raise TypeError(f"{plugin[1]} must give Records for {name!r}, got {type(source).__name__}")
    return source
