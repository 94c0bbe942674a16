"""Rows in several places: public numbers go to the readers of shards, which return exact integer sums.

**Privacy.** A shard's sum has no noise: it is as private as the records, and the machine of the mechanism sees it.
Noise is drawn once, by the mechanism, when every shard has given its part (docs/federated.md).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from dpinfer._validate import check_integer, check_interval
from dpinfer.errors import BackendUnavailableError, DpinferError
from dpinfer.mechanism.sources.row_source import Records, RowSource

T = TypeVar("T")


class Each(tuple[Any, ...]):
    """A sequence with one item for each shard, for :meth:`ShardedRows.each_part`."""

    @staticmethod
    def own(public: Sequence[Any], shard: int) -> list[Any]:
        """Return what a shard is given of these."""
        return [item[shard] if isinstance(item, Each) else item for item in public]


class ShardedRows(Records):
    """Shards of the records, each read by a worker, as `X` of a run.

    A pass gives every worker the public numbers of a sum, and takes back the integers of the worker's share.  A share
    that is lost with its worker is computed again, which costs time and no privacy: it is a function of the shard and
    of public numbers, and each shard's is added once.

    **Privacy.** Holds no records.  Sums without noise travel from the workers to the caller: see docs/federated.md.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        Such as a ``ProcessPoolExecutor``; for Dask see :func:`rows_of_dask`.
    sources : sequence of RowSource
        One for each shard; a record in two shards counts twice.  They are sent to the workers: pickled, unless the
        workers are threads.  A shard holds all rows of its units, in any order.  A run with ``unit=`` checks this,
        and holds a shard's rows in the worker's memory.
    retries : int
        How often a shard is tried again when its worker is lost.
    timeout : float, optional
        Seconds after which a shard counts as lost; without it, a cluster that has no workers left is waited for.
    """

    def __init__(
        self, executor: Executor, sources: Sequence[RowSource], *, retries: int = 3, timeout: float | None = None
    ) -> None:
        if not isinstance(executor, Executor):
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {type(executor).__name__}")
        self.sources = tuple(sources)
        if not self.sources or not all(isinstance(source, RowSource) for source in self.sources):
            raise TypeError("sources must be a sequence of at least one RowSource")
        self.units = self.sources[0].units
        if any(source.units is not self.units for source in self.sources):
            raise ValueError("sources must all be with units, or all without")
        files = [file for source in self.sources for file in source.files]
        if len({id(source) for source in self.sources}) < len(self.sources) or len(set(files)) < len(files):
            raise ValueError("sources must differ: two of these read the same records, which would count twice")
        widths = {source.n_features for source in self.sources} - {None}
        if len(widths) > 1:
            raise ValueError("sources must have the same number of columns")
        self.n_features = next(iter(widths), None)
        self._executor, self._tries = executor, 1 + check_integer("retries", retries, 0)
        self._timeout = None if timeout is None else check_interval("timeout", timeout, 0.0)

    @property
    def demands(self) -> Mapping[str, str]:
        """A run that sums parts."""
        text = "{name} must be an array or a RowSource: a run that samples rows needs them in one place"
        units = {"units": "{name} must be shards without units: this run protects rows"} if self.units else {}
        return units | {"parts": text}

    def each_part(self, function: Callable[..., T], *public: Any) -> list[T]:
        """Return ``function(source, *public)`` of every shard, when all have arrived, of :class:`Each` its own.

        **Privacy.** The function reads the records.

        Raises DpinferError: this package's errors in the function, which quote nothing. Raises RuntimeError if a shard
        was lost more often than `retries`.
        """
        found: dict[int, T] = {}
        reason = ""
        for _ in range(self._tries):
            try:
                waiting = {
                    index: self._executor.submit(function, source, *Each.own(public, index))
                    for index, source in enumerate(self.sources)
                    if index not in found
                }
            except DpinferError:
                raise
            except Exception as error:
                reason = type(error).__name__
                continue
            for index, future in waiting.items():
                try:
                    found[index] = future.result(self._timeout)
                except DpinferError:
                    raise
                except Exception as error:
                    # Its text is a worker's, and may quote a record.
                    reason = type(error).__name__
            if len(found) == len(self.sources):
                return [found[index] for index in range(len(self.sources))]
        raise lost_shards(f"{len(self.sources) - len(found)} of {len(self.sources)} shards", reason)


def lost_shards(which: str, reason: str) -> RuntimeError:
    """Return the error of a pass whose shards are not all there."""
    return RuntimeError(
        f"{which} could not be read ({reason}; the text is withheld: it could quote a record); nothing was released of "
        "this pass, and with a checkpoint the same call goes on from the one before"
    )


def rows_of_dask(
    client: Any, sources: Sequence[RowSource], *, retries: int = 3, timeout: float | None = None
) -> ShardedRows:
    """Return shards that the workers of a Dask cluster read.

    Dask itself gives the shard of a worker that died to another; `retries` is for a shard that Dask has given up.

    **Privacy.** As :class:`ShardedRows`.  The cluster's network must be trusted, or encrypted (Dask's ``Security``).

    Raises BackendUnavailableError without Dask: ``pip install 'dpinfer[dask]'``.

    Parameters
    ----------
    client : dask.distributed.Client
    sources : sequence of RowSource
        One for each shard, such as :func:`dpinfer.mechanism.rows_of_parquet` of a file that the workers can read.
    retries, timeout
        As in :class:`ShardedRows`.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise BackendUnavailableError("these rows need Dask: pip install 'dpinfer[dask]'") from error
    if not isinstance(client, Client):
        raise TypeError(f"client must be a dask.distributed.Client, got {type(client).__name__}")
    # Not pure: Dask would take a sum from its cache even if the records had changed.
    return ShardedRows(client.get_executor(pure=False), sources, retries=retries, timeout=timeout)
