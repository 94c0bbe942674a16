"""The passes of a private Newton run: noisy sums over records in memory, in streams, in shards, or by units.

**Privacy.** The only place where such a run reads records: integers of bounded norm, one exact sum, one rounded
Gaussian (docs/derivations/private-newton.md).  Integers have the same sum for any blocks in any order
(docs/derivations/private-sum.md, "Sums made in parts"): the source of records changes no bit of a release.
"""

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import survey_columns
from dpinfer.accounting import Adjacency
from dpinfer.errors import CheckpointError, RecordError
from dpinfer.mechanism import _native
from dpinfer.mechanism.checkpoint import tag_of_records
from dpinfer.mechanism.newton.contributions import Query, ReadRecords, Rows
from dpinfer.mechanism.newton.joint import StratumUnits, UnitScores
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.mechanism.newton.unit_parts import UnitParts, check_unit_rows, sorted_by_unit
from dpinfer.mechanism.noise_keys import noise_key
from dpinfer.mechanism.private_run import PrivateRun
from dpinfer.mechanism.records import check_rows, records_of
from dpinfer.mechanism.silos.terms import SESSION
from dpinfer.mechanism.sources.row_source import Arrays, Records, RowSource, total_rows
from dpinfer.mechanism.sources.sparse import SparseFeatures
from dpinfer.mechanism.sums.parts import integers_of_part
from dpinfer.mechanism.units import Clusters, NamesInOrder, Units, bytes_of_names
from dpinfer.models.survey_weights import MOST_STRATA


@dataclass(frozen=True)
class NoisySum:
    """A released sum."""

    values: FloatArray  # (length,)
    stddev: float  # standard deviation of the noise in each value


class Passes:
    """The passes of one run, in order: each is drawn once, and a resumed run reuses its earlier draws.

    Everything between two passes is a function of earlier releases. So the state of a run is the list of its
    released sums, and a resumed run repeats the same public arithmetic up to its last pass.
    """

    def __init__(
        self,
        private: PrivateRun,
        plan: NewtonPlan,
        records: Any,  # silos have their own noise
        *,
        report: ProgressCallback,
        max_rows: float = 1.0,  # bound on a contribution in units of one row's bound: for a unit, more than 1
    ) -> None:
        self._private, self.plan, self._report = private, plan, report
        self._records, self._max_rows = records, max_rows
        self._key = private.key
        self._next = 0
        self._done, saved = private.begin(records.arrays())
        self._released: dict[str, FloatArray] = {}
        self._restore(saved)

    def _restore(self, saved: Mapping[str, FloatArray]) -> None:
        names = {f"pass_{index}" for index in range(self._done)}
        if self._done > self.plan.n_passes or set(saved) - {SESSION} != names:
            raise CheckpointError("the checkpoint is damaged: its arrays are not those of this run")
        self._released = {name: saved[name] for name in names}

    def _state(self) -> dict[str, FloatArray]:
        state: dict[str, FloatArray] = self._records.state()
        return self._released | state

    def leave_out(self, passes: Collection[int]) -> None:
        """Leave out later passes, by what was released before: measurements get their shares."""
        self.plan = self.plan.without(passes)

    def noise_multiplier(self, index: int) -> float:
        """Return the noise of a pass in units of the bound on a row's contribution."""
        return self._max_rows * self.plan.noise_multipliers[index]

    def noisy_sum(self, phase: str, query: Query) -> NoisySum:
        """Release a sum over all records.

        **Privacy.** Reads the records.  Adding, removing or blanking one moves the sum by at most `max_rows` times
        ``query.max_norm`` in the L2 norm (by ``query.max_norm`` for a query of whole units, or of clusters), replacing
        one by at most twice that, in exact integer arithmetic, for any result of the query.

        Parameters
        ----------
        phase : str
            The plan's name of this pass.
        """
        index = self._next
        if index >= self.plan.n_passes or self.plan.phases[index] != phase:
            raise RuntimeError(f"pass {index} is not one of the plan's {phase!r} passes")
        self._next += 1
        multiplier = self.plan.noise_multipliers[index]
        # Contributions of whole units are clipped to their own norm; sums of rows to that of `max_rows` rows.
        max_norm = query.max_norm if isinstance(query, UnitScores) else self._max_rows * query.max_norm
        name = f"pass_{index}"
        if index >= self._done:
            self._private.before_draw()
            if self._records.own_noise:
                keep = partial(self._private.save, index, self._state, last=False, now=True)
                self._released[name] = self._records.noisy_sum(query, keep)
            else:
                total = _native.PartialSum(length=query.length, max_norm=max_norm)
                self._records.add(total, query)
                key = noise_key(self._key, "pass", phase, query, max_norm, multiplier)
                self._released[name] = total.noisy_sum(key, index, multiplier)
            last = self._next == self.plan.n_passes
            # Passes are few and dear, and their sums small: every one is kept at once.
            self._private.save(self._next, self._state, last=last, now=True)
            self._report(self._next, self.plan.n_passes)
        elif self._released[name].shape != (query.length,):
            raise CheckpointError("the checkpoint is damaged: its arrays are not those of this run")
        return NoisySum(self._released[name].copy(), self._records.excess(index) * multiplier * max_norm)


_UNITS_AT_ONCE = 256  # in one call of the exact sum, which does not depend on it: time


class MemoryRecords(ReadRecords):
    """Records in memory, or in a memory map.

    **Privacy.** Holds the records.
    """

    def __init__(
        self,
        features: FloatArray | npt.NDArray[np.float32] | SparseFeatures,  # (N, p)
        response: FloatArray,  # (N,)
        *,
        intercept: bool,
        n_threads: int,
        on_cuda: bool = False,  # whether passes are made on a GPU, which gets a copy
    ) -> None:
        self._features, self._response, self.n_rows = features, response, len(features)
        self._rows = Rows.of(features, response, intercept=intercept, n_threads=n_threads, on_cuda=on_cuda)

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Return features and responses."""
        return _arrays([self._features, self._response])

    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all records."""
        query.add(total, self._rows)


def _arrays(block: Iterable[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the arrays that checked records consist of."""
    for part in block:
        yield from part.arrays if isinstance(part, SparseFeatures) else (part,)


class ReadAgainRecords(ReadRecords):
    """Records read again in every pass, block by block; each part is read in its own place.

    **Privacy.** Parts get public numbers and return integers; a sum from which noise is missing stays here until all
    of them have.

    Parameters
    ----------
    n_threads : int
        Of a worker.
    """

    def __init__(self, records: Records, model: Any, adjacency: Adjacency, *, n_threads: int) -> None:
        self._parts, self._public, self._n_threads = records, (model, adjacency), n_threads
        self._counts = records.each_part(_count_part, *self._public)
        self.n_rows = total_rows(*self._counts)

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Yield a hash of each part's records."""
        for digest in self._parts.each_part(_hash_part, *self._public):
            yield np.frombuffer(digest, dtype=np.uint8)

    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all parts' sums, when all have arrived.

        Raises
        ------
        RecordError
            If a part gives another number of rows than before.
        RuntimeError
            If one could not be read.
        """
        parts = self._parts.each_part(_add_part, *self._public, query, total.max_norm, self._n_threads)
        if [n_rows for _, n_rows in parts] != self._counts:
            raise RecordError("X must give the same rows in every pass, and gave another number")
        for integers, _ in parts:
            total.merge(integers.copy())


def _blocks(source: RowSource, model: Any, adjacency: Adjacency) -> Iterator[Arrays]:
    return source.each(lambda features, response: check_rows(model, features, response, adjacency))


def _count_part(source: RowSource, model: Any, adjacency: Adjacency) -> int:
    """Check a part's records, and return how many there are."""
    return sum(len(features) for features, _ in _blocks(source, model, adjacency))


def _hash_part(source: RowSource, model: Any, adjacency: Adjacency) -> bytes:
    return tag_of_records(b"", (array for block in _blocks(source, model, adjacency) for array in _arrays(block)))


@standard_arithmetic()
def _add_part(
    source: RowSource, model: Any, adjacency: Adjacency, query: Query, max_norm: float, n_threads: int
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the integers of a part, and how many rows they are of."""
    # Arrays from a network may be unaligned in memory; kernels read aligned numbers.
    query = copy.deepcopy(query)
    total = _native.PartialSum(length=query.length, max_norm=max_norm)
    n_rows = 0
    for features, response in _blocks(source, model, adjacency):
        query.add(total, Rows.of(features, response, intercept=model.fit_intercept, n_threads=n_threads))
        n_rows += len(features)
    return integers_of_part(total), n_rows


class UnitRecords(ReadRecords):
    """Rows of units, which are summed before the sum is clipped to the bound of a unit.

    **Privacy.** A unit's integers are the sum of its rows', a function of that unit and of public numbers; the sum that
    they are added to holds each unit to its own bound (docs/derivations/units.md).

    Parameters
    ----------
    blocks : callable
        Returns an iterable of checked (features, response, unit), with the rows of a unit one after the other and units
        in increasing order, anew for every pass.

    Raises
    ------
    RecordError
        If units are not in increasing order.
    """

    def __init__(self, blocks: Callable[[], Iterable[Arrays]], *, intercept: bool, n_threads: int) -> None:
        self._blocks, self._intercept, self._n_threads = blocks, intercept, n_threads
        self._size = self._walk(lambda features, response: None, lambda: None)
        self.n_rows = self._size[1]

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Yield the arrays of all blocks, names of units as bytes."""
        for *rows, unit in self._blocks():
            yield from rows
            yield bytes_of_names(unit)

    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all units, in one pass.

        Raises RecordError if the numbers of rows or units have changed.
        """
        # One exact sum over the rows of all units: a unit's sum is its increment.
        of_rows: Query = query.scores if isinstance(query, UnitScores) else query
        max_norm = of_rows.max_norm if isinstance(query, UnitScores) else total.max_norm
        rows_sum = _native.PartialSum(length=of_rows.length, max_norm=max_norm)
        before, step = integers_of_part(rows_sum), rows_sum.lattice_step
        waiting: list[npt.NDArray[np.int64]] = []
        strata: list[int] = []  # of the units that wait: each has that of its first row

        def add_rows(features: FloatArray, response: FloatArray) -> None:
            if len(strata) == len(waiting) and isinstance(query, StratumUnits):
                strata.append(int(response[0, 2]))
            of_rows.add(rows_sum, Rows.of(features, response, intercept=self._intercept, n_threads=self._n_threads))

        def flush() -> None:
            if waiting:
                sums = np.array(waiting, dtype=np.float64) * step
                if isinstance(query, StratumUnits):
                    sums = query.in_strata(sums, np.array(strata))
                    strata.clear()
                elif isinstance(query, UnitScores):
                    sums = query.of_units(sums)
                total.add_contributions(sums)
                waiting.clear()

        def close_unit() -> None:
            nonlocal before
            after = integers_of_part(rows_sum)
            waiting.append(after - before)
            before = after
            if len(waiting) == _UNITS_AT_ONCE:
                flush()

        if self._walk(add_rows, close_unit) != self._size:
            raise RecordError("X must give the same rows and units in every pass, and gave other numbers")
        flush()

    def _walk(
        self, add_rows: Callable[[FloatArray, FloatArray], None], close_unit: Callable[[], None]
    ) -> tuple[int, int]:
        """Call `add_rows` with parts of units, and `close_unit` after the last of each; return how many of both."""
        n_rows = n_units = 0
        order = NamesInOrder()
        for features, response, unit in self._blocks():
            if not len(unit):
                continue
            n_rows += len(unit)
            follows = order.follow(unit)
            cuts = np.concatenate(([0], np.flatnonzero(unit[1:] != unit[:-1]) + 1, [len(unit)]))
            for first, end in itertools.pairwise(cuts.tolist()):
                if first or not follows:
                    if n_units:
                        close_unit()
                    n_units += 1
                add_rows(features[first:end], response[first:end])
        if n_units:
            close_unit()
        return n_rows, n_units


class ClusteredRecords(UnitRecords):
    """Records, one a row, with clusters: rows of one cluster may depend on each other.

    **Privacy.** As :class:`MemoryRecords`; what is made of a cluster's sum is held so that a row moves it little
    (docs/derivations/population.md).

    Parameters
    ----------
    block : (features, response, cluster)
        Checked, in increasing order of the clusters.
    """

    def __init__(self, block: Arrays, *, intercept: bool, n_threads: int) -> None:
        super().__init__(lambda: [block], intercept=intercept, n_threads=n_threads)
        self._rows = Rows.of(*block[:2], intercept=intercept, n_threads=n_threads)

    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all rows, or what is made of the sums of clusters."""
        if isinstance(query, UnitScores):
            super().add(total, query)
        else:
            query.add(total, self._rows)


def _read_units(model: Any, n_threads: int, rows: Arrays, numbers: Any) -> UnitRecords:
    return UnitRecords(lambda: [rows], intercept=model.fit_intercept, n_threads=n_threads)


def _open_units(model: Any, records: Records, units: Units | Clusters, *, n_threads: int) -> ReadRecords:
    if "parts" in records.demands:
        return UnitParts(records, model, partial(_read_units, model, n_threads))
    if records.held is None:
        source = records.source().checked(partial(check_unit_rows, model))
        return UnitRecords(lambda: source, intercept=model.fit_intercept, n_threads=n_threads)
    features, response, names = check_unit_rows(model, *records.held, units.ids)
    if isinstance(units, Clusters) and survey_columns(model) > 1:
        # A cluster with rows in two strata is two: a row moves nothing but its own.
        names = np.unique(names, return_inverse=True)[1] * MOST_STRATA + response[:, 2].astype(np.int64)
    block = sorted_by_unit((features, response, names))
    if isinstance(units, Clusters):
        return ClusteredRecords(block, intercept=model.fit_intercept, n_threads=n_threads)
    return UnitRecords(lambda: [block], intercept=model.fit_intercept, n_threads=n_threads)


def open_records(
    model: Any, X: Any, y: Any, adjacency: Adjacency, *, n_threads: int, units: Units | Clusters | None = None
) -> ReadRecords:
    """Check the records, and return them as passes read them.

    With `units`, a record is a unit, or a row in its cluster; for the relations "add_remove" and "replace_one".

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises RuntimeError if a part could not be read.
    """
    records = records_of(X, y)
    if units is not None:
        return _open_units(model, records, units, n_threads=n_threads)
    if records.held is None:
        return ReadAgainRecords(records, model, adjacency, n_threads=n_threads)
    features, response = check_rows(model, *records.held, adjacency)
    return MemoryRecords(features, response, intercept=model.fit_intercept, n_threads=n_threads, on_cuda=records.on_gpu)
