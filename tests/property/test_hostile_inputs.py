"""200 hostile columns in every reader: the right number, or a promised error before the charge, and nothing else.

The oracle is the value's own meaning (`number_of`) in what the holder hands over, without the reader: a mean at a
budget without noise is the mean of the clamped numbers among them.  A holder that refuses a column by itself is left
out.  Deterministic.
"""

import csv
import io
import math
import warnings

import numpy as np
import pytest
from tests.reference.fuzzed_runs import Witness
from tests.reference.hostile_columns import SIZE, columns

import dpinfer as dpi
from dpinfer._values import number_of
from dpinfer.errors import DpinferError, RecordError, SchemaError

LOW, HIGH = 0.0, 10.0
SCHEMA = dpi.tabular.Schema.from_dict(
    {"columns": {name: {"kind": "continuous", "bounds": [LOW, HIGH]} for name in ("x", "y")}}
)
Y = np.linspace(1.0, 9.0, SIZE)
COLUMNS = columns(200)
PROMISED = (TypeError, ValueError, DpinferError)  # SchemaError and RecordError among them


def module(name):
    return pytest.importorskip(name, reason=f"needs {name}")


def object_array(values):
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def csv_of(values):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([("x", "y"), *zip((("" if value is None else str(value)) for value in values), Y, strict=True)])
    return text.getvalue()


def csv_file(folder, values):
    path = folder / "records.csv"
    path.write_bytes(csv_of(values).encode())
    return path, [str(value) if value is not None else "" for value in values]


def parquet_file(folder, values):
    table = arrow(values)
    path = folder / "records.parquet"
    module("pyarrow.parquet").write_table(table, path)
    return path, table["x"].to_pylist()


def arrow(values):
    if any(isinstance(value, (np.datetime64, np.timedelta64, np.generic, np.ndarray)) for value in values):
        raise TypeError("pyarrow ends the process where some of these are among others")
    pyarrow = module("pyarrow")
    return pyarrow.table({"x": pyarrow.array(values, from_pandas=True), "y": Y})


def pandas_frame(values):
    return module("pandas").DataFrame({"x": values, "y": Y})


def polars_frame(values):
    return module("polars").DataFrame({"x": values, "y": Y}, strict=False)


def duckdb_relation(values):
    return module("duckdb").from_arrow(arrow(values))


def with_values(frame, values):
    return frame, values


# From a folder and a column to the table, and the values that it holds.
READERS = {
    "lists": lambda folder, values: ({"x": values, "y": list(Y)}, values),
    "tuples": lambda folder, values: ({"x": tuple(values), "y": tuple(Y)}, values),
    "object arrays": lambda folder, values: ({"x": object_array(values), "y": Y}, values),
    "NumPy": lambda folder, values: (lambda array: ({"x": array, "y": Y}, array.tolist()))(np.array(values)),
    "pandas": lambda folder, values: (lambda frame: (frame, frame["x"].tolist()))(pandas_frame(values)),
    "pandas series": lambda folder, values: (lambda frame: (dict(frame), frame["x"].tolist()))(pandas_frame(values)),
    "Polars": lambda folder, values: (lambda frame: (frame, frame["x"].to_list()))(polars_frame(values)),
    "Polars, lazy": lambda folder, values: (lambda frame: (frame.lazy(), frame["x"].to_list()))(polars_frame(values)),
    "Arrow": lambda folder, values: (lambda table: (table, table["x"].to_pylist()))(arrow(values)),
    "DuckDB": lambda folder, values: (lambda table: (table, [row[0] for row in table.fetchall()]))(
        duckdb_relation(values)
    ),
    "CSV": csv_file,
    "Parquet": parquet_file,
}


def held(reader, folder, values):
    """The table and its values; None where a library holds no such column (Polars panics for some)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return READERS[reader](folder, values)
    except (KeyboardInterrupt, pytest.skip.Exception):
        raise
    except BaseException:
        return None


def expected(values):
    numbers = np.array([number_of(value) for value in values])
    known = numbers[~np.isnan(numbers)]
    return float(np.mean(np.clip(known, LOW, HIGH))) if known.size else math.nan


def asked(call):
    """The result of a call, or its promised error, and whether it was paid for: a key is taken after the charge."""
    source = Witness(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(source), None, source.paid
    except PROMISED as error:
        return None, error, source.paid


@pytest.mark.parametrize("reader", READERS)
def test_means_of_hostile_columns(reader, tmp_path):
    wrong, right, refused = [], 0, 0
    for name, values in COLUMNS.items():
        found = held(reader, tmp_path, values)
        if found is None:
            continue
        table, present = found
        result, error, spent = asked(
            lambda source, table=table: dpi.tables.means(table, "x", schema=SCHEMA, epsilon=1e5, random_source=source)
        )
        if error is not None:
            refused += 1
            if spent or not isinstance(error, (TypeError, SchemaError, RecordError)) or "'x'" not in str(error):
                wrong.append((name, repr(error)))
            continue
        right += 1
        wanted, told = expected(present), float(result.estimate[0])
        if not math.isnan(wanted) and abs(told - wanted) > 1e-2:
            wrong.append((name, told, wanted))
    assert wrong == []
    # Not vacuous: typed tables hold what is of one type, the others nearly all.
    assert right > (25 if reader in ("Polars", "Polars, lazy", "Arrow", "DuckDB", "Parquet") else 150)
    if reader in ("pandas", "Polars", "NumPy"):
        assert refused > 0


@pytest.mark.parametrize("reader", READERS)
def test_regressions_of_hostile_columns(reader, tmp_path):
    """Some columns as a predictor: a fit with finite numbers, or an error before the charge."""
    wrong, ran = [], 0
    for name, values in list(COLUMNS.items())[::11]:
        found = held(reader, tmp_path, values)
        if found is None or not any(math.isfinite(number_of(value)) for value in found[1]):
            continue
        given = {"schema": SCHEMA, "epsilon": 5.0, "delta": 1e-6, "n_records": SIZE}
        fit, error, spent = asked(
            lambda source, table=found[0]: dpi.regression("y ~ x", table, random_source=source, **given)  # noqa: B023
        )
        if error is not None and (spent or not isinstance(error, (TypeError, SchemaError))):
            wrong.append((name, repr(error)))
        elif error is None:
            ran += 1
            if fit.failure or not np.all(np.isfinite(fit.coefficients().mean)):
                wrong.append((name, fit.failure))
    assert wrong == []
    assert ran > (1 if reader in ("Polars", "Polars, lazy", "Arrow", "DuckDB", "Parquet") else 8)


ARRAYS = {
    "lists": lambda values: [[value] for value in values],
    "object array": lambda values: object_array(values)[:, None],
    "NumPy": lambda values: np.array(values)[:, None],
    "pandas": lambda values: pandas_frame(values)[["x"]],
    "Polars": lambda values: polars_frame(values)[["x"]],
    "Arrow": lambda values: arrow(values).select(["x"]),
}
MODEL = dpi.models.LinearRegression(1)
PLAN = dpi.plan_newton(MODEL, target_epsilon=5.0, target_delta=1e-6, n_records=SIZE)
RUNS = {
    "fit": lambda X, source: dpi.run_newton(
        MODEL, X, Y, plan=PLAN, n_records=SIZE, response_scale=5.0, random_source=source
    ),
    "estimator": lambda X, source: dpi.BayesianLinearRegression(
        epsilon=5.0, delta=1e-6, n_records=SIZE, data_bounds=[(LOW, HIGH)], target_bounds=(0, 10), random_source=source
    ).fit(X, Y),
    "sum": lambda X, source: dpi.private_sum(
        X, lambda rows: np.clip(np.nan_to_num(rows), 0, 1), names=["a"], max_norm=1.0, epsilon=5.0, random_source=source
    ),
    "bounds": lambda X, source: dpi.release_bounds(X, epsilon=5.0, random_source=source),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("holder", ARRAYS)
def test_arrays_of_hostile_columns(holder, run):
    """What a type tells is refused before the charge; what a value tells after it, by RecordError alone.

    Lists have no type: their errors for values that are no numbers are TypeError, too.
    """
    wrong, ran = [], 0
    for name, values in list(COLUMNS.items())[:: 8 if run == "estimator" else 3]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                X = ARRAYS[holder](values)
        except (KeyboardInterrupt, pytest.skip.Exception):
            raise
        except BaseException:
            continue
        _, error, spent = asked(lambda source, X=X: RUNS[run](X, source))
        ran += error is None
        if error is None:
            continue
        after = RecordError if holder != "lists" else (RecordError, TypeError)
        if spent and not isinstance(error, after):
            wrong.append((name, repr(error)))
        if any(secret in str(error) for secret in ("8,123", "2020-01-02", "3 kg", "1e+300")):
            wrong.append((name, "quotes", str(error)))
    assert wrong == []
    assert ran > 0 or (holder == "object array" and run != "estimator")
