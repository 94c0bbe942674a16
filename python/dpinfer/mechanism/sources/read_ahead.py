"""Blocks of records, read by a thread one block ahead of the sum.

**Privacy.** Passes records on, and keeps none after a pass.  A block has the same numbers as without the
thread: the time of a read changes no sum.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from dpinfer._surroundings import standard_arithmetic

_ANNOUNCED_BYTES = 2**20  # the system takes no more at once where its disks' queues have their usual sizes


@dataclass(frozen=True)
class ReadAhead:
    """The blocks of a pass: each is read while the previous one is summed.

    The thread lives as long as the pass.  Its errors are raised in the pass; a pass that ends early, by an error or an
    interrupt, waits for the block that is being read.
    """

    # returns a generator of the blocks of one pass, which is called and run in the thread.  A block must not change
    # until the second one after it is requested: two buffers in turn suffice
    blocks: Callable[[], Generator[Any, None, None]]

    def __call__(self) -> Iterator[Any]:
        """Yield the blocks of one pass."""
        reader = _Reader(self.blocks)
        try:
            yield from reader.each()
        finally:
            reader.stop()


class _Reader:
    def __init__(self, blocks: Callable[[], Generator[Any, None, None]]) -> None:
        self._ready: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        # The place beside the block that is being summed.
        self._free = threading.Semaphore(1)
        self._stopped = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._read, args=(blocks,), name="dpinfer reader", daemon=True)
        self._thread.start()

    def _read(self, blocks: Callable[[], Generator[Any, None, None]]) -> None:
        error = None
        try:
            with standard_arithmetic(), contextlib.closing(blocks()) as reader:
                for block in reader:
                    self._ready.put((block, None))
                    self._free.acquire()
                    if self._stopped:
                        break
        except BaseException as caught:
            error = caught
        self._ready.put((None, error))

    def each(self) -> Iterator[Any]:
        while True:
            if os.getpid() != self._process:
                # The thread is in the other process: this one would wait for ever.
                raise RuntimeError("a pass over rows cannot continue in a process that was forked during the pass")
            block, error = self._ready.get()
            if error is not None:
                raise error
            if block is None:
                return
            yield block
            self._free.release()

    def stop(self) -> None:
        if os.getpid() == self._process:
            self._stopped = True
            self._free.release()
            self._thread.join()


def announce(advise: Callable[[int, int], object], start: int, size: int) -> None:
    """Announce the next bytes to the system, by place and number: it reads them while the program uses others."""
    for place in range(start, start + size, _ANNOUNCED_BYTES):
        advise(place, min(_ANNOUNCED_BYTES, start + size - place))


def announce_file(stream: Any, start: int, size: int) -> None:
    """Tell the system which bytes of an open file are read next."""
    if hasattr(os, "posix_fadvise"):
        number, will_need = stream.fileno(), os.POSIX_FADV_WILLNEED
        announce(lambda place, part: os.posix_fadvise(number, place, part, will_need), start, size)
