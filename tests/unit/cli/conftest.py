"""A small table to fit, and fits that must not get too far."""

import pytest
from matplotlib.figure import Figure
from tests.reference.cli_fits import HEADER, SCHEMA, rows

from dpinfer.cli import pictures, pipeline, trace
from dpinfer.mechanism import private_run


@pytest.fixture(autouse=True)
def coarse_pictures(monkeypatch, request):
    """Nobody looks at these: they are computed and plotted, and left blank but where names may not be drawable."""
    monkeypatch.setattr(pictures, "_DOTS_PER_INCH", 30)
    if request.path.name != "test_hostile_names.py":
        monkeypatch.setattr(Figure, "draw", lambda figure, renderer: None)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "people.csv").write_text(HEADER + "".join(rows()))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


@pytest.fixture
def unspent(monkeypatch):
    """Fail the test if the private mechanism starts."""

    def refuse(*args, **kwargs):
        raise AssertionError("the mechanism started")

    monkeypatch.setattr(trace, "run_dpvi", refuse)


@pytest.fixture
def undrawn(monkeypatch):
    """Fail the test if the private mechanism gets as far as drawing."""

    def refuse(*args, **kwargs):
        raise AssertionError("the mechanism drew")

    monkeypatch.setattr(private_run.PrivateRun, "begin", refuse)


@pytest.fixture
def plain(monkeypatch):
    """Leave the pictures out, where a test is about something else: drawing takes most of the time."""
    monkeypatch.setattr(pipeline, "draw_all", lambda *args, **kwargs: {})
