"""Registry of the code that sums the records of a model, by kind of sum and kind of model."""

from collections.abc import Callable
from typing import Any, TypeVar

Opener = TypeVar("Opener", bound=Callable[..., Any])

_OPENERS: dict[tuple[str, str], Callable[..., Any]] = {}


def sums(quantity: str, kind: str) -> Callable[[Opener], Opener]:
    """Register a function that opens a session over records, as a decorator.

    Parameters
    ----------
    quantity : {"gradients", "sites"}
    kind : str
        The value of a model's `gradient_sum` or `site_sum`.
    """

    def register(opener: Opener) -> Opener:
        _OPENERS[quantity, kind] = opener
        return opener

    return register


def find_sum(quantity: str, kind: str | None) -> Callable[..., Any]:
    """Return the function that opens a session.

    Raises
    ------
    TypeError
        If there is none.
    """
    opener = _OPENERS.get((quantity, str(kind)))
    if opener is None:
        raise TypeError(f"no code sums the {quantity} of models of kind {kind!r}")
    return opener
