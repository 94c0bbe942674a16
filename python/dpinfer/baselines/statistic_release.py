"""What a sufficient-statistic mechanism publishes: noisy sums, their Laplace scales, and public facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.accounting import Adjacency, PureEvent, as_adjacency
from dpinfer.release.guarantee import pure_guarantee_in_words, stated_epsilon

__all__ = ["StatisticRelease"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class StatisticRelease:
    """Noisy sufficient statistics and all that is needed to infer from them.

    **Privacy.** Safe to publish: the statistics carry the noise that `epsilon` accounts for (pure differential privacy,
    delta = 0) and everything else is public.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    method : str
        The mechanism: "bernstein_sheldon" or "gibbs_ss_noisy".
    names : tuple of s str
        What each statistic is.
    noisy_statistics : (s,) float64
        Sums over the records, with noise.
    laplace_scale : (s,) float64
        Scale b of the Laplace noise in each, positive.
    n_records : int
        The *public* number of records.
    certified_epsilon : float
        Positive.
    adjacency : Adjacency
    secure : bool
        False when a seeded generator drew the noise: then `epsilon` raises.
    settings : mapping
        Public settings as plain values: bounds, sensitivities, the model's prior.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong type, shape or range.
    """

    method: str
    names: tuple[str, ...]
    noisy_statistics: FloatArray
    laplace_scale: FloatArray
    n_records: int
    certified_epsilon: float
    adjacency: Adjacency
    secure: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__
        width = len(self.names)
        for name in ("noisy_statistics", "laplace_scale"):
            array = check_float_array(name, getattr(self, name), (width,)).copy()
            array.flags.writeable = False
            put(self, name, array)
        if not np.all(self.laplace_scale > 0.0):
            raise ValueError("laplace_scale must be positive")
        put(self, "names", tuple(self.names))
        put(self, "n_records", check_integer("n_records", self.n_records, 1))
        put(self, "certified_epsilon", check_interval("certified_epsilon", self.certified_epsilon, 0.0))
        put(self, "adjacency", as_adjacency(self.adjacency))
        put(self, "settings", MappingProxyType(dict(self.settings)))

    @property
    def event(self) -> PureEvent:
        """What was done with the records, as a ledger counts it."""
        return PureEvent(self.certified_epsilon, self.adjacency.value)

    @property
    def delta(self) -> float:
        """0: the guarantee is pure."""
        return 0.0

    @property
    def epsilon(self) -> float:
        """The epsilon of the pure guarantee.

        Raises
        ------
        InsecureReleaseError
            If the noise came from a seeded generator.
        """
        return stated_epsilon(self.certified_epsilon, secure=self.secure)

    @property
    def guarantee(self) -> str:
        """The privacy guarantee in words."""
        return pure_guarantee_in_words(self.certified_epsilon, self.adjacency, secure=self.secure)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuild, (values | {"settings": dict(self.settings)},)

    def __repr__(self) -> str:
        return f"StatisticRelease({self.method}: {len(self.names)} statistics)\n  {self.guarantee}"


def _rebuild(values: dict[str, Any]) -> StatisticRelease:
    return StatisticRelease(**values)
