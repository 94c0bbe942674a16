"""Methods by name: those of the library, and those that other packages bring."""

from dpinfer._plugins import find_plugin
from dpinfer.fitting.routes import METHODS, ROUTES, Route
from dpinfer.release import Release

__all__ = ["find_route", "marked"]

_GROUP = "dpinfer.methods"


def find_route(method: str) -> tuple[Route, str]:
    """Return a method, and the package that brings it: empty for the library's own, whose names are theirs.

    **Privacy.** Reads no records.

    Parameters
    ----------
    method : str

    Raises
    ------
    TypeError, ValueError
        If there is none of that name, or what a package brings is no subclass of Route.
    """
    if method in ROUTES:
        return ROUTES[method], ""
    found = find_plugin(_GROUP, method) if isinstance(method, str) else None
    if found is None:
        listed = ", ".join(repr(name) for name in METHODS)
        raise ValueError(f"method must be one of {listed}, or an entry point of {_GROUP}, got {method!r}")
    kind, package = found
    if not isinstance(kind, type) or not issubclass(kind, Route):
        raise TypeError(f"method {method!r} of {package} must be a subclass of Route")
    return kind(), package


def marked(release: Release, event: object, method: str, package: str) -> Release:
    """Return the release of a method that another package brings, which says so.

    **Privacy.** What was charged is the plan's event.  A release that is accounted for as anything else has no
    guarantee: it is given back all the same, since it was paid for, and says why.

    Parameters
    ----------
    release : Release
    event : Event
        Of the plan.
    method, package : str
    """
    if not isinstance(release, Release):
        raise TypeError(f"method {method!r} of {package} must return a release, got {type(release).__name__}")
    said = release.replace(settings={**release.settings, "method_of": {"name": method, "package": package}})
    if release.event != event:
        return said.with_leaks(f"the method {method!r} of {package} did something else than its plan says")
    return said
