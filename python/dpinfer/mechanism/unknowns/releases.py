"""Private releases of unknown facts: the number of records, bounds and labels.

**Privacy.** Reads the records.  Proofs: docs/derivations/unknowns.md.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._types import refuse_array_type
from dpinfer._validate import check_container, check_integer, check_interval, check_names, known_shape
from dpinfer._values import as_values, text_of
from dpinfer.accounting import Adjacency, ApproximateEvent, Event, LedgerAccount, PureEvent, SelfComposed, as_adjacency
from dpinfer.accounting.decimals import check_epsilon, share_of
from dpinfer.errors import RecordError
from dpinfer.mechanism.lattice_sums import pure_terms
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import ReleaseTerms, RunControl
from dpinfer.mechanism.records import records_of
from dpinfer.mechanism.run import run_once
from dpinfer.mechanism.sources.row_source import Records
from dpinfer.mechanism.unknowns import tuning
from dpinfer.mechanism.unknowns.draws import (
    QuantileSearch,
    check_ranked,
    columns_of,
    count_rows,
    draw_bounds,
    draw_categories,
    draw_count,
    least_threshold,
)
from dpinfer.release import BoundsRelease, CategoriesRelease, CountRelease

_LONGEST_LABEL = 1000  # characters of a name


def resolved_probability(n_records: int | None, epsilon: float) -> float:
    """Return the lowest useful quantile that draws of `epsilon` each can resolve: 0.1 if `n_records` is unknown."""
    chosen = tuning.TUNING
    if n_records is None or not epsilon > 0.0:
        return chosen.probability
    resolved = chosen.resolved / (epsilon * max(n_records, 1))
    return min(max(resolved, chosen.least_probability), chosen.largest_probability)


def bounds_event(epsilon: float, n_selections: int, relation: Adjacency) -> Event:
    """Return the event of as many selections, of `epsilon` each."""
    return SelfComposed(PureEvent(epsilon, relation.value), n_selections)


def categories_event(epsilon: float, delta: float, n_columns: int, relation: Adjacency) -> Event:
    """Return the event of several columns of labels, with `epsilon` and `delta` for each."""
    return SelfComposed(ApproximateEvent(epsilon, delta, relation.value), n_columns)


def labels_of(values: npt.NDArray[Any] | Sequence[Any]) -> Counter[str]:
    """Return the number of records with each label, in the spelling of :func:`dpinfer._values.text_of`.

    **Privacy.** Reads the records, each on its own. A missing value, or one that cannot be a name (empty, longer than
    1000 characters, not printable), is no label.
    """
    found: Counter[str] = Counter()
    for value, count in Counter(values.tolist() if isinstance(values, np.ndarray) else values).items():
        label = text_of(value)
        if label is not None and label.isprintable() and 0 < len(label) <= _LONGEST_LABEL:
            found[label] += count
    return found


def count_labels(name: str, values: Any) -> Counter[str]:
    """Return the counts of a column of labels.

    **Privacy.** Reads the records.

    Raises RecordError if it is not one column.
    """
    return labels_of(as_values(name, values))


def release_count(
    records: Any,
    *,
    epsilon: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
) -> CountRelease:
    """Release how many records there are, with noise: a public number for every argument `n_records`.

    **Privacy.** Reads the records.  epsilon-differentially private with delta = 0: one record moves the number by 1,
    and gets discrete Laplace noise of scale 1 / epsilon (docs/derivations/unknowns.md).

    Raises RecordError if the records are no array.

    Parameters
    ----------
    records : (N,) or (N, d) array, RowSource or ShardedRows
        Only its length is used; under "zero_out" rows of NaN alone are not counted.  A stream is read once.
    epsilon : float
        In (0, inf).
    adjacency : {"add_remove", "zero_out"}
        Under "replace_one" the number of records is public, and is refused here.
    ledger, random_source
        As in :func:`dpinfer.run_dpvi`.

    Returns
    -------
    CountRelease
        ``release.n_records`` for a run, and the law of the true number.

    Examples
    --------
    >>> import numpy as np
    >>> count = release_count(np.zeros((5000, 3)), epsilon=0.5)
    >>> bool(abs(count.n_records - 5000) < 100)
    True
    """
    epsilon = check_epsilon("epsilon", epsilon)
    relation = as_adjacency(adjacency)
    given = records_of(records)
    given.refuse("records", ("blocks", "parts", "sparse", "cuda"))
    if not given.demands:
        check_container("records", records)
    if relation is Adjacency.REPLACE_ONE:
        raise ValueError("adjacency must not be 'replace_one', under which the number of records is public")
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    terms = pure_terms(epsilon, relation)
    noisy, said = run_once(
        terms,
        "release_count",
        control,
        lambda: count_rows(records, relation),
        lambda n_records, key: draw_count(n_records, epsilon=epsilon, key=key),
    )
    return CountRelease(
        noisy_count=noisy,
        laplace_scale=1.0 / epsilon,
        event=terms.event,
        adjacency=relation,
        secure=control.source.secure,
        settings=said,
    )


def release_bounds(
    X: npt.ArrayLike | Records,
    *,
    epsilon: float,
    names: Sequence[str] = ("value",),
    limits: Sequence[Any] | None = None,
    probability: float = 0.1,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
) -> BoundsRelease:
    """Release the approximate range of each column of numbers: two private quantiles, from which bounds follow.

    **Privacy.** Reads the records.  epsilon-differentially private with delta = 0: every quantile is a cell of a
    public list, drawn by the exponential mechanism with exact arithmetic, and `epsilon` is shared equally among the two
    or (without limits) four draws of each column (docs/derivations/unknowns.md).

    Parameters
    ----------
    X : (N,) or (N, k) array, RowSource or ShardedRows
        NaN in a column is a missing value and is left out; infinities are values.  A stream is read two or (without
        limits) three times for each column, and must give the same rows each time.
    epsilon : float
        In (0, inf), for all columns together.
    names : k str
        Of the columns.
    limits : k pairs (low, high), or None for a column without, optional
        Public limits, which halve the number of draws: a year of birth lies in (1900, 2030).  Bounds stay inside.
    probability : float
        Of the lower quantile, in [0.001, 0.4]; the upper one is as far from the other end.  With about 32 /
        (probability N) of epsilon for each draw the cells are near; below that they may lie far outside.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    ledger, random_source
        As in :func:`dpinfer.run_dpvi`.

    Returns
    -------
    BoundsRelease
        ``release.bounds()``, ``release.centre`` and ``release.scale`` of each column.

    Notes
    -----
    Smith (2011) for quantiles by the exponential mechanism.  Where more than 1 - 2 `probability` of a column is one
    value (mostly zeros, say) both quantiles are that value, and its bounds do not describe the rest: declare them.

    Examples
    --------
    >>> import numpy as np
    >>> heights = 170.0 + 10.0 * np.random.default_rng(1).normal(size=5000)
    >>> release = release_bounds(heights, epsilon=1.0)
    >>> bool(abs(release.centre[0] - 170.0) < 5.0 and 5.0 < release.scale[0] < 20.0)
    True
    """
    epsilon = check_epsilon("epsilon", epsilon)
    relation = as_adjacency(adjacency)
    columns = check_names("names", names)
    records_of(X).refuse("X", ("blocks", "parts"))
    if not records_of(X).demands:
        check_ranked(X, len(columns))
    probability = check_interval("probability", probability, 0.001, 0.4, low_open=False, high_open=False)
    searches = _searches(limits, len(columns))
    n_selections = sum(search.n_selections for search in searches)
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    each = share_of(epsilon, n_selections)
    event = bounds_event(each, n_selections, relation)
    terms = ReleaseTerms(event, relation, pure_terms(epsilon, relation).delta)
    found, said = run_once(
        terms,
        "release_bounds",
        control,
        lambda: columns_of(X, len(columns)),
        lambda values, key: draw_bounds(values, searches, probability, epsilon=each, relation=relation, key=key),
    )
    return BoundsRelease(
        names=columns,
        lower=found[:, 0],
        upper=found[:, 1],
        probability=probability,
        limits=np.array([search.limits or (-math.inf, math.inf) for search in searches]),
        event=event,
        adjacency=relation,
        secure=control.source.secure,
        settings=said,
    )


def _searches(limits: Sequence[Any] | None, n_columns: int) -> list[QuantileSearch]:
    if limits is None:
        return [QuantileSearch(None)] * n_columns
    if isinstance(limits, str) or not isinstance(limits, (Sequence, np.ndarray)) or len(limits) != n_columns:
        raise ValueError(f"limits must hold a pair (low, high) or None for each of {n_columns} columns")
    return [QuantileSearch(None if pair is None else check_limits("limits", pair)) for pair in limits]


def check_limits(name: str, pair: Any) -> tuple[float, float]:
    """Return public limits as two numbers, the first less than the second by more than rounding hides."""
    if isinstance(pair, str) or not isinstance(pair, (Sequence, np.ndarray)) or len(pair) != 2:
        raise ValueError(f"{name} must be two numbers (low, high)")
    low, high = (check_interval(name, value, -1e100, 1e100) for value in pair)
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        raise ValueError(f"{name} must have low < high, and not only by a rounding error")
    return low, high


def release_categories(
    records: Any,
    *,
    epsilon: float,
    delta: float,
    max_labels: int | None = None,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
) -> CategoriesRelease:
    """Release the labels of enough records, with noisy counts.

    **Privacy.** Reads the records.  (epsilon, delta)-differentially private: each label that occurs gets discrete
    Laplace noise on its count and leaves when it passes a threshold that a label of one record passes with a
    probability of at most delta (docs/derivations/unknowns.md).  A label is published unchanged: rare spellings stay
    below the threshold, but labels of many records are not hidden.

    Parameters
    ----------
    records : (N,) array of labels, or mapping of column names to such arrays
        One label of each record in each column: text or a number.  None, NaN, and text that is empty, longer than 1000
        characters or not printable is no label.
    epsilon : float
        In (0, inf), shared equally among the columns.
    delta : float
        In (0, 1), shared equally among the columns.
    max_labels : int, optional
        Keep at most this many labels of a column, those with the largest noisy counts.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    ledger, random_source
        As in :func:`dpinfer.run_dpvi`.

    Returns
    -------
    CategoriesRelease
        ``release.categories``; a single array's column is called "value".

    Notes
    -----
    Korolova, Kenthapadi, Mishra and Ntoulas (2009); with integers the law of the noise is exact.

    Examples
    --------
    >>> import numpy as np
    >>> release = release_categories(np.repeat(["cat", "dog", "emu"], [600, 300, 1]), epsilon=1.0, delta=1e-6)
    >>> release.categories["value"]
    ('cat', 'dog')
    """
    epsilon, delta = check_epsilon("epsilon", epsilon), check_interval("delta", delta, 0.0, 1.0)
    relation = as_adjacency(adjacency)
    if max_labels is not None:
        max_labels = check_integer("max_labels", max_labels, 1)
    columns: Mapping[str, Any] = records if isinstance(records, Mapping) else {"value": records}
    names = check_names("records", list(columns))
    for column in columns.values() if type(columns) is dict else ():
        # Other mappings may read records to give a column.
        check_container("records", column)
        refuse_array_type("records", column, numbers=False)
        shape = known_shape(column)
        if shape is not None and len(shape) != 1:
            raise RecordError(f"records must be one column of labels, got {len(shape)} dimensions")
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    each, failure = share_of(epsilon, len(names)), share_of(delta, len(names))
    threshold = least_threshold(each, failure, replace=relation is Adjacency.REPLACE_ONE)

    def load() -> dict[str, Counter[str]]:
        return {name: count_labels("records", columns[name]) for name in names}

    def draw(counts: dict[str, Counter[str]], key: bytes) -> dict[str, dict[str, int]]:
        return draw_categories(
            counts, epsilon=each, threshold=threshold, relation=relation, key=key, max_labels=max_labels
        )

    terms = ReleaseTerms(categories_event(each, failure, len(names), relation), relation, delta)
    found, said = run_once(terms, "release_categories", control, load, draw)
    return CategoriesRelease(
        noisy_counts=found,
        laplace_scale=(2.0 if relation is Adjacency.REPLACE_ONE else 1.0) / each,
        threshold=threshold,
        event=terms.event,
        adjacency=relation,
        delta=delta,
        secure=control.source.secure,
        settings=said,
    )
