"""Registry of the code that sums the records of a model, by kind of sum, kind of model, and backend."""

from collections.abc import Callable
from typing import Any, TypeVar

from dpinfer.errors import BackendUnavailableError

Opener = TypeVar("Opener", bound=Callable[..., Any])

_OPENERS: dict[tuple[str, str, str], Callable[..., Any]] = {}


def sums(quantity: str, kind: str, backend: str = "cpu") -> Callable[[Opener], Opener]:
    """Register a function that opens a session over records, as a decorator.

    Parameters
    ----------
    quantity : {"gradients", "sites"}
    kind : str
        The value of a model's `gradient_sum` or `site_sum`.
    backend : str
    """

    def register(opener: Opener) -> Opener:
        _OPENERS[quantity, kind, backend] = opener
        return opener

    return register


def find_sum(quantity: str, kind: str | None, backend: str = "cpu") -> Callable[..., Any]:
    """Return the function that opens a session.

    Raises
    ------
    BackendUnavailableError
        If there is none: never another backend in its place.
    """
    opener = _OPENERS.get((quantity, str(kind), backend))
    if opener is None:
        raise BackendUnavailableError(f"no backend {backend!r} sums the {quantity} of models of kind {kind!r}")
    return opener
