"""Every way out of a name, with names that do harm."""

import csv
import io
import tomllib
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.hostile_names import HOSTILE

from dpinfer._sinks import (
    csv_cell,
    html_text,
    picture_label,
    printable,
    shortened,
    terminal_text,
    toml_string,
    variable_names,
)

quick = settings(max_examples=80, deadline=None)
names = st.sampled_from(HOSTILE) | st.text(max_size=30)


@quick
@given(names)
def test_terminals_get_printable_text(name):
    assert printable(name).isprintable()
    assert "\n" not in printable(name)
    assert all(line.isprintable() for line in terminal_text(name).split("\n"))
    # What can be seen is not changed.
    if name.isprintable():
        assert printable(name) == name


@quick
@given(names)
def test_pictures_get_no_formula(name):
    cbook = pytest.importorskip("matplotlib.cbook", reason="matplotlib draws the pictures")
    label = picture_label(name)
    assert not cbook.is_math_text(label)
    assert not label.startswith("_")
    # What matplotlib shows of a text that is no formula.
    assert label.replace(r"\$", "$").strip() == shortened(printable(name)).strip()
    assert len(label.replace(r"\$", "$")) <= 61


@quick
@given(names)
def test_spreadsheets_get_no_formula(name):
    text = io.StringIO()
    csv.writer(text).writerow([csv_cell(name), "1.0"])
    ((cell, other),) = csv.reader(io.StringIO(text.getvalue()))
    assert other == "1.0"
    assert not cell.lstrip().startswith(tuple("=+-@|%\t\r＝＋－＠"))
    assert cell.removeprefix("'") == printable(name).removeprefix("'")


class Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.text, self.tags = "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@quick
@given(names)
def test_pages_get_no_markup(name):
    page = Text()
    page.feed(f'<p title="{html_text(name)}">{html_text(name)}</p>')
    page.close()
    assert page.tags == [("p", {"title": terminal_text(name)})]
    assert page.text == terminal_text(name)


@quick
@given(st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_toml_reads_back_and_shows_what_it_holds(name):
    line = f"{toml_string(name)} = {toml_string(name)}"
    assert line.isprintable()
    assert tomllib.loads(line) == {name: name}


def test_variables_have_distinct_names():
    made = variable_names([*HOSTILE, "a", "a", "a_2", "chain", "draw", "", "\x00"])
    assert len(set(made)) == len(made) == len(HOSTILE) + 7
    assert all("/" not in name and name.isprintable() and name not in ("chain", "draw", "") for name in made)
    assert variable_names(["age", "job=clerk", "intercept"]) == ("age", "job=clerk", "intercept")
