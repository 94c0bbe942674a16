"""The table of methods: the ways from records to a posterior, and what each plans, predicts, checks, runs and infers.

Whatever fits a model (``fit``, estimators, formulas, the command line, ``unknown=``, ledger, replay, audit) looks a
method up here by name, and knows nothing else of it.  A package brings another by an entry point (docs/stability.md).
"""

from dpinfer._plugins import find_plugin
from dpinfer.methods.method import DoesNotApplyError, MechanismPlan, Method, RunSettings, StatisticPlan, Target
from dpinfer.methods.rows import DPVIMethod, NewtonMethod, SepMethod, StatisticMethod
from dpinfer.release import Release

__all__ = [
    "METHODS",
    "DoesNotApplyError",
    "MechanismPlan",
    "Method",
    "NewtonMethod",
    "RunSettings",
    "StatisticPlan",
    "Target",
    "find_method",
    "marked",
    "method_with",
]

_GROUP = "dpinfer.methods"

METHODS: dict[str, Method] = {
    method.name: method for method in (NewtonMethod(), StatisticMethod(), DPVIMethod(), SepMethod())
}


def find_method(name: str) -> tuple[Method, str]:
    """Return a method, and the package that brings it: empty for the library's own, whose names are theirs.

    **Privacy.** Reads no records.

    Parameters
    ----------
    name : str

    Raises
    ------
    TypeError, ValueError
        If there is none of that name, or what a package brings is no subclass of Method.
    """
    if isinstance(name, str) and name in METHODS:
        return METHODS[name], ""
    found = find_plugin(_GROUP, name) if isinstance(name, str) else None
    if found is None:
        listed = ", ".join(repr(own) for own in ("auto", *METHODS))
        raise ValueError(f"method must be one of {listed}, or an entry point of {_GROUP}, got {name!r}")
    kind, package = found
    if not isinstance(kind, type) or not issubclass(kind, Method):
        raise TypeError(f"method {name!r} of {package} must be a subclass of Method")
    return kind(), package


def method_with(option: str, name: str, *, argument: str | None = None) -> str:
    """Return the method that was asked for, if it has an option of a fit; for "auto" the library's first that has it.

    Parameters
    ----------
    option : {"unit", "unknown", "cuda", "levels"}
    name : str
        "auto", or a method.
    argument : str, optional
        What messages call the option.

    Raises
    ------
    ValueError
        If the method does not have it.
    """
    having = [own for own, method in METHODS.items() if option in method.offers]
    if name == "auto":
        return having[0]
    if option not in find_method(name)[0].offers:
        listed = " or ".join(repr(own) for own in ("auto", *having))
        raise ValueError(f"method must be {listed} with {argument or option}, got {name!r}")
    return name


def marked(release: Release, event: object, method: str, package: str) -> Release:
    """Return the release of another package's method, marked with the package's name.

    **Privacy.** The charge is the plan's event.  A release with another event has no guarantee; it is still returned,
    since it was paid for, with the reason.

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
        return said.with_leaks(f"the method {method!r} of {package} deviates from its plan")
    return said
