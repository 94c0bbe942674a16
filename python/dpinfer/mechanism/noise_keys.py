"""Where randomness comes from, and a key for the noise of each query: a hash of the run's key and the whole query.

**Privacy.** The same noise never meets two queries, for any copying, resuming or exchange between two runs with one
key.  Proof: docs/derivations/checkpoint.md.
"""

import functools
import hashlib
import os
import struct
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._validate import check_integer
from dpinfer.models import Model


class RandomSource(ABC):
    """Gives each run a fresh 32-byte key for ChaCha20.

    **Privacy.** The guarantee of a release rests on nobody knowing the key.  Sources cannot be pickled or copied: a
    second process with the same key would draw the same noise.
    """

    @property
    @abstractmethod
    def secure(self) -> bool:
        """Whether releases drawn from this source are private."""

    @abstractmethod
    def take_key(self) -> bytes:
        """Return the key of one run; no key is given out twice."""

    def __reduce__(self) -> str:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: its keys must not be used twice")


class OSRandomSource(RandomSource):
    """Keys from the operating system's generator: the default, and the only secure source.

    Examples
    --------
    >>> len(OSRandomSource().take_key())
    32
    """

    @property
    def secure(self) -> bool:
        """True."""
        return True

    def take_key(self) -> bytes:
        """Return 32 bytes from the operating system."""
        return os.urandom(32)


class InsecureRNG(RandomSource):
    """A seeded source for studies: reproducible, and therefore NOT PRIVATE.

    Its releases are marked, refuse to state an epsilon, and keep the mark when saved.  Successive runs from one
    object use different keys, in an order that the seed fixes.

    Parameters
    ----------
    seed : int
        At least 0.

    Examples
    --------
    >>> InsecureRNG(1).take_key() == InsecureRNG(1).take_key()
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = check_integer("seed", seed, 0)
        self._taken = 0

    @property
    def secure(self) -> bool:
        """False."""
        return False

    def take_key(self) -> bytes:
        """Return the next key of the seed's sequence."""
        text = f"dpinfer insecure generator, seed {self._seed}, run {self._taken}"
        self._taken += 1
        return hashlib.sha256(text.encode()).digest()

    def __repr__(self) -> str:
        return f"InsecureRNG(seed={self._seed})  # NOT PRIVATE"


_INSTALLED = ("site-packages", "dist-packages")
_WITH_MODULES = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, type)
_CODE = ("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_flags")
_OF_THIS_PROCESS = os.urandom(32)  # in place of objects that are no bytes: another process has other noise
_DEEPEST = 80  # objects within objects, far below Python's own limit: deeper objects count as unreadable; tolerance
_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: format
# A class that moved has the name that it had: releases with a fixed key keep their bits.
_NAMED_BEFORE = {
    "dpinfer.mechanism.newton.own_clipped_model.ClippedScores": "dpinfer.mechanism.newton.own_clipped.ClippedScores",
    "dpinfer.mechanism.newton.own_population.OwnCurvatures": "dpinfer.mechanism.newton.own_joint.OwnCurvatures",
    "dpinfer.mechanism.newton.own_population.OwnScores": "dpinfer.mechanism.newton.own_joint.OwnScores",
    "dpinfer.models.clipping.ClippedResidual": "dpinfer.models.clipped_residuals.ClippedResidual",
    "dpinfer.mechanism.sites.state.Cavity": "dpinfer.mechanism.site_state.Cavity",
}


def noise_key(key: bytes, *query: Any) -> bytes:
    """Return the key of a query's noise: a hash of the query, keyed with the run's 32 bytes.

    A query has numbers, text, arrays, containers and data classes of them, and models with their code.  Two queries
    that differ in a bit of a number, a name, or a line of a user's code have keys that are independent for everybody
    without `key` (BLAKE2b is taken for a pseudorandom function).

    **Privacy.** Reads no records, which must not be in `query`: the noise would depend on them.
    """
    digest = hashlib.blake2b(key=key, digest_size=32, person=b"dpinfer noise")
    _Encoder(digest.update).add(query)
    return digest.digest()


def noise_step(key: bytes, step: int, n_steps: int, *query: Any) -> int:
    """Return the number of the streams from which a step of many draws its sample and its noise.

    A stream's number has 64 bits.  The lowest hold the step, so that no two steps of a run share a stream; the others
    hold a keyed hash of the query, so that two runs with one key, where their queries differ, share one with
    probability 2**-44 for up to 2**20 steps.

    **Privacy.** As :func:`noise_key`.
    """
    bits = min(max(n_steps.bit_length(), 20), 64)
    hashed = int.from_bytes(noise_key(key, "step", query)[:8], "little")
    return step | (hashed << bits) & (2**64 - 1)


class _Encoder:
    """Writes values as bytes, each with its type and its length or number: different values, different bytes."""

    def __init__(self, write: Any) -> None:
        self._write = write
        # Objects seen before, by identity: a function may refer to itself. The values are kept, so that no identity is
        # reused.
        self._met: dict[int, tuple[int, Any]] = {}
        self._depth = 0

    def add(self, value: Any) -> None:
        """Write a value."""
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OV":
            self._leaf(f"array {value.dtype.str} {value.shape}", value.tobytes())
        elif isinstance(value, Enum):
            self._leaf("enum", f"{type(value).__qualname__}.{value.name}".encode())
        elif value is None or isinstance(value, (bool, int, str)):
            self._leaf(type(value).__name__, str(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, (float, complex)):
            self._leaf(type(value).__name__, struct.pack("<dd", complex(value).real, complex(value).imag))
        elif isinstance(value, (bytes, bytearray)):
            self._leaf("bytes", bytes(value))
        elif isinstance(value, types.CodeType):
            self._many("code", [getattr(value, name) for name in _CODE])
        elif isinstance(value, Model):
            # Not its attributes, some of which are computed on first use.
            self._many("model", (type(value), value.to_dict(), getattr(value, "code", None)))
        elif id(value) in self._met:
            self._leaf("again", str(self._met[id(value)][0]).encode())
        else:
            self._met[id(value)] = (len(self._met), value)
            self._depth += 1
            if self._depth > _DEEPEST:
                self._leaf("deep", _OF_THIS_PROCESS)
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

    def _add_object(self, value: Any) -> None:
        if isinstance(value, (tuple, list)):
            self._many(type(value).__name__, value)
        elif isinstance(value, Mapping):
            self._many("mapping", (part for item in value.items() for part in item))
        elif isinstance(value, (set, frozenset)):
            self._many("set", sorted(noise_key(b"", item) for item in value))
        elif is_dataclass(value) and not isinstance(value, type):
            named = ((field.name, getattr(value, field.name)) for field in fields(value))
            self._many(f"data {_name(type(value))}", (part for item in named for part in item))
        elif isinstance(value, types.ModuleType):
            self._many("module", (value.__name__, _edition(value.__name__) or _text(value)))
        elif isinstance(value, types.MethodType):
            self._many("method", (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self._many("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.CellType):
            self._many("cell", _content(value))
        elif isinstance(value, property):
            self._many("property", (value.fget, value.fset))
        elif isinstance(value, functools.cached_property):
            self._many("property", (value.func,))
        elif isinstance(value, _WITH_MODULES):
            self._many("named", (_name(value), _edition(_module(value)), _body(value)))
        else:
            self._add_other(value)

    def _add_function(self, function: types.FunctionType) -> None:
        parts = (function.__closure__ or (), function.__defaults__, function.__kwdefaults__)
        # Code that ``exec`` made may have no module, and is read.
        edition = _edition(function.__module__ or "")
        if edition:
            self._many("function", (_name(function), edition, *parts))
            return
        named = sorted(_names(function.__code__) & function.__globals__.keys())
        used = {name: function.__globals__[name] for name in named}
        self._many("function", (_name(function), function.__code__, used, *parts))

    def _add_other(self, value: Any) -> None:
        wrapped = getattr(value, "__wrapped__", None)
        try:
            if wrapped is not None:
                parts: tuple[Any, ...] = (wrapped,)
            elif hasattr(value, "__array__"):
                parts = (np.asarray(value.detach() if hasattr(value, "detach") else value),)
            else:
                parts = tuple(value.__reduce_ex__(4))
                # Iterators over items come fourth and fifth.
                parts = (*parts[:3], *(list(part) for part in parts[3:5] if part is not None))
        except Exception:
            parts = (_OF_THIS_PROCESS,)
        self._many(f"object {_name(type(value))}", parts)


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _text(module: types.ModuleType) -> bytes:
    """Return a module's file, since the used functions are unknown."""
    try:
        return Path(str(module.__file__)).read_bytes()
    except (AttributeError, OSError):
        return _OF_THIS_PROCESS


def _module(value: Any) -> str:
    if isinstance(value, type) and value.__module__ == "builtins" and value.__flags__ & _MADE_IN_PYTHON:
        return ""  # of code that ``exec`` made without a module: it is read
    return str(getattr(value, "__module__", None) or "builtins")


def _name(value: Any) -> str:
    name = f"{_module(value)}.{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"
    return _NAMED_BEFORE.get(name, name)


def _body(value: Any) -> Any:
    """Return the members of a user's class."""
    if not isinstance(value, type) or _edition(_module(value)):
        return ()
    made = {name: part for name, part in vars(value).items() if callable(part) or not name.startswith("_")}
    return value.__bases__, made


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function's code may look up, that of functions within it included."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


@functools.cache
def _edition(module: str) -> str:
    """Return the version of an installed module; nothing for a user's own code, which is read."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "builtins":
        return sys.version
    if top == "dpinfer":
        # A resumed run has the version of its checkpoint.
        return top
    package, own = sys.modules.get(top), sys.modules.get(module)
    file = str(getattr(own, "__file__", None) or getattr(package, "__file__", None) or "")
    return str(getattr(package, "__version__", file)) if any(place in file for place in _INSTALLED) else ""
