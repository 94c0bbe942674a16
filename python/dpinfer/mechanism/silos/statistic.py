"""A sufficient statistic over sites: exact totals of each, and shares of Laplace noise.

**Privacy.** Reads the site's records.  Proof: docs/derivations/silos.md, "Shares of Laplace noise".
"""

from fractions import Fraction
from typing import Any

import numpy as np

from dpinfer._arrays import IntArray
from dpinfer._validate import check_interval
from dpinfer.accounting import Adjacency, PureEvent, as_adjacency
from dpinfer.errors import SiloError
from dpinfer.mechanism.discrete_laplace import laplace_share
from dpinfer.mechanism.silos.work import Task, Work
from dpinfer.mechanism.statistic import lattice_of, total_of

_WORD = 2**64  # sums are modulo 2**64


class StatisticWork(Work):
    """The one pass of a sufficient statistic.

    Parameters
    ----------
    n_threads : int
        Not used: the pass is short.
    """

    n_passes = 1

    def __init__(self, task: Task, *, n_threads: int) -> None:
        if not task.model.has_statistic:
            raise SiloError("the task must be of a model with a sufficient statistic")
        self._model: Any = task.model
        self._epsilon = check_interval("epsilon", task.terms.get("epsilon"), 0.0)
        self.adjacency = as_adjacency(str(task.terms.get("adjacency")))
        clip = task.terms.get("clip")
        bound = None if clip is None else check_interval("clip", clip, 1e-100, 1e100)
        replace = self.adjacency is Adjacency.REPLACE_ONE
        self._lattice, self._names = lattice_of(self._model, bound, replace=replace, coarse=True)
        self.event, self.delta = PureEvent(self._epsilon, self.adjacency.value), 0.0
        self._total: list[int] | None = None

    def open(self, X: Any, y: Any) -> None:
        """Check the records, and add them up."""
        if y is not None:
            raise TypeError(f"y must be None for {type(self._model).__name__}, whose records are X")
        self._total, _ = total_of(X, self._model, self.adjacency, self._lattice)

    def sum(self, index: int, query: bytes, key: bytes, shares: int) -> IntArray:
        """Return the site's totals with its share of the noise in them."""
        if self._total is None:
            raise RuntimeError("the records must be opened before they are summed")
        scale = Fraction(self._lattice.l1_sensitivity) / Fraction(self._epsilon)
        noise = laplace_share(key, scale, len(self._total), shares=shares)
        words = [(own + extra) % _WORD for own, extra in zip(self._total, noise, strict=True)]
        return np.array(words, dtype=np.uint64).astype(np.int64)

    def describe(self, index: int, query: bytes) -> str:
        """Return the request in words."""
        return f"{', '.join(self._names)}; Laplace noise of scale {self._lattice.scale(self._epsilon):.4g}"
