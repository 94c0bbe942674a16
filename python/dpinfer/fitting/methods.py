"""Methods by name: those of the library, and those of other packages."""

from dpinfer._plugins import find_plugin
from dpinfer.fitting.routes import METHODS, ROUTES, Route
from dpinfer.release import Release

__all__ = ["find_route", "marked"]

_GROUP = "dpinfer.methods"


def find_route(method: str) -> tuple[Route, str]:
    """Return a method, and its package: empty for the library's own methods, whose names take precedence.

    **Privacy.** Reads no records.

    Parameters
    ----------
    method : str

    Raises
    ------
    TypeError, ValueError
        If there is no method of that name, or a package's object is not a subclass of Route.
    """
    if method in ROUTES:
        return ROUTES[method], ""
    plugin = find_plugin(_GROUP, method) if isinstance(method, str) else None
    if plugin is None:
        listed = ", ".join(repr(name) for name in METHODS)
        raise ValueError(f"method must be one of {listed}, or an entry point of {_GROUP}, got {method!r}")
    kind, package = plugin
    if not isinstance(kind, type) or not issubclass(kind, Route):
        raise TypeError(f"method {method!r} of {package} must be a subclass of Route")
    return kind(), package


def marked(release: Release, event: object, method: str, package: str) -> Release:
    """Return the release of another package's method, marked with the package's name.

    **Privacy.** The charge is the plan's event. A release with another event has no guarantee; it is still returned,
    since
    it was paid for, with the reason.

    Parameters
    ----------
    release : Release
    event : Event
        Of the plan.
    method, package : str
    """
    if not isinstance(release, Release):
        raise TypeError(f"method {method!r} of {package} must return a release, got {type(release).__name__}")
    named = release.replace(settings={**release.settings, "method_of": {"name": method, "package": package}})
    if release.event != event:
        return named.with_leaks(f"the method {method!r} of {package} deviates from its plan")
    return named
