"""Coverage studies: simulated runs, computed chunk by chunk, each run a function of the seed and its index."""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from dpinfer._validate import check_choice
from dpinfer.lab.studies.chunk import ChunkResult

__all__ = ["STUDY_NAMES", "Study", "find_study"]

STUDY_NAMES = (
    "gamma-exponential",
    "beta-bernoulli",
    "beta-binomial",
    "dirichlet-categorical",
    "linear-regression",
    "logistic-regression",
)

_RECIPES = "dpinfer.lab.studies.recipes"


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
