"""Shards: the bits of one machine, lost workers, one draw of noise a pass, and what travels."""

import itertools
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.errors import BackendUnavailableError, RecordError
from dpinfer.mechanism import RowSource, RunCheckpoint, ShardedRows, _native
from dpinfer.testing import InsecureRNG


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


N = 2000
CUTS = (0, 700, 700, 701, N)
LINEAR, LOGISTIC = dpi.models.LinearRegression(3, fit_intercept=True), dpi.models.LogisticRegression(3)
RUN_PHASES = dpi.plan_newton(LOGISTIC, target_epsilon=2.0, target_delta=1e-5, n_records=N).phases
MODELS = pytest.mark.parametrize("model", [LINEAR, LOGISTIC], ids=lambda item: type(item).__name__)


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N, 3))
    return X, (X @ [1.0, 0.0, -1.0] + rng.normal(size=N) > 0.0).astype(float)


def run(model, X, y=None, **options):
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N)
    scale = {"response_scale": 1.0} if isinstance(model, dpi.models.LinearRegression) else {}
    defaults = {"plan": plan, "n_records": N, "random_source": InsecureRNG(5), "n_threads": 1}
    return dpi.run_newton(model, X, y, **(scale | defaults | options))


def bits(release):
    arrays = {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    assert {"moments", "scores"} <= arrays.keys()
    return arrays


def sources(*arrays):
    """One shard is empty, and one has a single row."""
    return [
        mechanism.rows_of_arrays(*(array[first:last] for array in arrays), block_rows=300)
        for first, last in itertools.pairwise(CUTS)
    ]


class Unreliable(Executor):
    """Loses calls before or after they were made, as machines do."""

    def __init__(self, lose):
        self.calls, self._lose = 0, lose

    def submit(self, function, /, *arguments):
        self.calls += 1
        future = Future()
        lost = self._lose(self.calls)
        if lost != "before":
            # What travels to a worker and back is pickled.
            function, arguments = pickle.loads(pickle.dumps((function, arguments)))
            try:
                future.set_result(pickle.loads(pickle.dumps(function(*arguments))))
            except Exception as error:
                future.set_exception(error)
        if lost:
            future = Future()
            future.set_exception(ConnectionError("the worker at 10.0.0.7 had record 8675309"))
        return future


def reliable():
    return Unreliable(lambda call: None)


@MODELS
def test_shards_give_the_bits_of_one_machine(records, model):
    whole = bits(run(model, *records))
    assert bits(run(model, ShardedRows(reliable(), sources(*records)))) == whole
    with ThreadPoolExecutor(2) as pool:
        assert bits(run(model, ShardedRows(pool, sources(*records)[::-1]))) == whole
    # Power: a shard that is added twice is seen.
    twice = ShardedRows(reliable(), [*sources(*records), sources(*records)[2]])
    assert bits(run(model, twice)) != whole


def test_a_statistic_of_shards_is_that_of_the_array():
    values = np.arange(N) % 3.0
    options = {"epsilon": 1.0, "n_records": N}
    model = dpi.models.DirichletCategorical()
    one, other = (
        dpi.run_statistic(model, X, random_source=InsecureRNG(1), **options)
        for X in (values, ShardedRows(reliable(), sources(values)))
    )
    assert one.noisy_statistics.tobytes() == other.noisy_statistics.tobytes()
    with pytest.raises(RecordError, match="n_records rows"):
        dpi.run_statistic(
            model, ShardedRows(reliable(), sources(values)), epsilon=1.0, n_records=N + 1, adjacency="replace_one"
        )


@MODELS
def test_lost_shards_are_computed_again_and_noise_is_drawn_once_a_pass(records, model, tmp_path, monkeypatch):
    """Every third answer is lost, after the work was done or before: same release, one charge, one draw a pass."""
    whole = run(model, *records)
    drawn = []
    original = _native.PartialSum

    class Counted:
        def __init__(self, **options):
            self._real = original(**options)

        def __getattr__(self, name):
            return getattr(self._real, name)

        def noisy_sum(self, key, step, multiplier):
            drawn.append(step)
            return self._real.noisy_sum(key, step, multiplier)

    class Rows:
        def __init__(self, **options):
            self._rows = rows(**options)

        def __getattr__(self, name):
            return lambda total, *args, **named: getattr(self._rows, name)(total._real, *args, **named)

    rows = _native.RegressionRows
    monkeypatch.setattr(_native, "PartialSum", Counted)
    monkeypatch.setattr(_native, "RegressionRows", Rows)
    executor = Unreliable(lambda call: {0: "before", 3: "after"}.get(call % 6))
    assert bits(run(model, ShardedRows(executor, sources(*records), retries=20))) == bits(whole)
    passes = whole.n_passes
    assert drawn == list(range(passes))
    assert executor.calls > 1.3 * 4 * (passes + 1)


def test_a_shard_that_is_gone_ends_the_run_and_the_checkpoint_goes_on(records, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(2.5, 1e-5))
    place = RunCheckpoint(tmp_path / "run", interval=0.0)
    # One call a shard to count, one for the checkpoint's hash, then a call a shard and pass.
    executor = Unreliable(lambda call: "before" if call > 4 * 7 + 2 else None)
    options = {"checkpoint": place, "ledger": people, "random_source": None}
    with pytest.raises(RuntimeError, match="2 of 4 shards could not be read") as caught:
        run(LINEAR, ShardedRows(executor, sources(*records), retries=1), **options)
    assert "8675309" not in str(caught.value)
    assert caught.value.__context__ is None
    assert place.load().step == 5
    kept = place.load().arrays
    release = run(LINEAR, ShardedRows(reliable(), sources(*records)), **options)
    # What had been released is not drawn again.
    np.testing.assert_array_equal(release.counts, kept["pass_0"] / N)
    assert [item.status for item in people.runs()] == ["finished"]
    place.discard()
    lost = Unreliable(lambda call: "before" if call > 30 else None)
    with pytest.raises(RuntimeError):
        run(LINEAR, ShardedRows(lost, sources(*records), retries=0), checkpoint=place)
    others = ShardedRows(reliable(), sources(records[0] + 1.0, records[1]))
    with pytest.raises(RecordError, match="interrupted run"):
        run(LINEAR, others, checkpoint=place)


def test_a_shard_that_does_not_answer_counts_as_lost(records):
    class Silent(Unreliable):
        """Every seventh call is never answered."""

        def submit(self, function, /, *arguments):
            return Future() if self.calls % 7 == 6 and self._skip() else super().submit(function, *arguments)

        def _skip(self):
            self.calls += 1
            return True

    whole = bits(run(LINEAR, *records))
    assert bits(run(LINEAR, ShardedRows(Silent(lambda call: None), sources(*records), timeout=0.02))) == whole
    with pytest.raises(ValueError, match="timeout"):
        ShardedRows(reliable(), sources(*records), timeout=0.0)


def test_bad_records_of_a_shard_are_refused_and_changed_ones_end_the_run(records):
    X, y = records[0].copy(), records[1]
    X[1500, 0] = np.nan
    with pytest.raises(RecordError, match="X must be finite"):
        run(LOGISTIC, ShardedRows(reliable(), sources(X, y)))

    class Shrinking:
        def __init__(self):
            self.passes = 0

        def __call__(self):
            self.passes += 1
            yield tuple(array[int(self.passes > 3) :] for array in records)

    with ThreadPoolExecutor(1) as pool, pytest.raises(RecordError, match="same rows in every pass"):
        run(LOGISTIC, ShardedRows(pool, [RowSource(Shrinking())]))


def test_what_travels_is_public_or_integers(records):
    """To a worker: its own source, the model, the adjacency, the query's numbers; back: counts and integers."""
    seen = []

    class Tapped(Unreliable):
        def submit(self, function, /, *arguments):
            future = super().submit(function, *arguments)
            seen.append((arguments[1:], future.result()))
            return future

    private = run(LOGISTIC, ShardedRows(Tapped(lambda call: None), sources(*records)))
    sent = [arguments for arguments, _ in seen]
    answers = [answer for _, answer in seen]
    # No key, no rows: pickled, what is sent does not grow with the records.
    largest = max(len(pickle.dumps(arguments)) for arguments in sent)
    seen.clear()
    run(LOGISTIC, ShardedRows(Tapped(lambda call: None), [mechanism.rows_of_arrays(*(item[:9] for item in records))]))
    assert max(len(pickle.dumps(arguments)) for arguments, _ in seen) == pytest.approx(largest, abs=200)
    again = []

    class Again(Tapped):
        def submit(self, function, /, *arguments):
            again.append(pickle.dumps(arguments[1:]))
            return super().submit(function, *arguments)

    # A run with other noise sends the same until something was released.
    run(LOGISTIC, ShardedRows(Again(lambda call: None), sources(*records)), random_source=InsecureRNG(6))
    first = [pickle.dumps(arguments) for arguments in sent]
    assert first[:8] == again[:8]
    assert first[8:16] != again[8:16]
    kinds = {tuple(map(type, answer)) if isinstance(answer, tuple) else type(answer) for answer in answers}
    assert kinds == {int, (np.ndarray, int)}
    assert private.n_passes < len(RUN_PHASES)  # rounds of geometry stop


def test_arguments(records, tmp_path):
    with pytest.raises(TypeError, match="executor must be"):
        ShardedRows(None, sources(*records))
    with pytest.raises(TypeError, match="at least one RowSource"):
        ShardedRows(reliable(), [records[0]])
    with pytest.raises(ValueError, match="same number of columns"):
        ShardedRows(reliable(), [*sources(*records), mechanism.rows_of_arrays(records[0][:, :2], records[1])])
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(5.0, 1e-5))
    shards = ShardedRows(reliable(), sources(*records))
    with pytest.raises(TypeError, match="y must be None with a ShardedRows"):
        run(LOGISTIC, shards, records[1], ledger=people, random_source=None)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=3)
    with pytest.raises(TypeError, match="needs them in one place"):
        dpi.run_dpvi(LOGISTIC, shards, plan=plan, n_records=N, max_grad_norm=1.0, ledger=people)
    assert not people.runs()


def test_absent_dask_names_its_extra(records, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[dask\]"):
        mechanism.rows_of_dask(None, sources(*records))


@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_bits_of_one_machine_though_its_workers_are_killed(records, tmp_path):
    """Two worker processes; while the run goes on they are killed, three times: same release, one charge."""
    distributed = pytest.importorskip("distributed", reason="dask is not installed (extra dask)")

    def slow(first, last):
        def blocks():
            time.sleep(0.05)
            yield tuple(array[first:last] for array in records)

        return RowSource(blocks)

    shards = [slow(first, last) for first, last in itertools.pairwise(CUTS)]
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(2.5, 1e-5))
    killed = []
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        with pytest.raises(TypeError, match="client must be"):
            mechanism.rows_of_dask(None, shards)
        rows = mechanism.rows_of_dask(client, shards)

        def kill(done, total):
            if done in (2, 5, 9):
                victim = next(nanny.pid for nanny in cluster.workers.values() if nanny.pid)
                # In the middle of the next pass, which takes two workers a tenth of a second.
                threading.Timer(0.04, os.kill, (victim, signal.SIGKILL)).start()
                killed.append(victim)

        assert bits(run(LINEAR, rows, progress=kill)) == bits(run(LINEAR, *records))
        assert len(set(killed)) == 3
        assert run(LINEAR, rows, ledger=people, random_source=None).epsilon <= 2.0
    assert [item.status for item in people.runs()] == ["finished"]
