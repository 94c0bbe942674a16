"""Readers of questions that trust too much, each named by the kind of code that it takes for read whole."""

import contextlib
import functools
from unittest import mock

import numpy as np

from dpinfer.mechanism import function_uses, private_run, questions, run
from dpinfer.mechanism.questions import Question, Reader


@contextlib.contextmanager
def _pure(test):
    """Whatever passes a test counts as a pure function."""
    is_pure = questions.is_pure
    with mock.patch.object(questions, "is_pure", lambda value: test(value) or is_pure(value)):
        yield


@contextlib.contextmanager
def _unnoted(*beginnings):
    """What begins so is not noted, and is passed over."""
    note = Reader._note

    def passed(self, what):
        if not what.startswith(beginnings):
            note(self, what)

    look_up = function_uses.Uses._look_up

    def looked_up(self, *arguments):
        look_up(self, *arguments)
        self.unread[:] = [what for what in self.unread if not what.startswith(beginnings)]

    with mock.patch.object(Reader, "_note", passed), mock.patch.object(function_uses.Uses, "_look_up", looked_up):
        yield


@contextlib.contextmanager
def _method(name, method):
    with mock.patch.object(Reader, name, method):
        yield


def _named_alone(self, value):
    self._leaf("named", value.__name__.encode())


def _without_state(self, value):
    self._own_code("object", (type(value),))


def _public_members(self, kind):
    made = {name: part for name, part in vars(kind).items() if callable(part) or not name.startswith("_")}
    self._own_code("named", (kind.__name__, made))


def _pass_over(self, *arguments):
    """Do nothing."""


@contextlib.contextmanager
def _names_unread():
    """Of a function the globals are not read, as if a module's file said all."""
    with mock.patch.object(function_uses.Uses, "_follow", _pass_over):
        yield


MUTANTS = {
    "bound builtin": functools.partial(_method, "_add_builtin", _named_alone),
    "bound builtin of a list": functools.partial(_method, "_add_builtin", _named_alone),
    "frompyfunc": functools.partial(_pure, lambda value: isinstance(value, np.ufunc)),
    "private class attribute": functools.partial(_method, "_add_class", _public_members),
    "base class": functools.partial(_method, "_add_class", _public_members),
    "slots": functools.partial(_method, "_add_instance", _without_state),
    "state that pickle leaves out": functools.partial(_method, "_add_instance", _without_state),
    "name set in a module": _names_unread,
    "name set in another module": _names_unread,
    "globals()": functools.partial(_unnoted, "the built-in", "the function"),
    "globals of a function": functools.partial(_unnoted, "the attribute"),
    "text that looks up": functools.partial(_unnoted, "the attribute"),
    "module in a list": functools.partial(_unnoted, "the module"),
    "import within a function": functools.partial(_unnoted, "an import"),
    "globals that compute": functools.partial(_unnoted, "global names", "the name"),
    "deep closure": functools.partial(_unnoted, "objects within"),
    "deep list": functools.partial(_unnoted, "objects within"),
    "NumPy's file": functools.partial(_pure, lambda value: value is np.load),
    "file": functools.partial(_unnoted, "an object", "the class", "the function", "the built-in", "the attribute"),
    "opened file": functools.partial(_unnoted, "the built-in", "the function"),
    "global generator of NumPy": functools.partial(_unnoted, "an object", "the class", "the function", "the method"),
    "generator of one's own": functools.partial(_unnoted, "an object"),
    "lock": functools.partial(_unnoted, "an object"),
    "context": functools.partial(_unnoted, "an object"),
    "what cannot be pickled": functools.partial(_unnoted, "an object"),
    "cache": functools.partial(_unnoted, "an object"),
    "one array twice": functools.partial(_method, "_add_layout", _pass_over),
    "array that cannot be written": functools.partial(_method, "_add_layout", _pass_over),
}


@contextlib.contextmanager
def keys_of_all():
    """The key of every run goes on, whatever could not be read."""
    read = questions.read_question

    def whole(*parts):
        question = read(*parts)
        return Question(question.digest, question.own)

    with (
        mock.patch("dpinfer.mechanism.bounded_sum.read_question", whole),
        mock.patch("dpinfer.mechanism.private_run.read_question", whole),
    ):
        yield


@contextlib.contextmanager
def drawn_again():
    """A complete checkpoint is drawn from again."""
    begin = private_run.PrivateRun.begin

    def begun(self, records):
        begin(self, records)
        self._complete = False
        return 0, {}

    with mock.patch.object(run.PrivateRun, "begin", begun):
        yield
