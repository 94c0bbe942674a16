"""What a release says about its own privacy, the same for every kind of release."""

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from dpinfer._validate import check_interval
from dpinfer.accounting import Adjacency, Event, NonPrivateEvent, run_event
from dpinfer.errors import InsecureReleaseError

__all__ = [
    "PublishedTrace",
    "check_sums_event",
    "guarantee_in_words",
    "pure_guarantee_in_words",
    "stated_epsilon",
]

_NOT_PRIVATE = "NOT PRIVATE: the noise came from a seeded generator (for studies only)."
_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "adding or removing one record",
    Adjacency.ZERO_OUT: "blanking one record",
    Adjacency.REPLACE_ONE: "replacing one record",
}


def stated_epsilon(certified_epsilon: float, *, secure: bool) -> float:
    """Return the certified epsilon, or refuse when the noise came from a seeded generator.

    Raises
    ------
    InsecureReleaseError
        If `secure` is False.
    """
    if not secure:
        raise InsecureReleaseError(
            "this release is NOT PRIVATE: its noise came from a seeded generator, so it has no epsilon"
        )
    return certified_epsilon


def guarantee_in_words(
    certified_epsilon: float, delta: float, adjacency: Adjacency, *, secure: bool, released: str = "the whole trace"
) -> str:
    """Return the guarantee as a sentence."""
    if not secure:
        return _NOT_PRIVATE
    if math.isinf(certified_epsilon):
        return "No privacy guarantee is claimed for this release."
    return (
        f"({certified_epsilon:.4g}, {delta:.3g})-differentially private with respect to {_NEIGHBOURS[adjacency]}; "
        f"this holds for {released} and for everything computed from it."
    )


def pure_guarantee_in_words(epsilon: float, adjacency: Adjacency, *, secure: bool) -> str:
    """Return the guarantee of a release whose delta is 0, as a sentence."""
    if not secure:
        return _NOT_PRIVATE
    return f"{epsilon:.4g}-differentially private (delta = 0) with respect to {_NEIGHBOURS[adjacency]}."


class Guaranteed:
    """What releases that hold an (epsilon, delta) guarantee, frozen dataclasses, share: how they state it.

    **Privacy.** Post-processing: reads only what the release holds.
    """

    adjacency: Adjacency
    delta: float
    certified_epsilon: float
    secure: bool
    _released: ClassVar[str] = "the whole trace"

    @property
    def epsilon(self) -> float:
        """The certified epsilon at `delta`; infinity when no guarantee is claimed.

        Raises
        ------
        InsecureReleaseError
            If the noise came from a seeded generator.
        """
        return stated_epsilon(self.certified_epsilon, secure=self.secure)

    @property
    def guarantee(self) -> str:
        """The privacy guarantee in words."""
        return guarantee_in_words(
            self.certified_epsilon, self.delta, self.adjacency, secure=self.secure, released=self._released
        )


class PublishedTrace(Guaranteed):
    """What the releases of whole traces, frozen dataclasses, share: their guarantee, saving and pickling.

    **Privacy.** Post-processing: reads only what the release holds.
    """

    event: Event
    model_spec: Mapping[str, Any]
    settings: Mapping[str, Any]

    def _check_guarantee(self) -> None:
        """Check the fields that every release has, and freeze its mappings."""
        put = object.__setattr__
        if not isinstance(self.secure, (bool, np.bool_)):
            raise TypeError(f"secure must be a bool, got {type(self.secure).__name__}")
        put(self, "adjacency", Adjacency(self.adjacency))
        put(self, "delta", check_interval("delta", self.delta, 0.0, 1.0, low_open=False))
        epsilon = float(self.certified_epsilon)
        if math.isnan(epsilon) or epsilon < 0.0:
            raise ValueError(f"certified_epsilon must be at least 0, got {epsilon}")
        if isinstance(self.event, NonPrivateEvent) and math.isfinite(epsilon):
            raise ValueError("certified_epsilon must be infinite for an event that claims no guarantee")
        put(self, "certified_epsilon", epsilon)
        put(self, "model_spec", MappingProxyType(dict(self.model_spec)))
        put(self, "settings", MappingProxyType(dict(self.settings)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to `path`: no record, no seed, nothing without noise.  See :func:`dpinfer.release.save_release`."""
        from dpinfer.release.files import save_release

        save_release(self, path)  # type: ignore[arg-type]

    def _values(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return values | {"model_spec": dict(self.model_spec), "settings": dict(self.settings)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._values())


def _rebuild(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**values)


def check_sums_event(
    event: Event,
    adjacency: Adjacency,
    *,
    n_steps: int,
    sampling: str,
    sample_rate: float,
    n_records: int,
    noise_stddev: float,
    noise_multiplier: float,
    max_site_norm: float,
) -> None:
    """Refuse a guarantee for anything but these sums: their number, sampling and noise.

    Raises
    ------
    ValueError
        If the event is another's.
    """
    if isinstance(event, NonPrivateEvent):
        return
    single = None if sampling == "poisson" else n_records
    if event != run_event(noise_multiplier, sample_rate, n_steps, sampling, single):
        raise ValueError(f"event must be that of {n_steps} sums with {sampling!r} sampling, got another")
    if single is not None and adjacency is Adjacency.ADD_REMOVE:
        raise ValueError(f"adjacency must not be 'add_remove' with sampling={sampling!r}")
    if noise_stddev < noise_multiplier * max_site_norm * (1.0 - 1e-12):
        raise ValueError("noise_stddev must be noise_multiplier * max_site_norm")
