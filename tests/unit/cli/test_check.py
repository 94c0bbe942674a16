"""``dpinfer check``: what it prints, its exit codes, and that it spends and writes nothing."""

import json

import pytest
from tests.reference.cli_fits import HEADER, SCHEMA, SECRET, arguments, call, refused, rows

import dpinfer as dpi
from dpinfer.tabular.checking import NOTICE

CLEAN = HEADER + "".join(rows())


def check(place, *more, body=None):
    if body is not None:
        (place / "people.csv").write_text(body)
    return call(["check", str(place / "people.csv"), "--schema", str(place / "schema.toml"), *more])


def table_row(out, name):
    """The cells of a column's row, after its name."""
    return next(line.split() for line in out.splitlines() if line.split()[:1] == [name])[1:]


def test_a_clean_file(place, capsys):
    before = sorted(place.iterdir())
    assert check(place) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == NOTICE
    assert err == ""
    assert "Nothing is lost" in out
    assert table_row(out, "age") == ["continuous", "300", "0", "0", "0", "0", "-"]
    assert table_row(out, "job") == ["categorical", "300", "0", "-", "-", "-", "0"]
    assert table_row(out, "usable") == ["300"]
    assert "public knowledge" not in out
    assert sorted(place.iterdir()) == before


def test_what_is_lost(place, capsys):
    body = CLEAN + "1,12 mg,1,clerk,yes\n2,-3,7,clerk,no\n3,20\n4,20,1,?,no\n5,1e9,0.5,clerk,no\n"
    assert check(place, body=body) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == NOTICE
    assert err == ""
    assert table_row(out, "age") == ["continuous", "303", "0", "1", "1", "1", "-"]
    assert "1 with a number with a unit or a sign, which is not a number: the record is dropped" in out
    assert "1 below 0: clamped to it" in out
    assert "1 above 100: clamped to it" in out
    assert "1 missing values: the record is dropped" in out
    assert "fewer fields than the header" in out
    assert "2 (0.7%)" in out
    assert "The file can be fitted" in out
    assert "public knowledge" in out
    assert "12 mg" not in out
    assert check(place, "--show-values") == 1
    assert "'12 mg' (1)" in capsys.readouterr().out


def test_what_is_refused(place, capsys):
    body = CLEAN + f"1,20,1,{SECRET},yes\n2,20,1,{SECRET},yes\n3,20,1,\x1b[2Jbaker,yes\n"
    assert check(place, body=body) == 1
    out = capsys.readouterr().out
    assert "3 with an undeclared label (2 different): the file is refused" in out
    assert "'dpinfer fit' refuses the file:" in out
    assert "columns.job.other" in out
    assert "dpinfer check" not in out
    assert SECRET not in out
    assert check(place, "--show-values") == 1
    out = capsys.readouterr().out
    assert f"'{SECRET}' (2)" in out
    assert "\x1b" not in out
    collected = SCHEMA.replace('kind = "categorical"', 'kind = "categorical"\nother = "else"')
    (place / "schema.toml").write_text(collected)
    assert check(place) == 1
    assert "counted as 'else'" in capsys.readouterr().out


def test_a_header_that_does_not_match(place, capsys):
    assert check(place, body=CLEAN.replace("level", "Level")) == 1
    out = capsys.readouterr().out
    assert "'level' is declared: the file has 'Level'" in out
    assert "refuses the file, before a charge:" in out
    assert check(place, body=CLEAN.replace(",", ";")) == 1
    out = capsys.readouterr().out
    assert "separated by ';' it fits the schema better" in out
    assert 'declare delimiter = ";"' in out
    # Without a header it would be a record.
    assert check(place, body="".join(rows())) == 1
    out = capsys.readouterr().out
    assert SECRET not in out
    assert "5 not declared: is this a header, or the first record?" in out
    assert check(place, "--show-values") == 1
    assert SECRET in capsys.readouterr().out


def test_lines_that_are_all_no_records(place, capsys):
    """Decimal commas in a file divided by commas, or a comma at every line's end."""
    assert check(place, body=HEADER + "".join(rows()).replace("\n", ",\n")) == 1
    out = capsys.readouterr().out
    assert table_row(out, "more") == ["fields", "than", "the", "header", "300"]
    assert table_row(out, "age") == ["continuous", "0", "0", "0", "0", "0", "-"]
    assert "has each as many fields as the header?" in out
    assert "before a charge" not in out


def test_first_lines_of_other_programs(place, capsys):
    body = HEADER + "".join(rows(5))
    for content, words in (
        ("," + body, "a column without a name: an index that a data frame wrote?"),
        (body.replace("\n", "\r"), "the first line is no header: a NUL or a carriage return inside"),
        (body.replace("age", "\udcff"), "the first line is no header: not UTF-8"),
        ('"' + body, "the first line is no header: a quote inside a field"),
    ):
        (place / "people.csv").write_bytes(content.encode("utf-8", "surrogateescape"))
        assert check(place) == 1
        out = capsys.readouterr().out
        assert words in out
        assert SECRET not in out


def test_labels_that_look_like_a_missing_value(place, capsys):
    assert check(place, body=CLEAN + "1,20,1,NA,yes\n2,20,1,baker,no\n") == 1
    assert "1 of them look like a missing value" in capsys.readouterr().out


def test_json(place, capsys):
    assert check(place, "--json", body=CLEAN + f"1,{SECRET},1,clerk,yes\n") == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert next(iter(told)) == "notice"
    assert told["notice"] == NOTICE
    assert (told["clean"], told["refusals"]) == (False, [])
    assert (told["records"], told["dropped"], told["usable"]) == (301, 1, 300)
    age = next(column for column in told["columns"] if column["name"] == "age")
    assert age["not_a_number"] == {"text": 1}
    assert SECRET not in out + err
    assert check(place, "--json", "--show-values") == 1
    assert SECRET in capsys.readouterr().out


def test_what_cannot_be_checked(place, capsys):
    (place / "bad.csv.gz").write_text(SECRET)
    schema = ["--schema", str(place / "schema.toml")]
    for name, words in (("absent.csv", "No such file"), ("bad.csv.gz", "gzip")):
        assert words in refused(place, capsys, ["check", str(place / name), *schema])
    (place / "schema.toml").write_text(SCHEMA.replace("bounds", "bound"))
    assert "did you mean" in refused(place, capsys, ["check", str(place / "people.csv"), *schema])
    assert call(["check", str(place / "people.csv")]) == 2
    assert "--schema" in capsys.readouterr().err


def test_it_spends_nothing(place, capsys):
    account = dpi.PrivacyLedger.create(place / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    before = (place / "spent.ledger").read_bytes()
    assert check(place) == 0
    capsys.readouterr()
    assert account.runs() == ()
    assert (place / "spent.ledger").read_bytes() == before


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "line", [f"1,20,1,{SECRET},yes\n", f"1,20,1,clerk,{SECRET}\n"], ids=["a category", "a label of the target"]
)
def test_what_it_says_of_a_refusal_is_what_fit_says(place, capsys, line):
    assert check(place, "--json", body=CLEAN + line) == 1
    (said,) = json.loads(capsys.readouterr().out)["refusals"]
    assert said in refused(place, capsys, arguments(place))


@pytest.mark.usefixtures("undrawn")
def test_fit_points_to_it_where_a_column_cannot_be_read(place, capsys):
    lines = ['1,"3,5",0.5,clerk,yes\n', '2,"4,5",0.5,clerk,no\n', f"3,{SECRET},0.5,clerk,no\n"]
    (place / "people.csv").write_text(HEADER + "".join(lines))
    err = refused(place, capsys, arguments(place))
    assert "no value of 'age' is a number" in err
    assert "dpinfer check" in err
