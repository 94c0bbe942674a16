"""Where rows come from: the protocol of all kinds of records, and rows that are read a block at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._lazy import find_plugin
from dpinfer._validate import as_record_array, known_shape
from dpinfer.errors import RecordError

Array = npt.NDArray[Any]
# Of a block: arrays, or sparse features in the place of the first.
Arrays = Sequence[Any]
T = TypeVar("T")

MAX_ROWS = 2**31  # exact integer sums of 64 bits are proved for so many


class Records(ABC):
    """Records of a run, as its `X`: runs call these methods and never test the type.

    A kind of your own has :meth:`each_part`, and says in `demands` which runs take it (docs/architecture.md).

    **Privacy.** Attributes are public; a kind reads its records in :meth:`each_part` alone, which a run calls after it
    was charged.

    Attributes
    ----------
    n_features : int or None
        Columns of X, if known before a row is read.
    units : bool
        Whether blocks are (X, y, unit).
    on_gpu : bool
        Whether passes are made on a GPU.
    own_noise : bool
        Whether sums come with their noise, from places that trust nobody with an exact sum.
    """

    n_features: int | None = None
    units: bool = False
    on_gpu: bool = False
    own_noise: bool = False

    @property
    @abstractmethod
    def demands(self) -> Mapping[str, str]:
        """What a run must be able to do with these records, each with the message for a run that cannot.

        Of "blocks" (read a block at a time, in every pass), "units", "parts" (sum several parts, each where it is),
        "sites", "sparse" and "cuda"; ``{name}`` in a text becomes the argument's name.
        """

    @abstractmethod
    def each_part(self, function: Callable[..., T], *public: Any) -> list[T]:
        """Return ``function(source, *public)`` of each part, a :class:`RowSource`.

        **Privacy.** Reads the records.
        """

    @property
    def held(self) -> tuple[Any, Any] | None:
        """(X, y) of records in memory, None of all others."""
        return None

    def with_response(self, y: Any) -> "Records":
        """Return the records with responses that are given beside them, or refuse these."""
        if y is not None:
            raise TypeError(f"y must be None with a {type(self).__name__}, whose records have their responses")
        return self

    def refuse(self, name: str, takes: Sequence[str]) -> None:
        """Raise TypeError, with the reason, if a run that can do no more than `takes` has these as argument `name`."""
        for demand, text in self.demands.items():
            if demand not in takes:
                raise TypeError(text.format(name=name))

    def check_form(self, model: Any) -> None:
        """Refuse records of another form than the model's, without reading one."""
        columns = getattr(model, "n_features", 1)
        if self.n_features not in (None, columns):
            raise ValueError(f"X must have {columns} columns for {type(model).__name__}, got {self.n_features}")

    def responses(self) -> Any:
        """Return the responses alone, as records of one column.

        **Privacy.** Reads no records.
        """
        return _ResponsesOf(self)

    def source(self) -> "RowSource":
        """Return the one part of records that do not demand "parts"."""
        found: list[RowSource] = self.each_part(lambda part: part)
        return found[0]

    def to_gpu(self) -> "Records":
        """Return the records as a GPU sums them.

        Raises TypeError if it takes no such records.
        """
        raise TypeError(f"X must be an array for a GPU, got {type(self).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """Return public facts by which a checkpoint identifies the records."""
        return {}

    def check_ledger(self, ledger: Any) -> None:  # noqa: B027
        """Refuse a ledger of the run where the records' places keep their own."""


def numbers_alone(y: Any) -> Array:
    """Return responses as an array.

    Raises RecordError if they are not real numbers in one dimension.
    """
    values = as_record_array("y", y)
    if values.dtype.kind not in "fiub" or values.ndim != 1:
        raise RecordError("y must be a one-dimensional array of real numbers")
    return values


class _ResponsesOf(Records):
    """The responses of other records, wherever their parts are."""

    n_features = 1

    def __init__(self, records: Records) -> None:
        self._records = records

    @property
    def demands(self) -> Mapping[str, str]:
        return self._records.demands

    def each_part(self, function: Callable[..., T], *public: Any) -> list[T]:
        return self._records.each_part(_for_responses, function, *public)


def _for_responses(source: "RowSource", function: Callable[..., T], *public: Any) -> T:
    return function(RowSource(partial(_responses, source), 1), *public)


def _responses(source: "RowSource") -> Iterator[Array]:
    for _, response in source.each(lambda *arrays: arrays[:2]):
        if response is None:
            raise RecordError("X must give blocks (X, y), with responses")
        yield numbers_alone(response)


class RowSource(Records):
    """Rows that are read a block at a time, again in every pass, as `X` of a run.

    **Privacy.** Holds no records, but reads them.  Every pass must give the same rows: a pass with another number of
    rows ends the run, and its charge stands, as does a pass with any error except an interrupt.
    Sums over all rows do not depend on their order, nor on how they are cut into blocks; a Poisson sample and a
    checkpoint need the same order in every pass.

    Parameters
    ----------
    blocks : callable
        Returns an iterable of the blocks of one pass: pairs (X, y), or arrays X for models without a response.  A block
        is no longer used when the next one is requested, which may reuse its memory.
    n_features : int, optional
        Columns of X, if known before a row is read.
    units : bool
        Whether blocks are triples (X, y, unit), with the rows of a unit one after the other and units in increasing
        order: for a run with ``unit=``.  Units are integers or strings, in each block of any type that holds them; they
        increase as numbers, with texts behind them, or all as texts.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> def blocks():
    ...     rng = np.random.default_rng(0)
    ...     for _ in range(4):
    ...         X = rng.normal(size=(100, 2))
    ...         yield X, (X[:, 0] > 0).astype(float)
    >>> plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=5)
    >>> model = dpi.models.LogisticRegression(2)
    >>> dpi.run_dpvi(model, RowSource(blocks), plan=plan, n_records=400, max_grad_norm=1.0).n_steps
    5
    """

    def __init__(
        self, blocks: Callable[[], Iterable[Any]], n_features: int | None = None, *, units: bool = False
    ) -> None:
        if not callable(blocks):
            raise TypeError(f"blocks must be callable, and return the blocks of a pass, got {type(blocks).__name__}")
        self._blocks = blocks
        self.n_features = n_features
        self.units = units
        # Identity of the files, if known: device and inode of each.
        self.files: frozenset[tuple[int, int]] = frozenset()
        self._check: Callable[..., Arrays] | None = None
        self.n_rows = 0
        self.empty: Arrays = ()
        self.kept: Arrays = ()

    @property
    def demands(self) -> Mapping[str, str]:
        """The run must read blocks, and protect units if the source has units."""
        units = {"units": "{name} must be a source without units: this run protects rows"} if self.units else {}
        return units | {"blocks": "{name} must be an array, not a RowSource: this run needs its rows in memory"}

    def each_part(self, function: Callable[..., T], *public: Any) -> list[T]:
        """Return the function's result for the rows, which are one part."""
        return [function(self, *public)]

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "RowSource":
        """Return checked arrays in memory as a source of one block, which a run may keep."""
        source = cls(tuple)
        source.kept = arrays
        return source

    def arrays(self) -> Iterable[Array]:
        """Return everything that the kernels read, by which a checkpoint recognises it."""
        return self.kept or (array for block in self for array in block)

    def checked(self, check: Callable[..., Arrays], empty: Callable[[], Arrays] = tuple) -> "RowSource":
        """Read all rows once, and return a source that checks them in every pass and knows their number.

        `check` gets (X, y) or (X, y, unit) of a block, and returns the arrays that the kernels read; `empty` returns
        these for no rows.

        **Privacy.** Reads the records.

        Raises RecordError if there are too many rows, or a block cannot be used.
        """
        source = RowSource(self._blocks, self.n_features, units=self.units)
        source._check = check
        for arrays in self.each(check):
            source.n_rows += arrays[0].shape[0]
            source.empty = [array[:0].copy() for array in arrays if isinstance(array, np.ndarray)]
        source.n_rows = total_rows(source.n_rows)
        source.empty = source.empty or empty()
        return source

    def each(self, check: Callable[..., Arrays]) -> Iterator[Arrays]:
        """Yield the checked arrays of every block of one pass.

        **Privacy.** Reads the records.
        """
        for block in self._blocks():
            arrays = block if isinstance(block, tuple) else (block, None)
            if len(arrays) != (3 if self.units else 2):
                raise RecordError("X must give blocks (X, y), or arrays X, or with units (X, y, unit)")
            if not _is_empty(arrays[0]):
                yield check(*arrays)

    def __iter__(self) -> Iterator[Arrays]:
        """Yield the checked arrays of every block of one pass.

        Raises RecordError if the pass gives another number of rows than the first one did.
        """
        if self._check is None:
            raise TypeError("a RowSource must be checked before it is read")
        n_rows = 0
        for arrays in self.each(self._check):
            n_rows += arrays[0].shape[0]
            yield arrays
        if n_rows != self.n_rows:
            raise RecordError("X must give the same rows in every pass, and gave another number")

    def take(self, rows: npt.NDArray[np.int64]) -> Arrays:
        """Return these rows, increasing, from one pass.

        **Privacy.** Returns records: for the kernels only.

        Raises RecordError if the pass gives another number of rows than the first one did.
        """
        parts: list[list[Array]] = [[array] for array in self.empty]
        first = 0
        for arrays in self:
            size = arrays[0].shape[0]
            places = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + size)] - first
            for part, array in zip(parts, arrays, strict=True):
                part.append(array[places])
            first += size
        return [np.ascontiguousarray(np.concatenate(part)) for part in parts]


def _is_empty(X: Any) -> bool:
    shape = known_shape(X)
    return shape[:1] == (0,) if shape is not None else isinstance(X, Sequence) and not X


def total_rows(*counts: int) -> int:
    """Return the number of rows of all parts, which may be none: the noise alone is a release.

    Raises RecordError if there are too many rows for an exact sum.
    """
    if sum(counts) > MAX_ROWS:
        raise RecordError(f"X must have at most {MAX_ROWS} rows")
    return sum(counts)


_GROUP = "dpinfer.sources"


def open_source(name: str, *arguments: Any, **options: Any) -> Records:
    """Return a source of records that an installed package registers under a name, for any run that takes such records.

    **Privacy.** Calls the package's own code, which opens the records: it must not read them before a run asks for
    blocks, and a block must depend on its own records alone, as of any :class:`RowSource`.  dpinfer cannot check that.

    Raises TypeError if it gives no Records. Raises ValueError if no package, or more than one, registers the name.

    Parameters
    ----------
    name : str
        Among the entry points of ``dpinfer.sources`` (docs/stability.md).
    *arguments, **options
        Arguments of the package's function.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    plugin = find_plugin(_GROUP, name)
    if plugin is None:
        raise ValueError(f"name must be an entry point of {_GROUP} of an installed package, got {name!r}")
    source = plugin[0](*arguments, **options)
    if not isinstance(source, Records):
        raise TypeError(f"{plugin[1]} must give Records for {name!r}, got {type(source).__name__}")
    return source
