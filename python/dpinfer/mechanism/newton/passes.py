"""Noisy sums over all records: integers of bounded norm, one exact sum, one rounded Gaussian.

**Privacy.** The only place where a private Newton run reads records.  Proof: docs/derivations/private-newton.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpinfer._arrays import FloatArray
from dpinfer._progress import ProgressCallback
from dpinfer.errors import CheckpointError
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton.contributions import Query
from dpinfer.mechanism.newton.joint import UnitScores
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.mechanism.noise_keys import noise_key
from dpinfer.mechanism.private_run import PrivateRun
from dpinfer.mechanism.silos.rows import SESSION


@dataclass(frozen=True)
class NoisySum:
    """A released sum.

    Parameters
    ----------
    values : (length,) array
    stddev : float
        Standard deviation of the noise in each value.
    """

    values: FloatArray
    stddev: float


class Passes:
    """The passes of one run, in order: each is drawn once, and a resumed run reuses its earlier draws.

    Everything between two passes is a function of earlier releases. So the state of a run is the list of its
    released sums, and a resumed run repeats the same public arithmetic up to its last pass.

    Parameters
    ----------
    records : ReadRecords or SiloRecords
        Silos have their own noise.
    max_rows : float
        Bound on a contribution in units of one row's bound: for a unit, more than 1.
    """

    def __init__(
        self,
        private: PrivateRun,
        plan: NewtonPlan,
        records: Any,
        *,
        report: ProgressCallback,
        max_rows: float = 1.0,
    ) -> None:
        self._private, self._plan, self._report = private, plan, report
        self._records, self._max_rows = records, max_rows
        self._key = private.key
        self._next = 0
        self._done, saved = private.begin(records.arrays())
        self._released: dict[str, FloatArray] = {}
        self._restore(saved)

    def _restore(self, saved: Mapping[str, FloatArray]) -> None:
        names = {f"pass_{index}" for index in range(self._done)}
        if self._done > self._plan.n_passes or set(saved) - {SESSION} != names:
            raise CheckpointError("the checkpoint is damaged: its arrays are not those of this run")
        self._released = {name: saved[name] for name in names}

    def _state(self) -> dict[str, FloatArray]:
        state: dict[str, FloatArray] = self._records.state()
        return self._released | state

    def noise_multiplier(self, index: int) -> float:
        """Return the noise of a pass in units of the bound on a row's contribution."""
        return self._max_rows * self._plan.noise_multipliers[index]

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
        if index >= self._plan.n_passes or self._plan.phases[index] != phase:
            raise RuntimeError(f"pass {index} is not one of the plan's {phase!r} passes")
        self._next += 1
        multiplier = self._plan.noise_multipliers[index]
        # Contributions of whole units are clipped to their own norm; sums of rows to that of `max_rows` rows.
        max_norm = query.max_norm if isinstance(query, UnitScores) else self._max_rows * query.max_norm
        name = f"pass_{index}"
        if index >= self._done:
            self._private.refuse_fork()
            if self._records.own_noise:
                keep = partial(self._private.save, index, self._state, last=False, now=True)
                self._released[name] = self._records.noisy_sum(query, keep)
            else:
                total = _native.PartialSum(length=query.length, max_norm=max_norm)
                self._records.add(total, query)
                key = noise_key(self._key, "pass", phase, query, max_norm, multiplier)
                self._released[name] = total.noisy_sum(key, index, multiplier)
            last = self._next == self._plan.n_passes
            # Passes are few and dear, and their sums small: every one is kept at once.
            self._private.save(self._next, self._state, last=last, now=True)
            self._report(self._next, self._plan.n_passes)
        elif self._released[name].shape != (query.length,):
            raise CheckpointError("the checkpoint is damaged: its arrays are not those of this run")
        return NoisySum(self._released[name].copy(), self._records.excess(index) * multiplier * max_norm)
