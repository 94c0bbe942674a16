"""Work of a site in a session: the public task, the site's exact sums, and its share of the noise.

**Privacy.** Reads the site's records.  A sum leaves this module with the site's noise share in it, and is masked before
it leaves the site.  Proof: docs/derivations/silos.md.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import IntArray
from dpinfer._validate import check_integer, check_interval
from dpinfer.accounting import Adjacency, Event, PureEvent, as_adjacency
from dpinfer.accounting.decimals import decimal_of
from dpinfer.errors import SiloError
from dpinfer.mechanism import _native
from dpinfer.mechanism.discrete_laplace import laplace_share
from dpinfer.mechanism.newton.contributions import Query, ReadRecords
from dpinfer.mechanism.newton.own_rows import OwnRecords
from dpinfer.mechanism.newton.pass_records import open_records
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.mechanism.records import check_records
from dpinfer.mechanism.silos.messages import pack
from dpinfer.mechanism.silos.questions import asked_of_model, check_task, kinds_of
from dpinfer.mechanism.silos.terms import MAX_NUMBERS, Terms
from dpinfer.mechanism.statistic import lattice_of, total_of
from dpinfer.mechanism.sums.parts import integers_of_part
from dpinfer.models import Model, OwnModel, model_from_dict

_WORD = 2**64  # sums are modulo 2**64: format
_LEAST_STDDEV = 64.0  # in lattice steps, of one share: the sum of rounded shares is then nearly a rounded Gaussian
_MOST_STDDEV = 1e17  # in lattice steps: sums of all shares stay far inside of 64 bits


def share_stddev(query: Query, noise_multiplier: float, shares: int) -> float:
    """Return the noise of a site's share, in lattice steps.

    Raises SiloError if the noise is not that of a sum on the lattice.
    """
    step = _native.PartialSum(length=query.length, max_norm=query.max_norm).lattice_step
    stddev = noise_multiplier * query.max_norm / step / math.sqrt(shares)
    if not _LEAST_STDDEV <= stddev <= _MOST_STDDEV / shares:
        raise SiloError("the noise of a pass must have between 64 and 1e17 lattice steps")
    return stddev


def gaussian_share(key: bytes, query: Query, noise_multiplier: float, shares: int) -> IntArray:
    """Return a site's share of a pass's noise: rounded Gaussians, of which `shares` sum to the noise multiplier.

    **Privacy.** Reads no records; private as long as nobody else has the key, of this pass and question alone.
    """
    stddev = share_stddev(query, noise_multiplier, shares)
    return _native.rounded_gaussian(key, 0, stddev, query.length)[0]


@dataclass
class Task:
    """The public task of a session."""

    kind: str  # {"newton", "statistic"}
    model: Model
    terms: Mapping[str, Any]  # plain data: the plan of a private Newton run, or the terms of a statistic
    n_records: int
    records: Mapping[str, Any] | None = None  # the requested records: input of a site's table for its rows

    def __post_init__(self) -> None:
        self.terms = dict(self.terms)
        self.n_records = check_integer("n_records", self.n_records, 1)
        self.records = None if self.records is None else dict(self.records)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain data for :meth:`from_dict`."""
        return {**vars(self), "model": self.model.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], model: Model | None = None) -> "Task":
        """Rebuild a task from what :meth:`to_dict` returned; `model` has the code of a model of one's own.

        Raises SiloError if it is no task, or of another model.
        """
        try:
            found = model_from_dict(data["model"]) if model is None else model
            task = cls(str(data["kind"]), found, data["terms"], data["n_records"], data["records"])
        except (ValueError, TypeError, KeyError) as error:
            raise SiloError(f"the task is not one that this version knows ({type(error).__name__})") from None
        if pack("task", task=task.to_dict()) != pack("task", task=data):
            raise SiloError("the task must be of the model that this site was given")
        return task


class Work(ABC):
    """A task at a site."""

    n_passes: int
    # event, adjacency, delta: terms of its charge
    event: Event
    adjacency: Adjacency
    delta: float

    @abstractmethod
    def open(self, X: Any, y: Any) -> None:
        """Check the records, and keep them.

        **Privacy.** Reads the records.

        Raises RecordError or TypeError if they cannot be used.
        """

    @abstractmethod
    def question(self, index: int, query: bytes, terms: Terms) -> Any:
        """Return the question of a pass, if the task asks it.

        **Privacy.** Reads no records: what is refused here is refused whatever they are.

        Raises SiloError if it is another.
        """

    @abstractmethod
    def sum(self, index: int, question: Any, key: bytes, shares: int) -> IntArray:
        """Return the site's sum of a pass with its share of the noise in it, modulo 2**64.

        **Privacy.** Reads the records.  Not private by itself: its noise is one share.
        """

    @abstractmethod
    def describe(self, index: int, question: Any) -> str:
        """Return the question of a pass, in words."""


class _NewtonWork(Work):
    """The passes of a private Newton run."""

    def __init__(self, task: Task, *, n_threads: int) -> None:
        self._plan = NewtonPlan.from_dict(task.terms)
        check_task(task.model, self._plan)
        self._model: Any = task.model
        self._n_threads = n_threads
        self._records: ReadRecords | None = None
        self.n_passes, self.event = self._plan.n_passes, self._plan.event
        self.adjacency, self.delta = self._plan.adjacency, self._plan.delta

    def open(self, X: Any, y: Any) -> None:
        if isinstance(self._model, OwnModel):
            rows = check_records(self._model, X, y, self.adjacency)
            self._records = OwnRecords(*rows, drawn=self._model.has_sampler)
        else:
            self._records = open_records(self._model, X, y, self.adjacency, n_threads=self._n_threads)

    def question(self, index: int, query: bytes, terms: Terms) -> Query:
        kinds = kinds_of(self._model, self._plan.target).get(self._plan.phases[index], ())
        asked = asked_of_model(query, self._model, kinds, MAX_NUMBERS // terms.n_sites)
        share_stddev(asked, self._plan.noise_multipliers[index], terms.noise_shares)
        return asked

    def sum(self, index: int, question: Query, key: bytes, shares: int) -> IntArray:
        if self._records is None:
            raise RuntimeError("the records must be opened before they are summed")
        total = _native.PartialSum(length=question.length, max_norm=question.max_norm)
        noise = gaussian_share(key, question, self._plan.noise_multipliers[index], shares)
        self._records.add(total, question)
        total.merge(noise)
        return integers_of_part(total)

    def describe(self, index: int, question: Query) -> str:
        multiplier = self._plan.noise_multipliers[index]
        return (
            f"{self._plan.phases[index]}, {type(question).__name__}: {question.length} numbers, of a record at most "
            f"{question.max_norm:.4g} long; noise multiplier {multiplier:.4g}"
        )


class _StatisticWork(Work):
    """The pass of a sufficient statistic, on one thread: it is short."""

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
        if y is not None:
            raise TypeError(f"y must be None for {type(self._model).__name__}, whose records are X")
        self._total, _ = total_of(X, self._model, self.adjacency, self._lattice)

    def question(self, index: int, query: bytes, terms: Terms) -> None:
        if query or len(self._names) * terms.n_sites > MAX_NUMBERS:
            raise SiloError("a pass must ask the statistic of the task, which has no question")

    def sum(self, index: int, question: None, key: bytes, shares: int) -> IntArray:
        if self._total is None:
            raise RuntimeError("the records must be opened before they are summed")
        scale = self._lattice.l1_sensitivity / decimal_of(self._epsilon)
        noise = laplace_share(key, scale, len(self._total), shares=shares)
        words = [(own + extra) % _WORD for own, extra in zip(self._total, noise, strict=True)]
        return np.array(words, dtype=np.uint64).astype(np.int64)

    def describe(self, index: int, question: None) -> str:
        return f"{', '.join(self._names)}; Laplace noise of scale {self._lattice.scale(self._epsilon):.4g}"


WORKS: Mapping[str, Callable[..., Work]] = {"newton": _NewtonWork, "statistic": _StatisticWork}
