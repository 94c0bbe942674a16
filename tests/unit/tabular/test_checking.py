"""What a schema does to a file, counted by hand; and that nothing but the curator is shown it."""

import gzip
import json
import tracemalloc

import numpy as np
import pytest

from dpinfer.errors import RecordError, SchemaError
from dpinfer.tabular import Schema, check_table, read_table
from dpinfer.tabular.checking import NOTICE, NotANumber, ValueCounts, kind_of
from dpinfer.tabular.reading import LineFault, check_header

SECRET = "Zx77-SECRET-Qw"
SCHEMA = {
    "columns": {
        "id": {"kind": "ignore"},
        "age": {"kind": "continuous", "bounds": [0, 100], "scaling": "unit"},
        "job": {"kind": "categorical", "categories": ["clerk", "cook"], "other": "else"},
        "rich": {"kind": "target", "positive": ["yes"], "negative": ["no"]},
    }
}
HEADER = "id,age,job,rich\n"
GOOD = "1,20,clerk,yes\n2,30,cook,no\n"


def schema(table=None, **changes):
    columns = {name: dict(values) for name, values in SCHEMA["columns"].items()}
    for name, values in changes.items():
        columns[name] = {key: value for key, value in {**columns[name], **values}.items() if value is not None}
    return Schema.from_dict({"columns": columns, "table": table or {}})


def write(tmp_path, body, name="people.csv"):
    path = tmp_path / name
    content = body if isinstance(body, bytes) else body.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def column(result, name):
    return next(item for item in result.columns if item.column.name == name)


@pytest.mark.parametrize("name", ["people.csv", "people.csv.gz"])
def test_counts_by_hand(tmp_path, name):
    lines = [
        "1,20,clerk,yes",
        "2,-1,cook,no",
        "3,101,astronaut,no",
        "4,inf,astronaut,yes",
        "5,?,baker,yes",
        "6,12 mg,clerk,no",
        '7,"3,5",clerk,no',
        '8,"1,234",clerk,no',
        "9,NA,clerk,no",
        "10,heavy,?,no",
        "",
        "11,20,clerk",
        "12,20,clerk,no,5",
        '13,2"0,clerk,no',
    ]
    body = (HEADER + "\n".join(lines) + "\n").encode() + b"14,20,\xff,no\n15,2\r0,clerk,no\n"
    result = check_table(write(tmp_path, body, name), schema())
    assert result.lines.records == 10
    assert result.lines.empty == 1
    assert result.lines.faults == {
        LineFault.FEWER_FIELDS: 1,
        LineFault.MORE_FIELDS: 1,
        LineFault.QUOTE: 1,
        LineFault.ENCODING: 1,
        LineFault.CONTROL: 1,
    }
    age, job, rich = (column(result, key) for key in ("age", "job", "rich"))
    assert (age.read, age.missing, age.below, age.above) == (4, 1, 1, 2)
    assert age.not_numbers == {
        NotANumber.UNIT: 1,
        NotANumber.DECIMAL_COMMA: 1,
        NotANumber.COMMA: 1,
        NotANumber.MISSING_WORD: 1,
        NotANumber.TEXT: 1,
    }
    assert (job.read, job.missing, job.undeclared, job.refused) == (6, 1, 3, 0)
    assert job.values["undeclared"].counts == {"astronaut": 2, "baker": 1}
    assert (rich.read, rich.missing, rich.undeclared) == (10, 0, 0)
    assert "id" not in [item.column.name for item in result.columns]
    assert (result.usable, result.dropped, result.refusals) == (4, 6, ())
    assert not result.clean
    assert len(read_table(tmp_path / name, schema()).X) == 4


def test_a_clean_file(tmp_path):
    result = check_table(write(tmp_path, HEADER + GOOD + "\n"), schema())
    assert result.clean
    assert (result.usable, result.dropped, result.refusals) == (2, 0, ())


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("3,-1,cook,no", "below"),
        ("3,101,cook,no", "above"),
        ("3,?,cook,no", "missing"),
        ("3,x,cook,no", "no number"),
        ("3,20,baker,no", "undeclared"),
        ("3,20,baker", "no record"),
    ],
)
def test_whatever_is_lost_makes_a_file_unclean(tmp_path, line, what):
    result = check_table(write(tmp_path, HEADER + GOOD + line), schema())
    assert not result.clean, what
    assert not result.refusals


def test_missing_as_a_category_loses_nothing(tmp_path):
    path = write(tmp_path, HEADER + GOOD + "3,20,?,no\n")
    made = schema(job={"missing": "other"})
    result = check_table(path, made)
    assert result.clean
    assert column(result, "job").missing == 1
    assert len(read_table(path, made).X) == result.usable == 3


REFUSED = {
    "undeclared label": ("3,20,cook,perhaps\n", {}),
    "undeclared category": ("3,20,baker,no\n", {"job": {"other": None}}),
    "a missing number": ("3,?,cook,no\n", {"age": {"missing": "refuse"}}),
    "no number": ("3,4 mg,cook,no\n", {"age": {"missing": "refuse"}}),
    "a missing category": ("3,20,,no\n", {"table": {"missing": "refuse"}}),
    "no record": ("3,20\n", {"id": {"missing": "refuse"}}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_those_of_the_reader(tmp_path, case):
    line, changes = REFUSED[case]
    path, made = write(tmp_path, HEADER + GOOD + line), schema(**changes)
    result = check_table(path, made)
    with pytest.raises((RecordError, SchemaError)) as caught:
        read_table(path, made)
    assert result.refusals == (str(caught.value),)
    assert "dpinfer check" in str(caught.value) or case == "no record"


def test_an_undeclared_label_in_a_record_that_is_dropped_refuses_nothing(tmp_path):
    path = write(tmp_path, HEADER + GOOD + "3,?,cook,perhaps\n")
    result = check_table(path, schema())
    assert (column(result, "rich").undeclared, column(result, "rich").refused) == (1, 0)
    assert not result.refusals
    assert len(read_table(path, schema()).X) == result.usable == 2


def test_a_column_without_a_number_is_named(tmp_path):
    path = write(tmp_path, HEADER + '1,"3,5",clerk,yes\n2,"4,5",cook,no\n')
    (said,) = check_table(path, schema()).refusals
    with pytest.raises(RecordError, match="at least 2 usable records") as caught:
        read_table(path, schema())
    assert str(caught.value) == said
    assert "no value of 'age' is a number" in said
    assert "decimal comma" in said
    assert "dpinfer check" in said
    path = write(tmp_path, HEADER + "1,3.5,?,yes\n2,4.5,?,no\n")
    (said,) = check_table(path, schema()).refusals
    assert "no record has a value of 'job'" in said
    assert "is a number" not in said


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ":", " "])
def test_a_wrong_delimiter_is_named(tmp_path, delimiter):
    path = write(tmp_path, HEADER.replace(",", delimiter) + GOOD.replace(",", delimiter))
    result = check_table(path, schema())
    (said,) = result.refusals
    with pytest.raises(SchemaError, match="separated by") as caught:
        read_table(path, schema())
    assert str(caught.value) == said
    assert repr(delimiter) in said
    assert result.header.delimiter == delimiter
    told = json.loads(said[said.index("delimiter = ") + len("delimiter = ") :].partition(" in ")[0])
    assert check_table(path, schema(table={"delimiter": told})).clean


def test_quoted_names_with_another_delimiter_are_found(tmp_path):
    """The wine files of the UCI repository."""
    path = write(tmp_path, '"id";"age";"job";"rich"\n1;20;"cook";"no"\n2;30;"cook";"no"\n')
    with pytest.raises(SchemaError, match="separated by ';'"):
        check_header(path, ["id", "age", "job", "rich"], delimiter=",")
    assert check_table(path, schema()).header.delimiter == ";"


def test_the_number_of_fields_tells_a_delimiter_where_the_names_do_not(tmp_path):
    path = write(tmp_path, "a;b;c;d\n1;2;3;4\n")
    assert check_table(path, schema()).header.delimiter == ";"
    (said,) = check_table(path, schema()).refusals
    assert ";" not in said.replace("; ", "")


def test_no_delimiter_is_guessed_from_a_record(tmp_path):
    """Where not all names are found it may be a record, of which nothing is told."""
    for body in (f"1;20;{SECRET};yes\n", "id;age;job\n", f"age;{SECRET}\n"):
        with pytest.raises(SchemaError, match="must be a header") as caught:
            check_header(write(tmp_path, body), ["id", "age", "job", "rich"], delimiter=",")
        assert ";" not in str(caught.value)
        assert SECRET not in str(caught.value)


def test_names_that_are_nearly_right(tmp_path):
    header = check_table(write(tmp_path, f"ID,Age,jobs,rich,{SECRET}\n"), schema()).header
    assert header.absent == ("id", "age", "job")
    assert header.undeclared == ("ID", "Age", "jobs", SECRET)
    assert header.alike == (("id", "ID"), ("age", "Age"), ("job", "jobs"))
    assert header.is_header
    # A first record is shown only if asked, also where a value is nearly a name.
    header = check_table(write(tmp_path, f"1,aage,{SECRET},yes\n"), schema()).header
    assert not header.is_header
    assert header.alike == ()
    header = check_table(write(tmp_path, f"1,20,{SECRET},yes\n"), schema()).header
    assert not header.is_header
    assert header.to_dict()["undeclared"] == 4
    assert header.to_dict(show_values=True)["undeclared"] == ["1", "20", SECRET, "yes"]
    header = check_table(write(tmp_path, "id;age;job;wealth\n"), schema()).header
    assert (header.delimiter, header.n_fields) == (";", 1)


@pytest.mark.parametrize("body", ["", b"\xff\xfe\n", '"id,age\n', "id,age,job,rich,\n", "id,age,age,job,rich\n"])
def test_a_first_line_that_is_no_header(tmp_path, body):
    path = write(tmp_path, body)
    (said,) = check_table(path, schema()).refusals
    with pytest.raises((RecordError, SchemaError)) as caught:
        read_table(path, schema())
    assert str(caught.value) == said


def test_values_of_records_are_shown_only_if_asked(tmp_path):
    path = write(tmp_path, HEADER + GOOD + f"3,{SECRET},cook,no\n4,20,{SECRET},no\n")
    result = check_table(path, schema())
    told = json.dumps(result.to_dict())
    assert SECRET not in told
    assert json.loads(told)["notice"] == NOTICE
    assert next(iter(result.to_dict())) == "notice"
    assert json.dumps(result.to_dict(show_values=True)).count(SECRET) == 2
    assert SECRET not in repr(result) + repr(result.columns)
    assert SECRET not in repr(check_table(write(tmp_path, f"1,20,{SECRET},yes\n"), schema()).header)
    assert "4" not in repr(result).replace("columns", "")


def test_different_values_are_counted_up_to_a_limit():
    counts = ValueCounts()
    for i in [*range(150), 3, 140]:
        counts.add(f"{i}")
    assert len(counts.counts) == 100
    assert not counts.complete
    assert counts.counts["3"] == 2
    counts.add("x" * 10_000)
    assert max(map(len, counts.counts)) < 100


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """Five times the file: a list of its texts, kept, would make the peak 2.4 times as large."""
    monkeypatch.setattr("dpinfer.tabular.reading.CHUNK_BYTES", 2**14)

    def peak(count):
        lines = "".join(f"{i},{i % 90},label {i},no\n" for i in range(count))
        path = write(tmp_path, HEADER + lines)
        tracemalloc.start()
        try:
            assert check_table(path, schema()).usable == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1000)
    assert peak(20_000) < 1.5 * peak(4000) < 2**20


def test_parquet(tmp_path):
    reason = "Parquet needs the extra dpinfer[parquet]"
    pyarrow = pytest.importorskip("pyarrow", reason=reason)
    parquet = pytest.importorskip("pyarrow.parquet", reason=reason)
    values = {
        "id": [1, 2, 3, 4, 5],
        "age": [25.0, None, 60.5, 200.0, 99.0],
        "job": ["clerk", "cook", "baker", None, "clerk"],
        "rich": ["yes", "no", "no", "yes", "no"],
    }
    path = tmp_path / "people.parquet"
    parquet.write_table(pyarrow.table(values), path)
    made = schema(age={"missing_values": ["99"]})
    result = check_table(path, made)
    age, job = column(result, "age"), column(result, "job")
    # A marker that is a number is one in a column of numbers, too.
    assert (age.read, age.missing, age.above) == (3, 2, 1)
    assert (job.read, job.missing, job.undeclared) == (3, 1, 1)
    table = read_table(path, made)
    np.testing.assert_array_equal(table.X, [[0.25, 1, 0, 0], [0.605, 0, 0, 1]])
    assert (result.lines.records, result.usable) == (5, 2)
    # Numbers as text, and labels as numbers.
    parquet.write_table(pyarrow.table(values | {"age": ["1", "2,5", "3 mg", "4", None], "job": [1, 2, 2, 1, 1]}), path)
    result = check_table(path, schema(job={"categories": ["1"]}))
    assert column(result, "age").not_numbers == {NotANumber.DECIMAL_COMMA: 1, NotANumber.UNIT: 1}
    assert column(result, "job").values["undeclared"].counts == {"2": 2}
    parquet.write_table(pyarrow.table(values | {"more": ["a"] * 5}), path)
    assert check_table(path, schema()).header.undeclared == ("more",)


def test_what_is_not_a_table_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        check_table(tmp_path / "absent.csv", schema())
    with pytest.raises(TypeError, match="schema"):
        check_table(tmp_path, SCHEMA)
    path = tmp_path / "people.csv.gz"
    for content in (SECRET.encode() * 9, gzip.compress((HEADER + GOOD * 200).encode())[:60]):
        path.write_bytes(content)
        with pytest.raises(RecordError, match="gzip") as caught:
            check_table(path, schema())
        assert SECRET not in str(caught.value)


KINDS = {
    NotANumber.MISSING_WORD: ["", "?", "-", "--", ".", "NA", "n/a", "#N/A", "NaN", "null", "None"],
    NotANumber.DECIMAL_COMMA: ["3,14", ",5", "-1,5e3", "1.234,56", "1 234,5", "12345,678"],
    NotANumber.THOUSANDS: ["1,234.5", "1,234,567", "1 234", "1\u00a0234", "1'234", "1.234.567", "1_000", "-1,234.0"],
    NotANumber.COMMA: ["1,234", "-12,500"],
    NotANumber.UNIT: ["12 mg", "12mg", "$12", "12%", "<5", "5 kg/m2", "12,5 mg", "€ 1.000", "1e3 m"],
    NotANumber.TEXT: ["heavy", "2019-01-05", "10:30", "1.2.3", "mg 12", "1,2,3", "--5"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KINDS.items() for text in texts])
def test_kinds_of_what_is_no_number(kind, text):
    assert kind_of(text) is kind
