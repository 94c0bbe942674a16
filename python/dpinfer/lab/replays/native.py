"""The compiled module's sessions and sums, wrapped so that they write their queries on a tape.

**Privacy.** For made-up records.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from dpinfer.lab.replays.tape import NoisedSum, show

# Names of the compiled module by their use of records; other names are refused.
_SESSIONS = ("StepSession", "AffineSession", "NetworkSession", "mixture_sites", "binary_sites")
_SUMS_IN_PARTS, _ROWS, _SAMPLER = "PartialSum", "RegressionRows", "poisson_sample"
_WITHOUT_RECORDS = (
    "Residuals",
    "box_muller",
    "exact_rounded_gaussian",
    "keystream",
    "monte_carlo_normals",
    "rounded_gaussian",
    "simd_variant",
)
# Made by other functions only, or public: what it computes of a block of persons is not seen, their sum is.
_TYPES = ("PersonModel", "SiteSession")
NATIVE_NAMES = frozenset((*_SESSIONS, _SUMS_IN_PARTS, _ROWS, _SAMPLER, *_WITHOUT_RECORDS, *_TYPES))

_RECORDS = ("features", "points", "response", "statistics", "columns", "starts", "weights")
_NORMS = ("max_grad_norm", "max_site_norm", "max_norm")
_SUMS = {"noisy_sum": "poisson", "poisson_sum": "poisson", "uniform_sum": "uniform", "permuted_sum": "permutation"}
_PROPERTIES = ("effective_rate", "lattice_step", "length", "max_norm", "n_coef", "released_length")
# So little noise rounds to none: the path of a private sum then returns the exact one.
_NO_NOISE = 1e-12


class Recorder(Protocol):
    """Callbacks of the wrappers.

    Attributes
    ----------
    on_records : callable
        Called when records are about to be read.
    """

    on_records: Callable[[], None]

    def note(self, text: str) -> None:
        """Add a line to the log."""

    def note_block(self, text: str) -> None:
        """Add a line about a block of records, once for each noised sum: how many blocks there are is private."""

    def fault(self, text: str) -> None:
        """Report a forbidden action of the run."""

    def answer(self, own: NoisedSum) -> Any:
        """Keep a noised sum, and return its value for the run."""


@contextlib.contextmanager
def wrapped_module(module: ModuleType, recorder: Recorder) -> Iterator[None]:
    """Replace the names of a compiled module by wrappers during the block."""
    # Rates of the samples that were drawn, by key and step.
    sampled: dict[tuple[Any, ...], float] = {}
    before = {name: value for name, value in vars(module).items() if name in NATIVE_NAMES}
    for name, value in before.items():
        if name in _SESSIONS:
            setattr(module, name, _opener(recorder, name, value))
        elif name == _SUMS_IN_PARTS:
            setattr(module, name, _sum_opener(recorder, name, value, sampled))
        elif name == _SAMPLER:
            setattr(module, name, _sampler(recorder, name, value, sampled))
        elif name == _ROWS:
            setattr(module, name, _rows_opener(recorder, name, value))
        elif name in _WITHOUT_RECORDS:
            setattr(module, name, _noted(recorder, name, value))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _opener(recorder: Recorder, name: str, opened: Callable[..., Any]) -> Callable[..., Any]:
    def open_session(**arguments: Any) -> "NativeSession":
        public, n_rows = _note_opening(recorder, name, arguments)
        return NativeSession(recorder, name, opened(**arguments), public, n_rows)

    return open_session


def _note_opening(recorder: Recorder, name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Note public arguments, and of records types and widths; return the former, and how many records there are."""
    recorder.on_records()
    recorder.note(_opening(name, arguments))
    public = {key: value for key, value in arguments.items() if key not in _RECORDS}
    return public, next(len(value) for key, value in arguments.items() if key in _RECORDS)


def _opening(name: str, arguments: Mapping[str, Any]) -> str:
    public = {key: value for key, value in arguments.items() if key not in _RECORDS}
    private = {key: value for key, value in arguments.items() if key in _RECORDS}
    widths = ", ".join(f"{key}: {value.dtype} {value.shape[1:]}" for key, value in private.items())
    return f"{name}({show(public)}) over records of {widths}"


def _noted(recorder: Recorder, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Made anew for every block of records.
    note = recorder.note_block if name == "Residuals" else recorder.note

    def call(*arguments: Any, **named: Any) -> Any:
        note(f"{name}({show(arguments)}, {show(named)})")
        return function(*arguments, **named)

    return call


def _sampler(
    recorder: Recorder, name: str, function: Callable[..., Any], sampled: dict[tuple[Any, ...], float]
) -> Callable[..., Any]:
    def call(key: bytes, step: int, sample_rate: float, n_rows: int) -> Any:
        # The number of rows is private.
        recorder.note(f"{name}({show(key)}, {step}, {show(sample_rate)})")
        sampled[key, step] = sample_rate
        return function(key, step, sample_rate, n_rows)

    return call


def _integers(recorder: Recorder, name: str, values: Any, lattice_step: float) -> tuple[int, ...]:
    """Return a sum in lattice steps, a power of two: a multiple of it divides without rounding."""
    steps = np.asarray(values) / lattice_step
    if not np.all(steps == np.rint(steps)):
        recorder.fault(f"noise: {name} is not on its lattice")
    return tuple(int(value) for value in np.rint(steps))


def _gaussian(multiplier: float, sampling: str, rate: float | None) -> tuple[Any, ...]:
    """Return a mechanism in the form of events: Poisson sampling at rate 1 is no sampling."""
    if sampling == "poisson" and rate != 1.0:
        return ("gaussian", multiplier, "poisson", rate)
    return ("gaussian", multiplier, "all" if sampling == "poisson" else sampling, 1.0)


class NativeSession:
    """A compiled session that writes its queries on the tape.

    **Privacy.** Holds made-up records.

    Parameters
    ----------
    name : str
        Name of the function that opened it.
    real : object
        The compiled session.
    public : mapping
        The public arguments that it was opened with.
    """

    def __init__(self, recorder: Recorder, name: str, real: Any, public: Mapping[str, Any], n_rows: int) -> None:
        self._recorder, self._name, self._real, self._n_rows = recorder, name, real, n_rows
        self._key = public["key"]
        self._max_norm = next(public[norm] for norm in _NORMS if norm in public)
        self._rate = public.get("sample_rate")

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        full = f"{self._name}.{name}"
        if name in _PROPERTIES:
            self._recorder.note(f"{full} is {show(value)}")
            return value
        if name in _SUMS:
            return lambda *arguments: self._sum(name, value, arguments)
        if not name.startswith("set_"):
            self._recorder.fault(f"unnoised: {full} returns what has no noise")
            return value
        return _noted(self._recorder, full, value)

    def _sum(self, name: str, released: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        full, grid = f"{self._name}.{name}", self._real.lattice_step
        self._recorder.note(f"{full}({show(arguments)})")
        rate = arguments[1] if name == "poisson_sum" else self._rate
        exact = _integers(self._recorder, full, released(*arguments[:-1], _NO_NOISE), grid)
        mine = np.array(released(*arguments))
        noised = _integers(self._recorder, full, mine, grid)
        noised_sum = NoisedSum(
            full,
            (self._key, arguments[0]),
            _gaussian(arguments[-1], _SUMS[name], rate),
            exact,
            tuple(a - b for a, b in zip(noised, exact, strict=True)),
            Fraction(self._max_norm) / Fraction(grid),
            2,
            mine,
            self._n_rows,
        )
        return self._recorder.answer(noised_sum).copy()


class NativeSum:
    """A sum in parts, which writes its outputs on the tape.

    **Privacy.** Holds made-up records' exact sum.

    Parameters
    ----------
    real : object
        The compiled sum.
    sampled : mapping
        Rates of the samples that were drawn, by key and step.
    """

    def __init__(self, recorder: Recorder, name: str, real: Any, sampled: Mapping[tuple[Any, ...], float]) -> None:
        self._recorder, self._name, self.real, self._sampled = recorder, name, real, sampled
        # Of the rows that were added.
        self.sample_rate = 1.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if name in _PROPERTIES:
            self._recorder.note(f"{self._name}.{name} is {show(value)}")
        elif not callable(value):
            self._recorder.fault(f"unnoised: {self._name}.{name} returns what has no noise")
        return value

    def add_contributions(self, contributions: Any, *arguments: Any, **named: Any) -> None:
        """Add a block of contributions, whose number is private."""
        self._recorder.on_records()
        self.real.add_contributions(contributions, *arguments, **named)

    def noisy_sum(self, key: bytes, step: int, noise_multiplier: float) -> Any:
        """Return the output."""
        full, grid = f"{self._name}.noisy_sum", self.real.lattice_step
        self._recorder.note(f"{full}({show(key)}, {step}, {show(noise_multiplier)})")
        exact = tuple(map(int, self.real.integers))
        mine = np.array(self.real.noisy_sum(key, step, noise_multiplier))
        noised = _integers(self._recorder, full, mine, grid)
        noised_sum = NoisedSum(
            full,
            (key, step),
            _gaussian(noise_multiplier, "poisson", self._sampled.get((key, step), self.sample_rate)),
            exact,
            tuple(a - b for a, b in zip(noised, exact, strict=True)),
            Fraction(self.real.max_norm) / Fraction(grid),
            2,
            mine,
        )
        return self._recorder.answer(noised_sum).copy()


def _sum_opener(
    recorder: Recorder, name: str, opened: Callable[..., Any], sampled: Mapping[tuple[Any, ...], float]
) -> Callable[..., Any]:
    def open_sum(**public: Any) -> NativeSum:
        recorder.note(f"{name}({show(public)})")
        return NativeSum(recorder, name, opened(**public), sampled)

    return open_sum


def _rows_opener(recorder: Recorder, name: str, opened: Callable[..., Any]) -> Callable[..., Any]:
    def open_rows(**arguments: Any) -> "NativeRows":
        recorder.on_records()
        recorder.note_block(_opening(name, arguments))
        return NativeRows(recorder, name, opened(**arguments))

    return open_rows


class NativeRows:
    """Rows of records that add to a :class:`NativeSum`, and write their queries on the tape.

    **Privacy.** Holds made-up records.

    Parameters
    ----------
    real : object
        The compiled rows.
    """

    def __init__(self, recorder: Recorder, name: str, real: Any) -> None:
        self._recorder, self._name, self._real = recorder, name, real
        self._sample_rate = 1.0

    def sample(self, key: bytes, step: int, sample_rate: float) -> None:
        """Make the passes that follow be over a sample."""
        self._recorder.note(f"{self._name}.sample({show(key)}, {step}, {show(sample_rate)})")
        self._sample_rate = sample_rate
        self._real.sample(key, step, sample_rate)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        full = f"{self._name}.{name}"
        if name in _PROPERTIES:
            self._recorder.note(f"{full} is {show(value)}")
            return value
        if not name.startswith("add_"):
            self._recorder.fault(f"unnoised: {full} returns what has no noise")
            return value

        def add(total: NativeSum, *arguments: Any, **named: Any) -> None:
            kinds = [type(item).__name__ for item in arguments]
            self._recorder.note_block(f"{full}({kinds}, {show(named)})")
            total.sample_rate = self._sample_rate
            value(total.real, *arguments, **named)

        return add
