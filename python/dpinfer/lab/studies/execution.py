"""Where and how a study's runs are computed: nothing that a result depends on."""

import os
from concurrent.futures import Executor
from dataclasses import dataclass

from dpinfer._validate import check_choice, check_integer
from dpinfer.lab.studies.runner import DEFAULT_CHUNK_SIZE

__all__ = ["StudyExecution"]


@dataclass(frozen=True, kw_only=True)
class StudyExecution:
    """Execution of a study's runs. No result depends on it.

    **Privacy.** Holds no records.

    Parameters
    ----------
    n_threads : int, optional
        Of each chunk: all by default, one where an executor is given.
    executor : concurrent.futures.Executor, optional
        Where chunks are computed; here by default.  It is not shut down.
    checkpoint : path-like, optional
        Folder for the reduced results of finished chunks; a study continued there, or made longer, computes only
        missing chunks.
    chunk_size : int
        Runs computed together, at least 1; memory is proportional to it.
    backend : {"cpu", "cuda"}
        Where private sums of simulated records are made.  "cuda" is for the studies "linear-regression" and
        "logistic-regression", with expectations by quadrature and a split loss, and needs a build of the package with
        ``-DDPINFER_CUDA=ON`` and a GPU that holds the records of a chunk.

    Raises
    ------
    TypeError, ValueError
        If a field is wrong.  Whether `checkpoint` can be used, the study finds.

    Examples
    --------
    >>> from dpinfer.lab.studies import coverage_study
    >>> execution = StudyExecution(n_threads=1, chunk_size=10)
    >>> coverage_study("gamma-exponential", n_runs=4, epsilon=1.0, n_draws=50, execution=execution).runs.n_runs
    4
    """

    n_threads: int | None = None
    executor: Executor | None = None
    checkpoint: str | os.PathLike[str] | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE
    backend: str = "cpu"

    def __post_init__(self) -> None:
        if self.n_threads is not None:
            object.__setattr__(self, "n_threads", check_integer("n_threads", self.n_threads, 1))
        if self.executor is not None and not isinstance(self.executor, Executor):
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {type(self.executor).__name__}")
        if self.checkpoint is not None and not isinstance(self.checkpoint, (str, os.PathLike)):
            raise TypeError(f"checkpoint must be a path, got {type(self.checkpoint).__name__}")
        object.__setattr__(self, "chunk_size", check_integer("chunk_size", self.chunk_size, 1))
        check_choice("backend", self.backend, ("cpu", "cuda"))

    @property
    def threads(self) -> int | None:
        """The number of threads of a chunk; None for all."""
        return 1 if self.n_threads is None and self.executor is not None else self.n_threads
