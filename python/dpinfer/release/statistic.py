"""The release of a sufficient-statistic mechanism: noisy sums, their Laplace scales, and public facts."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from dpinfer._arrays import FloatArray
from dpinfer._validate import Shape, check_integer
from dpinfer.accounting import Adjacency, Event
from dpinfer.release.guarantee import Release


@dataclass(frozen=True, eq=False, kw_only=True)
class StatisticRelease(Release):
    """Noisy sufficient statistics, with the public facts for inference.

    **Privacy.** Safe to publish: the statistics carry the noise that `event` accounts for and everything else is
    public.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    method : str
        The mechanism: "one_shot", "bernstein_sheldon" or "gibbs_ss_noisy".
    names : tuple of s str
        Name of each statistic.
    noisy_statistics : (s,) float64
        Sums over the records, with noise.
    laplace_scale : (s,) float64
        Scale b of the Laplace noise in each, positive.
    n_records : int
        The *public* number of records.
    event : Event
        ``PureEvent(epsilon, adjacency)`` for Laplace noise.
    adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`; `settings` has bounds, sensitivities and the model's prior.
    """

    method: str
    noisy_statistics: Annotated[FloatArray, Shape("s")]
    laplace_scale: Annotated[FloatArray, Shape("s", positive=True)]
    n_records: int
    event: Event
    adjacency: Adjacency = field()
    format_name: ClassVar[str] = "dpinfer-statistic-release"
    _part_name: ClassVar[str] = "sufficient statistics"
    _released: ClassVar[str] = "the statistics"

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.method, str):
            raise TypeError(f"method must be a string, got {type(self.method).__name__}")
        self._check_fields({"s": len(self.names)})
        put(self, "names", tuple(self.names))
        put(self, "n_records", check_integer("n_records", self.n_records, 1))
        self._check_guarantee()

    def __repr__(self) -> str:
        return f"StatisticRelease({self.method}: {len(self.names)} statistics)\n  {self.guarantee}"
