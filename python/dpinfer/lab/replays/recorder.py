"""Writing a tape, and replaying one: every way in which noised sums of records leave is wrapped meanwhile.

**Privacy.** For made-up records.
"""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from dpinfer.lab.replays.native import wrapped_module
from dpinfer.lab.replays.tape import NoisedSum, Tape, show, upward
from dpinfer.mechanism import _native, discrete_laplace, lattice_sums
from dpinfer.mechanism.sums import parts
from dpinfer.mechanism.unknowns import draws


class TapeRecorder:
    """Write a tape, or replay one.

    **Privacy.** For made-up records.

    Parameters
    ----------
    replayed : Tape, optional
        Whose noised sums are given out in place of the run's own.

    Attributes
    ----------
    tape : Tape
        Of this run.
    on_records : callable
        Called when records are about to be read.
    on_sum : callable
        Called with all noised sums so far when one is about to leave.
    """

    def __init__(self, replayed: Tape | None = None) -> None:
        self.tape = Tape()
        self.on_records: Callable[[], None] = lambda: None
        self.on_sum: Callable[[Sequence[NoisedSum]], None] = lambda sums: None
        self._replayed = replayed
        self._quiet = False
        self._blocks: set[str] = set()

    @contextlib.contextmanager
    def recording(self) -> Iterator[Tape]:
        """Wrap everything that sums records while the block runs.

        Yields
        ------
        Tape
        """
        with contextlib.ExitStack() as stack:
            for module in _native_modules():
                stack.enter_context(wrapped_module(module, self))
            pairs = (
                (lattice_sums.noisy_counts, self._noisy_counts),
                (discrete_laplace.laplace_mechanism, self._laplace_mechanism),
                (draws.select_least, self._select_least),
                (draws.thresholded_counts, self._thresholded_counts),
                (parts.integers_of_part, self._integers_of_part),
            )
            stack.enter_context(_replace_all(pairs))
            yield self.tape

    def note(self, text: str) -> None:
        """Add a line to the log, except during a draw that depends on its argument."""
        if not self._quiet:
            self.tape.log.append(text)

    def note_block(self, text: str) -> None:
        """Add a line about a block of records, once for each noised sum: how many blocks there are is private."""
        if text not in self._blocks:
            self._blocks.add(text)
            self.note(text)

    def fault(self, text: str) -> None:
        """Report a forbidden action of the run, as "kind: text"."""
        self.tape.faults.append(text)

    def answer(self, own: NoisedSum) -> Any:
        """Keep a noised sum, and return its value for the run."""
        place = len(self.tape.sums)
        self.tape.sums.append(own)
        self._blocks.clear()
        self.note(f"{own.name} leaves with noise {own.mechanism}")
        self.on_sum(self.tape.sums)
        if self._replayed is None:
            return own.released
        if place >= len(self._replayed.sums) or self._replayed.sums[place].name != own.name:
            # The comparison of the logs finds it.
            return own.released
        return self._replayed.sums[place].released

    def _integers_of_part(self, part: Any) -> Any:
        """Allow the integers of a part into the sum that contains it, which is on the tape when it leaves."""
        return self._original(parts.integers_of_part)(part.real)

    def _noisy_counts(self, labels: Any, n_columns: int, *, noise_multiplier: float, key: bytes) -> Any:
        self.on_records()
        columns = [(np.array(column), size) for column, size in labels]
        self.note(f"noisy_counts({[size for _, size in columns]}, {n_columns}, {noise_multiplier.hex()}, {show(key)})")
        released, stddev = self._original(lattice_sums.noisy_counts)(
            columns, n_columns, noise_multiplier=noise_multiplier, key=key
        )
        exact = np.concatenate([np.bincount(column, minlength=size) for column, size in columns])
        # One label in each column: the root of their number, and no fraction is exactly that.
        sensitivity = Fraction(upward(math.sqrt(n_columns), lambda value: Fraction(value) ** 2 >= n_columns))
        noised = NoisedSum(
            "noisy_counts",
            (key, 0),
            ("gaussian", noise_multiplier, "all", 1.0),
            tuple(map(int, exact)),
            tuple(map(int, np.concatenate(released) - exact)),
            sensitivity,
            2,
            ([part.copy() for part in released], stddev),
        )
        parts, deviation = self.answer(noised)
        return [part.copy() for part in parts], deviation

    def _laplace_mechanism(
        self, totals: Any, *, l1_sensitivity: int, epsilon: float, key: bytes, stream: int = 0
    ) -> list[int]:
        self.on_records()
        exact = tuple(map(int, totals))
        self.note(f"laplace_mechanism({len(exact)}, {l1_sensitivity}, {epsilon.hex()}, {show(key)}, {stream})")
        released = self._original(discrete_laplace.laplace_mechanism)(
            list(exact), l1_sensitivity=l1_sensitivity, epsilon=epsilon, key=key, stream=stream
        )
        noise = tuple(a - b for a, b in zip(released, exact, strict=True))
        noised = NoisedSum(
            "laplace_mechanism",
            (key, stream),
            ("laplace", epsilon),
            exact,
            noise,
            Fraction(l1_sensitivity),
            1,
            tuple(released),
        )
        return list(self.answer(noised))

    def _select_least(self, costs: Any, *, sensitivity: int, epsilon: float, key: bytes, stream: int) -> int:
        self.on_records()
        exact = tuple(map(int, costs))
        self.note(f"select_least({len(exact)}, {sensitivity}, {epsilon.hex()}, {show(key)}, {stream})")
        draw = self._quietly(draws.select_least)
        released = draw(list(exact), sensitivity=sensitivity, epsilon=epsilon, key=key, stream=stream)
        mechanism, bound = ("exponential", epsilon), Fraction(sensitivity)
        noised = NoisedSum("select_least", (key, stream), mechanism, exact, (), bound, math.inf, released)
        return int(self.answer(noised))

    def _thresholded_counts(
        self, found: Any, *, epsilon: float, threshold: int, replace: bool, key: bytes, column: str
    ) -> dict[str, int]:
        self.on_records()
        self.note(f"thresholded_counts({epsilon.hex()}, {threshold}, {replace}, {show(key)}, {column!r})")
        draw = self._quietly(draws.thresholded_counts)
        given: dict[str, Any] = {"epsilon": epsilon, "replace": replace, "key": key, "column": column}
        released = draw(dict(found), threshold=threshold, **given)
        # With the noise of those that stay below it, which never leave.
        noisy = draw(dict(found), threshold=-(2**62), **given)
        labels = tuple(sorted(noisy))
        moves = 2 if replace else 1
        below = math.exp(-epsilon / moves)
        failure = moves * below ** (threshold - 1) / (1.0 + below)
        noised = NoisedSum(
            "thresholded_counts",
            (key, column),
            ("threshold", epsilon, failure),
            tuple(int(found[label]) for label in labels),
            tuple(noisy[label] - int(found[label]) for label in labels),
            Fraction(moves),
            1,
            released,
            labels=labels,
        )
        if any(count < threshold for count in released.values()):
            self.fault("unnoised: a label leaves below the threshold")
        return dict(self.answer(noised))

    def _quietly(self, wrapped: Any) -> Callable[..., Any]:
        """Return the wrapped object without logging its own requests, whose number depends on the records."""

        def draw(*arguments: Any, **named: Any) -> Any:
            self._quiet = True
            try:
                return self._original(wrapped)(*arguments, **named)
            finally:
                self._quiet = False

        return draw

    @staticmethod
    def _original(wrapped: Any) -> Any:
        return getattr(wrapped, "__replaced__", wrapped)


def replace_everywhere(
    function: Callable[..., Any], substitute: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    """Replace a function of this package by a substitute, under every name in every module.

    The attribute ``__replaced__`` of the substitute is the original function.
    """
    return _replace_all([(function, substitute)])


@contextlib.contextmanager
def _replace_all(pairs: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]) -> Iterator[None]:
    calls = [(function, _call_of(function, substitute)) for function, substitute in pairs]
    before = dict(sys.modules)
    changed = _swap(calls, before)
    try:
        yield
    finally:
        # A module that was imported meanwhile has the substitutes, too.
        imported = {name: module for name, module in sys.modules.items() if before.get(name) is not module}
        _swap([(call, function) for function, call in calls], changed | imported)


def _call_of(function: Callable[..., Any], substitute: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return substitute(*arguments, **named)

    call.__replaced__ = function  # type: ignore[attr-defined]
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def _swap(pairs: Sequence[tuple[Any, Any]], modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Put the second of each pair wherever a module has the first, and return the modules that had one."""
    instead = {id(one): other for one, other in pairs}
    there, changed = frozenset(instead), {}
    for name, module in modules.items():
        # Most modules have none: few names are looked at one by one.
        if (name == "dpinfer" or name.startswith("dpinfer.")) and not there.isdisjoint(map(id, vars(module).values())):
            changed[name] = module
            matching = [(key, id(value)) for key, value in vars(module).items() if id(value) in instead]
            for attribute, place in matching:
                setattr(module, attribute, instead[place])
    return changed


def _native_modules() -> list[ModuleType]:
    """Return the compiled modules that the mechanism's modules use: one, unless a test put another in its place."""
    modules = [_native]
    for name, module in list(sys.modules.items()):
        used = getattr(module, "_native", None) if name.startswith("dpinfer.mechanism.") else None
        if isinstance(used, ModuleType) and all(used is not other for other in modules):
            modules.append(used)
    return modules
