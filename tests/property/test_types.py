"""What a column's type tells is refused before the charge, by the column's name, whatever holds the column.

Deterministic: every type that holds no numbers, in every holder that can have it, at every entry point.
"""

import datetime as dt

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import RecordError, SchemaError

N = 300
RNG = np.random.default_rng(5)
X, Y = RNG.uniform(0.0, 10.0, N), RNG.normal(3.0, 1.0, N)
SCHEMA = dpi.tabular.Schema.from_dict(
    {"columns": {name: {"kind": "continuous", "bounds": [-5, 15]} for name in ("reading", "y")}}
)
LABELS = dpi.tabular.Schema.from_dict({"columns": {"reading": {"kind": "categorical", "categories": ["2020-01-02"]}}})
DAY = dt.date(2020, 1, 2)


def module(name):
    return pytest.importorskip(name, reason=f"needs {name}")


# Each gives the column for a library's own column; None where NumPy alone has the type.
NUMPY = {
    "dates": lambda: np.full(N, "2020-01-02", "M8[D]"),
    "moments": lambda: np.full(N, "2020-01-02T10", "M8[us]"),
    "durations": lambda: np.full(N, 5, "m8[s]"),
    "complex": lambda: X + 0j,
    "single complex": lambda: (X + 1j).astype(np.complex64),
    "masked": lambda: np.ma.masked_array(np.where(X > 5.0, -999.0, X), mask=X > 5.0),
    "masked without a mask": lambda: np.ma.masked_array(X),
    "structured": lambda: np.zeros(N, [("a", float), ("b", float)]),
}
PANDAS = {
    "datetime64[ns]": lambda pd: pd.Series(pd.to_datetime(["2020-01-02"] * N)),
    "with a time zone": lambda pd: pd.Series(pd.to_datetime(["2020-01-02"] * N)).dt.tz_localize("UTC"),
    "timedelta64[ns]": lambda pd: pd.Series(pd.to_timedelta(np.arange(N), unit="s")),
    "period": lambda pd: pd.Series(pd.period_range("2000-01-01", periods=N, freq="D")),
    "interval": lambda pd: pd.Series(pd.IntervalIndex.from_breaks(np.arange(N + 1))),
    "complex": lambda pd: pd.Series(X + 0j),
}
POLARS = {
    "Date": lambda pl: pl.Series([DAY] * N),
    "Datetime": lambda pl: pl.Series([dt.datetime(2020, 1, 2, 3)] * N),
    "Duration": lambda pl: pl.Series([dt.timedelta(1)] * N),
    "Time": lambda pl: pl.Series([dt.time(9)] * N),
    "List": lambda pl: pl.Series([[1.0]] * N),
    "Array": lambda pl: pl.Series([[1.0, 2.0]] * N, dtype=pl.Array(pl.Float64, 2)),
    "Struct": lambda pl: pl.Series([{"a": 1.0}] * N),
}
FRAMES = {
    "Polars": lambda folder, frame: frame,
    "Polars, lazy": lambda folder, frame: frame.lazy(),
    "Arrow": lambda folder, frame: frame.to_arrow(),
    "DuckDB": lambda folder, frame: module("duckdb").from_arrow(frame.to_arrow()),
    "narwhals": lambda folder, frame: module("narwhals").from_native(frame),
    "Parquet": lambda folder, frame: frame.write_parquet(folder / "t.parquet") or folder / "t.parquet",
}
TABLES = {
    "regression": lambda data, ledger: dpi.regression(
        "y ~ reading", data, schema=SCHEMA, epsilon=1.0, delta=1e-6, n_records=N, ledger=ledger
    ),
    "response": lambda data, ledger: dpi.regression(
        "reading ~ y", data, schema=SCHEMA, epsilon=1.0, delta=1e-6, n_records=N, ledger=ledger
    ),
    "means": lambda data, ledger: dpi.tables.means(data, "reading", schema=SCHEMA, epsilon=1.0, ledger=ledger),
    "unknown bounds": lambda data, ledger: dpi.regression(
        "y ~ reading",
        data,
        schema=dpi.tabular.SchemaDraft(
            {"columns": {"reading": {"kind": "continuous"}, "y": {"kind": "continuous", "bounds": [-5, 15]}}}
        ),
        unknown=["bounds"],
        epsilon=1.0,
        delta=1e-6,
        n_records=N,
        ledger=ledger,
    ),
}
ARRAYS = {
    "fit": lambda data, ledger: dpi.fit(
        dpi.models.LinearRegression(1), data, Y, epsilon=1.0, delta=1e-6, n_records=N, response_scale=1.0, ledger=ledger
    ),
    "estimator": lambda data, ledger: dpi.BayesianLinearRegression(
        epsilon=1.0, delta=1e-6, n_records=N, data_bounds=[(0, 10)], target_bounds=(-6, 12), ledger=ledger
    ).fit(data, Y),
    "sum": lambda data, ledger: dpi.private_sum(
        data, lambda rows: np.clip(rows, 0.0, 1.0), names=["a"], max_norm=1.0, epsilon=1.0, ledger=ledger
    ),
    "bounds": lambda data, ledger: dpi.release_bounds(data, epsilon=1.0, ledger=ledger),
}


@pytest.fixture
def ledger(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "budget.ledger").add_dataset("people", budget=(10.0, 1e-5))


def refused(enter, data, ledger, *words):
    with pytest.raises((TypeError, SchemaError, RecordError)) as caught:
        enter(data, ledger)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "2020-01-02" not in str(caught.value)
    assert ledger.spent().epsilon == 0.0


@pytest.mark.parametrize("entry", TABLES)
@pytest.mark.parametrize("kind", NUMPY)
def test_arrays_in_a_mapping(kind, entry, ledger):
    refused(TABLES[entry], {"reading": NUMPY[kind](), "y": Y}, ledger, "reading")


@pytest.mark.parametrize("entry", TABLES)
@pytest.mark.parametrize("kind", PANDAS)
def test_columns_of_pandas(kind, entry, ledger):
    pandas = module("pandas")
    frame = pandas.DataFrame({"reading": PANDAS[kind](pandas), "y": Y})
    refused(TABLES[entry], frame, ledger, "reading")
    refused(TABLES[entry], dict(frame), ledger, "reading")


@pytest.mark.parametrize("entry", TABLES)
@pytest.mark.parametrize("kind", POLARS)
def test_columns_of_polars_arrow_duckdb_and_parquet(kind, entry, ledger, tmp_path):
    polars = module("polars")
    frame = polars.DataFrame({"reading": POLARS[kind](polars), "y": Y})
    for made in FRAMES.values():
        refused(TABLES[entry], made(tmp_path, frame), ledger, "reading")


@pytest.mark.parametrize("entry", ARRAYS)
@pytest.mark.parametrize("kind", NUMPY)
def test_arrays_of_runs(kind, entry, ledger):
    array = NUMPY[kind]()
    refused(ARRAYS[entry], array if entry == "bounds" else array[:, None], ledger)


@pytest.mark.parametrize("entry", ARRAYS)
@pytest.mark.parametrize("kind", PANDAS)
def test_data_frames_of_runs(kind, entry, ledger):
    pandas = module("pandas")
    refused(ARRAYS[entry], pandas.DataFrame({"reading": PANDAS[kind](pandas)}), ledger, "reading")


@pytest.mark.parametrize("entry", ["fit", "sum", "bounds"])
def test_a_data_frame_with_text_is_refused_by_the_column_with_it(entry, ledger):
    pandas = module("pandas")
    refused(ARRAYS[entry], pandas.DataFrame({"reading": ["a"] * N}), ledger, "reading")


@pytest.mark.parametrize("kind", ["dates", "moments", "durations", "complex", "masked", "structured"])
def test_responses_of_runs(kind, ledger):
    y = NUMPY[kind]()
    model, told = dpi.models.LinearRegression(1), {"epsilon": 1.0, "delta": 1e-6, "n_records": N, "response_scale": 1.0}
    refused(lambda data, account: dpi.fit(model, X[:, None], data, ledger=account, **told), y, ledger, "y")


def test_dates_are_labels_where_categories_are_declared():
    """The power twin: what is refused is the type beside the declaration, and not the type."""
    pandas = module("pandas")
    data = pandas.DataFrame({"reading": pandas.to_datetime(["2020-01-02"] * N)})
    for table in (data, {"reading": NUMPY["dates"]()}):
        found = dpi.tables.counts(table, "reading", schema=LABELS, epsilon=50.0)
        assert abs(found.estimate[0] - N) < 5.0
    for kind in ("complex", "masked", "structured"):
        with pytest.raises(TypeError, match="reading"):
            dpi.tables.counts({"reading": NUMPY[kind]()}, "reading", schema=LABELS, epsilon=50.0)


def test_a_masked_value_in_a_list_is_missing():
    column = ["2020-01-02", np.ma.masked, "2020-01-02", *["2020-01-02"] * 100]
    found = dpi.tables.counts({"reading": column}, "reading", schema=LABELS, epsilon=50.0)
    assert abs(found.estimate[0] - 102) < 3.0


def test_numbers_of_every_type_are_read():
    pandas, polars = module("pandas"), module("polars")
    whole = np.rint(X).astype(np.int64)
    columns = [
        X, X.astype("f4"), X.astype(">f8"), whole, whole.astype("u1"), X > 5.0, list(X), pandas.Series(X),
        pandas.Series(whole, dtype="Int64"), pandas.Series(X > 5.0, dtype="boolean"), pandas.Series(X.astype(str)),
        pandas.Series(pandas.Categorical(whole)), pandas.Series(pandas.arrays.SparseArray(X)), polars.Series(X),
        polars.Series(whole).cast(polars.Decimal(10, 2)), polars.Series(X).cast(polars.String),
    ]  # fmt: skip
    for column in columns:
        exact = np.asarray(column, dtype=np.float64).mean()
        found = dpi.tables.means({"reading": column}, "reading", schema=SCHEMA, epsilon=1e4)
        assert abs(found.estimate[0] - exact) < 0.05
    for frame in (pandas.DataFrame({"a": X, "b": whole, "c": X > 5.0}), polars.DataFrame({"a": X, "b": whole})):
        wide = frame.shape[1]
        fit = dpi.fit(
            dpi.models.LinearRegression(wide), frame, Y, epsilon=5.0, delta=1e-6, n_records=N, response_scale=3.0
        )
        assert fit.failure == ""
    gaps = pandas.DataFrame({"a": pandas.array([1, None] * (N // 2), dtype="Int64")})
    with pytest.raises(RecordError, match="finite"):
        dpi.fit(dpi.models.LinearRegression(1), gaps, Y, epsilon=1.0, delta=1e-6, n_records=N, response_scale=1.0)


# Names


def test_column_names_that_no_column_can_be_found_by(ledger):
    pandas, pyarrow = module("pandas"), module("pyarrow")
    both = np.c_[X, X, Y]
    twice = pandas.DataFrame(both, columns=["reading", "reading", "y"])
    refused(TABLES["regression"], twice, ledger, "distinct", "'reading'")
    arrow = pyarrow.table([pyarrow.array(column) for column in both.T], names=["reading", "reading", "y"])
    refused(TABLES["regression"], arrow, ledger, "distinct", "'reading'")
    numbered = dpi.tabular.Schema.from_dict({"columns": {"0": {"kind": "continuous", "bounds": [0, 10]}}})
    with pytest.raises(SchemaError, match=r"called by numbers.*astype\(str\)"):
        dpi.tables.means(pandas.DataFrame(both), "0", schema=numbered, epsilon=1.0)
    levels = pandas.DataFrame(np.c_[X, Y], columns=pandas.MultiIndex.from_tuples([("a", "reading"), ("a", "y")]))
    refused(TABLES["regression"], levels, ledger, "several levels")


# Files


FILES = {
    "utf-16": (lambda text: text.encode("utf-16"), "UTF-16"),
    "utf-16, big-endian": (lambda text: b"\xfe\xff" + text.encode("utf-16-be"), "UTF-16"),
    "unicode text": (lambda text: text.replace(",", "\t").replace("\n", "\r\n").encode("utf-16"), "UTF-16"),
    "carriage returns": (lambda text: text.replace("\n", "\r").encode(), "carriage returns"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_in_another_encoding_says_which(kind, ledger, tmp_path):
    encode, word = FILES[kind]
    text = "reading,y\n" + "".join(f"{a:.3f},{b:.3f}\n" for a, b in zip(X, Y, strict=True))
    path = tmp_path / "records.csv"
    path.write_bytes(encode(text))
    refused(TABLES["regression"], path, ledger, word)
    # Without the declared names it may be the first record of a file without a header: one text for any content.
    path.write_bytes(encode(text.replace("reading", "5.5")))
    with pytest.raises(SchemaError, match="header"):
        TABLES["regression"](path, ledger)
    assert ledger.spent().epsilon == 0.0
