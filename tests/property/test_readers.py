"""One value of every type, inserted into every kind of column of every reader: all other records stay as they are.

Libraries choose a type for all values of a column, so that one value can change what they hand over for all others.
Deterministic: each reader gets each kind of column with each value, first and last.
"""

import csv
import datetime as dt
import io
import uuid
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer._values import number_of, text_of
from dpinfer.errors import DpinferError, SchemaError
from dpinfer.estimators.records import PendingRecords, as_numbers
from dpinfer.formulas.records import UnreadRecords
from dpinfer.mechanism.records import load_records
from dpinfer.mechanism.units import check_identities
from dpinfer.mechanism.unknowns import releases as unknowns
from dpinfer.tabular import Schema, SchemaDraft
from dpinfer.tabular.decoding import decode
from dpinfer.tabular.frames import _mapping_chunks, raw_frame
from dpinfer.tabular.reading import read_chunks

DAY = dt.date(2020, 1, 2)
COLUMNS = {
    "whole floats": [1.0, 2.0, 3.0, -999.0],
    "floats": [0.1, 2.5, 1e300, 3.0],
    "floats with gaps": [0.5, float("nan"), 2.0, float("nan")],
    "single precision": [np.float32(0.1), np.float32(2.0), np.float32(-1.5), np.float32(3.0)],
    "integers": [1, 2, 30, -999],
    "large integers": [2**53 + 1, 2**53 + 3, 2**60 + 1, 7],
    "truths": [True, False, True, False],
    "labels": ["cat", "dog", "cat", "?"],
    "labels with gaps": ["cat", None, "dog", ""],
    "numbers as text": ["1", "1.0", "-999", "2.50"],
    "codes with zeros": ["007", "08", "-0", "7"],
    "truths as text": ["true", "False", "TRUE", "false"],
    "bytes": [b"cat", b"dog", b"cat", b"1.0"],
    "days": [DAY, dt.date(1999, 12, 31), DAY, dt.date(2000, 2, 29)],
    "moments": [
        dt.datetime(2020, 1, 2, 3, 4),
        dt.datetime(2020, 1, 2),
        dt.datetime(1999, 12, 31, 23, 59, 59),
        dt.datetime(1, 1, 1),
    ],
    "times": [dt.time(10, 0), dt.time(23, 59, 59), dt.time(0, 0), dt.time(10, 0)],
    "decimals": [Decimal("1.10"), Decimal("2.00"), Decimal("-999"), Decimal("0.1")],
}
VALUES = [
    *(None, float("nan"), float("inf"), 0, 1, 1.5, -999, -999.0, True, False, 2**53 + 1, 2**70, 10**400, 1j, 2 + 0j),
    *("x", "", "?", "1", "1.0", "-999", "-999.0", "nan", "inf", "true", "1_000", "2020-01-02", "10:00", "é", "x" * 99),
    *(b"x", b"1", b"\xff", DAY, dt.datetime(2020, 1, 2, 3), dt.datetime(2020, 1, 2, tzinfo=dt.UTC), dt.time(9, 30)),
    *(
        dt.timedelta(1),
        Decimal("1.5"),
        Decimal("NaN"),
        Fraction(1, 3),
        uuid.UUID(int=7),
        [1],
        (1, 2),
        {"a": 1},
        object(),
    ),
    *(np.float32(0.1), np.float64(2.0), np.int8(3), np.uint64(2**63), np.bool_(True), np.str_("x"), np.bytes_(b"x")),
    *(
        np.datetime64("2020-01-02"),
        np.datetime64("NaT"),
        np.timedelta64(1, "D"),
        np.longdouble(1) / 3,
        np.array([1, 2]),
    ),
]
# What a text file can hold; the libraries read its lines again as what they seem to be.
TEXTS = [value for value in VALUES if isinstance(value, str) and value.isprintable()]


def schema_of(values):
    """A schema that reads the column as each kind of column, with the spellings of these values declared."""
    spelled = list(dict.fromkeys(text for text in map(text_of, values) if text not in (None, "", "?", "-999")))
    one, *others = [*spelled, "one", "two"]
    return Schema.from_dict(
        {
            "table": {"missing_values": ["", "?", "-999"]},
            "columns": {
                "number": {"kind": "continuous", "bounds": [-3, 30]},
                "label": {"kind": "categorical", "categories": spelled or ["one"], "other": "else"},
                "open": {"kind": "categorical", "categories": ["none of them"], "other": "else", "missing": "other"},
                "pair": {"kind": "binary", "positive": [one], "negative": others},
                "ignored": {"kind": "ignore", "missing": "drop"},
            },
        }
    )


def rows_of(chunk, schema):
    """What is made of each record of a raw column."""
    names = [column.name for column in schema.columns]
    (raw,) = {id(column): column for column in chunk.values()}.values()
    decoded = decode(dict.fromkeys(names, raw), schema)
    labels = [text_of(value) for value in (raw.tolist() if isinstance(raw, np.ndarray) else raw)]
    parts = [part for item in decoded.columns for part in (item.values, item.absent, item.unseen)]
    return [(label, *(part[row].tobytes() for part in parts)) for row, label in enumerate(labels)]


def joined(*parts):
    return [value for part in parts for value in part]


def module(name):
    return pytest.importorskip(name, reason=f"needs {name}")


def frame_chunk(frame):
    (chunk,) = raw_frame("data", frame, ["column"])()
    return chunk


def mapped(column):
    (chunk,) = _mapping_chunks("data", {"column": column}, ["column"])
    return chunk


def object_array(values):
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def pandas_frame(values):
    return module("pandas").DataFrame({"column": values})


def polars_frame(*parts):
    """Frames that are typed before they meet: a value of another type is refused."""
    polars = module("polars")
    return polars.concat([polars.DataFrame({"column": part}) for part in parts])


def arrow_table(*parts):
    """Tables that are typed before they meet: a value of another type is refused."""
    pyarrow = module("pyarrow")
    refuse_what_ends_arrow(*parts)
    tables = [pyarrow.table({"column": pyarrow.array(part, from_pandas=True)}) for part in parts]
    return pyarrow.concat_tables(tables, promote_options="default")


def refuse_what_ends_arrow(*parts):
    if any(isinstance(value, (np.longdouble, np.datetime64, np.timedelta64)) for part in parts for value in part):
        raise TypeError("pyarrow ends the process where one of these is among others")


def arrow_of_pandas(values):
    refuse_what_ends_arrow(values)
    return module("pyarrow").Table.from_pandas(pandas_frame(values))


def duckdb_relation(*parts):
    return module("duckdb").from_arrow(arrow_table(*parts))


def narwhals_frame(values):
    return module("narwhals").from_native(pandas_frame(values))


def parquet(folder, *parts):
    path = folder / "records.parquet"
    module("pyarrow.parquet").write_table(arrow_table(*parts), path)
    (chunk,) = read_chunks(path, ["column"], delimiter=",")
    return chunk


def lines_of(values):
    """The lines of a file that holds these values; a second column keeps empty values from being empty lines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([("column", "other"), *((("" if value is None else value), "-") for value in values)])
    return text.getvalue().encode()


def csv_file(folder, *parts):
    path = folder / "records.csv"
    path.write_bytes(lines_of(joined(*parts)))
    (chunk,) = read_chunks(path, ["column", "other"], delimiter=",")
    return {"column": chunk["column"]}


def read_by_pandas(values):
    return module("pandas").read_csv(io.BytesIO(lines_of(values)))


def read_by_polars(values):
    return module("polars").read_csv(lines_of(values), try_parse_dates=True)


def read_by_duckdb(folder, values):
    path = folder / "duckdb.csv"
    path.write_bytes(lines_of(values))
    return module("duckdb").read_csv(str(path), header=True)


def read_by_arrow(values):
    return module("pyarrow.csv").read_csv(io.BytesIO(lines_of(values)))


# From a folder and the parts of a column, one record and all others, to what is made of it.
IN_MEMORY = {
    "list": lambda folder, *parts: mapped(joined(*parts)),
    "tuple": lambda folder, *parts: mapped(tuple(joined(*parts))),
    "object array": lambda folder, *parts: mapped(object_array(joined(*parts))),
    "NumPy's type": lambda folder, *parts: mapped(np.asarray(joined(*parts))),
    "pandas series": lambda folder, *parts: mapped(pandas_frame(joined(*parts))["column"]),
    "pandas": lambda folder, *parts: frame_chunk(pandas_frame(joined(*parts))),
    "narwhals": lambda folder, *parts: frame_chunk(narwhals_frame(joined(*parts))),
    "Polars": lambda folder, *parts: frame_chunk(polars_frame(*parts)),
    "Polars series": lambda folder, *parts: mapped(polars_frame(*parts)["column"]),
    "Arrow": lambda folder, *parts: frame_chunk(arrow_table(*parts)),
    "Arrow of pandas": lambda folder, *parts: frame_chunk(arrow_of_pandas(joined(*parts))),
    "DuckDB": lambda folder, *parts: frame_chunk(duckdb_relation(*parts)),
    "Parquet": parquet,
}
FROM_TEXT = {
    "CSV": csv_file,
    "CSV by pandas": lambda folder, *parts: frame_chunk(read_by_pandas(joined(*parts))),
    "CSV by Polars": lambda folder, *parts: frame_chunk(read_by_polars(joined(*parts))),
    "CSV by DuckDB": lambda folder, *parts: frame_chunk(read_by_duckdb(folder, joined(*parts))),
    "CSV by Arrow": lambda folder, *parts: frame_chunk(read_by_arrow(joined(*parts))),
}
# What changes values before any reader sees them, and cannot be undone: NumPy writes single precision with its own
# digits, and takes whole numbers beside a difference of times for such differences, as Arrow does beside dates.
CHANGED_BEFORE = [
    ("NumPy's type", "single precision", object),
    ("NumPy's type", None, np.timedelta64),
    ("Arrow of pandas", None, (dt.date, dt.time, dt.timedelta)),
]


def is_changed_before(reader, name, value):
    return any(
        reader == place and column in (None, name) and isinstance(value, kind) for place, column, kind in CHANGED_BEFORE
    )


def held(read, *arguments):
    """What is read; None where the library holds no such column, or refuses to hand it over (Polars panics)."""
    try:
        return read(*arguments)
    except (KeyboardInterrupt, AssertionError, pytest.skip.Exception):
        raise
    except BaseException:
        return None


def moved(read, column, value, folder, schema, alone):
    """How often the column was read with a value more, first and last, and what then differs from its records alone.

    At both ends at once, and at each by itself where the library refuses that.
    """
    compared, found, both = 0, [], ([value], column, [value])
    for parts in (both, both[1:], both[:2]):
        chunk = held(read, folder, *parts)
        if chunk is None:
            continue
        more, first = len(parts) - 1, int(parts[0] is not column)
        compared += more
        rows = rows_of(chunk, schema)
        if len(rows) != len(column) + more or rows[first : first + len(column)] != alone:
            found.append((value, [row[0] for row in rows]))
        if parts is both:
            break
    return compared, found


def texts(column):
    """The column as it stands in a file, None where its values have no one text there."""
    if any(isinstance(value, bytes) for value in column):
        return None
    # A missing number is an empty field: the word "nan" in a file is a text.
    return ["" if isinstance(value, float) and value != value else value for value in column]


@pytest.mark.parametrize("reader", [*IN_MEMORY, *FROM_TEXT])
def test_one_value_changes_no_other_record(reader, tmp_path):
    read = (IN_MEMORY | FROM_TEXT)[reader]
    total, wrong = 0, []
    for name, column in COLUMNS.items():
        written = texts(column) if reader in FROM_TEXT else column
        chunk = None if written is None else held(read, tmp_path, written)
        if chunk is None:
            continue
        schema = schema_of(written)
        alone = rows_of(chunk, schema)
        for value in TEXTS if reader in FROM_TEXT else VALUES:
            if is_changed_before(reader, name, value):
                continue
            compared, found = moved(read, written, value, tmp_path, schema, alone)
            total += compared
            wrong += [(name, *item) for item in found]
    assert wrong == []
    # Not vacuous: a typed table holds most columns with a value of its own type more, the others nearly all.
    assert total > (50 if "Polars" in reader or reader in ("Arrow", "DuckDB", "Parquet") else 300)


def told_apart(first, second):
    """How many labels' counts differ, and by how much at most."""
    moves = [abs(first[label] - second[label]) for label in first.keys() | second.keys()]
    return sum(move > 0 for move in moves), max(moves, default=0)


@pytest.mark.parametrize("name", COLUMNS)
def test_counts_of_labels_and_of_records_move_by_one(name):
    column = COLUMNS[name] * 3
    labels = unknowns.count_labels("records", column)
    rows = unknowns.count_rows(column, dpi.accounting.Adjacency.ZERO_OUT)
    for value in VALUES:
        for values in ([value, *column], [*column, value]):
            assert max(told_apart(labels, unknowns.count_labels("records", values))) <= 1
            assert 0 <= unknowns.count_rows(values, dpi.accounting.Adjacency.ZERO_OUT) - rows <= 1
            assert unknowns.count_rows(values, dpi.accounting.Adjacency.ADD_REMOVE) == len(column) + 1


@pytest.mark.parametrize("value", ["x", 1.5, None, True, b"x", 10**400, float("nan")], ids=str)
def test_released_labels_are_those_without_one_record(value):
    """Observed epsilon was infinite: ('1', '2') became ('1.0', '2.0') with a text more."""
    for column, names in (
        ([1.0, 2.0] * 500, ("1", "2")),
        ([True, False] * 500, ("0", "1")),
        ([2**60, 7] * 500, ("1152921504606846976", "7")),
        ([b"cat", b"dog"] * 500, ("cat", "dog")),
        ([0.5, -999.0] * 500, ("-999", "0.5")),
    ):
        release = dpi.release_categories([*column, value], epsilon=1.0, delta=1e-6)
        # Of 500 records a label is missed, and of one it is released, with a probability below 1e-6.
        assert tuple(sorted(release.categories["value"])) == names


ESTIMATED = {
    "numbers": ([0, 1], (0, 1)),
    "truths": ([False, True], (False, True)),
    "texts": (["no", "yes"], ("no", "yes")),
}


@pytest.mark.parametrize("name", ESTIMATED)
def test_targets_of_estimators_are_those_without_one_record(name):
    (no, yes), classes = ESTIMATED[name]
    labels, X, compared = [no, yes] * 4, np.arange(18.0).reshape(9, 2), 0
    for value in (*VALUES, no, yes):
        try:
            found = PendingRecords(X, [*labels, value], classes).targets
        except DpinferError:
            continue
        compared += 1
        assert found[:8].tobytes() == np.tile([0.0, 1.0], 4).tobytes()
    assert compared >= 2


def test_numbers_in_lists_are_those_without_one_record():
    """Whatever one record is, the others are read alike, or all are refused."""
    column, model = [0.1, 2.0, np.float32(0.1), 2**53 + 1, 3], dpi.models.LinearRegression(1)
    rows, responses = [[number] for number in column], [1.0] * 6
    features, _ = load_records(model, rows, responses[:5])
    numbers, compared = as_numbers(column, 5), 0
    for value in VALUES:
        try:
            found = load_records(model, [*rows, [value]], responses)[0][:5], as_numbers([*column, value], 6)[:5]
        except (DpinferError, TypeError):
            continue
        compared += 1
        assert (found[0].tobytes(), found[1].tobytes()) == (features.tobytes(), numbers.tobytes())
    assert compared > 8
    singles = [[np.float32(0.1)]] * 4
    one, other = (
        load_records(model, singles, responses[:4])[0],
        load_records(model, [*singles, [0.5]], responses[:5])[0],
    )
    assert one.tobytes() == other[:4].tobytes()


@pytest.mark.parametrize("value", ["x", "1", 7, np.int64(7)], ids=repr)
def test_units_are_those_without_one_record(value):
    for ids in ([1, 1, 2, 10], ["a", "a", "b", "10"]):
        found = check_identities([*ids, value], 5)[:4]
        assert [(found == unit).tolist() for unit in found] == [[one == other for other in ids] for one in ids]


PERSONS = {
    "large integers": [2**60 + 1, 2**60 + 2, 2**60 + 1, 7],
    "integers": [1, 2, 30, 1],
    "texts": ["ann", "007", "ann", "1152921504606846977"],
    "days": [DAY, dt.date(1999, 12, 31), DAY, dt.date(2000, 2, 29)],
}
HELD_IN = {
    "lists": lambda folder, table: table,
    "arrays": lambda folder, table: table | {"who": np.asarray(table["who"])},
    "pandas": lambda folder, table: module("pandas").DataFrame(table),
    "narwhals": lambda folder, table: module("narwhals").from_native(module("pandas").DataFrame(table)),
    "Polars": lambda folder, table: module("polars").DataFrame(table),
    "Arrow": lambda folder, table: arrow_units(table),
    "DuckDB": lambda folder, table: module("duckdb").from_arrow(arrow_units(table)),
    "Parquet": lambda folder, table: saved(folder / "units.parquet", table),
    "CSV": lambda folder, table: saved(folder / "units.csv", table),
}


def arrow_units(table):
    refuse_what_ends_arrow(table["who"])
    return module("pyarrow").table(table)


def saved(path, table):
    if path.suffix == ".parquet":
        module("pyarrow.parquet").write_table(arrow_units(table), path)
    else:
        if any(isinstance(value, (bytes, str)) and not str(value).isprintable() for value in table["who"]):
            raise TypeError
        path.write_text("".join(f"{','.join(map(str, row))}\n" for row in [table, *zip(*table.values(), strict=True)]))
    return path


@pytest.mark.parametrize("holder", HELD_IN)
def test_whose_a_row_is_depends_on_no_other_row(holder, tmp_path):
    """Integers beyond 2**53 were made floats: persons met in one unit, whose bound then held for both together."""
    pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")
    number = {"kind": "continuous", "bounds": [0, 9]}
    made = dpi.formulas.design(
        "y ~ x", Schema.from_dict({"columns": {"who": {"kind": "ignore"}, "x": number, "y": number}})
    )

    def units(who):
        table = {"who": who, "x": [1.0] * len(who), "y": [2.0] * len(who)}
        return np.asarray(UnreadRecords(HELD_IN[holder](tmp_path, table), made, "who").unit)[:4]

    compared = 0
    for column in PERSONS.values():
        expected = [[one == other for other in column] for one in column]
        assert [(units(column) == unit).tolist() for unit in units(column)] == expected
        for value in VALUES:
            found = held(units, [*column, value])
            # A row that does not say whose it is refuses the run; Arrow has one type for all.
            compared += found is not None
            assert found is None or [(found == unit).tolist() for unit in found] == expected
    assert compared > 15


@pytest.mark.parametrize("value", ["x", True, "old", None, b"1", 10**400], ids=str)
def test_the_design_of_a_regression_is_that_without_one_record(value):
    """A mapping of lists: sums of columns moved from [221, 0] to [0, 401] with one text."""
    pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")
    columns = {
        "grade": {"kind": "categorical", "categories": ["1", "2", "3"], "other": "else"},
        "age": {"kind": "continuous", "bounds": [0, 100]},
        "pay": {"kind": "continuous", "bounds": [0, 9]},
    }
    schema = Schema.from_dict({"table": {"missing_values": ["-999"]}, "columns": columns})
    made = dpi.formulas.design("pay ~ grade + age", schema)
    table = {"grade": [1.0, 2.0, 3.0, 1.0], "age": [20, 30.5, -999, 40], "pay": [1, 2, 3, 4]}
    expected = np.asarray(UnreadRecords(table, made).X)
    assert len(expected) == 3
    # Grades 2 and 3 are told apart from 1.
    assert len(np.unique(expected, axis=0)) == 3
    for name in ("grade", "age"):
        more = {key: [*values, value if key == name else values[0]] for key, values in table.items()}
        found = np.asarray(UnreadRecords(more, made).X)
        assert found[:3].tobytes() == expected.tobytes()
        assert len(found) <= 4


def test_two_spellings_of_one_value_are_no_two_categories():
    for categories in (["1", "1.0"], ["True", "1"], ["cat", "nan"], ["2020-01-01", "2020-01-01T00:00"]):
        with pytest.raises(SchemaError, match=r"categories must hold values"):
            Schema.from_dict({"columns": {"a": {"kind": "categorical", "categories": categories}}})
    with pytest.raises(SchemaError, match="must not share a value"):
        Schema.from_dict({"columns": {"a": {"kind": "binary", "positive": "0", "negative": ["False", "no"]}}})


def test_a_value_has_one_spelling():
    for value in (*VALUES, *joined(*COLUMNS.values())):
        text = text_of(value)
        assert text_of(text) == text
        assert text is None or np.array_equal(number_of(text), number_of(value), equal_nan=True)


def test_labels_of_two_spellings_in_an_older_release_make_a_schema():
    draft = SchemaDraft({"columns": {"a": {"kind": "categorical", "other": "0"}}})
    release = dpi.release_categories({"a": ["1"] * 900}, epsilon=1.0, delta=1e-6)
    older = release.replace(noisy_counts={"a": {"1": 900, "1.0": 800, "0.0": 700, "nan": 600, "b": 500}})
    assert draft.complete(categories=older).columns[0].categories == ("1", "b", "0")
