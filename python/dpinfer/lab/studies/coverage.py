"""Coverage studies: simulate, run the mechanism, compute posteriors, and test whether they are calibrated."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval, settings_of
from dpinfer._version import __version__
from dpinfer.lab.studies.checkpoint import Checkpoint, plain_settings
from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.coverage_result import CoverageResult
from dpinfer.lab.studies.execution import StudyExecution
from dpinfer.lab.studies.run_statistics import RunStatistics, reduce_chunk
from dpinfer.lab.studies.runner import run_chunks
from dpinfer.lab.studies.study import Study, find_study

__all__ = ["coverage_study"]


@dataclass(frozen=True)
class _Task:
    """One chunk of a study, reduced in its own process, which returns small results."""

    study: Study
    method: str
    epsilon: float
    seed: int
    settings: Mapping[str, Any]
    n_repeats: int
    box: tuple[FloatArray, FloatArray] | None

    def __call__(self, first: int, count: int) -> RunStatistics:
        chunk = self.study.run_chunk(
            first, count, method=self.method, epsilon=self.epsilon, seed=self.seed, settings=self.settings
        )
        if not isinstance(chunk, ChunkResult):
            raise TypeError(f"run_chunk must return a ChunkResult, got {type(chunk).__name__}")
        if chunk.truth.shape[1] != len(self.study.parameters):
            raise ValueError(
                f"run_chunk must return {len(self.study.parameters)} parameters, got {chunk.truth.shape[1]}"
            )
        return reduce_chunk(
            chunk, first, seed=self.seed, n_repeats=self.n_repeats, box=self.box, n_threads=self.settings["n_threads"]
        )


def coverage_study(
    study: str | Study,
    *,
    method: str = "exact",
    n_runs: int = 500,
    epsilon: float = 0.1,
    recipe: str | None = None,
    seed: int = 0,
    n_draws: int = 1000,
    n_repeats: int = 20,
    references: str = "centred",
    execution: StudyExecution | None = None,
    progress: bool | ProgressCallback = False,
    **settings: Any,
) -> CoverageResult:
    """Test the calibration of a method over many simulated runs: truth, records, private release, posterior.

    **Privacy.** Simulated records only, and noise from a seeded generator: no guarantee is needed or claimed.

    Parameters
    ----------
    study : str or Study
        "gamma-exponential", "beta-bernoulli", "beta-binomial", "dirichlet-categorical", "linear-regression" or
        "logistic-regression"; or an object of your own with the same methods.
    method : str
        Method of the posteriors; the study lists its methods.
    n_runs : int
        Number K of runs, at least 2.  The floor of the RMSE is about sqrt(1 / (6 K)).
    epsilon : float
        Positive.
    recipe : str, optional
        The mechanism's settings: the study's default, or "paper".
    seed : int
        Of everything.  Run i depends on `seed` and i only, so a study can be made longer.
    n_draws : int
        Posterior draws of each run, at least 2.
    n_repeats : int
        Sets of reference points over the same runs.
    references : {"centred", "uniform"}
        "centred": within four posterior standard deviations of the posterior mean, the protocol of NA-DPVI.  "uniform":
        over the study's reference box, a central region of its prior.
    execution : StudyExecution, optional
        Where and how the runs are computed, which no result depends on; its fields `n_threads`, `executor`,
        `checkpoint`, `chunk_size` and `backend` are keyword arguments here, too, and change it.
    progress : bool or callable
        True draws a bar on a terminal; a callable gets (done, total) in runs.
    **settings
        Fields of `execution`; and further settings of the runs, plain values; the study refuses
        unknown ones.

    Returns
    -------
    CoverageResult

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, the checkpoint belongs to another study, or fewer than two runs have a posterior.
    BackendUnavailableError
        If ``backend="cuda"`` and the package was built without it, or there is no GPU with enough free memory.
    RuntimeError
        If a GPU fails; chunks that were finished by then are in the checkpoint.
    OSError
        If the checkpoint cannot be read or written.

    Notes
    -----
    NA-DPVI (2025), section 3.1 and appendix H; Lemos et al. (2023); Talts et al. (2018).  Ranks and z-scores come from
    distribution functions and moments, so they detect a shifted mean, which symmetric reference points do not.
    """
    start = time.perf_counter()
    chosen = find_study(study)
    if not isinstance(method, str) or not method:
        raise TypeError(f"method must be a non-empty string, got {method!r}")
    if recipe is not None and not isinstance(recipe, str):
        raise TypeError(f"recipe must be a string or None, got {type(recipe).__name__}")
    n_runs = check_integer("n_runs", n_runs, 2, 10**8)
    epsilon = check_interval("epsilon", epsilon, 0.0)
    seed = check_integer("seed", seed, 0)
    n_draws = check_integer("n_draws", n_draws, 2)
    n_repeats = check_integer("n_repeats", n_repeats, 1)
    references = check_choice("references", references, ("centred", "uniform"))
    options = {item.name: settings.pop(item.name) for item in fields(StudyExecution) if item.name in settings}
    execution = settings_of("coverage_study", StudyExecution, execution, options, argument="execution")
    extra = {name: plain_settings(name, value) for name, value in sorted(settings.items())}
    task = _Task(
        study=chosen,
        method=method,
        epsilon=epsilon,
        seed=seed,
        settings=_run_settings(chosen, execution, settings | {"recipe": recipe, "n_draws": n_draws}),
        n_repeats=n_repeats,
        box=_reference_box(chosen) if references == "uniform" else None,
    )
    identity = {
        "study": chosen.name,
        "method": method,
        "epsilon": epsilon,
        "recipe": recipe,
        "seed": seed,
        "references": references,
        "n_repeats": n_repeats,
        "version": __version__,
    }
    description = identity | {"parameters": list(chosen.parameters), "n_draws": n_draws, "settings": extra}
    store = None if execution.checkpoint is None else Checkpoint(execution.checkpoint, description)
    runs = run_chunks(
        task,
        n_runs,
        chunk_size=execution.chunk_size,
        executor=execution.executor,
        checkpoint=store,
        report=resolve_progress(progress, f"coverage of {chosen.name}"),
    )
    return CoverageResult(
        study=chosen.name,
        parameters=tuple(chosen.parameters),
        method=method,
        epsilon=epsilon,
        recipe=recipe,
        seed=seed,
        references=references,
        n_repeats=n_repeats,
        settings=extra,
        version=__version__,
        runs=runs,
        seconds=time.perf_counter() - start,
    )


def _run_settings(study: Study, execution: StudyExecution, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a study's runs get."""
    backend = execution.backend
    if backend == "cpu":
        return settings | {"n_threads": execution.threads}
    if backend not in getattr(study, "backends", ()):
        raise ValueError(
            f"backend must be 'cpu' for the study {study.name!r}, got {backend!r}: it is for 'linear-regression' and "
            "'logistic-regression'"
        )
    return settings | {"n_threads": execution.threads, "backend": backend}


def _reference_box(study: Study) -> tuple[FloatArray, FloatArray]:
    """Return the corners of the study's reference box."""
    box = getattr(study, "reference_box", None)
    if box is None:
        raise ValueError(
            f"references must be 'centred' for a study without a reference box, got 'uniform' for {study.name!r}"
        )
    shape = (len(study.parameters),)
    low, high = (check_float_array(f"reference_box[{i}]", corner, shape) for i, corner in enumerate(box))
    if not np.all(low < high):
        raise ValueError("reference_box must have its lower corner below its upper one in every dimension")
    return low, high
