"""The release of a sufficient-statistic mechanism: noisy sums, their Laplace scales, and public facts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import Shape, check_choice, check_integer, check_interval
from dpinfer.accounting import Adjacency, ApproximateEvent, Event, NoiseTable, NonPrivateEvent, PureEvent
from dpinfer.release.guarantee import Release

_METHODS = ("one_shot", "bernstein_sheldon", "gibbs_ss_noisy")
_COARSE = 2.0**-9  # sites round a bound to a lattice of 2**10 steps at least, which makes the noise less by as much


@dataclass(frozen=True, eq=False, kw_only=True)
class StatisticRelease(Release):
    """Noisy sufficient statistics, with the public facts for inference.

    An event that claims more noise than the statistics of a one-shot run have is refused.

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
        check_choice("method", self.method, _METHODS)
        self._check_fields({"s": len(self.names)})
        put(self, "names", tuple(self.names))
        put(self, "n_records", check_integer("n_records", self.n_records, 1))
        self._check_guarantee()
        if self.method == "one_shot" and not isinstance(self.event, NonPrivateEvent):
            self._check_noise()

    def _check_noise(self) -> None:
        """Refuse a guarantee for anything but this noise: that of `run_statistic`, whose docstring has the table."""
        sensitivity, event, law = self._sensitivity(), self.event, self.settings.get("noise")
        if isinstance(event, ApproximateEvent) and isinstance(law, Mapping):
            table = NoiseTable(tuple(int(weight) for weight in law["weights"]))
            least, claimed = math.sqrt(table.variance / 2.0), table.delta(event.epsilon, round(sensitivity))
            if claimed > event.delta:
                raise ValueError("event must have the delta of settings['noise']")
        elif isinstance(event, PureEvent) and law is None:
            least = sensitivity / event.epsilon
        else:
            raise ValueError(f"event must be that of its noise, got {type(event).__name__}")
        if not np.all(self.laplace_scale >= least * (1.0 - (_COARSE if "silos" in self.settings else 1e-6))):
            raise ValueError("laplace_scale must be that of the event")

    def _sensitivity(self) -> float:
        """Return how much one record moves the statistics, by the public facts in the release."""
        spec: Mapping[str, Any] = self.model_spec
        kind, replace = spec.get("kind"), self.adjacency is Adjacency.REPLACE_ONE
        if kind == "BetaBernoulli":
            return 1.0
        if kind == "BetaBinomial":
            return float(check_integer("model_spec['n_trials']", spec.get("n_trials"), 1))
        if kind == "DirichletCategorical":
            return 2.0 if replace else 1.0
        if kind == "GammaExponential":
            return check_interval("settings['clip']", self.settings.get("clip"), 0.0)
        raise ValueError("model_spec must be that of a conjugate model for a guarantee of its statistics")

    def __repr__(self) -> str:
        return f"StatisticRelease({self.method}: {len(self.names)} statistics)\n  {self.guarantee}"
