"""Statistics of a simulated run, kept in place of its posterior draws."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.lab.coverage.counts import check_draws, tarp_counts
from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.random_streams import REFERENCES, run_generator

__all__ = ["RunStatistics", "reduce_chunk"]

CountArray = npt.NDArray[np.uint32]

_HALF_WIDTH = 4.0  # posterior standard deviations around the centre, as in NA-DPVI's published code (H.4 has none)


@dataclass(frozen=True, eq=False)
class RunStatistics:
    """Streaming results of K runs, in the order of the runs; the first axis of every array is the run.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    truth, z, pit, width90, reference_width90 : (K, n) float64
        Truth; (truth - mean) / standard deviation; distribution function at the truth; widths of 90% intervals.  nan
        for a failed run.
    failed : (K,) bool
    joint_counts : (K, R) uint32
        Twice the number of draws nearer to each of R reference points than the truth, ties once; R = 0 without draws.
    marginal_counts : (K, R, n) uint32
        The same in each dimension alone.
    n_draws : int
        Posterior draws of each run; 0 without draws.
    """

    truth: FloatArray
    z: FloatArray
    pit: FloatArray
    width90: FloatArray
    reference_width90: FloatArray
    failed: npt.NDArray[np.bool_]
    joint_counts: CountArray
    marginal_counts: CountArray
    n_draws: int

    def __post_init__(self) -> None:
        n_runs, n_params = self.truth.shape
        repeats = self.joint_counts.shape[1]
        numbers = ("truth", "z", "pit", "width90", "reference_width90")
        wanted: dict[str, tuple[tuple[int, ...], type]] = dict.fromkeys(numbers, ((n_runs, n_params), np.float64))
        wanted["failed"] = ((n_runs,), np.bool_)
        wanted["joint_counts"] = ((n_runs, repeats), np.uint32)
        wanted["marginal_counts"] = ((n_runs, repeats, n_params), np.uint32)
        for name, (shape, dtype) in wanted.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"{name} must have shape {shape} and dtype {np.dtype(dtype)}, got {array.shape} and {array.dtype}"
                )

    @property
    def n_runs(self) -> int:
        """Number K of runs, failed ones included."""
        return int(self.truth.shape[0])

    @property
    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "n_draws"}

    def rows(self, start: int, stop: int) -> "RunStatistics":
        """Return the runs ``start, ..., stop - 1``, counted from the first one here."""
        return RunStatistics(**{name: array[start:stop] for name, array in self.arrays.items()}, n_draws=self.n_draws)  # type: ignore[arg-type]

    @classmethod
    def concatenate(cls, parts: Sequence["RunStatistics"]) -> "RunStatistics":
        """Return the runs of several parts after one another.

        Parameters
        ----------
        parts : sequence of RunStatistics
            At least one.

        Raises
        ------
        ValueError
            If the numbers of draws or repeats differ between parts.
        """
        settings = {(part.n_draws, part.joint_counts.shape[1]) for part in parts}
        if len(settings) != 1:
            raise ValueError(f"every chunk of a study must have the same draws and repeats, got {sorted(settings)}")
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in parts[0].arrays}
        return cls(**joined, n_draws=parts[0].n_draws)


def reduce_chunk(
    chunk: ChunkResult,
    first: int,
    *,
    seed: int,
    n_repeats: int,
    box: tuple[FloatArray, FloatArray] | None = None,
    n_threads: int | None = None,
) -> RunStatistics:
    """Reduce the posteriors of a chunk to streaming results.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    chunk : ChunkResult
    first : int
        Index of its first run.
    seed : int
        Of the study.  Reference points of run i and repeat r depend on `seed`, i and r only.
    n_repeats : int
        Number of sets of reference points.
    box : pair of (n,) arrays, optional
        Draw reference points uniformly from this box, instead of within four posterior standard deviations of the
        posterior mean.
    n_threads : int, optional
        All by default.  The result does not depend on it.

    Returns
    -------
    RunStatistics
        A run with a number that is not finite, a standard deviation that is not positive, or a `pit` outside [0, 1]
        counts as failed.

    Notes
    -----
    Reference points that depend on the posterior, but not on the truth, keep the ranks of an exact posterior uniform
    (Lemos et al. 2023, theorem 3).
    """
    n_runs, n_params = chunk.truth.shape
    finite = [np.isfinite(array).all(axis=1) for array in (chunk.truth, chunk.centre, chunk.pit, chunk.width90)]
    usable = ~np.asarray(chunk.failed, dtype=np.bool_) & np.logical_and.reduce(finite)
    with np.errstate(invalid="ignore"):
        usable &= (np.isfinite(chunk.scale) & (chunk.scale > 0.0)).all(axis=1)
        usable &= ((chunk.pit >= 0.0) & (chunk.pit <= 1.0)).all(axis=1)
    if chunk.draws is not None:
        usable &= np.isfinite(chunk.draws).all(axis=(0, 2))
    repeats = 0 if chunk.draws is None else n_repeats
    joint = np.zeros((n_runs, repeats), dtype=np.uint32)
    marginal = np.zeros((n_runs, repeats, n_params), dtype=np.uint32)
    chosen = np.flatnonzero(usable)
    truth = np.ascontiguousarray(chunk.truth[chosen], dtype=np.float64)
    centre, scale = chunk.centre[chosen], np.ascontiguousarray(chunk.scale[chosen], dtype=np.float64)
    if chunk.draws is not None and chosen.size:
        points = np.empty((n_repeats, chosen.size, n_params))
        for row, run in enumerate(chosen):
            # One generator for each run, repeat after repeat: its first repeats do not depend on how many there are.
            points[:, row] = run_generator(seed, REFERENCES, first + int(run)).random((n_repeats, n_params))
        if box is None:
            points = centre + (2.0 * _HALF_WIDTH * points - _HALF_WIDTH) * scale
            unit = scale
        else:
            points = box[0] + points * (box[1] - box[0])
            unit = np.tile(box[1] - box[0], (chosen.size, 1))
        draws = check_draws("draws", chunk.draws if chosen.size == n_runs else chunk.draws[:, chosen])
        near, near_alone = tarp_counts(draws, truth, points, unit, n_threads=n_threads)
        joint[chosen] = near.T
        marginal[chosen] = near_alone.swapaxes(0, 1)

    def kept(values: FloatArray) -> FloatArray:
        return np.where(usable[:, None], values, np.nan)

    z = np.full((n_runs, n_params), np.nan)
    z[chosen] = (truth - centre) / scale
    return RunStatistics(
        truth=kept(chunk.truth),
        z=z,
        pit=kept(chunk.pit),
        width90=kept(chunk.width90),
        reference_width90=kept(chunk.reference_width90),
        failed=~usable,
        joint_counts=joint,
        marginal_counts=marginal,
        n_draws=0 if chunk.draws is None else len(chunk.draws),
    )
