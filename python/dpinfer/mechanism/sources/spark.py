"""Rows of a Spark data frame: its partitions are shards, and a pass goes over them through ``mapInArrow``.

**Privacy.** As with any shards: public numbers go to the workers, exact integers come back, and noise is drawn once, by
the mechanism, when every partition has given its part (docs/federated.md).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dpinfer._validate import check_integer
from dpinfer.errors import BackendUnavailableError, DpinferError, RecordError
from dpinfer.mechanism.sources.shards import Each, ShardedRows, lost_shards
from dpinfer.mechanism.sources.streams import Columns

T = TypeVar("T")

_SCHEMA = "shard int, refused boolean, answer string"


def rows_of_spark(
    frame: Any, features: Sequence[str], response: str | None = None, unit: str | None = None, *, retries: int = 3
) -> ShardedRows:
    """Return the rows of a Spark data frame, read by its workers in place.

    A pass is one job: each partition is summed by a task, through ``mapInArrow``.  Spark computes the partition of a
    lost task again and takes one answer of each; `retries` is for a job that Spark has given up.  Every pass runs the
    frame's own plan anew: a frame that is dear to compute is to be cached, or written first.

    **Privacy.** As :class:`dpinfer.mechanism.ShardedRows`.  The cluster's network must be trusted, or encrypted
    (``spark.network.crypto.enabled``).

    Raises BackendUnavailableError without Spark: ``pip install 'dpinfer[spark]'``. Raises TypeError or ValueError if an
    argument is wrong, or the frame lacks a column.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        With columns of numbers.  The workers need this package too.
    features, response
        As of :func:`dpinfer.mechanism.rows_of_parquet`.
    unit : str, optional
        Name of the column of units, for a run with ``unit=``.  The frame is shuffled so that all rows of a unit are in
        one partition, of ``spark.sql.shuffle.partitions``, in the order of the frame.  This order must be the same in
        every pass: write a frame that results from a join or a shuffle to files first.
    retries : int
        How often a pass is tried again when its job has failed.
    """
    try:
        from pyspark.sql import DataFrame
    except ImportError as error:
        raise BackendUnavailableError("these rows need Spark: pip install 'dpinfer[spark]'") from error
    if not isinstance(frame, DataFrame):
        raise TypeError(f"frame must be a pyspark.sql.DataFrame, got {type(frame).__name__}")
    columns = Columns.of(features, response, unit)
    columns.check(frame.columns)
    rows = frame.select(*(f"`{name}`" for name in columns.names))
    return _SparkRows(rows if unit is None else _by_unit(rows, unit), features, response, unit, retries=retries)


def _by_unit(rows: Any, unit: str) -> Any:
    """Return the frame with the rows of a unit in one partition, in their order."""
    from pyspark.sql.functions import monotonically_increasing_id

    place = "_" * (1 + max(map(len, rows.columns)))
    n_parts = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions"))
    placed = rows.withColumn(place, monotonically_increasing_id())
    return placed.repartition(n_parts, f"`{unit}`").sortWithinPartitions(f"`{place}`").drop(place)


class _SparkRows(ShardedRows):
    """Partitions of a frame, in place of an executor's shards."""

    def __init__(
        self, frame: Any, features: Sequence[str], response: str | None, unit: str | None = None, *, retries: int
    ) -> None:
        self.n_features, self.units = len(features), unit is not None
        self._frame, self._columns = frame, Columns.of(features, response, unit)
        self._tries = 1 + check_integer("retries", retries, 0)

    def each_part(self, function: Callable[..., T], *public: Any) -> list[T]:
        """Return the function's answers in the order of the partitions, after one job over all of them."""
        task = _Task(function, public, self._columns)
        reason = ""
        for _ in range(self._tries):
            try:
                answers = self._frame.mapInArrow(task, _SCHEMA).collect()
            except Exception as error:
                # Its text is a worker's, and may quote a record.
                reason = type(error).__name__
                continue
            for answer in answers:
                if answer["refused"]:
                    raise RecordError(answer["answer"])
            return [_decoded(answer["answer"]) for answer in sorted(answers, key=lambda answer: answer["shard"])]
        raise lost_shards("the partitions", reason)


@dataclass(frozen=True)
class _Task:
    """A partition's task, which is sent to the worker."""

    function: Callable[..., Any]
    public: tuple[Any, ...]
    columns: Columns

    def __call__(self, batches: Iterator[Any]) -> Iterable[Any]:
        import pyarrow
        from pyspark import TaskContext

        source = self.columns.source(lambda: batches)
        context = TaskContext.get()
        shard = 0 if context is None else context.partitionId()
        try:
            answer = json.dumps(_encoded(self.function(source, *Each.own(self.public, shard))))
            refused = False
        except DpinferError as error:
            refused, answer = True, str(error)
        columns = [pyarrow.array([shard], pyarrow.int32()), pyarrow.array([refused]), pyarrow.array([answer])]
        yield pyarrow.RecordBatch.from_arrays(columns, names=["shard", "refused", "answer"])


def _encoded(answer: Any) -> Any:
    """Return an answer as plain data: answers of workers are not unpickled."""
    if isinstance(answer, np.ndarray):
        return {"int64": answer.tolist()}
    if isinstance(answer, bytes):
        return {"bytes": answer.hex()}
    if isinstance(answer, tuple):
        return {"tuple": [_encoded(item) for item in answer]}
    return answer


def _decoded(text: str) -> Any:
    def plain(item: dict[str, Any]) -> Any:
        ((kind, value),) = item.items()
        if kind == "int64":
            return np.array(value, dtype=np.int64)
        return bytes.fromhex(value) if kind == "bytes" else tuple(value)

    return json.loads(text, object_hook=plain)
