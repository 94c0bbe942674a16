"""What a run asks of its records, read as bytes, and whether these bytes are all of it.

A question of the library's own is numbers and text.  A user's code is read by its instructions, constants, closures,
the globals and methods that it uses, and their state.  It is *read whole* if it is made of the kinds that are listed
here alone, whose results follow from what was read.  Nothing else is: not what a file, the environment, a clock or a
generator holds, not compiled code that is unknown, not names that are looked up by a text.

**Privacy.** Reads no records.  Proof: docs/derivations/checkpoint.md.
"""

import functools
import gc
import hashlib
import os
import struct
import sys
import types
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from enum import Enum
from typing import Any

import numpy as np

from dpinfer.mechanism.function_uses import UNREAD_ATTRIBUTES, UNREAD_TEXT, Uses, content_of, is_unread_text
from dpinfer.mechanism.pure_functions import PURE, SPECIAL
from dpinfer.models import Model

_INSTALLED = ("site-packages", "dist-packages")
_CODE = ("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_flags")
_CODE_OF_OWN = (*_CODE, "co_kwonlyargcount", "co_posonlyargcount", "co_exceptiontable")
_OF_THIS_PROCESS = os.urandom(32)  # a seed of the tokens of unreadable objects: another process has other noise
_DEEPEST = 80  # objects within objects, far below Python's own limit: deeper objects count as unreadable; tolerance
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, bytearray, np.ndarray, tuple, list, dict)
# Members of a class that its methods cannot look up, since reading code refuses such names.
_UNUSED = (
    "__module__ __dict__ __weakref__ __doc__ __annotations__ __qualname__ __firstlineno__ __static_attributes__ "
    "__annotate__ __annotate_func__ __annotations_cache__ __conditional_annotations__ __dataclass_fields__ "
    "__dataclass_params__ __match_args__ __orig_bases__ __parameters__ __type_params__ _abc_impl __abstractmethods__ "
    "__repr__ __str__ __format__"
)
_NO_MEMBERS = frozenset(_UNUSED.split())
# Members that give memory away, or that are called at no certain time.
_UNREAD_MEMBERS = frozenset(("__array_interface__", "__array_struct__", "__del__"))
# A class that moved has the name that it had: releases with a fixed key keep their bits.
_NAMED_BEFORE = {
    "dpinfer.mechanism.newton.own_clipped_model.ClippedScores": "dpinfer.mechanism.newton.own_clipped.ClippedScores",
    "dpinfer.mechanism.newton.own_population.OwnCurvatures": "dpinfer.mechanism.newton.own_joint.OwnCurvatures",
    "dpinfer.mechanism.newton.own_population.OwnScores": "dpinfer.mechanism.newton.own_joint.OwnScores",
    "dpinfer.models.clipping.ClippedResidual": "dpinfer.models.clipped_residuals.ClippedResidual",
    "dpinfer.mechanism.sites.state.Cavity": "dpinfer.mechanism.site_state.Cavity",
}


@dataclass(frozen=True)
class Question:
    """What was read of a question.

    Two questions with equal digests that were both read whole are one question: they have the same result for the same
    records, on the same machine.
    """

    digest: str = ""  # 64 hexadecimal digits, the same in every process
    own: bool = False  # whether there is a user's code in it
    unread: tuple[str, ...] = ()  # what could not be read, in words; a question without any was read whole

    @property
    def whole(self) -> bool:
        """Whether all of the question was read."""
        return not self.unread


def read_question(*parts: Any) -> Question:
    """Read a question: numbers, text, arrays, containers and data classes of them, models, and a user's code."""
    digest = hashlib.blake2b(digest_size=32, person=b"dpinfer query")
    reader = Reader(digest.update, lambda value: b"")
    reader.add(parts)
    return Question(digest.hexdigest(), reader.own, tuple(dict.fromkeys(reader.unread)))


_TOKENS: dict[int, tuple[Any, bytes]] = {}


def token_of(value: Any) -> bytes:
    """Return a random number for an unreadable object of this process, the same as long as it lives."""
    key = id(value)
    if key not in _TOKENS:
        try:
            kept: Any = weakref.ref(value, lambda _: _TOKENS.pop(key, None))
        except TypeError:
            kept = value
        _TOKENS[key] = (kept, hashlib.sha256(_OF_THIS_PROCESS + os.urandom(16)).digest())
    return _TOKENS[key][1]


class Reader:
    """Writes values as bytes, each with its type and its length or number: different values, different bytes."""

    def __init__(self, write: Any, token: Callable[[Any], bytes] = token_of) -> None:
        self._write, self._token = write, token
        self.own = False  # whether a user's code was met
        self.unread: list[str] = []  # what could not be read whole
        # Objects seen before, by identity: a function may refer to itself. The values are kept, so that no identity is
        # reused.
        self._met: dict[int, tuple[int, Any]] = {}
        self._depth = 0
        self._within = 0  # in how many objects of a user's code the reader is
        self._in_code = 0  # in how many objects of instructions it is
        self._arrays: list[Any] = []  # arrays in a user's code

    def add(self, value: Any) -> None:
        """Write a value: one that raises when it is read is unreadable, for a run may be paid for."""
        within = self._within, self._in_code, self._depth
        try:
            self._add(value)
        except Exception:
            self._within, self._in_code, self._depth = within
            self._unreadable(value, f"an object of {_name(type(value))}, which raises when it is read")

    def _add(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OVT" and _plain_array(kind):
            self._leaf(f"array {value.dtype.str} {value.shape}", value.tobytes())
            self._add_layout(value)
        elif isinstance(value, Enum):
            self._leaf("enum", f"{kind.__qualname__}.{value.name}".encode())
            self._check_kind(kind)
        elif value is None or isinstance(value, (bool, int, str)):
            self._leaf(kind.__name__, str(value).encode("utf-8", "surrogatepass"))
            self._check_kind(kind)
            if self._within and not self._in_code and is_unread_text(value):
                self._note(UNREAD_TEXT)
        elif isinstance(value, (float, complex)):
            self._leaf(kind.__name__, struct.pack("<dd", complex(value).real, complex(value).imag))
            self._check_kind(kind)
        elif isinstance(value, (bytes, bytearray)):
            self._leaf("bytes", bytes(value))
            if kind is not bytes:
                self._leaf("kind", kind.__name__.encode())
                self._check_kind(kind)
        elif isinstance(value, types.CodeType):
            self._in_code += 1
            self._many("code", [getattr(value, name) for name in (_CODE_OF_OWN if self._within else _CODE)])
            self._in_code -= 1
        elif isinstance(value, Model):
            self._add_model(value)
        elif id(value) in self._met:
            self._leaf("again", str(self._met[id(value)][0]).encode())
        else:
            self._met[id(value)] = (len(self._met), value)
            self._depth += 1
            if self._depth > _DEEPEST:
                self._unreadable(value, "objects within objects, too deep")
            else:
                self._add_object(value)
            self._depth -= 1

    def _leaf(self, kind: str, content: bytes) -> None:
        self._write(f"{kind}:{len(content)}:".encode() + content)

    def _many(self, kind: str, values: Iterable[Any]) -> None:
        listed = list(values)
        self._leaf(kind, str(len(listed)).encode())
        for value in listed:
            self.add(value)

    def _hashed(self, value: Any) -> bytes:
        digest = hashlib.blake2b(digest_size=32, person=b"dpinfer noise")
        reader = Reader(digest.update, self._token)
        reader._within = self._within
        reader.add(value)
        self.own |= reader.own
        self.unread += reader.unread
        return digest.digest()

    def _note(self, what: str) -> None:
        self.unread.append(what)

    def _unreadable(self, value: Any, what: str) -> None:
        self._note(what)
        self._leaf("unreadable", self._token(value))

    def _own_code(self, kind: str, values: Iterable[Any]) -> None:
        self.own = True
        self._within += 1
        self._many(kind, values)
        self._within -= 1

    def _trusts(self, kind: Any) -> bool:
        """Whether this is the library's own, outside of a user's code."""
        return _of_library(kind) and not self._within

    def _check_kind(self, kind: type) -> None:
        """Note a kind that is not simple, which may have methods of its own, and read them."""
        if kind not in _SIMPLE and not self._trusts(kind):
            self._note(f"an object of {_name(kind)}")
            self.add(kind)

    def _add_layout(self, array: Any) -> None:
        """Write what else decides a result of a user's code: the layout in memory, and what shares it."""
        if not self._within or not isinstance(array, np.ndarray):
            return
        if not (array.flags.c_contiguous and array.flags.writeable):
            self._leaf("layout", f"{array.strides} {array.flags.writeable}".encode())
        base = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if type(base) not in (np.ndarray, bytes):
            self._note(f"an array in the memory of an object of {_name(type(base))}")
        for place, earlier in enumerate(self._arrays):
            if earlier is array:
                self._leaf("again", f"array {place}".encode())
            elif np.may_share_memory(earlier, array):
                self._note("arrays that share memory")
        self._arrays.append(array)

    def _add_model(self, model: Model) -> None:
        kind = type(model)
        # Not its attributes, some of which are computed on first use.
        parts = (kind, model.to_dict(), getattr(model, "code", None))
        if edition(_module(kind)):
            self._many("model", parts)
            return
        if id(model) in self._met:
            self._leaf("again", str(self._met[id(model)][0]).encode())
            return
        self._met[id(model)] = (len(self._met), model)
        computed = {name for base in kind.__mro__ for name, part in vars(base).items() if _computed(part)}
        state = {name: part for name, part in vars(model).items() if name not in computed and name != "code"}
        self._own_code("model", (*parts, state))

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        if is_pure(value):
            self._many("named", (_name(value), edition(_module(value)), ()))
        elif isinstance(value, (tuple, list)):
            self._many(kind.__name__, value)
            self._check_kind(kind)
        elif isinstance(value, Mapping):
            self._many("mapping", (part for item in value.items() for part in item))
            if kind is not types.MappingProxyType:
                self._check_kind(kind)
        elif isinstance(value, (set, frozenset)):
            self._many("set", sorted(map(self._hashed, value)))
            self._check_kind(kind)
            if len(value) > 1 and self._within:
                self._note("a set, whose order differs between processes")
        elif is_dataclass(value) and not isinstance(value, type) and edition(_module(kind)):
            named = ((each.name, getattr(value, each.name)) for each in fields(value))
            self._many(f"data {_name(kind)}", (part for item in named for part in item))
            self._check_kind(kind)
        elif isinstance(value, types.ModuleType):
            self._note(f"the module {value.__name__}, used as an object")
            self._many("module", (value.__name__, edition(value.__name__)))
        elif isinstance(value, types.MethodType):
            self._many("method", (value.__func__, value.__self__))
        elif kind is functools.partial:
            self._many("partial", (value.func, value.args, value.keywords, *_attributes(value)))
            if is_unread_text(tuple(value.keywords)):
                self._note(UNREAD_TEXT)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.CellType):
            self._many("cell", content_of(value))
        elif isinstance(value, property):
            self._many("property", (value.fget, value.fset, *(() if value.fdel is None else (value.fdel,))))
        elif kind is functools.cached_property:
            self._many("property", (value.func,))
        elif isinstance(value, (staticmethod, classmethod)):
            self._many(kind.__name__, (value.__func__,))
        elif isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self._leaf("slot", value.__name__.encode())
        elif isinstance(value, types.BuiltinFunctionType):
            self._add_builtin(value)
        elif isinstance(value, np.ufunc):
            self._note(f"the ufunc {value.__name__}")
            self._many("ufunc", (_name(value), *(part for part in gc.get_referents(value) if callable(part))))
        elif isinstance(value, type):
            self._add_class(value)
        elif not edition(_module(kind)):
            self._add_instance(value)
        else:
            self._add_other(value)

    def _add_function(self, function: types.FunctionType) -> None:
        closure: tuple[Any, ...] = function.__closure__ or ()
        home = _home(function)
        if edition(home):
            self._many(
                "function", (_name(function), edition(home), closure, function.__defaults__, function.__kwdefaults__)
            )
            if not self._trusts(function):
                self._note(f"the function {_name(function)}")
            return
        found = Uses.of(function)
        self.unread += found.unread
        # Modules in cells are read by the names that are used of them.
        cells = [cell for cell in closure if not isinstance(next(iter(content_of(cell)), None), types.ModuleType)]
        parts = (cells, function.__defaults__, function.__kwdefaults__, *_attributes(function))
        self._own_code("function", (_name(function), function.__code__, found.values, *parts))

    def _add_builtin(self, function: Any) -> None:
        bound = function.__self__
        if bound is None or isinstance(bound, types.ModuleType):
            self._note(f"the function {_name(function)}")
            self._many("named", (_name(function), edition(_module(function)), ()))
            return
        self._own_code("bound", (function.__name__, _name(type(bound)), bound))
        if (
            not (type(bound) in _SIMPLE or isinstance(bound, np.generic))
            or function.__name__ in UNREAD_ATTRIBUTES
            or function.__name__.startswith("__")
        ):
            self._note(f"the method {function.__qualname__}")

    def _add_class(self, kind: type) -> None:
        known = edition(_module(kind))
        if known:
            self._many("named", (_name(kind), known, ()))
            if not (self._trusts(kind) or (_of_library(kind) and issubclass(kind, Model))):
                self._note(f"the class {_name(kind)}")
            return
        if type(kind) is not type and not (type(kind) is ABCMeta and issubclass(kind, Model)):
            self._note(f"the class {_name(kind)}, made by {_name(type(kind))}")
            self.add(type(kind))
        for name in _UNREAD_MEMBERS & vars(kind).keys():
            self._note(f"a class with the method {name}")
        made = {name: part for name, part in vars(kind).items() if name not in _NO_MEMBERS} | _generated(kind)
        self._own_code("named", (_name(kind), known, (kind.__bases__, made)))

    def _add_instance(self, value: Any) -> None:
        """Write an object of a user's class: the class, and its state."""
        kind = type(value)
        if any(base is not object and edition(_module(base)) for base in kind.__mro__):
            self._add_other(value)
            return
        slots: dict[str, Any] = {}
        for base in kind.__mro__:
            for name, part in vars(base).items():
                if isinstance(part, types.MemberDescriptorType):
                    try:
                        slots[name] = part.__get__(value)
                    except AttributeError:
                        continue
        self._own_code(f"object {_name(kind)}", (kind, slots, *_attributes(value)))

    def _add_other(self, value: Any) -> None:
        kind = type(value)
        if not (self._trusts(kind) or kind in _READ_BY_STATE):
            self._note(f"an object of {_name(kind)}")
        wrapped = getattr(value, "__wrapped__", None)
        try:
            if isinstance(value, _GENERATORS):
                raise TypeError  # their state moves on
            if wrapped is not None:
                parts: tuple[Any, ...] = (wrapped,)
            elif hasattr(value, "__array__") and not isinstance(value, np.ndarray):
                parts = (np.asarray(value.detach() if hasattr(value, "detach") else value),)
            else:
                parts = tuple(value.__reduce_ex__(4))
                # Iterators over items come fourth and fifth.
                parts = (*parts[:3], *(list(part) for part in parts[3:5] if part is not None))
        except Exception:
            self._leaf(f"object {_name(kind)}", b"")
            self._unreadable(value, f"an object of {_name(kind)}")
            return
        self._many(f"object {_name(kind)}", parts)


_READ_BY_STATE = (slice, range)
_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)


def _attributes(value: Any) -> tuple[Any, ...]:
    """Return an object's own attributes, if it has any."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return (dict(own),) if own else ()


def _generated(kind: type) -> dict[str, Any]:
    """Return what stands for the methods that the library of Python wrote for a data class: the fields they are of."""
    made = vars(kind).get("__dataclass_params__")
    if made is None:
        return {}
    own = {each.name: each for each in fields(kind)}
    named = ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
    options = [{name: getattr(each, name) for name in named} for each in own.values()]
    listed = [(name, object, field(**part)) for name, part in zip(own, options, strict=True)]
    flags = {name: getattr(made, name) for name in ("init", "repr", "eq", "order", "unsafe_hash", "frozen")}
    try:
        after = {"__post_init__": None} if hasattr(kind, "__post_init__") else {}  # which the written code calls
        twin = vars(make_dataclass("Twin", listed, namespace=after, **flags))
    except (TypeError, ValueError):
        return {}
    said = [{name: part for name, part in each.items() if part is not MISSING} for each in options]
    return {
        name: ("written by dataclass", list(own), said, flags)
        for name, part in vars(kind).items()
        if isinstance(part, types.FunctionType) and isinstance(twin.get(name), types.FunctionType)
        if all(getattr(part.__code__, each) == getattr(twin[name].__code__, each) for each in _CODE_OF_OWN)
    }


def _computed(part: Any) -> bool:
    return isinstance(part, functools.cached_property)


def _plain_array(kind: type) -> bool:
    return kind is np.ndarray or (issubclass(kind, np.generic) and kind.__module__ == "numpy")


def _of_library(value: Any) -> bool:
    return _module(value).partition(".")[0] == "dpinfer"


def _home(function: types.FunctionType) -> str:
    """Return the module whose names a function uses; nothing for code that ``exec`` made without one."""
    name = str(function.__globals__.get("__name__", ""))
    module = sys.modules.get(name)
    return name if module is not None and vars(module) is function.__globals__ else ""


_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: format


def _module(value: Any) -> str:
    if isinstance(value, type) and value.__module__ == "builtins" and value.__flags__ & _MADE_IN_PYTHON:
        return ""  # of code that ``exec`` made without a module: it is read
    return str(getattr(value, "__module__", None) or "builtins")


def _name(value: Any) -> str:
    name = f"{_module(value)}.{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"
    return _NAMED_BEFORE.get(name, name)


def is_pure(function: Any) -> bool:
    """Return whether this very function, or class, is one of those."""
    if id(function) in PURE:
        return True
    special = sys.modules.get("scipy.special")
    name = getattr(function, "__name__", "")
    if special is None or getattr(special, name, None) is not function:
        return False
    if isinstance(function, np.ufunc):
        # Those of ``frompyfunc`` have no other type than that of objects.
        return any(set(types) - set("O->") for types in function.types)
    return name in SPECIAL and bool(edition(str(function.__module__)))


@functools.cache
def edition(module: str) -> str:
    """Return the version of an installed module; nothing for a user's own code, which is read."""
    top = module.partition(".")[0]
    if top == "__main__":
        return ""  # a program that is installed may run a user's code under its own name
    if top in sys.stdlib_module_names or top == "builtins":
        return sys.version
    if top == "dpinfer":
        # A resumed run has the version of its checkpoint.
        return top
    package, own = sys.modules.get(top), sys.modules.get(module)
    file = str(getattr(own, "__file__", None) or getattr(package, "__file__", None) or "")
    return str(getattr(package, "__version__", file)) if any(place in file for place in _INSTALLED) else ""
