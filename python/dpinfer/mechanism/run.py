"""The one loop of a private run: an algorithm starts, requests noisy sums, updates, and is released.

This module has the parts common to all mechanisms: charge, records, key, forks, checkpoint, progress, interrupts.
Algorithms add the public arithmetic around a sum.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import check_integer
from dpinfer._version import __version__
from dpinfer.accounting import PrivacyPlan
from dpinfer.accounting.guarantee import caution_of_delta
from dpinfer.errors import CheckpointError
from dpinfer.mechanism.noise_keys import noise_key
from dpinfer.mechanism.private_run import PrivacyTerms, PrivateRun, RunControl, private_run, reader_of
from dpinfer.mechanism.questions import Question

Loaded = TypeVar("Loaded")
_RELEASED = "released"  # the array of a complete checkpoint of a single release


def check_plan(plan: PrivacyPlan, n_records: int, *, sampling: str | None = "poisson") -> int:
    """Check a run's plan for this sampling (None accepts any), and return its checked public number of records."""
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    if sampling is not None and plan.sampling != sampling:
        name = sampling.capitalize()
        raise ValueError(f"plan must be for {name} sampling (sampling={sampling!r}), got {plan.sampling!r}")
    n_records = check_integer("n_records", n_records, 1)
    caution_of_delta(plan.delta, n_records, stacklevel=4)
    return n_records


class Algorithm(ABC, Generic[Loaded]):
    """The public arithmetic of a private run of many steps.

    **Privacy.** Only :meth:`query` reads the records after :meth:`start`, and its result carries its noise; everything
    else is a function of its results and of public numbers.
    """

    mechanism: str  # as the ledger and the release name it
    n_records: int  # the public number of records
    # the trace: arrays with a row for each step, or one row for all, filled by :meth:`update`
    kept: dict[str, FloatArray]
    state: dict[str, FloatArray]  # the start of the next step: never changed in place, only replaced
    _model: Any

    def run_key(self, key: bytes, plan: PrivacyPlan) -> bytes:
        """Derive the keys of this run's samples and of its queries' noise from the run's key."""
        return noise_key(key, self.mechanism, self._model, plan.sampling, plan.sample_rate)

    @abstractmethod
    def description(self) -> Mapping[str, Any]:
        """Return every public setting that the release depends on, as JSON values."""

    def arrays(self, records: Any) -> Iterable[npt.NDArray[Any]]:
        """Return all input of the kernels, by which a checkpoint recognises it."""
        return tuple(records)

    @abstractmethod
    def start(self, records: Loaded, control: RunControl, key: bytes) -> None:
        """Open a session over the records, and set `state` and `kept`; the key is that of the run and its model."""

    @abstractmethod
    def query(self, step: int) -> FloatArray:
        """Return the noisy sum of a step at the present state: the private query, with noise of a key of its own."""

    @abstractmethod
    def update(self, step: int, noisy: FloatArray) -> None:
        """Update by a noisy sum, and keep the step's release."""


@standard_arithmetic()
def run_steps(
    algorithm: Algorithm[Loaded], plan: PrivacyPlan, control: RunControl, load: Callable[[], Loaded]
) -> dict[str, Any]:
    """Charge a run, load its records, and make all its steps; return the record of its charge for the release.

    The algorithm's `kept` and `state` hold the run when this returns.

    **Privacy.** `load` reads the records, and is called when the charge is on the disk.  Nothing is drawn before they
    are bound to the run: docs/derivations/checkpoint.md.
    """
    with private_run(
        plan,
        mechanism=algorithm.mechanism,
        source=control.source,
        ledger=control.ledger,
        checkpoint=control.checkpoint,
        description=lambda: {"version": __version__, "plan": plan.to_dict(), **algorithm.description()},
        read=reader_of(algorithm._model, control),
    ) as private:
        # From here on the records are read; nothing is drawn before private.begin().
        with private.reading():
            records = load()
            algorithm.start(records, control, algorithm.run_key(private.key, plan))
        done, saved = private.begin(algorithm.arrays(records))
        algorithm.state = restore(algorithm.kept, algorithm.state, done, saved)
        _make_steps(algorithm, done, plan.n_steps, private, control.report)
    return _settings(algorithm.mechanism, private)


def _make_steps(
    algorithm: Algorithm[Any], done: int, n_steps: int, private: PrivateRun, report: ProgressCallback
) -> None:
    state = algorithm.state
    for step in range(done, n_steps):
        made = step
        try:
            private.before_draw()
            # Public arithmetic at an iterate that has gone astray must not raise: the steps are paid for.
            with np.errstate(all="ignore"):
                algorithm.update(step, algorithm.query(step))
            made, state = step + 1, algorithm.state
            private.save(made, partial(snapshot, algorithm.kept, state, made), last=made == n_steps)
            report(made, n_steps)
        except KeyboardInterrupt:
            # The steps that were made are not made again; a step that was not finished is, with the same noise.
            if not private.forked:
                private.save(made, partial(snapshot, algorithm.kept, state, made), last=made == n_steps, now=True)
            raise


@standard_arithmetic()
def run_once(
    terms: PrivacyTerms,
    mechanism: str,
    control: RunControl,
    load: Callable[[], Loaded],  # returns the checked records
    query: Callable[[Loaded, bytes], Any],  # gets them and the key
    *,
    # returns every public setting that the release depends on; asked for with a checkpoint only
    description: Callable[[], Mapping[str, Any]] = dict,
    # returns the records' arrays, for a checkpoint to know them again: for a release that takes one
    arrays: Callable[[Loaded], Iterable[npt.NDArray[Any]]] | None = None,
    asked: Callable[[], Question] = Question,  # reads the question, if a user's code is in it
) -> tuple[Any, dict[str, Any]]:
    """Charge a single release, load its records, and draw it; return it, with the record of its charge.

    With a checkpoint the result of `query` must be an array of numbers, which a complete file keeps.

    **Privacy.** `load` reads the records, and is called when the charge is on the disk; `query` sums them and adds
    noise under the key that it is given.  It is called once: what a complete checkpoint has is returned.
    """
    with private_run(
        terms,
        mechanism=mechanism,
        source=control.source,
        ledger=control.ledger,
        checkpoint=control.checkpoint,
        description=lambda: {"version": __version__, "event": terms.event.to_dict(), **description()},
        read=asked,
    ) as private:
        with private.reading():
            records = load()
        done, saved = private.begin(() if arrays is None else arrays(records))
        if done:
            result = saved.get(_RELEASED)
        else:
            private.before_draw()
            # This key is dropped after the draw; the hash also separates seeded studies.
            result = query(records, noise_key(private.key, mechanism, terms.event, terms.adjacency))
            private.save(1, lambda: {_RELEASED: np.asarray(result)}, last=True)
    return result, _settings(mechanism, private)


def guarantee_fields(plan: PrivacyPlan, control: RunControl) -> dict[str, Any]:
    """Return the release's fields of its guarantee."""
    return {
        "event": plan.event,
        "adjacency": plan.adjacency,
        "delta": plan.delta,
        "accountant": plan.accountant,
        "secure": control.source.secure,
    }


def _settings(mechanism: str, private: PrivateRun) -> dict[str, Any]:
    charged = {"ledger": private.ledger_settings} if private.ledger_settings else {}
    return {"mechanism": mechanism, "version": __version__, **charged}


def snapshot(trace: Mapping[str, FloatArray], current: Mapping[str, FloatArray], made: int) -> dict[str, FloatArray]:
    """Return the state after `made` steps: the rows of the trace (a row for each step, or one for all), and `current`.

    `current` is the start of the next step, and has no name of the trace.
    """
    return {**current, **{name: array[: min(made, len(array))] for name, array in trace.items()}}


def restore(
    trace: Mapping[str, FloatArray], current: Mapping[str, FloatArray], done: int, saved: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Fill the rows of `trace` that are `done` from a saved :func:`snapshot`; return the start of the next step.

    `current`, where the run started, gives names and shapes, and is returned when nothing was done.

    Raises CheckpointError if it is no snapshot of such a run.
    """
    if not done:
        return dict(current)
    steps = max((len(array) for array in trace.values()), default=done)
    shapes = {name: array.shape for name, array in snapshot(trace, current, done).items()}
    if done > steps or {name: array.shape for name, array in saved.items()} != shapes:
        raise CheckpointError("the checkpoint is damaged: its arrays are not those of this run")
    for name, array in trace.items():
        array[: len(saved[name])] = saved[name]
    return {name: saved[name] for name in current}


def hash_numbers(*arrays: FloatArray) -> str:
    """Return a hash of public numbers, for the description of a run's settings."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()
