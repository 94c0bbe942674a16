"""The made-up records of record-and-replay audits: data sets, their neighbours, and the forms in which they come.

**Privacy.** Made-up records only.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpinfer._arrays import FloatArray
from dpinfer.accounting import Adjacency
from dpinfer.lab.replays.scenario import Neighbour
from dpinfer.mechanism import RowSource, ShardedRows
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel, PoissonRegression

Records = tuple[npt.NDArray[Any], ...]

N_RECORDS = 12  # few, for speed; every kind of record occurs
# Finite, and so far out that nearly every product with it is not.
FAR = 1e300


def neighbours(
    records: Records, other: Records, far: Records, adjacency: Adjacency, refused: tuple[Records, ...] = ()
) -> Iterator[Neighbour]:
    """Yield data sets with one record more, fewer, or another one; `other`, `far` and `refused` are single records."""
    if adjacency is Adjacency.ZERO_OUT:
        null = tuple(np.full_like(part[:1], np.nan) for part in records)
        yield Neighbour("the last record blank", append(tuple(part[:-1] for part in records), null))
        yield Neighbour("the first record blank", append(null, tuple(part[1:] for part in records)), aligned=False)
        changed = partial(put, records)
    elif adjacency is Adjacency.ADD_REMOVE:
        yield Neighbour("a record more", append(records, other))
        yield Neighbour("a record far out more", append(records, far))
        yield Neighbour("a record more that is there already", append(records, tuple(part[:1] for part in records)))
        yield Neighbour("the last record less", tuple(part[:-1] for part in records))
        yield Neighbour("the first record less", tuple(part[1:] for part in records), aligned=False)
        changed = partial(append, records)
    else:
        yield Neighbour("another record", put(records, other))
        yield Neighbour("another record, far out", put(records, far))
        changed = partial(put, records)
    for index, record in enumerate(refused):
        yield Neighbour(f"a record outside of the domain ({index + 1})", changed(record), refused="one reason")


def append(records: Records, record: Records) -> Records:
    """Return the records with one more at the end."""
    return tuple(np.concatenate((part, own)) for part, own in zip(records, record, strict=True))


def put(records: Records, record: Records) -> Records:
    """Return the records with another one in place of the fifth."""
    return tuple(np.concatenate((part[:4], own, part[5:])) for part, own in zip(records, record, strict=True))


def regression_records(
    model: GeneralizedLinearModel | OwnModel, n: int = N_RECORDS
) -> tuple[Records, Records, Records, tuple[Records, ...]]:
    """Return records of a regression, another record, one far out, and two outside of the domain."""
    rng = np.random.default_rng(31)
    X = rng.normal(size=(n, model.n_features))
    y = (rng.random(n) < 0.5).astype(float)
    if isinstance(model, PoissonRegression):
        y = rng.integers(0, 4, n).astype(float)
    elif isinstance(model, LinearRegression):
        y = rng.normal(size=n)
    other = (np.full((1, model.n_features), 0.7), np.array([1.0]))
    limit = 1e6 if isinstance(model, (PoissonRegression, LinearRegression)) else 1.0
    far = (np.full((1, model.n_features), -FAR), np.array([limit]))
    bad = tuple((np.full((1, model.n_features), value), np.array([1.0])) for value in (np.nan, np.inf))
    if isinstance(model, GeneralizedLinearModel) and model.survey_weights is not None:
        strata = model.survey_weights.strata

        # Another record has a weight far beyond the largest; weights below zero are outside of the domain.
        def weighted(records: Records, weight: float | FloatArray) -> Records:
            places = [np.arange(len(records[1])) % strata] if strata else []
            return records[0], np.column_stack((records[1], np.full(len(records[1]), weight), *places))

        refused = tuple(weighted(records, weight) for records, weight in zip(bad, (-1.0, 1.0), strict=True))
        return weighted((X, y), rng.uniform(0.0, 2.0, n)), weighted(other, 1e9), weighted(far, 1.0), refused
    return (X, y), other, far, bad


def single_precision(data: Any) -> Any:
    """Return the same with features in float32, and the far record as far out as they go."""

    def cast(records: Records) -> Records:
        return np.clip(records[0], -3e38, 3e38).astype(np.float32), records[1]

    records, other, far, bad = data
    return cast(records), cast(other), cast(far), tuple((part[0].astype(np.float32), part[1]) for part in bad)


def single_column(values: FloatArray, other: float, far: float, bad: tuple[float, ...]) -> Any:
    """Return records of one number, another record, one far out, and those outside of the domain."""
    return (values,), (np.array([other]),), (np.array([far]),), tuple((np.array([value]),) for value in bad)


def in_blocks(arrays: Sequence[Any], *, units: bool = False) -> RowSource:
    """Return records as three blocks."""

    def blocks() -> Iterator[Any]:
        return zip(*(np.array_split(np.asarray(array), 3) for array in arrays), strict=True)

    return RowSource(blocks, units=units)


def in_sparse_blocks(arrays: Sequence[Any]) -> RowSource:
    """Return records as three blocks with sparse features."""

    def blocks() -> Iterator[Any]:
        for X, y in in_blocks(arrays)._blocks():
            yield sparse.csr_array(X), y

    return RowSource(blocks)


class _Here(Executor):
    """Makes calls in this process, on request."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **named))
        return future


def in_shards(arrays: Sequence[Any], *, units: bool = False) -> ShardedRows:
    """Return records as two shards, of even units and of odd ones."""

    def blocks(index: int) -> Iterator[Any]:
        whole = [np.asarray(array) for array in arrays]
        own = whole[-1] % 2 == index if units else np.array_split(np.arange(len(whole[0])), 2)[index]
        yield tuple(array[own] for array in whole)

    def shard(index: int) -> RowSource:
        return RowSource(partial(blocks, index), units=units)

    return ShardedRows(_Here(), [shard(0), shard(1)])
