"""Reading tables: the encoding against hand-made arrays, and refusals that show nothing of the file."""

import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from dpinfer.errors import PrivacyLeakWarning, RecordError, SchemaError
from dpinfer.tabular import Schema, UnreadTable, read_table, schema_from_data
from dpinfer.tabular import table as module
from dpinfer.tabular.reading import _columns, _fields, check_header

SECRET = "Zx77-SECRET-Qw"
SCHEMA = {
    "columns": {
        "age": {"kind": "continuous", "bounds": [0, 100], "scaling": "unit"},
        "job": {"kind": "categorical", "categories": ["clerk", "cook"]},
        "id": {"kind": "ignore"},
        "rich": {"kind": "target", "positive": ["yes", "yes."], "negative": ["no"]},
    }
}
HEADER = "id,age,job,rich\n"


def schema(**changes):
    columns = {name: dict(values) for name, values in SCHEMA["columns"].items()}
    table = changes.pop("table", {})
    for name, values in changes.items():
        columns[name].update(values)
    return Schema.from_dict({"columns": columns, "table": table})


def write(tmp_path, body, name="people.csv"):
    path = tmp_path / name
    content = body if isinstance(body, bytes) else body.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def everything_said(error):
    """The message, and everything that travels with the exception."""
    seen, parts = set(), []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        parts += [str(error), repr(error), *map(repr, error.args)]
        parts += [repr(value) for value in vars(error).values()]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


@pytest.mark.parametrize("name", ["people.csv", "people.csv.gz"])
def test_encoding_by_hand(tmp_path, name):
    body = HEADER + f"{SECRET},25,clerk,yes\n2, 50 ,cook ,no\n\n3,-5,cook,yes.\n4,1e9,clerk,no\n"
    table = read_table(write(tmp_path, body, name), schema())
    np.testing.assert_array_equal(table.X, [[0.25, 1, 0], [0.5, 0, 1], [0.0, 0, 1], [1.0, 1, 0]])
    np.testing.assert_array_equal(table.y, [1, 0, 1, 0])
    assert table.feature_names == ("age", "job=clerk", "job=cook")
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous
    assert "4" not in repr(table).replace("private records", "")


@pytest.mark.parametrize("bad", ["?", "", "abc", "nan", "1_0", "NaN"])
def test_missing_number_is_dropped_or_refused(tmp_path, bad):
    path = write(tmp_path, HEADER + f"1,{bad},clerk,yes\n2,50,cook,no\n3,60,cook,yes\n")
    assert read_table(path, schema()).X.shape == (2, 3)
    with pytest.raises(RecordError, match="'age'") as caught:
        read_table(path, schema(table={"missing": "refuse"}))
    assert bad in ("?", "") or bad not in everything_said(caught.value)


def test_number_as_missing_marker(tmp_path):
    path = write(tmp_path, HEADER + "1,99,clerk,yes\n2,50,cook,no\n3,60,cook,yes\n")
    table = read_table(path, schema(age={"missing_values": ["99"]}))
    np.testing.assert_array_equal(table.X[:, 0], [0.5, 0.6])


def test_unknown_category_is_refused_or_mapped(tmp_path):
    path = write(tmp_path, HEADER + f"1,20,{SECRET},yes\n2,50,cook,no\n3,60,?,no\n")
    with pytest.raises(SchemaError, match="'job'") as caught:
        read_table(path, schema())
    assert SECRET not in everything_said(caught.value)
    assert "other" in str(caught.value)
    table = read_table(path, schema(job={"other": "else"}))
    np.testing.assert_array_equal(table.X[:, 1:], [[0, 0, 1], [0, 1, 0]])
    table = read_table(path, schema(job={"other": "else", "missing": "other"}))
    np.testing.assert_array_equal(table.X[:, 1:], [[0, 0, 1], [0, 1, 0], [0, 0, 1]])


def test_dropped_record_cannot_stop_the_run(tmp_path):
    path = write(tmp_path, HEADER + "1,?,unheard-of,yes\n2,50,cook,no\n3,60,cook,no\n")
    assert read_table(path, schema()).X.shape == (2, 3)


def test_ignored_column_drops_only_when_told(tmp_path):
    path = write(tmp_path, HEADER + "?,10,cook,yes\n2,50,cook,no\n3,60,cook,no\n")
    assert len(read_table(path, schema()).X) == 3
    assert len(read_table(path, schema(id={"missing": "drop"})).X) == 2


def test_constant_column_warns_of_nothing(tmp_path):
    # pytest turns any warning into an error; one about the values would itself be a release.
    table = read_table(write(tmp_path, HEADER + "1,50,cook,no\n2,50,cook,no\n"), schema())
    np.testing.assert_array_equal(table.X, [[0.5, 0, 1]] * 2)


def test_reference_and_binary(tmp_path):
    path = write(tmp_path, "job,sex\nclerk,f\ncook,m\n")
    made = Schema.from_dict(
        {
            "columns": {
                "job": {"kind": "categorical", "categories": ["clerk", "cook"], "reference": "clerk"},
                "sex": {"kind": "binary", "positive": "f", "negative": "m"},
            }
        }
    )
    table = read_table(path, made)
    np.testing.assert_array_equal(table.X, [[0, 1], [1, 0]])
    assert table.y is None


def test_rows_do_not_depend_on_each_other(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{i},{rng.normal(50, 40):.3f},{rng.choice(['clerk', 'cook', '?'])},{rng.choice(['yes', 'no'])}\n"
        for i in range(50)
    ]
    whole = read_table(write(tmp_path, HEADER + "".join(lines)), schema())
    kept = [i for i, line in enumerate(lines) if "?" not in line]
    without = lines.copy()
    del without[kept[7]]
    fewer = read_table(write(tmp_path, HEADER + "".join(without)), schema())
    np.testing.assert_array_equal(np.delete(whole.X, 7, axis=0), fewer.X)


def test_chunks_agree(tmp_path, monkeypatch):
    path = write(tmp_path, HEADER + "".join(f"{i},{i},{'cook' if i % 3 else '?'},no\n" for i in range(20)))
    whole = read_table(path, schema())
    monkeypatch.setattr("dpinfer.tabular.reading.CHUNK_ROWS", 3)
    np.testing.assert_array_equal(read_table(path, schema()).X, whole.X)


def test_other_delimiter_and_byte_order_mark(tmp_path):
    path = write(tmp_path, "\ufeffid;age;job;rich\n1;20;cook;no\n2;30;cook;yes\n")
    assert read_table(path, schema(table={"delimiter": ";"})).X.shape == (2, 3)


BAD_FILES = {
    "no header": (f"{SECRET},25,clerk,yes\n2,50,cook,no\n", SchemaError, "first line must be a header"),
    "missing column": (f"id,age,job\n{SECRET},2,cook\n", SchemaError, "'rich'"),
    "extra column": (f"id,age,job,rich,{SECRET}\n1,2,cook,no,3\n", SchemaError, "1 column that"),
    "repeated column": (f"id,age,job,rich,rich\n{SECRET},2,cook,no,no\n", RecordError, "alike"),
    "nameless column": (f"id,age,job,rich,\n{SECRET},2,cook,no,1\n", RecordError, "header"),
    "ragged rows": (HEADER + f"{SECRET},25,clerk\n2,50,cook,no\n", RecordError, "at least 2"),
    "unknown target": (HEADER + f"1,25,clerk,{SECRET}\n2,50,cook,no\n", SchemaError, "'rich'"),
    "zero rows": (HEADER, RecordError, "at least 2"),
    "one row": (HEADER + f"{SECRET},25,clerk,yes\n", RecordError, "at least 2"),
    "all rows dropped": (HEADER + f"{SECRET},?,clerk,yes\n{SECRET},?,cook,no\n", RecordError, "at least 2"),
    "empty file": ("", SchemaError, "header"),
    "not text": (HEADER.encode() + SECRET.encode() + b"\xff\xfe,1,cook,no\n", RecordError, "at least 2"),
    "header not text": (SECRET.encode() + b"\xff\xfe,1,cook,no\n", SchemaError, "header"),
    "two-byte characters": ((HEADER + f"{SECRET},25,clerk,yes\n").encode("utf-16"), RecordError, "UTF-16"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_refused_without_showing_it(tmp_path, case):
    body, kind, word = BAD_FILES[case]
    with pytest.raises(kind, match=word) as caught:
        read_table(write(tmp_path, body), schema())
    said = everything_said(caught.value)
    assert SECRET not in said
    assert "25" not in str(caught.value)
    assert "xff" not in said


# Each is one line that is no record.
MALFORMED = {
    "few fields": f"{SECRET},25,clerk".encode(),
    "many fields": f"1,25,clerk,yes,{SECRET}".encode(),
    "open quote": f'{SECRET},25,"clerk,yes'.encode(),
    "open quote at the end": f'{SECRET},25,clerk,"'.encode(),
    "quote inside a field": f'{SECRET},25,cl"erk,yes'.encode(),
    "text after a quote": f'{SECRET},25,"clerk"s,yes'.encode(),
    "lone carriage return": f"{SECRET},25,clerk,yes\r1,25,clerk,yes".encode(),
    "not UTF-8": f"{SECRET}\xff,25,clerk,yes".encode("latin-1"),
    "NUL": f"{SECRET}\0,25,clerk,yes".encode(),
    "too long": f"{SECRET}{'x' * 2**20},25,clerk,yes".encode(),
    "only a space": b" ",
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_that_is_no_record_is_left_out_or_refuses(tmp_path, case, place, end):
    lines = [b"1,20,clerk,yes", b"2,60,cook,no"]
    lines.insert(place, MALFORMED[case])
    path = write(tmp_path, HEADER.strip().encode() + end + end.join(lines) + (b"" if place == 2 else end))
    table = read_table(path, schema())
    np.testing.assert_array_equal(table.X, [[0.2, 1, 0], [0.6, 0, 1]])
    np.testing.assert_array_equal(table.y, [1, 0])
    for strict in (schema(table={"missing": "refuse"}), schema(id={"missing": "refuse"})):
        with pytest.raises(RecordError, match="at least one line is no record") as caught:
            read_table(path, strict)
        assert SECRET[:4] not in everything_said(caught.value)


def test_a_quote_swallows_no_other_line(tmp_path):
    """The fault that strict quoting is for: an open quote, and one that closes it a thousand lines later."""
    good = "".join(f"{i},{i % 100},cook,no\n" for i in range(1000))
    path = write(tmp_path, f'{HEADER}"1,20,clerk,yes\n{good}2",30,clerk,yes\n')
    assert read_table(path, schema()).X.shape == (1000, 3)


def test_quoted_fields(tmp_path):
    rows = '"a ""b"", c",20,clerk,yes\n 1 , "30" ,"cook", "no" \n"",40,"clerk",yes\n'
    np.testing.assert_array_equal(read_table(write(tmp_path, HEADER + rows), schema()).X[:, 0], [0.2, 0.3, 0.4])
    made = schema(table={"delimiter": " "})
    body = HEADER.replace(",", " ") + '"a b"  20 clerk yes \n  b   30  "cook"   no\n'
    np.testing.assert_array_equal(read_table(write(tmp_path, body), made).X[:, 0], [0.2, 0.3])


@pytest.mark.parametrize("delimiter", [",", " "])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_lines_together_are_lines_one_by_one(delimiter, width):
    parts = [b"", b"a", delimiter.encode(), b"\r", b'"', b"\0", "\u00e9".encode(), b"\xff"]
    lines = [b"".join(line) for line in itertools.product(parts, repeat=4)]
    taken = 0
    for chunk in [*([line] for line in lines), *itertools.pairwise(lines), [None, b"a,a"]]:
        rows = [_fields(line, delimiter) for line in chunk]
        columns = _columns(chunk, delimiter, width)
        if columns is not None:
            taken += 1
            assert list(map(list, zip(*columns, strict=True))) == rows
        elif delimiter == "," and width > 1 and all(isinstance(row, list) and len(row) == width for row in rows):
            assert any(b'"' in line for line in chunk)
    assert (taken > 0) == (delimiter == "," and width > 1)


def test_a_line_of_quotes_is_read_in_linear_time(tmp_path):
    path = write(tmp_path, HEADER + '"' * 1_000_001 + "\n" + "1,20,cook,no\n2,30,cook,no\n")
    assert read_table(path, schema()).X.shape == (2, 3)


def test_a_first_line_that_is_no_header_is_refused_with_one_text(tmp_path):
    """It may be the first record of a file without a header: nothing else is told of it before a charge."""
    names = list(SCHEMA["columns"])
    first = [
        "",
        ",",
        "1",
        "1,25,clerk,yes",
        "1,1,1,1",
        "1,,clerk,yes",
        "age,25,clerk,yes",
        "id,age,job,rico",
        "1;25;clerk;yes",
    ]
    first += ['"1,25', "\xff", "1,25,clerk,yes,more", "id,age,job", "x" * 2**20]
    said = set()
    for line in first:
        path = write(tmp_path, line.encode("latin-1") + b"\n2,50,cook,no\n")
        for call in (
            lambda path=path: check_header(path, names, delimiter=","),
            lambda path=path: read_table(path, schema()),
            lambda path=path: UnreadTable(path, schema()),
        ):
            with pytest.raises(SchemaError) as caught:
                call()
            said.add(everything_said(caught.value))
    assert len(said) == 1
    assert ", ".join(map(repr, names)) in said.pop()


def test_the_header_is_checked_without_the_records(tmp_path):
    names = list(SCHEMA["columns"])
    check_header(write(tmp_path, HEADER.encode() + b"\xff\n"), names, delimiter=",")
    check_header(write(tmp_path, HEADER), None, delimiter=",")
    for body in ("", "id,age\n", f"{SECRET},25,clerk,yes\n", '"id,age,job,rich\n'):
        with pytest.raises((RecordError, SchemaError), match="header") as caught:
            check_header(write(tmp_path, body), names, delimiter=",")
        assert SECRET not in everything_said(caught.value)


def test_gzip_errors_do_not_show_bytes(tmp_path):
    path = tmp_path / "people.csv.gz"
    path.write_bytes(SECRET.encode() * 5)
    with pytest.raises(RecordError, match="gzip") as caught:
        read_table(path, schema())
    assert SECRET[:2] not in everything_said(caught.value).replace("dpinfer", "")
    path.write_bytes(gzip.compress((HEADER + "1,2,cook,no\n" * 500).encode())[:60])
    with pytest.raises(RecordError, match="gzip"):
        read_table(path, schema())


def test_missing_and_unreadable_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "absent.csv", schema())
    with pytest.raises(IsADirectoryError):
        read_table(tmp_path, schema())
    path = write(tmp_path, HEADER)
    path.chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            read_table(path, schema())


def test_wrong_type_of_schema(tmp_path):
    with pytest.raises(TypeError, match="schema"):
        read_table(tmp_path, SCHEMA)


def test_schema_from_data_warns_and_reads_back(tmp_path):
    rows = "".join(f"{i},{20 + i},{'cook' if i % 2 else 'clerk'},{'yes' if i % 3 else 'no'}\n" for i in range(9))
    path = write(tmp_path, HEADER + rows + "9,?,cook,no\n")
    with pytest.warns(PrivacyLeakWarning, match="private records"):
        made = schema_from_data(path, target="rich")
    assert made.leaks == ("bounds and categories were read from the private records",)
    assert Schema.from_toml(made.to_toml()) == made
    with pytest.warns(PrivacyLeakWarning):
        made = schema_from_data(path, target="rich")
    assert made.feature_names == ("id", "age", "job=clerk", "job=cook")
    assert made.to_dict()["columns"]["age"]["bounds"] == [20.0, 28.0]
    assert made.target is not None
    assert made.target.positive == ("yes",)
    assert read_table(path, made).X.shape == (9, 4)
    with pytest.warns(PrivacyLeakWarning):
        made = schema_from_data(path, target="rich", positive="no")
    assert made.target is not None
    assert made.target.positive == ("no",)
    for target in ("job-title", "age"):
        with pytest.warns(PrivacyLeakWarning), pytest.raises(SchemaError, match="target"):
            schema_from_data(path, target=target)


def test_parquet_agrees_with_csv(tmp_path):
    reason = "Parquet needs the extra dpinfer[parquet]"
    pyarrow = pytest.importorskip("pyarrow", reason=reason)
    parquet = pytest.importorskip("pyarrow.parquet", reason=reason)
    values = {
        "id": [1, 2, 3, 4],
        "age": [25.0, None, 60.5, 200.0],
        "job": ["clerk", "cook", "cook", "clerk"],
        "rich": ["yes", "no", "no", "yes."],
    }
    path = tmp_path / "people.parquet"
    parquet.write_table(pyarrow.table(values), path)
    table = read_table(path, schema())
    np.testing.assert_array_equal(table.X, [[0.25, 1, 0], [0.605, 0, 1], [1.0, 1, 0]])
    # A value that Python cannot read is missing, and changes no other record.
    bytes_of = [b"clerk", b"\xff" + SECRET.encode(), b"cook", b"clerk"]
    text = pyarrow.array(bytes_of, pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table(values | {"job": text}), path)
    np.testing.assert_array_equal(read_table(path, schema()).X, table.X)
    path.write_bytes(SECRET.encode() * 9)
    for read in (lambda: read_table(path, schema()), lambda: check_header(path, None, delimiter=",")):
        with pytest.raises(RecordError, match="Parquet") as caught:
            read()
        assert SECRET not in everything_said(caught.value)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"dpinfer\[parquet\]"):
        read_table(tmp_path / "people.parquet", schema())


@pytest.fixture(scope="module")
def data_folder():
    root = Path(__file__).parents[3]
    folder = Path(os.environ.get("DPINFER_DATA", root.parent / "shared" / "data"))
    if not (folder / "adult.data.csv.gz").exists():
        pytest.skip("the UCI files are not here (set DPINFER_DATA)")
    return folder


def test_adult(data_folder):
    made = Schema.load(Path(__file__).parents[3] / "examples" / "adult.toml")
    assert len(made.feature_names) == 56
    train = read_table(data_folder / "adult.data.csv.gz", made)
    test = read_table(data_folder / "adult.test.csv.gz", made)
    assert train.X.shape == (30162, 56)
    assert test.X.shape == (15060, 56)
    # Published class shares of the records without "?": 24.89 % and 24.57 %.
    assert train.y.mean() == pytest.approx(0.2489, abs=5e-5)
    assert test.y.mean() == pytest.approx(0.2457, abs=5e-5)
    # Six one-hot blocks: exactly six ones in each row.
    binary = [i for i, name in enumerate(made.feature_names) if "=" in name]
    assert np.all(train.X[:, binary].sum(axis=1) == 6)
    low, high = made.feature_bounds.T
    assert np.all((low <= train.X) & (high >= train.X))


def test_an_unread_table_looks_at_the_header_alone_until_it_is_read(tmp_path, monkeypatch):
    body = HEADER + "1,20,clerk,yes\n2,30,cook,no\n"
    path = write(tmp_path, body)
    read = []
    real = module.read_table
    monkeypatch.setattr(module, "read_table", lambda *arguments: read.append(1) or real(*arguments))
    table = UnreadTable(path, schema())
    assert "2" not in repr(table).replace("2 features", "")
    assert not read
    np.testing.assert_array_equal(np.asarray(table.X), real(path, schema()).X)
    np.testing.assert_array_equal(np.asarray(table.y, dtype=np.float32), [1, 0])
    assert table.read() is table.read()
    assert len(read) == 1
    with pytest.raises(SchemaError, match="header"):
        UnreadTable(write(tmp_path, "id,age\n"), schema())
    with pytest.raises(TypeError, match="schema"):
        UnreadTable(path, SCHEMA)
    # What cannot be read is found out later.
    refused = UnreadTable(write(tmp_path, HEADER + f"1,20,{SECRET},yes\n" * 2), schema())
    with pytest.raises(SchemaError, match="'job'") as caught:
        np.asarray(refused.X)
    assert SECRET not in everything_said(caught.value)
