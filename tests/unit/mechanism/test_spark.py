"""Rows of a Spark data frame: the bits of one machine, workers killed in the middle of a pass, refusals."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.errors import BackendUnavailableError, RecordError
from dpinfer.mechanism.sources.spark import _decoded, _encoded, _SparkRows
from dpinfer.testing import InsecureRNG

N, NAMES = 600, ("a", "b")
MODEL = dpi.models.LogisticRegression(2, fit_intercept=True)


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N, 2))
    return X, (X @ [1.0, -1.0] + rng.normal(size=N) > 0.0).astype(float)


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed (extra spark)")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    # Workers import the package from where this process did.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Two threads, and a task may fail three times before its job does.
    session = (
        sql.SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()


def run(X, y=None, **options):
    plan = dpi.plan_newton(MODEL, target_epsilon=2.0, target_delta=1e-5, n_records=N)
    defaults = {"plan": plan, "n_records": N, "random_source": InsecureRNG(5), "n_threads": 1}
    return dpi.run_newton(MODEL, X, y, **(defaults | options))


def bits(release):
    arrays = {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    assert {"moments", "scores"} <= arrays.keys()
    return arrays


def frame_of(spark, X, y):
    rows = [(*map(float, row), float(own), "text") for row, own in zip(X, y, strict=True)]
    return spark.createDataFrame(rows, "a double, b double, y double, other string")


def descendants():
    """Return the parent of every process that descends from this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = path.read_text(encoding="utf-8", errors="replace").split(" ", 1)
        except OSError:
            continue
        parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    found, level = {}, {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found |= {pid: parents[pid] for pid in level}
    return found


def workers():
    """Return the processes in which Spark runs Python code: those that a Python process below this one has forked."""
    found = descendants()
    return [pid for pid, parent in found.items() if parent in found and found[parent] in found]


class Frame:
    """A frame whose partitions are tasks in this process, through the same answers as Spark's."""

    def __init__(self, arrow, *parts):
        self._arrow, self._parts = arrow, parts

    def mapInArrow(self, task, schema):  # noqa: N802
        self._task = task
        return self

    def collect(self):
        batches = [
            self._arrow.RecordBatch.from_pydict(dict(zip("abyp", [*part.T[:3], part.T[-1].astype(int)], strict=True)))
            for part in self._parts
        ]
        answers = []
        for shard, one in enumerate(batches):
            TASK["shard"] = shard
            answers += [row for out in self._task([one]) for row in out.to_pylist()]
        return answers[::-1]


TASK = {}


@pytest.fixture
def tasks_here(monkeypatch):
    context = SimpleNamespace(get=lambda: SimpleNamespace(partitionId=lambda: TASK["shard"]))
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(TaskContext=context))


def test_partitions_have_the_bits_of_an_array(records, tasks_here):
    arrow = pytest.importorskip("pyarrow")
    X, y = records
    parts = np.array_split(np.column_stack((X, y)), 3)
    rows = _SparkRows(Frame(arrow, *parts), NAMES, "y", retries=0)
    assert bits(run(rows)) == bits(run(X, y))
    assert abs(dpi.release_count(rows, epsilon=50.0).n_records - N) < 5


PERSONS = dpi.models.PersonModel("binomial", NAMES, max_rows=3, mean_rows=2.0, features=np.eye(2))


def run_persons(X, y=None, unit=None):
    plan = dpi.plan_newton(PERSONS, target_epsilon=2.0, target_delta=1e-5, n_records=N // 3)
    units = mechanism.Units(unit, PERSONS.max_rows, PERSONS.mean_rows)
    return dpi.run_newton(
        PERSONS, X, y, plan=plan, n_records=N // 3, unit=units, random_source=InsecureRNG(5), n_threads=1
    ).scores


@pytest.fixture(scope="module")
def visits():
    """Rows of people, up to eight each, many of whom are equal: (X, y, person)."""
    rng = np.random.default_rng(9)
    y = rng.integers(0, 2, N).astype(float)
    return rng.integers(0, 2, (N, 2)).astype(float), y, rng.integers(0, N // 3, N)


def test_people_of_partitions_have_the_bits_of_an_array(visits, tasks_here):
    arrow = pytest.importorskip("pyarrow")
    X, y, person = visits
    table = np.column_stack((X, y, person))
    parts = [table[person % 4 == shard] for shard in range(4)]
    whole = run_persons(X, y, person)
    assert np.array_equal(run_persons(_SparkRows(Frame(arrow, *parts), NAMES, "y", "p", retries=0)), whole)
    with pytest.raises(RecordError, match="unit must be in one shard"):
        run_persons(_SparkRows(Frame(arrow, *np.array_split(table, 3)), NAMES, "y", "p", retries=0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_spark_puts_people_together(spark, visits):
    """Whatever partitions their rows were in."""
    X, y, person = visits
    rows = [(*map(float, row), float(own), int(name)) for row, own, name in zip(X, y, person, strict=True)]
    frame = spark.createDataFrame(rows, "a double, b double, y double, `the person` long").repartition(5)
    frame = spark.createDataFrame(frame.collect(), frame.schema)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    table = np.array([tuple(row) for row in frame.collect()])
    whole = run_persons(table[:, :2], table[:, 2], table[:, 3].astype(int))
    assert np.array_equal(run_persons(mechanism.rows_of_spark(frame, NAMES, "y", "the person")), whole)
    missing = frame.selectExpr("a", "b", "y", "nullif(`the person`, 7) as p")
    with pytest.raises(RecordError, match="unit must be known of every row"):
        run_persons(mechanism.rows_of_spark(missing, NAMES, "y", "p"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_spark_gives_the_bits_of_one_machine_though_its_workers_are_killed(spark, records, tmp_path):
    whole = bits(run(*records))
    frame = frame_of(spark, *records)
    assert bits(run(mechanism.rows_of_spark(frame.coalesce(1), NAMES, "y"))) == whole
    # Power: rows that are there twice are seen.
    assert bits(run(mechanism.rows_of_spark(frame.union(frame), NAMES, "y"))) != whole

    def slow(batches):
        time.sleep(0.2)
        yield from batches

    slowed = frame.repartition(3).select("a", "b", "y").mapInArrow(slow, "a double, b double, y double")
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(2.5, 1e-5))
    killed = []

    def kill(done, total):
        def strike():
            for victim in workers()[:1]:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

        if done in (2, 5, 7):
            threading.Timer(0.15, strike).start()

    rows = mechanism.rows_of_spark(slowed, NAMES, "y", retries=5)
    assert bits(run(rows, progress=kill)) == whole
    assert len(set(killed)) == 3
    assert run(rows, ledger=people, random_source=None).epsilon <= 2.0
    assert [item.status for item in people.runs()] == ["finished"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_spark_cannot_give_is_refused(spark, records):
    X, y = records[0].copy(), records[1]
    with pytest.raises(TypeError, match="frame must be"):
        mechanism.rows_of_spark(None, NAMES, "y")
    frame = frame_of(spark, X, y)
    with pytest.raises(ValueError, match="c is none"):
        mechanism.rows_of_spark(frame, ("a", "c"), "y")
    with pytest.raises(ValueError, match="features must be"):
        mechanism.rows_of_spark(frame, "a", "y")
    with pytest.raises(ValueError, match="retries"):
        mechanism.rows_of_spark(frame, NAMES, "y", retries=-1)
    X[7, 0] = np.nan
    with pytest.raises(RecordError, match="X must be finite"):
        run(mechanism.rows_of_spark(frame_of(spark, X, y), NAMES, "y"))

    def failing(batches):
        raise ValueError("record 8675309")

    broken = frame.select("a", "b", "y").mapInArrow(failing, "a double, b double, y double")
    with pytest.raises(RuntimeError, match="the partitions could not be read") as caught:
        run(mechanism.rows_of_spark(broken, NAMES, "y", retries=0))
    assert "8675309" not in str(caught.value)
    assert caught.value.__context__ is None
    values = frame.select((frame.y * 1.0).alias("y"))
    one, other = (
        dpi.run_statistic(dpi.models.BetaBernoulli(), each, epsilon=1.0, n_records=N, random_source=InsecureRNG(1))
        for each in (y, mechanism.rows_of_spark(values, ("y",)))
    )
    assert one.noisy_statistics.tobytes() == other.noisy_statistics.tobytes()


def test_absent_spark_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[spark\]"):
        mechanism.rows_of_spark(None, NAMES, "y")


@pytest.mark.parametrize("answer", [None, 7, b"\x00\xff", ([2**70, -1], None), (np.array([2**62, -3]), 5)])
def test_answers_travel_as_plain_text(answer):
    found = _decoded(json.dumps(_encoded(answer)))
    assert repr(found) == repr(answer)
