"""Coverage studies: simulated runs, computed chunk by chunk, each run a function of the seed and its index."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice

__all__ = ["STUDY_NAMES", "ChunkResult", "Study", "find_study"]

STUDY_NAMES = (
    "gamma-exponential",
    "beta-bernoulli",
    "beta-binomial",
    "dirichlet-categorical",
    "linear-regression",
    "logistic-regression",
)

_RECIPES = "dpinfer.lab.studies.recipes"


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


@runtime_checkable
class Study(Protocol):
    """A study of simulated runs.

    **Privacy.** Simulated records only.

    For ``references="uniform"`` a study also has `reference_box`, a pair of (n,) arrays: lower and upper corner of the
    box that reference points are drawn from, on the unconstrained space.
    """

    @property
    def name(self) -> str:
        """Name of the study."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the n unconstrained parameters."""

    def run_chunk(
        self, first: int, count: int, *, method: str, epsilon: float, seed: int, settings: Mapping[str, Any]
    ) -> ChunkResult:
        """Simulate runs ``first, ..., first + count - 1`` and return their posteriors.

        A pure function of its arguments.  The results of run i depend on `seed` and i only, for any chunk, bit for bit:
        see :func:`dpinfer.lab.studies.random_streams.run_generator`, and note that NumPy's order of a
        sum may change with the number of runs summed beside it.

        Parameters
        ----------
        first, count : int
        method : str
            How posteriors are computed.
        epsilon : float
        seed : int
        settings : mapping
            ``recipe`` (str or None), ``n_draws`` (int), ``n_threads`` (int or None; never changes a result), and
            further settings from the caller of the study.

        Returns
        -------
        ChunkResult

        Raises
        ------
        TypeError, ValueError
            If a method, a recipe or a setting is unknown.
        """


def find_study(study: "str | Study") -> Study:
    """Return the study of this name, or the study itself.

    **Privacy.** No data.

    Parameters
    ----------
    study : str or Study
        One of :data:`STUDY_NAMES`, or an object of your own.

    Returns
    -------
    Study

    Raises
    ------
    TypeError, ValueError
        If it is neither.
    """
    if isinstance(study, str):
        name = check_choice("study", study, STUDY_NAMES)
        # Imported by name: the recipes build on every layer below, which an own study does without.
        found: Study = importlib.import_module(_RECIPES).find(name)
        return found
    if not isinstance(study, Study):
        raise TypeError(f"study must be a name or have name, parameters and run_chunk, got {type(study).__name__}")
    return study
