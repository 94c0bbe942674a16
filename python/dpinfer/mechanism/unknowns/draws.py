"""Private draws of unknown facts: a count, quantiles and labels.

**Privacy.** Reads the records.  Proofs: docs/derivations/unknowns.md.
"""

import hmac
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.accounting import Adjacency
from dpinfer.mechanism.discrete_laplace import KeystreamIntegers, discrete_laplace, laplace_mechanism
from dpinfer.mechanism.unknowns.ranks import RankedColumn

# The streams of one key: the count's, then two for each selection of bounds.
_COUNT_STREAM, _FIRST_SELECTION = 0, 1
# Half octaves from a millionth to a trillion, of either sign.
_MAGNITUDES = 2.0 ** (0.5 * np.arange(-40, 81))
# Half octaves of either sign (docs/derivations/unknowns.md).
_COARSE_EDGES = np.concatenate((-_MAGNITUDES[::-1], [0.0], _MAGNITUDES))
_FINE_EDGES = 1025  # 1024 cells over the first selection: a bound then errs by 0.1% of it


class QuantileSearch:
    """Search for two quantiles of a column: cells between public edges, or two lists of edges, the second finer.

    **Privacy.** Reads no records until :meth:`find`.

    Parameters
    ----------
    limits : (low, high) or None
        Public limits: edges are spaced evenly between them.  None: half octaves of either sign, and then edges spaced
        evenly over the selected cell.
    """

    def __init__(self, limits: tuple[float, float] | None) -> None:
        self.limits = limits

    @property
    def n_selections(self) -> int:
        """How often a cell is drawn."""
        return 4 if self.limits is None else 2

    def find(
        self, column: RankedColumn, probability: Fraction, *, epsilon: float, replace: bool, key: bytes, stream: int
    ) -> tuple[float, float]:
        """Return where the cells of the quantiles of `probability` and 1 - `probability` begin and end.

        **Privacy.** Reads the records: `n_selections` draws of the exponential mechanism, of `epsilon` each, the later
        ones among cells that follow from the earlier.

        Parameters
        ----------
        stream : int
            Number of the first stream; each selection takes one.
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
    share, stream = exact_probability(probability), _FIRST_SELECTION
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


def exact_probability(probability: float) -> Fraction:
    """Return a probability as the fraction that a person means by it."""
    return Fraction(probability).limit_denominator(10**6)


def select_least(
    costs: Sequence[int],  # of each option, at least one; the options themselves are public
    *,
    sensitivity: int,  # positive
    epsilon: float,  # positive; taken as the rational number that it is
    key: bytes,  # 32 bytes, from ``RandomSource.take_key()``
    stream: int,  # which ChaCha20 stream of the key's noise domain to read; no other draw of this key may have it
) -> int:
    """Return the place of an option, drawn with probability proportional to exp(-epsilon cost / (2 sensitivity)).

    **Privacy.** epsilon-differentially private, with delta = 0, when no cost of neighbouring data sets differs by more
    than `sensitivity` (McSherry and Talwar 2007).

    Notes
    -----
    Rejection: an option drawn uniformly is kept with probability exp(-epsilon (cost - least) / (2 sensitivity)), a
    Bernoulli draw by rational arithmetic (Canonne, Kamath and Steinke 2020).  How long it takes depends on the costs.

    Examples
    --------
    >>> select_least([900, 0, 700], sensitivity=1, epsilon=1.0, key=bytes(32), stream=1)
    1
    """
    source = KeystreamIntegers(key, stream)
    rate = Fraction(epsilon) / (2 * sensitivity)
    least = min(costs)
    while True:
        place = source.below(len(costs))
        if source.bernoulli_exp_any((int(costs[place]) - int(least)) * rate.numerator, rate.denominator):
            return place


def least_threshold(
    epsilon: float,  # positive
    delta: float,  # in (0, 1)
    *,
    replace: bool,  # whether neighbours differ in one record's label rather than in one record's presence
) -> int:
    """Return the least threshold for which :func:`thresholded_counts` keeps its promise.

    **Privacy.** Reads no records.

    Notes
    -----
    A label that one record alone has passes t with probability a**(t - 1) / (1 + a), a = exp(-1 / scale).

    Examples
    --------
    >>> least_threshold(1.0, 1e-6, replace=False)
    15
    """
    moves = 2 if replace else 1
    rate = epsilon / moves
    exponent = (math.log(moves / delta) - math.log1p(math.exp(-rate))) / rate
    # More than the rounding of these few operations.
    return max(2, 1 + math.ceil(exponent * (1.0 + 1e-12) + 1e-9))


def thresholded_counts(
    counts: Mapping[str, int],  # of the labels that occur, each at least 1
    *,
    epsilon: float,  # positive
    threshold: int,  # at least 2
    replace: bool,  # as of :func:`least_threshold`
    key: bytes,  # 32 bytes, from ``RandomSource.take_key()``
    column: str,  # name of the column, one for each call with this key
) -> dict[str, int]:  # in descending order of noisy counts, then by name
    """Return the labels whose count passes a threshold after discrete Laplace noise, with their noisy counts.

    **Privacy.** (epsilon, delta)-differentially private for every delta with ``threshold >=
    least_threshold(epsilon, delta, replace=replace)``, when each record has at most one label.  The noise has scale
    1 / epsilon, or 2 / epsilon where a record may be replaced.  A label that no record has is not looked at.

    Notes
    -----
    The noise of a label comes from a key of its own, HMAC-SHA-256 of column and label, and does not depend on other
    labels.
    """
    scale = Fraction(2 if replace else 1) / Fraction(epsilon)
    noisy = {label: count + discrete_laplace(_key(key, column, label), scale, 1)[0] for label, count in counts.items()}
    passed = [(label, count) for label, count in noisy.items() if count >= threshold]
    return dict(sorted(passed, key=lambda item: (-item[1], item[0])))


def _key(key: bytes, column: str, label: str) -> bytes:
    name, text = (part.encode("utf-8", "surrogatepass") for part in (column, label))
    return hmac.digest(key, b"dpinfer label %d " % len(name) + name + text, "sha256")
