"""Private draws of unknown facts: a count, quantiles and labels, and the ranks that quantiles are drawn by.

**Privacy.** Reads the records.  Ranks have no noise, and are for a mechanism only: docs/derivations/unknowns.md.
"""

import hmac
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray, IntArray
from dpinfer._validate import as_record_array, check_numbers, known_shape
from dpinfer._values import is_listed, text_of
from dpinfer.accounting import Adjacency
from dpinfer.accounting.decimals import decimal_of
from dpinfer.errors import RecordError
from dpinfer.mechanism.discrete_laplace import KeystreamIntegers, discrete_laplace, laplace_mechanism
from dpinfer.mechanism.records import records_of, without_null_records
from dpinfer.mechanism.sources.row_source import Records, RowSource


class RankedColumn(ABC):
    """A column of numbers; NaN is a missing value and is left out."""

    size: int  # values that are not missing

    @abstractmethod
    def below(self, edges: FloatArray) -> IntArray:
        """Return how many values are less than each of the edges, which increase."""


class HeldColumn(RankedColumn):
    """A column in memory."""

    def __init__(self, values: FloatArray) -> None:
        self._ordered = np.sort(values[~np.isnan(values)])
        self.size = int(self._ordered.size)

    def below(self, edges: FloatArray) -> IntArray:
        """Return how many values are less than each of the edges, which increase."""
        return np.asarray(np.searchsorted(self._ordered, edges, side="left"), dtype=np.int64)


class ReadColumn(RankedColumn):
    """A column of a stream, read again for each query: memory holds one block."""

    def __init__(self, rows: Records, place: int, n_columns: int) -> None:
        self._rows, self._place, self._n_columns = rows, place, n_columns  # so many that every block must have
        self.size = int(self._ranks(np.empty(0))[-1])

    def below(self, edges: FloatArray) -> IntArray:
        """Return how many values are less than each of the edges, which increase.

        Raises RecordError if there are not as many values as before.
        """
        ranks = self._ranks(edges)
        if ranks[-1] != self.size:
            raise RecordError("X must give the same rows in every pass, and gave another number")
        return ranks[:-1]

    def _ranks(self, edges: FloatArray) -> IntArray:
        return np.asarray(sum(self._rows.each_part(_ranks_of, edges, self._place, self._n_columns)), dtype=np.int64)


def _ranks_of(rows: RowSource, edges: FloatArray, place: int, n_columns: int) -> IntArray:
    """Return the ranks of the edges in a column of a source, and how many values it has."""
    ranks = np.zeros(len(edges) + 1, dtype=np.int64)
    for (block,) in rows.each(_features_alone):
        column = HeldColumn(_checked(as_record_array("X", block), n_columns)[:, place].astype(np.float64))
        ranks += np.append(column.below(edges), column.size)
    return ranks


def _features_alone(features: Any, *_: Any) -> tuple[Any]:
    return (features,)


def count_rows(records: npt.ArrayLike | Records, adjacency: Adjacency) -> int:
    """Return how many records there are; under "zero_out" rows of NaN alone are not counted.

    Raises RecordError if they have no rows, but a single value.
    """
    return sum(records_of(records).each_part(_count_part, adjacency))


def _count_part(source: RowSource, adjacency: Adjacency) -> int:
    return sum(_length(block, adjacency) for (block,) in source.each(_features_alone))


def _length(block: Any, adjacency: Adjacency) -> int:
    found: Any = records_of(block)
    if "sparse" in found.demands:
        return int(found.length())
    rows = block if is_listed(block) else as_record_array("records", block)
    if isinstance(rows, np.ndarray) and rows.ndim == 0:
        raise RecordError("records must have a row for each record, got a single value")
    if adjacency is not Adjacency.ZERO_OUT:
        return len(rows)
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiub":
        return len(without_null_records(adjacency, rows, None)[0]) if rows.dtype.kind == "f" else len(rows)
    # Each value by itself: one text would make texts of all numbers, NaN among them.
    return sum(any(text_of(value) is not None for value in (row if is_listed(row) else np.ravel(row))) for row in rows)


def _checked(array: npt.NDArray[Any], n_columns: int) -> npt.NDArray[Any]:
    """Return numbers as (N, n_columns)."""
    check_ranked(array, n_columns)
    return array[:, None] if array.ndim == 1 else array


def check_ranked(X: Any, n_columns: int) -> None:
    """Refuse, before any record is read, what is no array of numbers with so many columns; one may lack its dimension.

    Raises TypeError if its type is not one of numbers. Raises RecordError if its shape is another.
    """
    check_numbers("X", X)
    shape = known_shape(X)
    if shape is not None and (len(shape) not in (1, 2) or (*shape, 1)[1] != n_columns):
        shape_text = f"{shape[1]} columns" if len(shape) == 2 else f"{len(shape)} dimensions"
        raise RecordError(f"X must have {n_columns} columns, one for each of names, got {shape_text}")


def columns_of(X: npt.ArrayLike | Records, n_columns: int) -> list[RankedColumn]:
    """Return the columns of an array or a stream.

    Raises TypeError or RecordError if they are no numbers, or other columns.
    """
    records = records_of(X)
    if records.held is None:
        return [ReadColumn(records, place, n_columns) for place in range(n_columns)]
    array = _checked(as_record_array("X", records.held[0]), n_columns)
    return [HeldColumn(column) for column in array.astype(np.float64).T]


_COUNT_STREAM, _FIRST_SELECTION = 0, 1  # the streams of one key: the count's, then two for each selection of bounds
_MAGNITUDES = 2.0 ** (0.5 * np.arange(-40, 81))  # grid of half octaves from a millionth to a trillion
_COARSE_EDGES = np.concatenate((-_MAGNITUDES[::-1], [0.0], _MAGNITUDES))  # docs/derivations/unknowns.md
_FINE_EDGES = 1025  # 1024 cells over the first selection: a bound then errs by 0.1% of it; tolerance


@dataclass(frozen=True)
class QuantileSearch:
    """Search for two quantiles of a column: cells between public edges, or two lists of edges, the second finer.

    Edges are spaced evenly between public limits; without limits there are half octaves of either sign, and then edges
    spaced evenly over the selected cell.

    **Privacy.** Reads no records until :meth:`find`.
    """

    limits: tuple[float, float] | None

    @property
    def n_selections(self) -> int:
        """How often a cell is drawn."""
        return 4 if self.limits is None else 2

    def find(
        self, column: RankedColumn, probability: Fraction, *, epsilon: float, replace: bool, key: bytes, stream: int
    ) -> tuple[float, float]:
        """Return where the cells of the quantiles of `probability` and 1 - `probability` begin and end.

        **Privacy.** Reads the records: `n_selections` draws of the exponential mechanism, of `epsilon` each, the later
        ones among cells that follow from the earlier.  Each takes a stream, from number `stream` on.
        """

        def draw(edges: FloatArray, first: int) -> list[float]:
            ranks = column.below(edges)
            # Values beyond an end count in the cell at that end.
            ranks[0], ranks[-1] = 0, column.size
            cells = [
                _cell(ranks.tolist(), share, epsilon=epsilon, replace=replace, key=key, stream=number)
                for share, number in ((probability, first), (1 - probability, first + 1))
            ]
            return [float(edges[min(cells)]), float(edges[max(cells) + 1])]

        ends: Sequence[float]
        if self.limits is None:
            ends, stream = draw(_COARSE_EDGES, stream), stream + 2
        else:
            ends = self.limits
        low, high = draw(np.linspace(ends[0], ends[1], _FINE_EDGES), stream)
        return low, high


def _cell(
    ranks: Sequence[int], probability: Fraction, *, epsilon: float, replace: bool, key: bytes, stream: int
) -> int:
    """Draw a quantile's cell between two edges of these ranks; the cost of a cell is its distance in ranks."""
    top, bottom = probability.numerator, probability.denominator
    target = top * ranks[-1]
    costs = [max(0, bottom * left - target, target - bottom * right) for left, right in itertools.pairwise(ranks)]
    sensitivity = bottom if replace else max(top, bottom - top)
    return select_least(costs, sensitivity=sensitivity, epsilon=epsilon, key=key, stream=stream)


def draw_count(n_records: int, *, epsilon: float, key: bytes) -> int:
    """Return a number of records with discrete Laplace noise of scale 1 / epsilon.

    **Privacy.** `n_records` is that of the records; the result is epsilon-differentially private if one record is
    present in one data set only, or blanked.
    """
    (noisy,) = laplace_mechanism([n_records], l1_sensitivity=1, epsilon=epsilon, key=key, stream=_COUNT_STREAM)
    return noisy


def draw_bounds(
    columns: Sequence[RankedColumn],
    searches: Sequence[QuantileSearch],
    probability: float,
    *,
    epsilon: float,
    relation: Adjacency,
    key: bytes,
) -> FloatArray:
    """Return the quantiles of each column, (k, 2), with `epsilon` for one selection.

    **Privacy.** Reads the records: see :func:`release_bounds`.
    """
    # The fraction that a person means by the number.
    share, stream = Fraction(probability).limit_denominator(10**6), _FIRST_SELECTION
    bounds = np.empty((len(columns), 2))
    for place, (column, search) in enumerate(zip(columns, searches, strict=True)):
        replace = relation is Adjacency.REPLACE_ONE
        bounds[place] = search.find(column, share, epsilon=epsilon, replace=replace, key=key, stream=stream)
        stream += search.n_selections
    return bounds


def draw_categories(
    columns: Mapping[str, Mapping[str, int]],
    *,
    epsilon: float,
    threshold: int,
    relation: Adjacency,
    key: bytes,
    max_labels: int | None,
) -> dict[str, dict[str, int]]:
    """Return the labels of each column that pass the threshold, at `epsilon` for each column.

    **Privacy.** Reads the records' counts: see :func:`release_categories`.
    """
    replace = relation is Adjacency.REPLACE_ONE
    labels = {}
    for name, counts in columns.items():
        passed = thresholded_counts(counts, epsilon=epsilon, threshold=threshold, replace=replace, key=key, column=name)
        labels[name] = dict(list(passed.items())[:max_labels])
    return labels


def select_least(costs: Sequence[int], *, sensitivity: int, epsilon: float, key: bytes, stream: int) -> int:
    """Return the place of an option, drawn with probability proportional to exp(-epsilon cost / (2 sensitivity)).

    **Privacy.** epsilon-differentially private, with delta = 0, when no cost of neighbouring data sets differs by more
    than `sensitivity` (McSherry and Talwar 2007); epsilon is taken as the decimal that it is.  The options
    themselves are public.  No other draw of this key may have this stream.

    Notes
    -----
    Rejection: an option drawn uniformly is kept with probability exp(-epsilon (cost - least) / (2 sensitivity)), a
    Bernoulli draw by rational arithmetic (Canonne, Kamath and Steinke 2020).  How long it takes depends on the costs.
    """
    source = KeystreamIntegers(key, stream)
    rate = decimal_of(epsilon) / (2 * sensitivity)
    least = min(costs)
    while True:
        place = source.below(len(costs))
        if source.bernoulli_exp_any((int(costs[place]) - int(least)) * rate.numerator, rate.denominator):
            return place


def least_threshold(epsilon: float, delta: float, *, replace: bool) -> int:
    """Return the least threshold for which :func:`thresholded_counts` keeps its promise.

    A label that one record alone has passes t with probability a**(t - 1) / (1 + a), a = exp(-1 / scale).  Where
    `replace`, one record has another label in a neighbouring table; otherwise a neighbour lacks one record.
    """
    moves = 2 if replace else 1
    rate = epsilon / moves
    exponent = (math.log(moves / delta) - math.log1p(math.exp(-rate))) / rate
    # More than the rounding of these few operations.
    return max(2, 1 + math.ceil(exponent * (1.0 + 1e-12) + 1e-9))


def thresholded_counts(
    counts: Mapping[str, int], *, epsilon: float, threshold: int, replace: bool, key: bytes, column: str
) -> dict[str, int]:
    """Return the labels whose count passes a threshold after discrete Laplace noise, with their noisy counts.

    Order: descending noisy counts, then names.  `counts`: the numbers of records of the labels that occur.

    **Privacy.** (epsilon, delta)-differentially private for every delta with ``threshold >=
    least_threshold(epsilon, delta, replace=replace)``, when each record has at most one label, and each call with this
    key another `column`.  The noise has scale 1 / epsilon, or 2 / epsilon where a record may be replaced; that of a
    label has its own key, HMAC-SHA-256 of column and label.  A label that no record has is not looked at.
    """
    scale = (2 if replace else 1) / decimal_of(epsilon)
    noisy = {label: count + discrete_laplace(_key(key, column, label), scale, 1)[0] for label, count in counts.items()}
    passed = [(label, count) for label, count in noisy.items() if count >= threshold]
    return dict(sorted(passed, key=lambda item: (-item[1], item[0])))


def _key(key: bytes, column: str, label: str) -> bytes:
    name, text = (part.encode("utf-8", "surrogatepass") for part in (column, label))
    return hmac.digest(key, b"dpinfer label %d " % len(name) + name + text, "sha256")
