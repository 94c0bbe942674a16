"""Posteriors of consecutive simulated runs."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray


@dataclass(frozen=True, eq=False)
class ChunkResult:
    """Posteriors of k consecutive simulated runs, on the unconstrained space of the n parameters.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    truth : (k, n) float64
        The values that the records were simulated from.
    draws : (S, k, n) float64 or float32, or None
        Independent posterior draws; None where a method has only distribution functions.
    centre, scale : (k, n) float64
        Posterior mean and standard deviation.
    pit : (k, n) float64
        Posterior distribution function at the truth.
    width90 : (k, n) float64
        Width of the central 90% interval.
    reference_width90 : (k, n) float64
        The same of the exact posterior without privacy; nan without one.
    failed : (k,) bool
        Runs without a posterior; their entries in the other arrays are ignored.
    """

    truth: FloatArray
    draws: npt.NDArray[np.float64] | npt.NDArray[np.float32] | None
    centre: FloatArray
    scale: FloatArray
    pit: FloatArray
    width90: FloatArray
    reference_width90: FloatArray
    failed: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        shape = np.shape(self.truth)
        if len(shape) != 2:
            raise ValueError(f"truth must have shape (n_runs, n_params), got {shape}")
        wanted: dict[str, tuple[int, ...]] = {field.name: shape for field in fields(self)} | {"failed": shape[:1]}
        wanted["draws"] = (0 if self.draws is None else len(self.draws), *shape)
        for name, expected in wanted.items():
            value = getattr(self, name)
            if value is not None and np.shape(value) != expected:
                raise ValueError(f"{name} must have shape {expected}, got {np.shape(value)}")
