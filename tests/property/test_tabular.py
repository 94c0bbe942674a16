"""Reading acts on one record alone: whatever a line or a value is, every other record comes out as it did."""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dpinfer.errors import RecordError, SchemaError
from dpinfer.tabular import Schema, check_table, read_table

# Nothing in a record can stop the reading: every category has a place, and what is no number is missing.
TOTAL = {
    "columns": {
        "age": {"kind": "continuous", "bounds": [0, 100], "scaling": "unit"},
        "job": {"kind": "categorical", "categories": ["clerk", "cook"], "other": "else"},
        "home": {"kind": "categorical", "categories": ["own", "rent"], "other": "else", "missing": "other"},
        "note": {"kind": "ignore"},
    }
}
DELIMITERS = (",", ";", "\t", " ", "|", "\u2028")
LINES = [
    [b"20", b"clerk", b"own", b"a"],
    [b"30", b'"cook"', b"rent", b'"b ""c"""'],
    [b"1e9", b"x", b"?", b"d"],
    [b"-5", b"cook", b"own", b"e"],
]
ROWS = np.array(
    [[0.2, 1, 0, 0, 1, 0, 0], [0.3, 0, 1, 0, 0, 1, 0], [1.0, 0, 0, 1, 0, 0, 1], [0.0, 0, 1, 0, 1, 0, 0]], dtype=float
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

pieces = st.sampled_from(
    [
        *(b'"', b'""', b",", b";", b" ", b"\t", b"|", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"\x1a", b"\\", b"'"),
        *(b"\x1c", b"\x0b", b"clerk", b"own", b"50", b"nan", b"20,cook,own,a", b"x" * 2**20),
        *("\u2028".encode(), "\u0085".encode()),
    ]
)
lines = st.lists(pieces | st.binary(max_size=8), max_size=12).map(b"".join).map(lambda line: line.replace(b"\n", b""))


ends = st.sampled_from([b"\n", b"\r\n"])


def rows_of(path, delimiter):
    return read_table(path, Schema.from_dict({**TOTAL, "table": {"delimiter": delimiter}})).X


def check(folder, line, place, delimiter, *, replace=False, end=b"\n", compressed=False):
    """Insert a line among the others, or put it in the place of one, and compare all the others."""
    body = [delimiter.encode().join(fields) for fields in LINES]
    expected = np.delete(ROWS, place, axis=0) if replace else ROWS
    body[place : place + replace] = [line]
    content = end.join([delimiter.encode().join([b"age", b"job", b"home", b"note"]), *body])
    path = folder / ("people.csv.gz" if compressed else "people.csv")
    path.write_bytes(gzip.compress(content) if compressed else content)
    found = rows_of(path, delimiter)
    own = len(found) - len(expected)
    assert own in (0, 1)
    np.testing.assert_array_equal(np.delete(found, slice(place, place + own), axis=0), expected)


@quick
@example(b'"', 0, ",", False, b"\n", False)
@example(b'20,"cook', 1, ",", True, b"\r\n", True)
@given(
    lines,
    st.integers(0, 3),
    st.sampled_from(DELIMITERS),
    st.booleans(),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_no_line_changes_another_record(tmp_path, line, place, delimiter, replace, end, compressed):
    check(tmp_path, line, place, delimiter, replace=replace, end=end, compressed=compressed)


@quick
@given(st.integers(1, 5), lines, st.integers(0, 3))
def test_nor_where_chunks_end(tmp_path, size, line, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpinfer.tabular.reading.CHUNK_ROWS", size)
        check(tmp_path, line, place, ",")


def test_the_check_finds_a_reader_that_lets_quotes_run_on(tmp_path, monkeypatch):
    """The power twin: the standard library's reader, over the whole file."""
    import csv

    def lenient(path, delimiter, refuse_malformed, counts):
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header, *rows = csv.reader(stream, delimiter=delimiter, skipinitialspace=True)
        yield header
        yield list(zip(*(row for row in rows if len(row) == len(header)), strict=True))

    monkeypatch.setattr("dpinfer.tabular.reading._csv_chunks", lenient)
    check(tmp_path, b"50,clerk,own,x", 1, ",")
    with pytest.raises(AssertionError):
        check(tmp_path, b'50,clerk,own,"x', 1, ",")


@quick
@given(st.binary(max_size=12), st.floats() | st.none(), st.integers(0, 3))
def test_no_value_of_a_parquet_file_changes_another_record(tmp_path, label, number, place):
    reason = "Parquet needs the extra dpinfer[parquet]"
    pyarrow = pytest.importorskip("pyarrow", reason=reason)
    parquet = pytest.importorskip("pyarrow.parquet", reason=reason)
    ages, jobs, homes = [20.0, 30.0, 1e9, -5.0], [b"clerk", b"cook", b"x", b"cook"], ["own", "rent", "?", "own"]
    ages.insert(place, number)
    jobs.insert(place, label)
    homes.insert(place, "own")
    columns = {
        "age": pyarrow.array(ages, pyarrow.float64()),
        "job": pyarrow.array(jobs, pyarrow.binary()).view(pyarrow.string()),
        "home": homes,
        "note": ["n"] * 5,
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "people.parquet")
    found = rows_of(tmp_path / "people.parquet", ",")
    own = len(found) - len(ROWS)
    assert own in (0, 1)
    np.testing.assert_array_equal(np.delete(found, slice(place, place + own), axis=0), ROWS)


# What is checked for the curator is what the reader does.
NUMBERS = ("20", "0", "100", "-5", "1e9", "inf", "nan", "", "?", "3,5", "1,234", "12 mg", "1_0", " 7 ", "x")
JOBS = ("clerk", "cook", "baker", "", "?", "else")
SEXES = ("f", "m", "x", "?")
records = st.lists(st.tuples(*(st.sampled_from(values) for values in (NUMBERS, JOBS, SEXES))), max_size=8)
policies = st.sampled_from([None, "drop", "refuse"])


def declared(policy, age, job, other):
    """A schema, with the policies of the table and of two columns, and whether undeclared jobs have a place."""
    jobs = {"kind": "categorical", "categories": ["clerk", "cook"], "missing": job, "other": "else" if other else None}
    columns = {
        "age": {"kind": "continuous", "bounds": [0, 100], "missing": age},
        "job": jobs,
        "sex": {"kind": "binary", "positive": "f", "negative": "m"},
    }
    columns = {name: {key: item for key, item in value.items() if item is not None} for name, value in columns.items()}
    return Schema.from_dict({"table": {"missing": policy or "drop", "delimiter": ";"}, "columns": columns})


def outcome(path, schema):
    """The number of records that the reader returns, and the text with which it refuses them."""
    try:
        return len(read_table(path, schema).X), None
    except (RecordError, SchemaError) as error:
        return None, str(error)


def number_of(text):
    try:
        return float("nan") if "_" in text else float(text)
    except ValueError:
        return float("nan")


@quick
@given(records, st.lists(lines, max_size=2), policies, policies, policies | st.just("other"), st.booleans())
def test_what_is_checked_is_what_the_reader_does(tmp_path, rows, more, policy, age, job, other):
    schema = declared(policy, age, None if job == "other" and not other else job, other)
    path = tmp_path / "people.csv"
    body = [";".join(row).encode() for row in rows]
    path.write_bytes(b"\n".join([b"age;job;sex", *body, *more]) + b"\n")
    result = check_table(path, schema)
    n_records, refusal = outcome(path, schema)
    if refusal is None:
        assert (result.usable, result.refusals) == (n_records, ())
    else:
        assert refusal in result.refusals
    assert not result.clean or result.usable == result.lines.records
    for item in result.columns:
        found = item.read + item.missing + item.not_numbers.total() + item.undeclared
        assert found == result.lines.records
        if item.undeclared:
            assert item.values["undeclared"].counts.total() == item.undeclared
    if more or not rows:
        return
    # The lines are records, every one: counted again here.
    found = {item.column.name: item for item in result.columns}
    numbers = [number_of(row[0]) for row in rows]
    assert found["age"].below == sum(number < 0 for number in numbers)
    assert found["age"].above == sum(number > 100 for number in numbers)
    assert found["age"].missing == sum(row[0] in ("", "?") for row in rows)
    assert found["age"].read == sum(number == number for number in numbers)
    known = ("clerk", "cook", *(("else",) if other else ()))
    assert found["job"].undeclared == sum(row[1] not in ("", "?", *known) for row in rows)
    assert found["sex"].undeclared == sum(row[2] == "x" for row in rows)
    left = sum(
        number == number and (row[1] not in ("", "?") or (other and job == "other")) and row[2] != "?"
        for number, row in zip(numbers, rows, strict=True)
    )
    assert result.usable == left


@quick
@given(records, st.integers(1, 4))
def test_the_check_does_not_depend_on_the_chunks(tmp_path, rows, size):
    schema = declared("drop", None, None, True)
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age;job;sex", *map(";".join, rows)]))
    whole = check_table(path, schema).to_dict(show_values=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpinfer.tabular.reading.CHUNK_BYTES", 5 * size)
        assert check_table(path, schema).to_dict(show_values=True) == whole
