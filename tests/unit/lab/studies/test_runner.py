"""Chunks on any executor: same bits, bounded memory, finished chunks kept."""

import multiprocessing
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from tests.reference.analytic_study import SETTINGS, AnalyticStudy, assert_same, compute, task

from dpinfer.lab.studies.checkpoint import Checkpoint
from dpinfer.lab.studies.run_statistics import RunStatistics, reduce_chunk
from dpinfer.lab.studies.runner import run_chunks


@pytest.fixture(scope="module")
def whole():
    """All 23 runs as one chunk."""
    return task()(0, 23)


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 22, 23, 24, 1000])
def test_result_does_not_depend_on_the_chunks(whole, chunk_size):
    assert_same(run_chunks(task(), 23, chunk_size=chunk_size), whole)


@pytest.mark.parametrize("in_flight", [1, 3, 50])
def test_threads_give_the_same_bits(whole, in_flight):
    # Later chunks finish first.
    with ThreadPoolExecutor(4) as pool:
        result = run_chunks(task(delay=0.002), 23, chunk_size=4, executor=pool, max_in_flight=in_flight)
    assert_same(result, whole)


@pytest.mark.pinned  # another process, with seeds of its own
def test_processes_give_the_same_bits(whole):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert_same(run_chunks(task(), 23, chunk_size=6, executor=pool), whole)


class CountingExecutor(Executor):
    """Runs a task when its future is waited for, the last submitted one first, and counts how many are open."""

    def __init__(self):
        self.open = self.most = self.submitted = 0

    def submit(self, fn, /, *args, **kwargs):
        self.submitted += 1
        self.open += 1
        self.most = max(self.most, self.open)
        future = Future()

        def work():
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    self.open -= 1
                    future.set_exception(error)
                else:
                    self.open -= 1
                    future.set_result(result)

        threading.Timer(0.005, work).start()
        return future


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_chunks_in_flight_are_bounded(whole, limit):
    executor = CountingExecutor()
    assert_same(run_chunks(task(), 23, chunk_size=2, executor=executor, max_in_flight=limit), whole)
    assert executor.most <= limit
    assert executor.submitted == 12


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("pooled", [False, True])
def test_finished_chunks_survive_an_error(tmp_path, whole, error, pooled):
    log = tmp_path / "log"
    log.mkdir()
    store = Checkpoint(tmp_path / "store", {"study": "x"})
    pool = ThreadPoolExecutor(1) if pooled else None
    with pytest.raises(error):
        run_chunks(task(fail_at=13, error=error), 23, chunk_size=5, executor=pool, checkpoint=store)
    if pool is not None:
        pool.shutdown()
    assert {(0, 5), (5, 10)} <= set(store.stored())
    assert (10, 15) not in store.stored()
    kept = set(store.stored())
    result = run_chunks(task(log=str(log)), 23, chunk_size=5, checkpoint=Checkpoint(tmp_path / "store", {"study": "x"}))
    assert_same(result, whole)
    computed = {tuple(map(int, path.name.split("-"))) for path in log.iterdir()}
    assert computed == {(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)} - kept


def test_an_interrupt_between_chunks_keeps_them(tmp_path, whole):
    def interrupt(done, total):
        if done >= 10:
            raise KeyboardInterrupt

    store = Checkpoint(tmp_path, {})
    with pytest.raises(KeyboardInterrupt):
        run_chunks(task(), 23, chunk_size=5, checkpoint=store, report=interrupt)
    assert store.stored() == [(0, 5), (5, 10)]
    assert_same(run_chunks(task(), 23, chunk_size=4, checkpoint=store), whole)


def test_progress(tmp_path):
    seen = []
    store = Checkpoint(tmp_path, {})
    run_chunks(task(), 10, chunk_size=4, checkpoint=store, report=lambda *pair: seen.append(pair))
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]
    seen.clear()
    run_chunks(task(), 12, chunk_size=4, checkpoint=store, report=lambda *pair: seen.append(pair))
    assert seen == [(10, 12), (12, 12)]


def test_a_chunk_of_another_size_is_refused(tmp_path):
    store = Checkpoint(tmp_path, {})
    with pytest.raises(ValueError, match="run_chunk must return 5 runs, got 4"):
        run_chunks(lambda first, count: task()(first, count - 1), 10, chunk_size=5, checkpoint=store)
    assert store.stored() == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"n_runs": 0}, ValueError, "n_runs must be at least 1"),
        ({"n_runs": 2.0}, TypeError, "n_runs must be an integer"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"executor": 3}, TypeError, "executor must be"),
        ({"max_in_flight": 0}, ValueError, "max_in_flight must be at least 1"),
    ],
)
def test_bad_arguments(options, error, text):
    with pytest.raises(error, match=text):
        run_chunks(task(), **({"n_runs": 5} | options))


def test_reference_points_are_of_run_and_repeat_alone():
    study = AnalyticStudy()
    chunk = study.run_chunk(0, 9, method="exact", epsilon=0.1, seed=5, settings=SETTINGS)
    few, many = (reduce_chunk(chunk, 0, seed=5, n_repeats=repeats) for repeats in (2, 6))
    np.testing.assert_array_equal(many.marginal_counts[:, :2], few.marginal_counts)
    np.testing.assert_array_equal(many.joint_counts[:, :2], few.joint_counts)
    assert not np.array_equal(reduce_chunk(chunk, 9, seed=5, n_repeats=2).joint_counts, few.joint_counts)
    assert not np.array_equal(reduce_chunk(chunk, 0, seed=6, n_repeats=2).joint_counts, few.joint_counts)


@pytest.mark.parametrize("boxed", [False, True])
def test_counts_agree_with_a_plain_loop(boxed):
    from dpinfer.lab.studies.random_streams import REFERENCES, run_generator

    chunk = AnalyticStudy().run_chunk(4, 6, method="exact", epsilon=0.1, seed=5, settings=SETTINGS)
    low, high = np.array([-3.0, -6.0]), np.array([3.0, 6.0])
    result = reduce_chunk(chunk, 4, seed=5, n_repeats=3, box=(low, high) if boxed else None)
    for i in range(6):
        uniform = run_generator(5, REFERENCES, 4 + i).random((3, 2))
        for r in range(3):
            if boxed:
                point, unit = low + (high - low) * uniform[r], high - low
            else:
                point, unit = chunk.centre[i] + 4.0 * (2.0 * uniform[r] - 1.0) * chunk.scale[i], chunk.scale[i]
            near = (np.abs(chunk.draws[:, i] - point) / unit, np.abs(chunk.truth[i] - point) / unit)
            assert result.marginal_counts[i, r].tolist() == (2 * (near[0] < near[1]).sum(axis=0)).tolist()
            distance = (np.linalg.norm(near[0], axis=1), np.linalg.norm(near[1]))
            assert result.joint_counts[i, r] == 2 * np.count_nonzero(distance[0] < distance[1])
    np.testing.assert_allclose(result.z, (chunk.truth - chunk.centre) / chunk.scale)


def test_runs_with_unusable_numbers_count_as_failed():
    broken = compute(AnalyticStudy(), 0, 70, method="broken")
    assert np.flatnonzero(broken.failed).tolist() == list(range(0, 70, 7))
    good = compute(AnalyticStudy(), 0, 70)
    ok = ~broken.failed
    for name, array in broken.arrays.items():
        if name != "failed":
            np.testing.assert_array_equal(array[ok], good.arrays[name][ok])
    assert np.isnan(broken.z[~ok]).all()
    assert not broken.joint_counts[~ok].any()


def test_parts_must_fit_together():
    with pytest.raises(ValueError, match="same draws and repeats"):
        RunStatistics.concatenate([compute(AnalyticStudy(), 0, 2), compute(AnalyticStudy(), 2, 2, method="no-draws")])


class InstantExecutor(Executor):
    """Runs a task as soon as it is submitted, and never raises."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_what_finished_beside_an_error_is_kept(tmp_path):
    store = Checkpoint(tmp_path, {})
    with pytest.raises(RuntimeError, match="injected"):
        run_chunks(task(fail_at=2), 23, chunk_size=5, executor=InstantExecutor(), max_in_flight=9, checkpoint=store)
    assert store.stored() == [(5, 10), (10, 15), (15, 20), (20, 23)]
