"""Pairs of different questions, of every kind that a hash of code may take for one: thresholds that code looks up.

Each maker gets two thresholds and a folder, and returns two contributions of `private_sum` for records (N, 1), which
count the records up to the first and up to the second.  Where they are one function, `turn` makes the world such that
it asks the first question, or the second.
"""

import collections
import contextvars
import ctypes
import dataclasses
import enum
import functools
import operator
import os
import random
import sys
import threading
import types

import numpy as np

NAMES = {}


class Setting:
    """Something outside of a function that tells it its threshold."""

    value = 0.0


def named(name):
    def keep(maker):
        NAMES[name] = maker
        return maker

    return keep


PLACES = [object() for _ in range(50)]


def even(thing):
    return int(("%r" % thing)[-4:-1], 16) // 16 % 2 == 0  # noqa: UP031


def pair(make, one, other):
    return make(one), make(other), lambda which: None


class Holder:
    """A callable that holds another."""

    def __init__(self, function):
        self._function = function

    def __call__(self, rows):
        return self._function(rows)

    def ask(self, rows):
        return self(rows)


def called(function, rows):
    return function(rows)


def in_default(function):
    def asked(rows, *, function=function):
        return function(rows)

    return asked


WRAPPERS = (
    lambda function: lambda rows: function(rows),
    lambda function: functools.partial(called, function),
    lambda function: lambda rows, held=(function,): held[0](rows),
    lambda function: lambda rows, held={"of": function}: held["of"](rows),
    Holder,
    lambda function: Holder(function).ask,
    in_default,
)


def wrapped(function, generator):
    """The same question, asked through up to three other objects: two of one kind of `generator` are wrapped alike."""
    for wrap in generator.choices(WRAPPERS, k=generator.randint(0, 3)):
        function = wrap(function)
    return function


def turned(function, turn, one, other):
    """One function, and a world that is turned."""
    return function, function, lambda which: turn(other if which else one)


def in_module(text):
    """A function of a user's module, which is in no file."""
    module = types.ModuleType("users_module")
    module.np = np
    sys.modules["users_module"] = module
    exec(text, vars(module))
    return module


@named("bound builtin")
def _(one, other, folder):
    return pair(lambda at: np.array([np.nextafter(at, np.inf)]).searchsorted, one, other)


@named("bound builtin of a list")
def _(one, other, folder):
    return pair(lambda at: functools.partial(map_rows, list(range(int(at) + 1)).index), one, other)


def map_rows(function, rows):
    """Call for each record: 1 if it raises, for the list has no such member."""
    return np.array([[fails(function, row[0])] for row in rows])


def fails(function, value):
    try:
        function(value)
    except ValueError:
        return 1.0
    return 0.0


@named("bound method of an array in a closure")
def _(one, other, folder):
    def make(at):
        look = np.array([np.nextafter(at, np.inf)]).searchsorted
        return lambda rows: 1.0 - look(rows)

    return pair(make, one, other)


@named("frompyfunc")
def _(one, other, folder):
    return pair(lambda at: np.frompyfunc(lambda row: float(row <= at), 1, 1), one, other)


@named("vectorize")
def _(one, other, folder):
    return pair(lambda at: np.vectorize(lambda row: float(row <= at)), one, other)


@named("private class attribute")
def _(one, other, folder):
    def make(at):
        class Below:
            _at = at

            def __call__(self, rows):
                return rows <= self._at

        return Below()

    return pair(make, one, other)


@named("class attribute that is set")
def _(one, other, folder):
    class Below:
        def __call__(self, rows):
            return rows <= self._at

    return turned(Below(), functools.partial(setattr, Below, "_at"), one, other)


@named("base class")
def _(one, other, folder):
    def make(at):
        base = type("Base", (), {"_at": at})
        return type("Below", (base,), {"__call__": lambda self, rows: rows <= self._at})()

    return pair(make, one, other)


@named("metaclass")
def _(one, other, folder):
    def make(at):
        meta = type("Meta", (type,), {"at": at})
        return meta("Below", (), {"__call__": lambda self, rows: rows <= type(self).at})()

    return pair(make, one, other)


@named("slots")
def _(one, other, folder):
    class Below:
        __slots__ = ("_at",)

        def __init__(self, at):
            self._at = at

        def __call__(self, rows):
            return rows <= self._at

    return pair(Below, one, other)


@named("state that pickle leaves out")
def _(one, other, folder):
    class Below:
        def __init__(self, at):
            self.at = at

        def __getstate__(self):
            return {}

        def __call__(self, rows):
            return rows <= self.at

    return pair(Below, one, other)


@named("attribute that is no field")
def _(one, other, folder):
    @dataclasses.dataclass
    class Below:
        name: str = "below"

        def __call__(self, rows):
            return rows <= self.at

    def make(at):
        made = Below()
        made.at = at
        return made

    return pair(make, one, other)


@named("method of a data class")
def _(one, other, folder):
    def make(at):
        @dataclasses.dataclass(frozen=True)
        class Below:
            limit: float = one

            def __post_init__(self):
                object.__setattr__(self, "limit", at)

            def __call__(self, rows):
                return rows <= self.limit

        made = Below()
        object.__setattr__(made, "limit", one)
        return lambda rows: rows <= (made == made and type(made)().limit)

    return pair(make, one, other)


@named("field of a data class")
def _(one, other, folder):
    @dataclasses.dataclass(frozen=True, order=True)
    class Below:
        limit: float

        def __call__(self, rows):
            return rows <= self.limit

    return pair(Below, one, other)


@named("comparison in a data class")
def _(one, other, folder):
    def make(low):
        @dataclasses.dataclass(frozen=True)
        class Limit:
            at: float = one

            def __eq__(self, another):
                return low

            __hash__ = None

        pair_of = Limit(), Limit()
        return lambda rows: rows <= (one if pair_of[0] == pair_of[1] else other)

    return make(True), make(False), lambda which: None


@named("fields that are compared")
def _(one, other, folder):
    def make(compared):
        @dataclasses.dataclass(frozen=True)
        class Limit:
            at: float
            name: str = dataclasses.field(default="a", compare=compared)

        pair_of = Limit(one, "a"), Limit(one, "b")
        return lambda rows: rows <= (other if pair_of[0] == pair_of[1] else one)

    return make(True), make(False), lambda which: None


@named("method of a tuple")
def _(one, other, folder):
    def make(at):
        class Below(collections.namedtuple("Pair", "name")):
            __slots__ = ()

            def __call__(self, rows):
                return rows <= at

        return Below("below")

    return pair(make, one, other)


@named("method of a number")
def _(one, other, folder):
    def make(at):
        number = type("Number", (float,), {"below": lambda self, rows: rows <= at})(1.0)
        return lambda rows: number.below(rows)

    return pair(make, one, other)


@named("enumeration")
def _(one, other, folder):
    def make(at):
        kind = enum.Enum("Kind", {"LOW": at})
        return lambda rows, low=kind.LOW: rows <= low.value

    return pair(make, one, other)


@named("property")
def _(one, other, folder):
    def make(at):
        kind = type("Below", (), {"at": property(lambda self: at), "__call__": lambda self, rows: rows <= self.at})
        return kind()

    return pair(make, one, other)


@named("name set in a module")
def _(one, other, folder):
    module = in_module("def below(rows):\n    return rows <= T")
    return turned(module.below, functools.partial(setattr, module, "T"), one, other)


@named("name set in another module")
def _(one, other, folder):
    settings = types.ModuleType("users_settings")

    def below(rows):
        return rows <= settings.T

    return turned(below, functools.partial(setattr, settings, "T"), one, other)


@named("function set in another module")
def _(one, other, folder):
    module = types.ModuleType("users_settings")

    def turn(at):
        module.at = lambda: at

    return turned(lambda rows: rows <= module.at(), turn, one, other)


@named("module in a list")
def _(one, other, folder):
    modules = [types.ModuleType("users_settings")]
    return turned(lambda rows: rows <= modules[0].T, functools.partial(setattr, modules[0], "T"), one, other)


@named("globals()")
def _(one, other, folder):
    module = in_module("def below(rows):\n    return rows <= globals()['T']")
    return turned(module.below, functools.partial(setattr, module, "T"), one, other)


@named("vars of a module")
def _(one, other, folder):
    module = in_module("import users_module as me\ndef below(rows):\n    return rows <= me.__dict__['T']")
    return turned(module.below, functools.partial(setattr, module, "T"), one, other)


@named("globals of a function")
def _(one, other, folder):
    module = in_module("def f():\n    pass\ndef below(rows):\n    return rows <= f.__globals__['T']")
    return turned(module.below, functools.partial(setattr, module, "T"), one, other)


@named("getattr")
def _(one, other, folder):
    return turned(lambda rows: rows <= getattr(Setting, "val" + "ue"), set_value, one, other)


def set_value(at):
    Setting.value = at


@named("attribute of a class")
def _(one, other, folder):
    return turned(lambda rows: rows <= Setting.value, set_value, one, other)


@named("attrgetter")
def _(one, other, folder):
    get = operator.attrgetter("T")
    module = types.ModuleType("users_settings")
    return turned(lambda rows: rows <= get(module), functools.partial(setattr, module, "T"), one, other)


@named("eval")
def _(one, other, folder):
    module = in_module("def below(rows):\n    return rows <= eval('T')")
    return turned(module.below, functools.partial(setattr, module, "T"), one, other)


@named("text that looks up")
def _(one, other, folder):
    module = in_module("def f():\n    pass\ndef below(rows):\n    return rows <= float('{0.__globals__[T]}'.format(f))")
    return turned(module.below, functools.partial(setattr, module, "T"), one, other)


@named("attribute of a function")
def _(one, other, folder):
    def below(rows):
        return rows <= below.at

    return turned(below, functools.partial(setattr, below, "at"), one, other)


@named("import within a function")
def _(one, other, folder):
    module = in_module("")

    def below(rows):
        import users_module

        return rows <= users_module.T

    return turned(below, functools.partial(setattr, module, "T"), one, other)


@named("name that another function sets")
def _(one, other, folder):
    module = in_module("def turn(at):\n    global T\n    T = at\ndef below(rows):\n    return rows <= T")
    return turned(module.below, module.turn, one, other)


@named("globals that compute")
def _(one, other, folder):
    class Names(dict):
        def __missing__(self, name):
            return Setting.value

    names = Names(__builtins__={}, __name__="nowhere")
    exec("def below(rows):\n    return rows <= T", names)
    return turned(names["below"], set_value, one, other)


@named("built-in that is replaced")
def _(one, other, folder):
    names = {"__builtins__": {}, "__name__": "nowhere"}
    exec("def below(rows):\n    return rows <= float('0')", names)

    def turn(at):
        names["__builtins__"]["float"] = lambda text: at

    return turned(names["below"], turn, one, other)


@named("deep closure")
def _(one, other, folder):
    def make(at):
        def innermost(rows):
            return rows <= at

        function = innermost
        for _ in range(90):
            function = (lambda inner: lambda rows: inner(rows))(function)
        return function

    return pair(make, one, other)


@named("deep list")
def _(one, other, folder):
    def make(at):
        nested = [at]
        for _ in range(200):
            nested = [nested]

        def below(rows):
            inner = nested
            for _ in range(200):
                inner = inner[0]
            return rows <= inner[0]

        return below

    return pair(make, one, other)


@named("environment")
def _(one, other, folder):
    return turned(
        lambda rows: rows <= float(os.environ["DPINFER_T"]),
        lambda at: os.environ.__setitem__("DPINFER_T", repr(at)), one, other,
    )  # fmt: skip


@named("file")
def _(one, other, folder):
    path = folder / "threshold"
    return turned(lambda rows: rows <= float(path.read_text()), lambda at: path.write_text(repr(at)), one, other)


@named("opened file")
def _(one, other, folder):
    name = str(folder / "opened")

    def below(rows):
        with open(name) as stream:  # noqa: PTH123
            return rows <= float(stream.read())

    def turn(at):
        with open(name, "w") as stream:  # noqa: PTH123
            stream.write(repr(at))

    return turned(below, turn, one, other)


@named("NumPy's file")
def _(one, other, folder):
    name = str(folder / "array.npy")
    return turned(lambda rows: rows <= np.load(name), lambda at: np.save(name, np.array(at)), one, other)


@named("memory map")
def _(one, other, folder):
    def make(at):
        np.save(folder / f"{at}.npy", np.array([at]))
        mapped = np.load(folder / f"{at}.npy", mmap_mode="r")
        return lambda rows: rows <= mapped

    return pair(make, one, other)


@named("global generator of NumPy")
def _(one, other, folder):
    def below(rows):
        state = np.random.get_state()  # noqa: NPY002
        try:
            return rows <= np.random.uniform(0.0, 100.0)  # noqa: NPY002
        finally:
            np.random.set_state(state)  # noqa: NPY002

    return turned(below, lambda at: np.random.seed(int(at)), one, other)  # noqa: NPY002


@named("global generator of Python")
def _(one, other, folder):
    def below(rows):
        state = random.getstate()
        try:
            return rows <= random.uniform(0.0, 100.0)
        finally:
            random.setstate(state)

    return turned(below, lambda at: random.seed(int(at)), one, other)


@named("generator of one's own")
def _(one, other, folder):
    def make(at):
        generator = np.random.default_rng(int(at))
        threshold = []

        def below(rows):
            if not threshold:
                threshold.append(generator.uniform(0.0, 100.0))
            return rows <= threshold[0]

        return below

    return pair(make, one, other)


@named("iterator")
def _(one, other, folder):
    def make(at):
        values = iter([at] * 10_000)
        return lambda rows: rows <= next(values)

    return pair(make, one, other)


@named("coroutine")
def _(one, other, folder):
    def make(at):
        def forever():
            while True:
                yield at

        values = forever()
        return lambda rows: rows <= next(values)

    return pair(make, one, other)


@named("what cannot be pickled")
def _(one, other, folder):
    def make(at):
        view = memoryview(np.array([at]))
        return lambda rows: rows <= view[0]

    return pair(make, one, other)


@named("lock")
def _(one, other, folder):
    lock = threading.Lock()

    def turn(at):
        lock.acquire(blocking=False)
        if at == one:
            lock.release()

    return turned(lambda rows: rows <= (other if lock.locked() else one), turn, one, other)


@named("context")
def _(one, other, folder):
    at = contextvars.ContextVar("at")
    return turned(lambda rows: rows <= at.get(), at.set, one, other)


@named("thread's own")
def _(one, other, folder):
    own = threading.local()
    return turned(lambda rows: rows <= own.at, functools.partial(setattr, own, "at"), one, other)


@named("foreign memory")
def _(one, other, folder):
    def make(at):
        number = ctypes.c_double(at)
        return lambda rows: rows <= number.value

    return pair(make, one, other)


@named("cache")
def _(one, other, folder):
    def make(at):
        @functools.cache
        def threshold():
            return Setting.value

        set_value(at)
        threshold()
        return lambda rows: rows <= threshold()

    first, second = make(one), make(other)
    return first, second, lambda which: set_value(one)


@named("masked array")
def _(one, other, folder):
    def make(at):
        limits = np.ma.masked_array([one, other], [at != one, at != other])
        return lambda rows: rows <= limits.max()

    return pair(make, one, other)


@named("array of objects")
def _(one, other, folder):
    def make(at):
        limits = np.array([lambda: at], dtype=object)
        return lambda rows: rows <= limits[0]()

    return pair(make, one, other)


@named("shared memory")
def _(one, other, folder):
    def make(share):
        limits = np.array([one, 0.0])
        alias = limits[:1] if share else limits[:1].copy()

        def below(rows):
            alias[0] = other
            return rows <= limits[0]

        return below

    return make(False), make(True), lambda which: None


@named("one array twice")
def _(one, other, folder):
    def make(share):
        limits = np.array([one])
        alias = limits if share else limits.copy()

        def below(rows):
            alias[0] = other
            return rows <= limits[0]

        return below

    return make(False), make(True), lambda which: None


@named("array that cannot be written")
def _(one, other, folder):
    def make(fixed):
        limits = np.array([one])
        limits.flags.writeable = not fixed

        def below(rows):
            if limits.flags.writeable:
                limits[0] = other
            return rows <= limits[0]

        return below

    return make(True), make(False), lambda which: None


@named("array in the memory of a file")
def _(one, other, folder):
    name = str(folder / "mapped.npy")
    np.save(name, np.array([one]))
    mapped = np.asarray(np.load(name, mmap_mode="r+"))

    def turn(at):
        mapped[0] = at

    return turned(lambda rows: rows <= mapped[0], turn, one, other)


@named("order of keys")
def _(one, other, folder):
    def make(first):
        labels = {f"{first}{number}": 0 for number in range(8)}
        return lambda rows: rows <= (one if next(iter(labels.keys() & labels.keys()))[-1] < "4" else other)

    return *(make(letter) for letter in "ab"), lambda which: None


@named("text of an error")
def _(one, other, folder):
    def make(at):
        thing = next(thing for thing in PLACES if even(thing) == (at == one))

        def below(rows):
            try:
                [].index(thing)
            except ValueError as error:
                address = error.args[0].partition(" is not in")[0][-4:-1]
            return rows <= (one if int(address, 16) // 16 % 2 == 0 else other)

        return below

    return pair(make, one, other)


@named("collected object")
def _(one, other, folder):
    class Below:
        def __del__(self):
            pass

        def __call__(self, rows):
            return rows <= Setting.value

    return turned(Below(), set_value, one, other)


@named("order of a set")
def _(one, other, folder):
    def make(first):
        labels = {f"{first}{number}" for number in range(8)}
        return lambda rows: rows <= (one if next(iter(labels))[-1] < "4" else other)

    return *(make(letter) for letter in "ab"), lambda which: None


@named("address in a text")
def _(one, other, folder):
    def make(at):
        thing = next(thing for thing in PLACES if even(thing) == (at == one))
        return lambda rows: rows <= (one if even(thing) else other)

    return pair(make, one, other)


@named("constant")
def _(one, other, folder):
    return pair(lambda at: eval(f"lambda rows: rows <= {at!r}"), one, other)


@named("closure")
def _(one, other, folder):
    return pair(lambda at: lambda rows: rows <= at, one, other)


@named("default")
def _(one, other, folder):
    return pair(lambda at: lambda rows, limit=at: rows <= limit, one, other)


@named("default by name")
def _(one, other, folder):
    return pair(lambda at: lambda rows, *, limit=at: rows <= limit, one, other)


@named("partial")
def _(one, other, folder):
    return pair(lambda at: functools.partial(np.greater_equal, at), one, other)


@named("handler of an exception")
def _(one, other, folder):
    text = """
def below(rows):
    at = {one!r}
    {first}
    try:
        at = {other!r}
        {second}
    except ValueError:
        at = {other!r}
    return rows <= at
"""

    def make(guarded):
        names = {}
        exec(text.format(one=one, other=other, first="pass", second="pass" if guarded else "at = at"), names)
        return names["below"]

    def late(rows):
        return rows <= one

    return late, make(True), lambda which: None


@named("static method")
def _(one, other, folder):
    def make(at):
        return type("Below", (), {"below": staticmethod(lambda rows: rows <= at)}).below

    return pair(make, one, other)


@named("class method")
def _(one, other, folder):
    def make(at):
        return type("Below", (), {"_at": at, "below": classmethod(lambda cls, rows: rows <= cls._at)}).below

    return pair(make, one, other)


@named("wrapped function")
def _(one, other, folder):
    def make(at):
        def inner(rows):
            return rows <= at

        @functools.wraps(inner)
        def outer(rows):
            return inner(rows)

        return outer

    return pair(make, one, other)


@named("dispatched function")
def _(one, other, folder):
    def make(at):
        @functools.singledispatch
        def below(rows):
            return rows <= 0.0

        below.register(np.ndarray, lambda rows: rows <= at)
        return below

    return pair(make, one, other)
