"""What a noisy table says: estimates, and intervals that count the privacy noise.

**Privacy.** Post-processing: reads the release alone.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_interval, check_type
from dpinfer.release import SumRelease, load_release
from dpinfer.tables.tuning import TUNING

_HALVINGS = 60  # of [-1, 1]: beyond the last bit of a double
_NEAREST = 0.9999  # ratio of Laplace scales that are told apart: their law is a difference that cancels at 1: precision
_SHOWN_ROWS = 40  # of a table on a screen: format


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A table of noisy counts or means, made from its release.

    **Privacy.** Safe to publish: computed from `release` alone.

    Raises TypeError or ValueError if it is another release.

    Parameters
    ----------
    release : SumRelease
        That of :func:`dpinfer.tables.counts`, :func:`~dpinfer.tables.crosstab` or :func:`~dpinfer.tables.means`.
    """

    release: SumRelease

    def __post_init__(self) -> None:
        check_type("release", self.release, SumRelease)
        if "table" not in self.release.settings:
            raise ValueError("release must be that of a table: its settings do not say of which")
        sums = len(self._cells()) * (3 if self.value else 1)
        if sums != len(self.release.names):
            raise ValueError("release must hold the sums of each cell that its settings say")

    @property
    def _table(self) -> Any:
        return self.release.settings["table"]

    @property
    def kind(self) -> str:
        """One of "counts", "crosstab", "means"."""
        return str(self._table["kind"])

    @property
    def value(self) -> str | None:
        """The column whose means these are; None for counts."""
        return None if self._table["value"] is None else str(self._table["value"]["name"])

    def _cells(self) -> list[dict[str, str]]:
        """Return the labels of each cell, in the order of the sums."""
        labels = self._table["labels"]
        return [
            dict(zip(margin, cell, strict=True))
            for margin in self._table["margins"]
            for cell in product(*(labels[name] for name in margin))
        ]

    @property
    def _sums(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return count, sum and sum of squares of each cell; values are scaled to [-1, 1]."""
        count, total, square = self.release.noisy_sums.reshape(-1, 3).T
        return count, total, square / TUNING.square_weight

    @property
    def _centre_and_reach(self) -> tuple[float, float]:
        low, high = self._table["value"]["bounds"]
        return 0.5 * (low + high), 0.5 * (high - low)

    @property
    def estimate(self) -> FloatArray:
        """Noisy count of each cell, at least 0; or its mean within the bounds, their middle in a cell with no count."""
        if self.value is None:
            return np.maximum(self.release.noisy_sums, 0.0)
        count, total, _ = self._sums
        centre, reach = self._centre_and_reach
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(count > 0.0, np.clip(total / count, -1.0, 1.0), 0.0)
        return np.asarray(centre + reach * ratio)

    def interval(self, level: float = 0.9, *, target: str | None = None) -> FloatArray:
        """Return an interval for each cell, (cells, 2): all that the bounds allow where the noise hides the cell.

        Parameters
        ----------
        level : float
            In (0, 1): the probability of holding the truth, for each cell by itself.
        target : {"sample", "population"}, optional
            Of a count only "sample": the number of records.  Of a mean "sample" is that of the records, where the
            privacy noise alone is random, or "population" (default), of which the records are a random sample: by the
            normal approximation of a mean.
        """
        level = check_interval("level", level, 0.0, 1.0)
        if self.value is None:
            check_choice("target", "sample" if target is None else target, ("sample",))
            low, high = self.release.interval(level).T
            low = np.maximum(np.ceil(low), 0.0)
            return np.column_stack((low, np.maximum(np.floor(high), low)))
        target = check_choice("target", "population" if target is None else target, ("sample", "population"))
        count, total, square = self._sums
        release = self.release

        def beyond(distance: FloatArray, mu: FloatArray) -> FloatArray:
            variance = np.zeros_like(mu)
            if target == "population":
                noise = release.noise_stddev * np.sqrt(TUNING.square_weight**-2 + 4.0 * mu**2 + mu**4)
                variance = _positive_mean(square - 2.0 * mu * total + mu**2 * count, noise)
            return probability_beyond(distance, release.noise, release.noise_scale, variance, mu)

        centre, reach = self._centre_and_reach
        return np.asarray(centre + reach * np.column_stack(hull_of_ratios(total, count, level, beyond)))

    def rows(self, level: float = 0.9, *, target: str | None = None) -> list[dict[str, Any]]:
        """Return a row for each cell: its labels, "estimate", "low" and "high".

        `level` and `target` are as of :meth:`interval`.
        """
        numbers = zip(self.estimate.tolist(), self.interval(level, target=target).tolist(), strict=True)
        return [
            {**_labels(cell, self.kind), "estimate": estimate, "low": low, "high": high}
            for cell, (estimate, (low, high)) in zip(self._cells(), numbers, strict=True)
        ]

    def to_dict(self, level: float = 0.9, *, target: str | None = None) -> dict[str, list[Any]]:
        """Return the columns of :meth:`rows`: ``pandas.DataFrame(table.to_dict())`` is a data frame."""
        rows = self.rows(level, target=target)
        return {name: [row[name] for row in rows] for name in rows[0]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the release; :func:`dpinfer.tables.load` reads it."""
        self.release.save(path)

    def __repr__(self) -> str:
        rows = self.rows()
        shown = [[f"{item:.6g}" if isinstance(item, float) else item for item in row.values()] for row in rows]
        lines = [list(rows[0]), *shown[:_SHOWN_ROWS]]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        text = ["  ".join(item.rjust(width) for item, width in zip(line, widths, strict=True)) for line in lines]
        more = [f"... {len(shown) - _SHOWN_ROWS} cells more"] if len(shown) > _SHOWN_ROWS else []
        of = f" of {self.value}" if self.value else ""
        return "\n".join([f"{self.kind}{of}, 90% intervals", *text, *more, f"  {self.release.guarantee}"])


def _labels(cell: dict[str, str], kind: str) -> dict[str, str]:
    """Return the labels of a row; a row of counts names its column too, since several tables share the rows."""
    if kind != "counts":
        return cell
    ((name, label),) = cell.items()
    return {"column": name, "label": label}


def _positive_mean(value: FloatArray, noise: FloatArray) -> FloatArray:
    """Return the mean of a number that is at least 0, given it with normal noise, and a flat prior."""
    score = value / noise
    hazard = np.exp(-0.5 * score**2 - 0.5 * math.log(2.0 * math.pi) - log_ndtr(score))
    return np.asarray(np.maximum(noise * (score + hazard), 0.0))


def table(release: SumRelease) -> NoisyTable:
    """Return the table of a release that :func:`counts`, :func:`crosstab` or :func:`means` has made."""
    return NoisyTable(release)


def load(path: str | os.PathLike[str]) -> NoisyTable:
    """Load a table that :meth:`NoisyTable.save` wrote.

    Raises OSError, ReleaseFormatError or ValueError if the file cannot be read, is no release of sums, or is not that
    of a table.
    """
    return NoisyTable(load_release(path, SumRelease))


def probability_beyond(
    distance: FloatArray,  # at least 0
    noise: str,  # {"gaussian", "laplace"}
    scale: float,  # standard deviation of Gaussian noise, or b of Laplace noise
    variance: FloatArray,  # at least 0
    factor: FloatArray,  # in [-1, 1]
) -> FloatArray:
    """Return P(abs(V + A + factor B) > distance), any shape: V ~ N(0, variance), A and B noise of `scale`."""
    if noise == "gaussian":
        return np.asarray(2.0 * ndtr(-distance / np.sqrt(variance + scale**2 * (1.0 + factor**2))))
    # The law of two Laplace numbers is a difference of two laws of one, by partial fractions of 1 / ((1 + t**2)(1 +
    # factor**2 t**2)).
    t, deviation, size = distance / scale, np.sqrt(variance) / scale, np.minimum(np.abs(factor), _NEAREST)
    second = np.where(size > 1e-9, size, 1.0)
    taken = np.where(size > 1e-9, size**2 * _beyond(t / second, deviation / second), 0.0)
    return np.asarray((_beyond(t, deviation) - taken) / (1.0 - size**2))


def _beyond(t: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return P(abs(N(0, deviation**2) + Laplace(1)) > t) for t >= 0 (Reed 2006)."""
    s = np.maximum(deviation, 1e-9)
    z = t / s
    near = np.exp(0.5 * s**2 - t + log_ndtr(z - s))
    far = np.exp(0.5 * s**2 + t + log_ndtr(-z - s))
    return np.asarray(2.0 * ndtr(-z) + near - far)


def hull_of_ratios(
    total: FloatArray, count: FloatArray, level: float, beyond: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return the ends in [-1, 1] of Fieller's set: all mu from which total - mu count is not too far from 0.

    Where no mu agrees all of [-1, 1] is returned.

    `total` and `count` (c,).  `beyond`: from a distance (c,) and mu (c,) to the probability that total - mu count is
    farther than that from 0.
    """

    def agrees(mu: FloatArray) -> npt.NDArray[np.bool_]:
        return np.asarray(beyond(np.abs(total - mu * count), mu) >= 1.0 - level)

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.clip(total / count, -1.0, 1.0))
    ends = np.full_like(ratio, -1.0), np.full_like(ratio, 1.0)
    inside = [agrees(end) for end in ends]
    centre = np.where(agrees(ratio), ratio, np.where(inside[0], ends[0], ends[1]))
    known = agrees(centre)
    found = []
    for end, reached in zip(ends, inside, strict=True):
        good, bad = centre, end
        for _ in range(_HALVINGS):
            middle = 0.5 * (good + bad)
            held = agrees(middle)
            good, bad = np.where(held, middle, good), np.where(held, bad, middle)
        found.append(np.where(reached | ~known, end, bad))
    return found[0], found[1]
