"""Runs of a study in chunks: on any executor, with bounded memory, and resumed where they stopped."""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

from dpinfer._surroundings import ProgressCallback
from dpinfer._validate import check_integer
from dpinfer.lab.studies.checkpoint import Checkpoint
from dpinfer.lab.studies.run_statistics import RunStatistics

__all__ = ["DEFAULT_CHUNK_SIZE", "run_chunks"]

DEFAULT_CHUNK_SIZE = 50  # runs at once: memory and progress only

Task = Callable[[int, int], RunStatistics]


def run_chunks(
    task: Task,
    n_runs: int,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    executor: Executor | None = None,
    max_in_flight: int | None = None,
    checkpoint: Checkpoint | None = None,
    report: ProgressCallback | None = None,
) -> RunStatistics:
    """Compute runs ``0, ..., n_runs - 1`` in chunks and return them in order.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    task : callable
        ``task(first, count)`` returns those runs; run i must not depend on the chunk.  For a pool of processes it must
        be picklable.
    n_runs : int
        At least 1.
    chunk_size : int
        Most runs of a chunk, at least 1.  It changes memory and time, not the result.
    executor : concurrent.futures.Executor, optional
        Where chunks are computed; in this thread, one after the other, by default.  It is not shut down.
    max_in_flight : int, optional
        Most chunks submitted at a time; twice the number of processors by default.
    checkpoint : Checkpoint, optional
        Finished chunks are read from it and written to it.  Its chunks may differ in size and number from the
        requested ones.
    report : callable, optional
        Called as ``report(done, n_runs)`` when a chunk has been written.

    Returns
    -------
    RunStatistics

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, the checkpoint is of another study, or `task` returns another number of runs.
    BaseException
        What `task`, `report` or a signal raises; chunks finished by then have been written.
    """
    n_runs = check_integer("n_runs", n_runs, 1)
    chunk_size = check_integer("chunk_size", chunk_size, 1)
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(f"executor must be a concurrent.futures.Executor, got {type(executor).__name__}")
    if max_in_flight is None:
        max_in_flight = 2 * (os.cpu_count() or 1)
    limit = check_integer("max_in_flight", max_in_flight, 1)
    parts: dict[int, RunStatistics] = {}
    gaps = [(0, n_runs)]
    if checkpoint is not None:
        parts, gaps = _read(checkpoint, n_runs)
    done = sum(part.n_runs for part in parts.values())
    tell = report if report is not None else _silent
    tell(done, n_runs)

    def keep(first: int, count: int, part: RunStatistics) -> None:
        nonlocal done
        if part.n_runs != count:
            raise ValueError(f"run_chunk must return {count} runs, got {part.n_runs}")
        if checkpoint is not None:
            checkpoint.write(first, part)
        parts[first] = part
        done += count
        tell(done, n_runs)

    chunks = _split(gaps, chunk_size)
    if executor is None:
        for first, count in chunks:
            keep(first, count, task(first, count))
    else:
        _run_on(executor, task, chunks, limit, keep)
    return RunStatistics.concatenate([parts[first] for first in sorted(parts)])


def _run_on(
    executor: Executor,
    task: Task,
    chunks: Iterator[tuple[int, int]],
    limit: int,
    keep: Callable[[int, int, RunStatistics], None],
) -> None:
    pending: dict[Future[RunStatistics], tuple[int, int]] = {}
    try:
        while True:
            while len(pending) < limit and (chunk := next(chunks, None)) is not None:
                pending[executor.submit(task, *chunk)] = chunk
            if not pending:
                return
            finished, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                chunk = pending.pop(future)
                keep(*chunk, future.result())
    except BaseException:
        for future in pending:
            future.cancel()
        for future, chunk in pending.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                # The first error is the one to report; a full disk would only repeat itself here.
                with contextlib.suppress(Exception):
                    keep(*chunk, future.result())
        raise


def _read(checkpoint: Checkpoint, n_runs: int) -> tuple[dict[int, RunStatistics], list[tuple[int, int]]]:
    """Return the stored parts that together hold each run at most once, and the intervals that are missing."""
    stored = checkpoint.stored()
    parts: dict[int, RunStatistics] = {}
    gaps: list[tuple[int, int]] = []
    position = 0
    while position < n_runs:
        covering = sorted((stop, first) for first, stop in stored if first <= position < stop)
        part = None
        while covering and part is None:
            stop, first = covering.pop()
            part = checkpoint.read(first, stop)
        if part is None:
            stop = min([first for first, _ in stored if first > position], default=n_runs)
            stop = min(stop, n_runs)
            gaps.append((position, stop))
        else:
            stop = min(stop, n_runs)
            parts[position] = part.rows(position - first, stop - first)
        position = stop
    return parts, gaps


def _split(gaps: list[tuple[int, int]], chunk_size: int) -> Iterator[tuple[int, int]]:
    """Yield first run and number of runs of each chunk; chunks end at multiples of their size."""
    for start, stop in gaps:
        first = start
        while first < stop:
            last = min(stop, (first // chunk_size + 1) * chunk_size)
            yield first, last - first
            first = last


def _silent(done: int, total: int) -> None:
    """Report nothing."""
