"""What the code of a user's function looks up outside of itself, and what of it no reading can follow."""

import dis
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dpinfer.mechanism.pure_functions import BUILTINS

UNREAD_TEXT = "a text with %, or the name 'where'"
# Instructions that look outside of what is read, or whose result depends on addresses and seeds of the process.
_UNREAD_INSTRUCTIONS = {
    **dict.fromkeys(("IMPORT_NAME", "IMPORT_FROM", "IMPORT_STAR"), "an import within a function"),
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), "a global name that is set"),
    **dict.fromkeys(
        (
            *("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_BUILD_CLASS", "LOAD_LOCALS", "LOAD_CLASSDEREF"),
            *("LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF"),
        ),
        "a class within a function",
    ),
    **dict.fromkeys(("BUILD_SET", "SET_ADD", "SET_UPDATE"), "a set, whose order differs between processes"),
    **dict.fromkeys(
        (
            *("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "BUILD_STRING"),
            *("BUILD_TEMPLATE", "BUILD_INTERPOLATION"),
        ),
        "a formatted text",
    ),
    "DICT_MERGE": "named arguments from a mapping",
}
_GLOBAL_INSTRUCTIONS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
# Attributes that lead outside of an object, or to its address, or make a % of numbers, or sets of keys.
_UNREAD_ATTRIBUTES = (
    "f_globals f_locals f_back f_builtins f_code gi_frame gi_code cr_frame ag_frame tb_frame tb_next ctypes tofile "
    "dump dumps tobytes tostring format format_map args view getfield cast decode to_bytes translate keys items"
)
UNREAD_ATTRIBUTES = frozenset(_UNREAD_ATTRIBUTES.split())


class Uses(NamedTuple):
    """What a function's code looks up outside of itself."""

    values: dict[str, Any]  # global names, and dotted names of modules, with what they are
    unread: list[str]

    @classmethod
    def of(cls, function: types.FunctionType) -> "Uses":
        """Return what a user's function uses."""
        found = cls({}, [])
        typed: Any = function  # not every version of the types knows the attribute
        built_in = typed.__builtins__
        if type(function.__globals__) is not dict or type(built_in) is not dict:
            found.unread.append("global names that are computed")
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = {name: part for name, cell in cells for part in content_of(cell) if isinstance(part, types.ModuleType)}
        for code, steps in _codes(function.__code__):
            for place, step in enumerate(steps):
                if step.opname == "KW_NAMES" and is_unread_text(code.co_consts[step.arg or 0]):
                    found.unread.append(UNREAD_TEXT)
                found._look_up(function.__globals__, built_in, held, steps, place)
        return found

    def _look_up(
        self,
        names: Mapping[str, Any],
        built_in: Mapping[str, Any],
        held: Mapping[str, types.ModuleType],
        steps: list[dis.Instruction],
        place: int,
    ) -> None:
        step = steps[place]
        name = step.argval
        if step.opname in _UNREAD_INSTRUCTIONS:
            self.unread.append(_UNREAD_INSTRUCTIONS[step.opname])
        elif step.opname == "LOAD_GLOBAL":
            if name in names:
                self._follow(name, names[name], steps, place)
            elif name not in built_in:
                self.unread.append(f"the name {name}, which is not there")
            elif built_in[name] is not BUILTINS.get(name, self):
                self.values[f"name {name}"] = built_in[name]
                self.unread.append(f"the built-in {name}")
        elif step.opcode in dis.hasconst and is_unread_text(name):
            self.unread.append(UNREAD_TEXT)
        elif step.opcode in dis.hasfree and name in held and step.opname != "LOAD_CLOSURE":
            self._follow(name, held[name], steps, place)
        elif (step.opcode in dis.hasname and step.opname not in _GLOBAL_INSTRUCTIONS) and (
            name in UNREAD_ATTRIBUTES or (name.startswith("__") and name not in ("__init__", "__post_init__"))
        ):
            self.unread.append(f"the attribute {name}")

    def _follow(self, name: str, value: Any, steps: list[dis.Instruction], place: int) -> None:
        """Note a value; of a module the attribute that comes next, for a module itself is never read."""
        while isinstance(value, types.ModuleType):
            place += 1
            following = steps[place] if place < len(steps) else None
            if following is None or following.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                self.unread.append(f"the module {value.__name__}, used as an object")
                return
            name = f"{name}.{following.argval}"
            try:
                value = getattr(value, following.argval)
            except Exception:
                self.unread.append(f"the name {name}, which is not there")
                return
        self.values[f"name {name}"] = value


def _codes(code: types.CodeType) -> Iterator[tuple[types.CodeType, list[dis.Instruction]]]:
    """Yield a function's code with its instructions, and that of functions within it."""
    yield (
        code,
        [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "PUSH_NULL", "CACHE")],
    )
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)


def is_unread_text(value: Any) -> bool:
    """Return whether a text, or one of a tuple, makes a result depend on more than what is read.

    `%` puts an object's address into a text; `where=` of a ufunc leaves memory as it was.
    """
    if isinstance(value, tuple):
        return any(map(is_unread_text, value))
    return (isinstance(value, str) and ("%" in value or value == "where")) or (
        isinstance(value, bytes) and b"%" in value
    )


def content_of(cell: types.CellType) -> tuple[Any, ...]:
    """Return what a cell of a closure holds, if anything."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()
