"""Progress is drawn where somebody sees it, and costs no thread."""

import io
import os
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

import dpinfer as dpi
from dpinfer._surroundings import resolve_progress
from dpinfer.fitting.one_call import as_request
from dpinfer.inference import PosteriorRequest
from dpinfer.methods import RunSettings


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def notebook(monkeypatch, shell):
    module = ModuleType("IPython")
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)


def drawn(monkeypatch, *, terminal, progress=True, reports=((1, 4), (2, 4), (4, 4))):
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    report = resolve_progress(progress, "private steps")
    for pair in reports:
        report(*pair)
    return screen.getvalue()


def test_a_bar_on_a_terminal(monkeypatch):
    before = threading.active_count()
    text = drawn(monkeypatch, terminal=True)
    assert text.startswith("\rprivate steps:  25%")
    assert "4/4" in text
    assert text.endswith("\n")
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_a_terminal_that_does_not_know_its_size(monkeypatch):
    here, there = os.openpty()
    with os.fdopen(there, "w", encoding="utf-8") as terminal:  # of 0 columns and 0 rows
        monkeypatch.setattr(sys, "stderr", terminal)
        report = resolve_progress(True, "private steps")
        report(1, 2)
        report(2, 2)
        terminal.flush()
        text = os.read(here, 4000).decode()
    os.close(here)
    assert "private steps:  50%" in text


def test_a_run_that_goes_on_begins_in_the_middle(monkeypatch):
    text = drawn(monkeypatch, terminal=True, reports=((50, 100), (100, 100)))
    assert text.startswith("\rprivate steps:  50%")
    assert "100/100" in text


def test_what_cannot_be_drawn_is_known_before_a_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError):
        drawn(monkeypatch, terminal=True, reports=())
    assert drawn(monkeypatch, terminal=False) == ""


def test_nothing_is_drawn_into_a_file(monkeypatch):
    assert drawn(monkeypatch, terminal=False) == ""
    assert drawn(monkeypatch, terminal=True, progress=False) == ""


@pytest.mark.parametrize(
    ("shell", "seen"), [(SimpleNamespace(kernel=1), True), (SimpleNamespace(), False), (None, False)]
)
def test_a_notebook_has_no_terminal_and_sees_it(monkeypatch, shell, seen):
    notebook(monkeypatch, shell)
    monkeypatch.setattr("dpinfer._surroundings.find_spec", lambda name: None)
    assert ("private steps: 100%" in drawn(monkeypatch, terminal=False)) is seen


def test_a_callers_own_is_called_as_it_is():
    seen = []
    resolve_progress(lambda *pair: seen.append(pair), "steps")(1, 2)
    assert seen == [(1, 2)]
    with pytest.raises(TypeError, match="progress must be a bool or a callable, got str"):
        resolve_progress("yes", "steps")


def test_by_default_a_bar_is_drawn_for_work_of_seconds(monkeypatch):
    """Work of a minute went on without a sign; short work stays quiet."""
    assert drawn(monkeypatch, terminal=True, progress=None) == ""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    screen = Screen(True)
    monkeypatch.setattr(sys, "stderr", screen)
    report = resolve_progress(None, "private steps")
    report(1, 4)
    assert screen.getvalue() == ""
    now[0] += 60.0
    report(2, 4)
    assert "private steps:  50%" in screen.getvalue()
    assert drawn(monkeypatch, terminal=False, progress=None) == ""


def test_fits_and_posteriors_show_progress_by_default():
    assert RunSettings().progress is None
    assert PosteriorRequest().progress is None
    for kind in (dpi.BayesianLogisticRegression, dpi.BayesianLinearRegression, dpi.BayesianProbitRegression):
        assert kind().progress is None


@pytest.mark.parametrize(
    ("own", "of_the_fit", "expected"),
    [(None, None, None), (None, False, False), (None, True, True), (True, False, True), (None, print, False)],
)
def test_the_progress_of_a_fit_is_that_of_its_posterior_too(own, of_the_fit, expected):
    request = as_request(PosteriorRequest(progress=own, seed=7), of_the_fit)
    assert (request.progress, request.seed) == (expected, 7)
