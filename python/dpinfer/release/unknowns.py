"""Releases of unknown facts: the number of records, bounds of columns, and labels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpinfer._arrays import FloatArray
from dpinfer._validate import POSITIVE, Range, Shape, check_float_array, check_integer, check_interval
from dpinfer.accounting import Adjacency, Event
from dpinfer.release.guarantee import Stated


@dataclass(frozen=True, eq=False, kw_only=True)
class _UnknownRelease(Stated):
    """Base of the three releases."""

    event: Event
    adjacency: Adjacency = field()
    # the mechanism, the version and the ledger's entry, if there is one
    settings: Mapping[str, Any] = field(default_factory=dict)
    _frozen: ClassVar[tuple[str, ...]] = ("settings",)


@dataclass(frozen=True, eq=False, kw_only=True)
class CountRelease(_UnknownRelease):
    """A noisy number of records, and the distribution of the true one given it.

    Given the noisy count, and before it every number from 1 on alike likely, the number of records has the law of the
    noise around it, cut off below 1: `mean`, :meth:`quantile` and :meth:`sample` are of that law, exactly.

    **Privacy.** Safe to publish: the count carries the noise that `event` accounts for.

    Parameters
    ----------
    noisy_count : int
        May be negative.
    laplace_scale : float
        Of the discrete Laplace noise, positive.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, settings
        As every release has them.

    Examples
    --------
    >>> from dpinfer.accounting import PureEvent
    >>> count = CountRelease(noisy_count=5000, laplace_scale=20.0, event=PureEvent(0.05, "add_remove"),
    ...                      adjacency="add_remove")
    >>> count.n_records, count.quantile([0.05, 0.95]).tolist()
    (5000, [4954, 5046])
    """

    noisy_count: int
    laplace_scale: Annotated[float, POSITIVE]
    _part_name: ClassVar[str] = "number of records"
    _released: ClassVar[str] = "the noisy number of records"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noisy_count", check_integer("noisy_count", self.noisy_count))
        self._check_fields({})
        super().__post_init__()

    @property
    def n_records(self) -> int:
        """The released number, at least 1: for the argument of that name."""
        return max(1, self.noisy_count)

    @property
    def mean(self) -> float:
        """Of the number of records, given the noisy one."""
        below, left, right = self._law()
        ratio = math.exp(-1.0 / self.laplace_scale)
        # The distance below the peak is a geometric variable that is cut off, that above it is not.
        above = 1.0 / -math.expm1(-1.0 / self.laplace_scale)
        cut = ratio / (1.0 - ratio) - below * ratio**below / (-math.expm1(-below / self.laplace_scale))
        return self.n_records + (right * above - left * cut)

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise; also of the number of records if the noisy one is far above it."""
        ratio = math.exp(-1.0 / self.laplace_scale)
        return math.sqrt(2.0 * ratio) / (1.0 - ratio)

    def quantile(self, levels: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return quantiles of the number of records, given the noisy one: the least with at least this probability."""
        level = check_float_array("levels", levels)
        if not np.all((level > 0.0) & (level < 1.0)):
            raise ValueError("levels must lie in (0, 1)")
        below, left, right = self._law()
        scale = self.laplace_scale
        tail = math.exp(-below / scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            # P(distance below the peak >= k) after truncation; P(distance above >= k) = ratio**(k - 1).
            down = -scale * np.log(tail + (1.0 - tail) * np.minimum(level / left, 1.0))
            up = -scale * np.log((1.0 - level) / right)
        steps = np.where(level <= left, -np.floor(down + 1e-9), np.maximum(np.ceil(up - 1e-9), 1.0))
        return np.asarray(self.n_records + steps, dtype=np.int64)

    def sample(self, size: int, *, seed: int) -> npt.NDArray[np.int64]:
        """Return independent draws of the number of records, given the noisy one, (size,).

        The seed is of post-processing: it has nothing to do with the release's noise.
        """
        draws = np.random.default_rng(check_integer("seed", seed, 0)).random(check_integer("size", size, 1))
        return self.quantile(np.clip(draws, 1e-15, 1.0 - 1e-15))

    def _law(self) -> tuple[int, float, float]:
        """Return how many numbers lie below or at the peak, and the probabilities of these and of those above it."""
        below = self.n_records if self.noisy_count >= 1 else 1
        ratio = math.exp(-1.0 / self.laplace_scale)
        here, above = -math.expm1(-below / self.laplace_scale), ratio
        return below, here / (here + above), above / (here + above)

    def __repr__(self) -> str:
        return f"CountRelease({self.noisy_count}, standard deviation {self.noise_stddev:.3g})\n  {self.guarantee}"


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundsRelease(_UnknownRelease):
    """Private quantiles of columns of numbers, and the bounds that follow from them.

    **Privacy.** Safe to publish: in which cell of a public grid a quantile lies was drawn by the exponential
    mechanism, which `event` accounts for.

    Parameters
    ----------
    names : tuple of k str
    lower, upper : (k,) float64
        Where the cells of the quantiles of `probability` and of 1 - `probability` begin and end, lower < upper.
    probability : float
        In (0, 0.5).
    limits : (k, 2) float64
        Public limits, infinite by default; bounds stay inside.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, settings
        As every release has them.
    """

    names: tuple[str, ...]
    lower: Annotated[FloatArray, Shape("k")]
    upper: Annotated[FloatArray, Shape("k")]
    probability: Annotated[float, Range(0.0, 0.5)]
    limits: FloatArray
    _part_name: ClassVar[str] = "quantiles for bounds"
    _released: ClassVar[str] = "the private quantiles"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "names", tuple(self.names))
        self._check_fields({"k": len(self.names)})
        limits = check_float_array("limits", self.limits, (len(self.names), 2), finite=False).copy()
        limits.flags.writeable = False
        put(self, "limits", limits)
        if not np.all(self.lower < self.upper):
            raise ValueError("lower must be less than upper")
        super().__post_init__()

    @property
    def centre(self) -> FloatArray:
        """Middle between the two quantiles of each column, (k,)."""
        return 0.5 * (self.lower + self.upper)

    @property
    def scale(self) -> FloatArray:
        """Standard deviation of the normal law with these quantiles, (k,)."""
        return (self.upper - self.lower) / (-2.0 * float(ndtri(self.probability)))

    def bounds(self, reach: float = 4.0) -> FloatArray:
        """Return bounds of each column, (k, 2): `reach` scales to either side of the centre, inside the limits.

        Outside of 4 scales lie 6 in 100 000 of a normal column.  Values outside of the bounds are clamped.
        """
        reach = check_interval("reach", reach, 0.0)
        ends = self.centre[:, None] + np.array([-reach, reach]) * self.scale[:, None]
        return np.clip(ends, self.limits[:, :1], self.limits[:, 1:])

    def __repr__(self) -> str:
        return f"BoundsRelease({len(self.names)} columns)\n  {self.guarantee}"


@dataclass(frozen=True, eq=False, kw_only=True)
class CategoriesRelease(_UnknownRelease):
    """The labels of columns that enough records have, with noisy counts.

    **Privacy.** Safe to publish: a label is here because its noisy count passed a threshold, which `event` accounts
    for.  A label that one record alone has gets here with a probability of at most delta.

    Parameters
    ----------
    noisy_counts : mapping
        Name of a column to a mapping of labels to noisy counts, in descending order.
    laplace_scale : float
        Of the noise in each count.
    threshold : int
        Which every noisy count reached.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, settings
        As every release has them.
    """

    noisy_counts: Mapping[str, Mapping[str, int]]
    laplace_scale: Annotated[float, POSITIVE]
    threshold: int
    _part_name: ClassVar[str] = "labels of categories"
    _released: ClassVar[str] = "the labels and their noisy counts"
    _frozen: ClassVar[tuple[str, ...]] = ("settings", "noisy_counts")

    def __post_init__(self) -> None:
        self._check_fields({})
        object.__setattr__(self, "threshold", check_integer("threshold", self.threshold, 1))
        for counts in self.noisy_counts.values():
            if any(count < self.threshold for count in counts.values()):
                raise ValueError("noisy_counts must reach the threshold")
        super().__post_init__()

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Labels of each column, the most frequent first."""
        return {name: tuple(counts) for name, counts in self.noisy_counts.items()}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name!r}: {len(counts)}" for name, counts in self.noisy_counts.items())
        return f"CategoriesRelease({sizes})\n  {self.guarantee}"
