"""Blocks of rows of arrays: in memory, in memory maps, in ``.npy`` files.

**Privacy.** Reads records when a pass asks for them, and holds two blocks at most.
"""

import itertools
import math
import mmap
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.errors import RecordError
from dpinfer.mechanism.sources.read_ahead import announce, announce_file

Array = npt.NDArray[Any]
Block = Array | tuple[Array, ...]
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class ArrayBlocks:
    """Blocks of arrays: views of them."""

    arrays: tuple[Array, ...]
    rows: int

    def __call__(self) -> Iterator[Block]:
        """Yield the blocks of one pass."""
        for start in range(0, len(self.arrays[0]), self.rows):
            parts = tuple(array[start : start + self.rows] for array in self.arrays)
            yield parts if len(parts) > 1 else parts[0]


def is_mapped(array: Array) -> bool:
    """Return whether an array's numbers are contiguous in a memory map."""
    return _Pages.of(array) is not None


@dataclass(frozen=True, eq=False)
class MappedBlocks:
    """Blocks of arrays of which some are memory maps: copies, made while the system reads the next pages.

    A kernel that reads a map itself waits for its pages one after the other.
    """

    arrays: tuple[Array, ...]
    rows: int

    def __call__(self) -> Generator[Block, None, None]:
        """Yield the blocks of one pass, in two places in turn."""
        parts = (
            ArrayBlocks((array,), self.rows)() if pages is None else _copies(array, pages, self.rows)
            for array, pages in ((array, _Pages.of(array)) for array in self.arrays)
        )
        for block in zip(*parts, strict=True):
            yield block if len(block) > 1 else block[0]


def _copies(array: Array, pages: "_Pages", rows: int) -> Iterator[Array]:
    """Yield the blocks of an array in a memory map, in two places in turn, and give its pages back."""
    places, row_bytes = _two_places(array, rows), array.nbytes // max(len(array), 1)
    for block, ahead in _in_order(len(array), rows):
        pages.announce(ahead.start * row_bytes, ahead.stop * row_bytes)
        copy = next(places)[: block.stop - block.start]
        np.copyto(copy, array[block])
        pages.give_back(block.start * row_bytes, block.stop * row_bytes)
        yield copy


def _in_order(n_rows: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield each block's rows, and the rows to announce before it is read: two blocks ahead."""
    announced = 0
    for start in range(0, n_rows, rows):
        ahead = min(start + 3 * rows, n_rows)
        yield slice(start, min(start + rows, n_rows)), slice(announced, ahead)
        announced = ahead


def _two_places(array: Any, rows: int) -> Iterator[Array]:
    """Return memory for the blocks of an array: fresh memory costs as much as a read."""
    shape = (min(rows, array.shape[0]), *array.shape[1:])
    return itertools.cycle([np.empty(shape, array.dtype), np.empty(shape, array.dtype)])


class _Pages:
    """The pages of an array in a memory map."""

    def __init__(self, array: Array, root: Any) -> None:  # the root is the array's base, or itself
        self._map: mmap.mmap = root.base
        self._first = array.ctypes.data - np.frombuffer(self._map, np.uint8).ctypes.data
        # Writes to a private map (copy on write) would be lost.
        self._is_shared = getattr(root, "mode", "c") != "c"

    @classmethod
    def of(cls, array: Array) -> "_Pages | None":
        """Return the pages of an array; None if it is not mapped, or the system takes no hints."""
        root: Any = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not (hasattr(mmap, "MADV_WILLNEED") and isinstance(root.base, mmap.mmap)):
            return None
        return cls(array, root) if array.flags.c_contiguous and array.size else None

    def announce(self, start: int, stop: int) -> None:
        """Ask for the pages of these bytes of the array."""
        first = (self._first + start) // mmap.PAGESIZE * mmap.PAGESIZE
        announce(partial(self._map.madvise, mmap.MADV_WILLNEED), first, self._first + stop - first)

    def give_back(self, start: int, stop: int) -> None:
        """Let go of the pages of these bytes: they stay in the system's cache, and are no longer this process's."""
        first, last = ((self._first + place) // mmap.PAGESIZE * mmap.PAGESIZE for place in (start, stop))
        if self._is_shared and last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True)
class NpyFile:
    """An array in a file, described by its header."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def opened(cls, name: str, path: PathLike) -> "NpyFile":
        """Read the header of the file, which the argument `name` of a caller gave."""
        with Path(path).open("rb") as stream:
            try:
                version = np.lib.format.read_magic(stream)
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, fortran, dtype = read[version](stream)
            except (ValueError, KeyError):
                shape, fortran, dtype = (), True, np.dtype("O")
            # Python objects are not read: to load them executes code.
            if dtype.hasobject or len(shape) not in (1, 2) or (fortran and len(shape) == 2):
                raise ValueError(
                    f"{name} must be a .npy file of an array of numbers in C order, with 1 or 2 dimensions"
                )
            return cls(os.fspath(path), stream.tell(), dtype, tuple(shape))

    def blocks(self, rows: int) -> Iterator[Array]:
        """Yield the blocks, in two places in turn."""
        places, row_bytes = _two_places(self, rows), self.dtype.itemsize * math.prod(self.shape[1:])
        with Path(self.path).open("rb", buffering=0) as stream:
            stream.seek(self.offset)
            for block, ahead in _in_order(self.shape[0], rows):
                announce_file(stream, self.offset + ahead.start * row_bytes, (ahead.stop - ahead.start) * row_bytes)
                place = next(places)[: block.stop - block.start]
                if place.size and not _filled(stream, place.data.cast("B")):
                    raise RecordError("X must give the same rows in every pass, and a file ended early")
                yield place


def _filled(stream: Any, buffer: memoryview) -> bool:
    while len(buffer):
        count = stream.readinto(buffer)
        if not count:
            return False
        buffer = buffer[count:]
    return True


@dataclass(frozen=True)
class NpyBlocks:
    """Blocks of files of arrays."""

    features: NpyFile
    response: NpyFile | None
    rows: int

    def __call__(self) -> Generator[Block, None, None]:
        """Yield the blocks of one pass, in two places in turn."""
        if self.response is None:
            yield from self.features.blocks(self.rows)
        else:
            yield from zip(self.features.blocks(self.rows), self.response.blocks(self.rows), strict=True)
