"""Where rows come from, when they are not arrays in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._records import as_record_array, known_shape
from dpinfer.errors import RecordError

Array = npt.NDArray[Any]
# Of a block: arrays, or sparse features in the place of the first.
Records = Sequence[Any]

MAX_ROWS = 2**31  # as for arrays in memory


class RowSource:
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
        order: for a run with ``unit=``.

    Raises
    ------
    TypeError
        If `blocks` cannot be called.

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
        self._check: Callable[..., Records] | None = None
        self.n_rows = 0
        self.empty: Records = ()

    def responses(self) -> "RowSource":
        """Return the responses alone, as a source of one column.

        **Privacy.** Reads no records.
        """
        return RowSource(_Responses(self), 1)

    def checked(self, check: Callable[..., Records]) -> "RowSource":
        """Read all rows once, and return a source that checks them in every pass and knows their number.

        **Privacy.** Reads the records.

        Parameters
        ----------
        check : callable
            Gets (X, y) or (X, y, unit) of a block and returns the arrays that the kernels read.

        Raises
        ------
        RecordError
            If there is no row, or too many, or a block cannot be used.
        """
        source = RowSource(self._blocks, self.n_features, units=self.units)
        source._check = check
        n_rows = 0
        for arrays in self.each(check):
            n_rows += arrays[0].shape[0]
            source.empty = [array[:0].copy() for array in arrays if isinstance(array, np.ndarray)]
            if n_rows > MAX_ROWS:
                raise RecordError(f"X must have at most {MAX_ROWS} rows")
        if not source.empty:
            raise RecordError("X must have at least one row, got none")
        source.n_rows = n_rows
        return source

    def each(self, check: Callable[..., Records]) -> Iterator[Records]:
        """Yield the checked arrays of every block of one pass.

        **Privacy.** Reads the records.
        """
        for block in self._blocks():
            arrays = block if isinstance(block, tuple) else (block, None)
            if len(arrays) != (3 if self.units else 2):
                raise RecordError("X must give blocks (X, y), or arrays X, or with units (X, y, unit)")
            if not _is_empty(arrays[0]):
                yield check(*arrays)

    def __iter__(self) -> Iterator[Records]:
        """Yield the checked arrays of every block of one pass.

        Raises
        ------
        RecordError
            If the pass gives another number of rows than the first one did.
        """
        if self._check is None:
            raise TypeError("a RowSource must be checked before it is read")
        n_rows = 0
        for arrays in self.each(self._check):
            n_rows += arrays[0].shape[0]
            yield arrays
        if n_rows != self.n_rows:
            raise RecordError("X must give the same rows in every pass, and gave another number")

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """Return these rows, increasing, from one pass.

        **Privacy.** Returns records: for the kernels only.

        Raises
        ------
        RecordError
            If the pass gives another number of rows than the first one did.
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


class _Responses:
    """The blocks of a source's responses; a worker can be sent it."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows

    def __call__(self) -> Iterator[Array]:
        for _, response in self._rows.each(lambda *arrays: arrays[:2]):
            if response is None:
                raise RecordError("X must give blocks (X, y), with responses")
            values = as_record_array("y", response)
            if values.dtype.kind not in "fiub" or values.ndim != 1:
                raise RecordError("y must be a one-dimensional array of real numbers")
            yield values
