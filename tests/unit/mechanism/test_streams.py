"""Rows from files and queries: the bits of the run in memory, whatever the blocks and their order; refusals."""

import pickle
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.accounting import Adjacency
from dpinfer.errors import BackendUnavailableError, RecordError
from dpinfer.mechanism import RowSource, RunCheckpoint
from dpinfer.mechanism.sources import streams
from dpinfer.testing import InsecureRNG


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


N, NAMES = 3000, ("a", "b", "c")
LINEAR, LOGISTIC = dpi.models.LinearRegression(3, fit_intercept=True), dpi.models.LogisticRegression(3)
NEEDS_ARROW = "pyarrow is not installed (extra parquet)"
NEEDS_DUCKDB = "duckdb is not installed (extra duckdb)"


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N, 3))
    return X, (X @ [1.0, 0.0, -1.0] + rng.normal(size=N) > 0.0).astype(float)


def plan_of(model, **options):
    return dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N, **options)


PLANS = {type(model).__name__: plan_of(model) for model in (LINEAR, LOGISTIC)}


def run(model, X, y=None, **options):
    scale = {"response_scale": 1.0} if isinstance(model, dpi.models.LinearRegression) else {}
    defaults = {"plan": PLANS[type(model).__name__], "n_records": N, "random_source": InsecureRNG(5), "n_threads": 1}
    return dpi.run_newton(model, X, y, **(scale | defaults | options))


def bits(release):
    arrays = {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    assert {"moments", "scores"} <= arrays.keys()
    return arrays


def csv_file(tmp_path, X, y):
    pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    path = tmp_path / "rows.csv"
    lines = [",".join(map(repr, (*row.tolist(), float(own)))) for row, own in zip(X, y, strict=True)]
    path.write_text("\n".join(["a,b,c,y", *lines]) + "\n", encoding="utf-8")
    return mechanism.rows_of_csv(path, NAMES, "y")


def arrow_table(X, y):
    pyarrow = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    return pyarrow.table({"other": np.zeros(len(y)), "y": y, **{name: X[:, index] for index, name in enumerate(NAMES)}})


def parquet_files(tmp_path, X, y):
    parquet = pytest.importorskip("pyarrow.parquet", reason=NEEDS_ARROW)
    paths = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    for path, part in zip(paths, (slice(0, 1000), slice(1000, None)), strict=True):
        parquet.write_table(arrow_table(X[part], y[part]), path, row_group_size=700)
    return mechanism.rows_of_parquet(paths, NAMES, "y")


def arrow_batches(tmp_path, X, y):
    table = arrow_table(X, y)
    return mechanism.rows_of_arrow(lambda: table.to_batches(max_chunksize=777), NAMES, "y")


def duckdb_query(tmp_path, X, y):
    duckdb = pytest.importorskip("duckdb", reason=NEEDS_DUCKDB)
    table = arrow_table(X, y)
    path = tmp_path / "rows.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.register("arrow_rows", table)
        connection.execute("CREATE TABLE people AS SELECT * FROM arrow_rows")
    return mechanism.rows_of_duckdb(path, "SELECT y, c, b, a FROM people WHERE other = 0.0", NAMES, "y")


def npy_files(tmp_path, X, y):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    return mechanism.rows_of_npy(tmp_path / "X.npy", tmp_path / "y.npy", block_rows=701)


def memory_map(tmp_path, X, y):
    np.save(tmp_path / "X.npy", X)
    return mechanism.rows_of_arrays(np.load(tmp_path / "X.npy", mmap_mode="r"), y, block_rows=512)


SOURCES = (npy_files, memory_map, csv_file, parquet_files, arrow_batches, duckdb_query)


@pytest.mark.parametrize("open_source", SOURCES, ids=lambda item: item.__name__)
@pytest.mark.parametrize("model", [LINEAR, LOGISTIC], ids=lambda item: type(item).__name__)
def test_a_stream_gives_the_bits_of_the_run_in_memory(records, model, open_source, tmp_path):
    source = open_source(tmp_path, *records)
    assert source.n_features == 3
    whole = bits(run(model, *records))
    assert bits(run(model, source)) == whole
    if open_source is not arrow_batches:
        # A source without the caller's own code travels to another process.
        assert bits(run(model, pickle.loads(pickle.dumps(source)))) == whole


@pytest.mark.parametrize("model", [LINEAR, LOGISTIC], ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("sizes", [(1,) * 50 + (N - 50,), (N,), (1024, 1, 975, 1000)], ids=len)
def test_neither_blocks_nor_order_change_a_bit(records, model, sizes, rng):
    X, y = records
    whole = bits(run(model, X, y))
    order = rng.permutation(N)
    cuts = np.split(order, np.cumsum(sizes)[:-1])
    passes = []

    def blocks():
        passes.append(1)
        for place in np.random.default_rng(len(passes)).permutation(len(cuts)):
            yield X[cuts[place]], y[cuts[place]]

    release = run(model, RowSource(blocks))
    assert bits(release) == whole
    # One to check the records, one a pass.
    assert len(passes) == 1 + release.n_passes
    # Power: another record, far from the others, is seen.
    X = np.concatenate((X[:-1], X[-1:] + 3.0))
    assert bits(run(model, RowSource(blocks))) != whole


def test_single_precision_stays_single(records, tmp_path):
    X, y = records[0].astype(np.float32), records[1]
    assert bits(run(LOGISTIC, npy_files(tmp_path, X, y))) == bits(run(LOGISTIC, X, y))
    block, _ = next(iter(parquet_files(tmp_path, X, y)._blocks()))
    assert block.dtype == np.float32


@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "use_dictionary": ["a"]}], ids=len)
@pytest.mark.parametrize("group_rows", [250, 700, N])
def test_row_groups_of_any_size_are_read_in_bounded_parts(records, tmp_path, monkeypatch, group_rows, options):
    parquet = pytest.importorskip("pyarrow.parquet", reason=NEEDS_ARROW)
    X, y = records
    parquet.write_table(arrow_table(X, y), tmp_path / "rows.parquet", row_group_size=group_rows, **options)
    # A block of 64 rows, batches of 512, and parts of a column in place of all of it.
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 8 * 3 * 64)
    monkeypatch.setattr(streams, "_LEAST_ROWS", 1)
    monkeypatch.setattr(streams, "_MOST_GROUP_BYTES", 2**13)
    read, announced = [], []
    monkeypatch.setattr(streams, "announce_file", lambda stream, start, size: announced.append((start, start + size)))
    for block in mechanism.rows_of_parquet(tmp_path / "rows.parquet", NAMES, "y")._blocks():
        assert len(block[0]) <= 64
        read.append([part.copy() for part in block])
    np.testing.assert_array_equal(np.concatenate([part for part, _ in read]), X)
    np.testing.assert_array_equal(np.concatenate([part for _, part in read]), y)
    # What is announced is each byte of the four columns, once.
    layout = parquet.read_metadata(tmp_path / "rows.parquet")
    wanted = []
    for column in (layout.row_group(g).column(k) for g in range(layout.num_row_groups) for k in range(1, 5)):
        first = column.dictionary_page_offset or column.data_page_offset
        wanted.append((first, first + column.total_compressed_size))
    found = np.sort(np.concatenate([np.arange(*pair) for pair in announced]))
    np.testing.assert_array_equal(found, np.sort(np.concatenate([np.arange(*pair) for pair in wanted])))


def test_null_records_of_a_stream_are_taken_out(records, tmp_path):
    X, y = (np.concatenate((part, np.full_like(part[:1300], np.nan))) for part in records)
    plan = plan_of(LOGISTIC, adjacency=Adjacency.ZERO_OUT)
    streamed = run(LOGISTIC, mechanism.rows_of_arrays(X, y, block_rows=500), plan=plan)
    assert bits(streamed) == bits(run(LOGISTIC, *records, plan=plan))


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (dpi.models.BetaBernoulli(), np.arange(200) % 2.0),
        (dpi.models.DirichletCategorical(), np.arange(200) % 3.0),
        (dpi.models.GammaExponential(), np.arange(200) / 50.0),
    ],
    ids=lambda item: type(item).__name__,
)
def test_a_statistic_of_a_stream_is_that_of_the_array(model, values, tmp_path):
    np.save(tmp_path / "values.npy", values)
    source = mechanism.rows_of_npy(tmp_path / "values.npy", block_rows=33)
    options = {"epsilon": 1.0, "n_records": 200}
    one = dpi.run_statistic(model, values, random_source=InsecureRNG(1), **options)
    other = dpi.run_statistic(model, source, random_source=InsecureRNG(1), **options)
    assert one.noisy_statistics.tobytes() == other.noisy_statistics.tobytes()
    with pytest.raises(RecordError, match="n_records rows"):
        dpi.run_statistic(model, source, epsilon=1.0, n_records=199, adjacency="replace_one")


def test_dpvi_reads_the_same_sources(records, tmp_path):
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=3)
    options = {"plan": plan, "n_records": N, "max_grad_norm": 1.0}
    whole = dpi.run_dpvi(LOGISTIC, *records, random_source=InsecureRNG(2), **options)
    streamed = dpi.run_dpvi(LOGISTIC, npy_files(tmp_path, *records), random_source=InsecureRNG(2), **options)
    assert whole.noisy_gradients.tobytes() == streamed.noisy_gradients.tobytes()


class Stopped(Exception):  # noqa: N818
    pass


def test_an_interrupted_stream_goes_on_bit_for_bit(records, tmp_path):
    whole = bits(run(LINEAR, *records))

    def stop(done, total):
        if done == 4:
            raise Stopped

    place = RunCheckpoint(tmp_path / "run", interval=0.0)
    with pytest.raises(Stopped):
        run(LINEAR, npy_files(tmp_path, *records), checkpoint=place, progress=stop)
    X, y = records
    with pytest.raises(RecordError, match="interrupted run"):
        run(LINEAR, mechanism.rows_of_arrays(X, 1.0 - y, block_rows=701), checkpoint=place)
    assert bits(run(LINEAR, npy_files(tmp_path, *records), checkpoint=place)) == whole


def statuses(account):
    return [item.status for item in account.runs()]


def test_what_can_be_refused_is_refused_before_anything_is_spent(records, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(5.0, 1e-5))
    source = npy_files(tmp_path, *records)
    options = {"ledger": people, "random_source": None}
    with pytest.raises(TypeError, match="y must be None with a RowSource"):
        run(LOGISTIC, source, records[1], **options)
    with pytest.raises(ValueError, match="X must have 2 columns"):
        run(dpi.models.LogisticRegression(2), source, **options)
    with pytest.raises(TypeError, match="y must be given"):
        run(LOGISTIC, records[0], **options)
    assert statuses(people) == []


def test_a_source_that_changes_ends_the_run_after_what_it_had_released(records, tmp_path):
    X, y = records
    passes = []

    def blocks():
        passes.append(1)
        yield (X, y) if len(passes) <= 5 else (X[1:], y[1:])

    place = RunCheckpoint(tmp_path / "run", interval=0.0)
    with pytest.raises(RecordError, match="same rows in every pass"):
        run(LOGISTIC, RowSource(blocks), checkpoint=place)
    # The first pass checks, one more is for the checkpoint: three sums were released, and they are kept.
    assert place.load().step == 3


def test_bad_rows_are_refused_in_the_first_pass(records, tmp_path):
    X, y = records[0].copy(), records[1]
    X[2500, 1] = np.inf
    with pytest.raises(RecordError, match="X must be finite"):
        run(LOGISTIC, npy_files(tmp_path, X, y))
    with pytest.raises(RecordError, match="0 and 1"):
        run(LOGISTIC, npy_files(tmp_path, records[0], y + 0.5))


SECRET = "8675309"


def told(error):
    return "".join(traceback.format_exception(error))


def test_a_readers_errors_quote_no_record(tmp_path):
    pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    path = tmp_path / "rows.csv"
    for bad in (f"1,2,{SECRET}x,0", f"1,2,3,0,{SECRET}", f'1,"2,{SECRET},0'):
        path.write_text(f"a,b,c,y\n1,2,3,1\n{bad}\n", encoding="utf-8")
        with pytest.raises(RecordError) as caught:
            run(LOGISTIC, mechanism.rows_of_csv(path, NAMES, "y"))
        assert SECRET not in told(caught.value)
        assert caught.value.__context__ is None
    table = arrow_table(np.zeros((2, 3)), np.array([SECRET, "1"]))
    with pytest.raises(RecordError) as caught:
        run(LOGISTIC, mechanism.rows_of_arrow(table.to_batches, NAMES, "y"))
    assert SECRET not in told(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_is_one_record_of_a_csv_file(end, tmp_path):
    """A carriage return inside a line would make many records of it."""
    pytest.importorskip("pyarrow", reason=NEEDS_ARROW)

    def count(lines, end=end):
        path = tmp_path / "rows.csv"
        path.write_bytes((end.join(["a,b,c,y", *lines]) + end).encode())
        return dpi.release_count(mechanism.rows_of_csv(path, NAMES, "y"), epsilon=100.0).n_records

    assert count(["1,2,3,0"] * 9) == 9
    # More than pyarrow reads at once.
    assert count(["1,2,3,0"] * 300_000) == 300_000
    for bad in ("1,2,3,0\r" * 50 + "1,2,3,0", "1,2,3,0\r\r", "1,2\r,3,0", "\r1,2,3,0", "1,2,3,0\r"):
        if bad.endswith("0\r") and end == "\n":
            assert count(["1,2,3,0", bad]) == 2
            continue
        for place in (0, 200_000):
            lines = ["1,2,3,0"] * 200_000
            lines.insert(place, bad)
            with pytest.raises(RecordError, match="carriage return inside"):
                count(lines)


def test_no_file_is_read_twice(records, tmp_path):
    pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    parquet_files(tmp_path, *records)
    first, *_ = sorted(tmp_path.glob("*.parquet"))
    (tmp_path / "link").symlink_to(first)
    (tmp_path / "hard").hardlink_to(first)
    source = mechanism.rows_of_parquet(first, NAMES, "y")
    for other in (first, str(first), tmp_path / "." / first.name, tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(ValueError, match="count twice"):
            mechanism.rows_of_parquet([first, other], NAMES, "y")
        with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="count twice"):
            mechanism.ShardedRows(pool, [source, mechanism.rows_of_parquet(other, NAMES, "y")])
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="count twice"):
        mechanism.ShardedRows(pool, [mechanism.RowSource(list)] * 2)


def test_missing_files_and_columns_are_named(records, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        mechanism.rows_of_npy(tmp_path / "gone.npy")
    npy_files(tmp_path, *records)
    with pytest.raises(ValueError, match="one number for each row"):
        mechanism.rows_of_npy(tmp_path / "X.npy", tmp_path / "X.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "columns.npy", np.asfortranarray(records[0]))
    (tmp_path / "text.npy").write_text("a,b\n", encoding="utf-8")
    for name in ("objects", "columns", "text"):
        with pytest.raises(ValueError, match=r"X must be a \.npy file"):
            mechanism.rows_of_npy(tmp_path / f"{name}.npy")
    with pytest.raises(TypeError, match="batches must be callable"):
        mechanism.rows_of_arrow([], NAMES)
    with pytest.raises(ValueError, match="at least one file"):
        mechanism.rows_of_parquet([], NAMES)


def test_columns_that_a_file_lacks_are_named(tmp_path):
    pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    said = set()
    for line in ("a,b", "1,2", "a,1", "", "1,2,3,4", "\r1"):
        (tmp_path / "rows.csv").write_text(f"{line}\n1,2\n", encoding="utf-8")
        with pytest.raises(ValueError, match="a, b, c do not") as caught:
            mechanism.rows_of_csv(tmp_path / "rows.csv", NAMES)
        said.add(told(caught.value))
    # The first line may be a record.
    assert len(said) == 1
    with pytest.raises(FileNotFoundError, match=r"gone\.parquet"):
        mechanism.rows_of_parquet(tmp_path / "gone.parquet", NAMES)
    with pytest.raises(ValueError, match="features must be"):
        mechanism.rows_of_csv(tmp_path / "rows.csv", ())


def test_a_file_that_is_cut_is_refused(records, tmp_path):
    source = npy_files(tmp_path, *records)
    path = tmp_path / "X.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(RecordError, match="ended early"):
        run(LOGISTIC, source)


def test_absent_packages_name_their_extra(tmp_path, monkeypatch):
    for module in ("pyarrow", "pyarrow.parquet", "pyarrow.csv", "duckdb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[parquet\]"):
        mechanism.rows_of_parquet(tmp_path / "rows.parquet", NAMES)
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[duckdb\]"):
        mechanism.rows_of_duckdb(":memory:", "SELECT 1", NAMES)
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n", encoding="utf-8")
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[parquet\]"):
        mechanism.rows_of_csv(tmp_path / "rows.csv", NAMES)
