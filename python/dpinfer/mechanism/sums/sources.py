"""Where rows come from, when they are not arrays in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.errors import RecordError

__all__ = ["Records", "RowSource"]

Array = npt.NDArray[Any]
Records = Sequence[Array]
Block = tuple[Any, ...]


class RowSource:
    """Rows that are read a block at a time, anew in every step: what `X` may be in place of an array.

    **Privacy.** Holds no records, but reads them.  Every pass must give the same rows in the same order: a pass that
    gives another number of rows ends the run, for which the charge stays.

    Parameters
    ----------
    blocks : callable
        Returns an iterable of the blocks of one pass: pairs (X, y), or arrays X for models without a response.

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

    def __init__(self, blocks: Callable[[], Iterable[Any]]) -> None:
        if not callable(blocks):
            raise TypeError(f"blocks must be callable, and return the blocks of a pass, got {type(blocks).__name__}")
        self._blocks = blocks
        self._check: Callable[[Any, Any], Records] | None = None
        self.n_rows = 0
        self.empty: Records = ()

    def checked(self, check: Callable[[Any, Any], Records]) -> "RowSource":
        """Read all rows once, and return the source that checks them in every pass and knows how many there are.

        **Privacy.** Reads the records.

        Parameters
        ----------
        check : callable
            Gets (X, y) of a block and returns the arrays that the kernels read.

        Raises
        ------
        RecordError
            If there is no row, or a block cannot be used.
        """
        source = RowSource(self._blocks)
        source._check = check
        for arrays in source:
            source.n_rows += arrays[0].shape[0]
            source.empty = [array[:0].copy() for array in arrays]
        if not source.empty:
            raise RecordError("X must have at least one row, got none")
        return source

    def __iter__(self) -> Iterator[Records]:
        """Yield the checked arrays of every block of one pass."""
        if self._check is None:
            raise TypeError("a RowSource must be checked before it is read")
        for block in self._blocks():
            features, response = block if isinstance(block, tuple) else (block, None)
            if np.shape(features)[:1] != (0,):
                yield self._check(features, response)

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
            own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + size)] - first
            for part, array in zip(parts, arrays, strict=True):
                part.append(array[own])
            first += size
        if first != self.n_rows:
            raise RecordError("X must give the same rows in every pass, and gave another number")
        return [np.ascontiguousarray(np.concatenate(part)) for part in parts]
