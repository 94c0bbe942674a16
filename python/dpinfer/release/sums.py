"""The release of one private sum: noisy totals of the records' contributions."""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from scipy.special import ndtri

from dpinfer._arrays import FloatArray
from dpinfer._validate import POSITIVE, Shape, check_choice, check_integer, check_interval
from dpinfer.accounting import Adjacency, Event, GaussianEvent, NonPrivateEvent, PureEvent
from dpinfer.release.guarantee import Release

_ROUNDING = 1e-6  # the lattice rounds the largest norm by less than 2**-30, the square root by less


@dataclass(frozen=True, eq=False, kw_only=True)
class SumRelease(Release):
    """Noisy sums over the records, and all that is needed to use them.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public.

    Parameters
    ----------
    names : tuple of s str
        What each sum is of.
    noisy_sums : (s,) float64
        In units of the contributions.
    noise : {"gaussian", "laplace"}
        Law of the noise in each sum, independent of the others'.
    noise_scale : float
        Standard deviation of Gaussian noise, or scale b of Laplace noise with density exp(-abs(x) / b) / (2 b).
    max_norm : float
        The largest norm of one record's contribution: Euclidean for Gaussian noise, the sum of absolute values for
        Laplace noise.
    event : Event
        ``GaussianEvent`` or ``PureEvent``.
    n_records : int, optional
        The *public* number of records, where there is one.
    adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`; `settings` names what the sums are a table of, and `model_spec` is empty.
    """

    noisy_sums: Annotated[FloatArray, Shape("s")]
    noise: str
    noise_scale: Annotated[float, POSITIVE]
    max_norm: Annotated[float, POSITIVE]
    event: Event
    adjacency: Adjacency = field()
    n_records: int | None = None
    format_name: ClassVar[str] = "dpinfer-sum-release"
    _part_name: ClassVar[str] = "private sums"
    _released: ClassVar[str] = "the noisy sums"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "names", tuple(self.names))
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise ValueError("names must hold at least one string")
        self._check_fields({"s": len(self.names)})
        check_choice("noise", self.noise, ("gaussian", "laplace"))
        if self.n_records is not None:
            put(self, "n_records", check_integer("n_records", self.n_records, 1))
        self._check_guarantee()
        self._check_noise()

    def _check_noise(self) -> None:
        """Refuse a guarantee for anything but this noise."""
        event = self.event
        if isinstance(event, NonPrivateEvent):
            return
        if self.noise == "gaussian" and isinstance(event, GaussianEvent):
            least = event.noise_multiplier * self.max_norm
        elif self.noise == "laplace" and isinstance(event, PureEvent):
            least = (2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0) * self.max_norm / event.epsilon
        else:
            raise ValueError(f"event must be that of {self.noise} noise, got {type(event).__name__}")
        if not self.noise_scale >= least * (1.0 - _ROUNDING):
            raise ValueError("noise_scale must be that of the event")

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise in each sum."""
        return self.noise_scale * (1.0 if self.noise == "gaussian" else math.sqrt(2.0))

    def interval(self, level: float = 0.9) -> FloatArray:
        """Return an interval for each sum over the records, (s, 2): it leaves out the noise of both ends alike.

        It holds its sum with probability `level` in (0, 1), over the noise.
        """
        level = check_interval("level", level, 0.0, 1.0)
        unit = float(ndtri(0.5 + 0.5 * level)) if self.noise == "gaussian" else -math.log1p(-level)
        return self.noisy_sums[:, None] + self.noise_scale * unit * np.array([-1.0, 1.0])

    def __repr__(self) -> str:
        return f"SumRelease({len(self.names)} sums, {self.noise} noise of {self.noise_scale:.4g})\n  {self.guarantee}"
