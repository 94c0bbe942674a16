"""Blocks that a thread reads ahead: one and no more, in two places; what ends a pass ends the thread."""

import functools
import mmap
import os
import signal
import threading
import time

import numpy as np
import pytest

from dpinfer import mechanism
from dpinfer.errors import RecordError
from dpinfer.mechanism.sources.array_blocks import ArrayBlocks, MappedBlocks
from dpinfer.mechanism.sources.read_ahead import ReadAhead

NEEDS_ADVICE = pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="no advice on memory maps on this system")


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "dpinfer reader"]


def eventually(condition):
    deadline = time.monotonic() + 10.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def test_one_block_is_read_ahead_and_none_is_overwritten():
    begun = []
    places = [np.zeros(3), np.zeros(3)]

    def blocks():
        for index in range(5):
            begun.append(index)
            places[index % 2][:] = index
            yield places[index % 2]

    for index, block in enumerate(ReadAhead(blocks)()):
        assert eventually(lambda index=index: len(begun) == min(index + 2, 5))
        # Time for a thread that reads too far to do so.
        time.sleep(0.005)
        assert len(begun) == min(index + 2, 5)
        np.testing.assert_array_equal(block, index)
    assert begun == [0, 1, 2, 3, 4]
    assert readers() == []


def test_what_the_reader_raises_arrives_after_the_blocks_before():
    def blocks():
        yield 1
        yield 2
        raise RecordError("X must be other")

    seen = []
    with pytest.raises(RecordError, match="X must be other"):
        seen.extend(ReadAhead(blocks)())
    passed = ReadAhead(blocks)()
    assert [next(passed), next(passed)] == [1, 2]
    with pytest.raises(RecordError, match="X must be other"):
        next(passed)
    assert readers() == []


def test_a_pass_that_ends_early_ends_the_thread_and_closes_what_it_reads():
    closed = []

    def blocks():
        try:
            yield from range(1000)
        finally:
            closed.append(threading.current_thread().name)

    for _ in ReadAhead(blocks)():
        break
    assert readers() == []
    assert closed == ["dpinfer reader"]

    def divide():
        for block in ReadAhead(blocks)():
            _ = 1 / block

    with pytest.raises(ZeroDivisionError):
        divide()
    assert readers() == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signal for a thread on this system")
def test_an_interrupt_ends_a_pass_that_waits_for_a_block(request):
    # A shell starts what runs in its background with interrupts ignored.
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = threading.Event()

    def blocks():
        yield 1
        assert asked.wait(10.0)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        yield 2

    passed = ReadAhead(blocks)()
    assert next(passed) == 1

    def ask():
        # From here on only: an interrupt elsewhere would end the tests.
        asked.set()
        next(passed)

    with pytest.raises(KeyboardInterrupt):
        ask()
    # Closes the pass, if the interrupt came before it was asked for its block.
    passed.close()
    assert readers() == []


@pytest.mark.forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_thread():
    passed = ReadAhead(lambda: (index for index in range(10)))()
    assert next(passed) == 0
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            next(passed)
        except RuntimeError as error:
            os._exit(7 if "forked" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert list(passed) == list(range(1, 10))


def joined(source):
    return [np.concatenate([part.copy() for part in parts]) for parts in zip(*copies(source), strict=True)]


def copies(source):
    """Blocks are done with when the next one is asked for."""
    for block in source._blocks():
        yield [part.copy() for part in (block if isinstance(block, tuple) else (block,))]


@NEEDS_ADVICE
@pytest.mark.parametrize("kind", ["f8", "f4", "i2"])
@pytest.mark.parametrize("rows", [101, 700, 5000])
def test_maps_are_read_as_they_are(tmp_path, kind, rows, rng):
    X, y = (100.0 * rng.normal(size=(3000, 3))).astype(kind), rng.normal(size=3000)
    np.save(tmp_path / "X.npy", X)
    for mode in ("r", "r+", "c"):
        whole = np.load(tmp_path / "X.npy", mmap_mode=mode)
        for part in (slice(None), slice(1, None), slice(1234, 2999)):
            source = mechanism.rows_of_arrays(whole[part], y[part], block_rows=rows)
            assert isinstance(source._blocks.blocks, MappedBlocks)
            for _ in range(2):
                read_X, read_y = joined(source)
                assert read_X.dtype == X.dtype
                np.testing.assert_array_equal(read_X, X[part])
                np.testing.assert_array_equal(read_y, y[part])


@NEEDS_ADVICE
def test_what_was_written_to_a_map_is_read(tmp_path, rng):
    X = rng.normal(size=(3000, 3))
    np.save(tmp_path / "X.npy", X)
    for mode in ("c", "r+"):
        mapped = np.load(tmp_path / "X.npy", mmap_mode=mode)
        mapped[7] = 5.0
        source = mechanism.rows_of_arrays(mapped, block_rows=700)
        for _ in range(3):
            (read,) = joined(source)
            np.testing.assert_array_equal(read, np.concatenate((X[:7], np.full((1, 3), 5.0), X[8:])))
        np.testing.assert_array_equal(mapped[7], 5.0)


def test_arrays_that_are_not_one_after_the_other_in_a_map_are_read_where_they_are(tmp_path, rng):
    X = rng.normal(size=(100, 4))
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for array in (X, mapped[:, :2], mapped[::2], mapped[::-1], mapped[:0]):
        source = mechanism.rows_of_arrays(array, block_rows=30)
        assert isinstance(source._blocks, ArrayBlocks)
        assert [len(block) for block in source._blocks()] == [min(30, len(array) - k) for k in range(0, len(array), 30)]


def test_arrays_of_different_lengths_are_refused():
    for y in (np.zeros(2), np.zeros(4), np.float64(1.0)):
        with pytest.raises(ValueError, match="an entry for each row"):
            mechanism.rows_of_arrays(np.zeros((3, 2)), y)
