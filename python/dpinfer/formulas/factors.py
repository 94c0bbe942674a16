"""Factors of a formula: functions of one record's columns, with levels, bounds and constants from the public schema.

An expression is read as Python's syntax and compiled from a closed list of operations, each of which acts on one record
at a time; nothing in it is ever executed.

**Privacy.** Compiling reads no records; evaluating reads them, each on its own.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import DpinferError
from dpinfer.formulas import intervals
from dpinfer.formulas.intervals import Interval
from dpinfer.tabular import BinaryColumn, CategoricalColumn, Column, ContinuousColumn, Schema

Values = Mapping[str, FloatArray]

_MOST_DEGREE, _MOST_KNOTS, _DEEPEST = 10, 100, 50  # more is ill-conditioned, or exceeds any reasonable formula
_CURVE, _LEAST_CURVE = 10, 5  # functions of s(x); 10 is mgcv's
# `a column's name`, as formulaic leaves it in an expression.
_QUOTED = re.compile("`([^`]+)`")
_STATEFUL = "its constants would come from the records"
_REFUSED = {
    "offset": "an offset is a term of its own, of one number",
    "cr": f"{_STATEFUL}; bs(x, knots=[...]) has public knots",
    "cs": f"{_STATEFUL}; bs(x, knots=[...]) has public knots",
    "cc": f"{_STATEFUL}; bs(x, knots=[...]) has public knots",
    "te": f"{_STATEFUL}; use bs(x, knots=[...]):bs(z, knots=[...])",
    "rank": "the rank of a record depends on the others",
    "lag": "it reads another record than its own",
    "hashed": "its levels are not in the schema",
    "mean": "it reads all records",
}


class FormulaError(DpinferError, ValueError):
    """A formula needs more than public knowledge; the text gives the reason."""


def of_persons(term: str, name: str) -> str:
    """Return what is said of a term of groups without categories."""
    return (
        f"formula must have a column of declared categories in {term}: effects of a few large groups are learned.  "
        "Effects of persons, many with few rows each, need the column as the one that is protected: "
        f"unit=Units({name!r}, max_rows=...)"
    )


@dataclass(frozen=True)
class Part:
    """One column that a factor gives."""

    label: str
    evaluate: Callable[[Values], FloatArray]  # from decoded columns to the values, (N,), record by record
    bounds: Interval  # public


@dataclass(frozen=True)
class Factor:
    """A factor of a term."""

    expression: str
    columns: frozenset[str]  # the columns of the schema that it reads
    parts: tuple[Part, ...]  # for a categorical factor one for each level
    base: int | None = None  # level that contrasts leave out; None for a factor of numbers

    def coded(self, *, contrast: bool) -> tuple[Part, ...]:
        """Return the parts: for contrasts without the base level."""
        if self.base is None or not contrast:
            return self.parts
        kept = (part for index, part in enumerate(self.parts) if index != self.base)
        return tuple(Part(part.label.replace("[", "[T.", 1), part.evaluate, part.bounds) for part in kept)


@dataclass(frozen=True)
class _Number:
    """A compiled expression of numbers."""

    evaluate: Callable[[Values], Any]
    bounds: Interval
    constant: float | None = None


def category_labels(column: Column | None) -> tuple[str, ...]:
    """Return the labels of a category column's codes."""
    if isinstance(column, CategoricalColumn):
        return column.categories
    if isinstance(column, BinaryColumn):
        return column.negative[0], column.positive[0]
    return ()


def compile_factor(expression: str, schema: Schema) -> Factor:
    """Return a factor of the right-hand side.

    Raises ValueError if it does not follow from the schema alone; the message gives the reason.
    """
    columns = {column.name: column for column in schema.columns}
    if expression in columns:
        return _column(expression, columns[expression])
    # From a quoted column to a Python identifier.
    aliases = {name: f"_quoted_{number}_" for number, name in enumerate(dict.fromkeys(_QUOTED.findall(expression)))}
    for name, alias in aliases.items():
        if name not in columns:
            raise FormulaError(f"formula must use columns of the schema ({', '.join(columns)}), got {name!r}")
        columns[alias] = columns[name]
    tree = _syntax(_QUOTED.sub(lambda found: aliases[found[1]], expression))
    named = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    used = frozenset(columns[name].name for name in named if name in columns)
    if isinstance(tree, ast.Call):
        name = _function_name(tree)
        if name == "C":
            return _categories(expression, tree, columns)
        if name in _BASES:
            return Factor(expression, used, _BASES[name](expression, tree, columns))
    compiled = _compile(tree, columns, expression)
    if not used:
        raise FormulaError(f"formula must have terms of columns, and {expression!r} reads no column of the schema")
    return Factor(expression, used, (Part(expression, _vector(compiled), compiled.bounds),))


def compile_offset(expression: str, schema: Schema) -> Factor:
    """Return an offset: one number; raise ValueError as :func:`compile_factor`."""
    factor = compile_factor(expression, schema)
    if factor.base is not None or len(factor.parts) != 1:
        raise FormulaError(f"formula must have an offset of one number, got {expression!r}")
    return factor


def compile_response(expression: str, schema: Schema) -> tuple[Part, frozenset[str], Column | None]:
    """Return the response, the columns that it reads, and its column if it is a single one.

    Raises ValueError as :func:`compile_factor`.
    """
    columns = {column.name: column for column in schema.columns}
    declared = columns.get(expression)
    if declared is not None and category_labels(declared):
        return Part(expression, lambda values: values[expression], (0.0, 1.0)), frozenset((expression,)), declared
    factor = compile_factor(expression, schema)
    if factor.base is not None or len(factor.parts) != 1:
        raise FormulaError(f"formula must have a response of one number, got {expression!r}")
    return factor.parts[0], factor.columns, declared


def _vector(compiled: _Number) -> Callable[[Values], FloatArray]:
    def evaluate(values: Values) -> FloatArray:
        size = len(next(iter(values.values())))
        return np.array(np.broadcast_to(np.asarray(compiled.evaluate(values), dtype=np.float64), (size,)))

    return evaluate


def _syntax(expression: str) -> ast.expr:
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"formula must have factors in Python's syntax, got {expression!r}") from error
    if _depth(tree) > _DEEPEST:
        raise FormulaError(f"formula must have factors nested at most {_DEEPEST} deep")
    return tree


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _function_name(call: ast.Call) -> str:
    """Return the name of the called function, without ``np.``."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return (
            function.attr if function.value.id in ("np", "numpy", "contr") else f"{function.value.id}.{function.attr}"
        )
    return function.id if isinstance(function, ast.Name) else "?"


def _column(name: str, column: Column) -> Factor:
    used = frozenset((name,))
    if isinstance(column, ContinuousColumn):
        return Factor(name, used, (Part(name, lambda values: values[name], column.bounds),))
    labels = category_labels(column)
    if not labels:
        raise FormulaError(f"formula must not use column {name!r}, which the schema ignores: declare its kind")
    reference = column.reference if isinstance(column, CategoricalColumn) else None
    base = 0 if reference is None else labels.index(reference)
    return Factor(name, used, _indicators(name, name, labels), base)


def _indicators(expression: str, name: str, labels: Sequence[str]) -> tuple[Part, ...]:
    def indicator(code: int) -> Callable[[Values], FloatArray]:
        return lambda values: np.asarray(values[name] == code, dtype=np.float64)

    return tuple(Part(f"{expression}[{label}]", indicator(code), (0.0, 1.0)) for code, label in enumerate(labels))


def _categories(expression: str, call: ast.Call, columns: Mapping[str, Column]) -> Factor:
    """Return C(column), C(column, base="b"), C(column, contr.treatment("b")) or C(column, Treatment("b"))."""
    name = _name_argument(call, columns, "C")
    labels = category_labels(columns[name])
    if not labels:
        raise FormulaError(
            f"formula must have C() of a column whose categories are in the schema, and {name!r} is a number there: "
            "declare it as kind = 'categorical'"
        )
    plain = _column(name, columns[name])
    options = [(None, node) for node in call.args[1:]] + [(word.arg, word.value) for word in call.keywords]
    if not options:
        return plain
    word, node = options[0]
    if len(options) > 1 or word not in (None, "base", "contrasts"):
        raise FormulaError(f"formula must have C(column, base='level'), got {expression!r}: levels are the schema's")
    if isinstance(node, ast.Call):
        if _function_name(node) not in ("treatment", "Treatment") or len(node.args) + len(node.keywords) != 1:
            raise FormulaError(f"formula must have treatment contrasts, contr.treatment('level'), got {expression!r}")
        node = node.args[0] if node.args else node.keywords[0].value
    base = node.value if isinstance(node, ast.Constant) else None
    if str(base) not in labels:
        listed = ", ".join(map(repr, labels))
        raise FormulaError(f"formula must have a base level of {name!r} out of {listed}, got {expression!r}")
    return Factor(name, plain.columns, plain.parts, labels.index(str(base)))


def _name_argument(call: ast.Call, columns: Mapping[str, Column], function: str) -> str:
    first = call.args[0] if call.args else None
    if not isinstance(first, ast.Name) or first.id not in columns:
        raise FormulaError(f"formula must have {function}() of one column of the schema")
    return columns[first.id].name


def _continuous(call: ast.Call, columns: Mapping[str, Column], function: str) -> ContinuousColumn:
    column = columns[_name_argument(call, columns, function)]
    if not isinstance(column, ContinuousColumn):
        raise FormulaError(f"formula must have {function}() of a continuous column, and {column.name!r} is not one")
    return column


def _options(call: ast.Call, allowed: Sequence[str], function: str) -> dict[str, Any]:
    """Return the arguments after the first by name; they must be literals."""
    found: dict[str, Any] = {}
    pairs = list(zip(allowed, call.args[1:], strict=False))
    pairs += [(word.arg or "", word.value) for word in call.keywords]
    for name, node in pairs:
        if name not in allowed or name in found or len(call.args) > 1 + len(allowed):
            raise FormulaError(f"formula must have {function}() with {', '.join(allowed)} only, and each once")
        try:
            found[name] = ast.literal_eval(node)
        except (ValueError, TypeError) as error:
            raise FormulaError(f"formula must have {function}({name}=...) written out as numbers") from error
    return found


def _whole(value: Any, low: int, high: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FormulaError(f"formula must have {what} from {low} to {high}")
    return value


def _polynomials(expression: str, call: ast.Call, columns: Mapping[str, Column]) -> tuple[Part, ...]:
    """Return Legendre polynomials, orthonormal on the public bounds; powers where raw=True."""
    column = _continuous(call, columns, "poly")
    options = _options(call, ("degree", "raw"), "poly")
    degree = _whole(options.get("degree", 1), 1, _MOST_DEGREE, "poly(x, degree)")
    parts = []
    for order in range(1, degree + 1):
        if options.get("raw", False):
            evaluate, bounds = _power(column.name, order), intervals.power(column.bounds, order)
        else:
            largest = float(np.sqrt(2.0 * order + 1.0))
            evaluate, bounds = _legendre(column, order), (-largest, largest)
        parts.append(Part(f"{expression}[{order}]", evaluate, bounds))
    return tuple(parts)


def _power(name: str, order: int) -> Callable[[Values], FloatArray]:
    return lambda values: np.asarray(values[name] ** order)


def _legendre(column: ContinuousColumn, order: int) -> Callable[[Values], FloatArray]:
    low, high = column.bounds

    def evaluate(values: Values) -> FloatArray:
        at = (2.0 * values[column.name] - (low + high)) / (high - low)
        before, value = np.ones_like(at), at
        for index in range(1, order):
            before, value = value, ((2 * index + 1) * at * value - index * before) / (index + 1)
        return np.asarray(np.sqrt(2.0 * order + 1.0) * value)

    return evaluate


def _splines(expression: str, call: ast.Call, columns: Mapping[str, Column]) -> tuple[Part, ...]:
    """Return B-splines on the public bounds, without the first, which the intercept makes up for."""
    column = _continuous(call, columns, "bs")
    options = _spline_options(call)
    degree = _whole(options.get("degree", 3), 0, _MOST_DEGREE, "bs(degree=)")
    first = 0 if options.get("include_intercept", False) else 1
    low, high = column.bounds
    if options.get("knots") is not None:
        try:
            inner = [float(knot) for knot in options["knots"]]
        except (TypeError, ValueError) as error:
            raise FormulaError("formula must have bs(knots=[...]) written out as numbers") from error
    else:
        least = degree + 1 - first
        size = _whole(options.get("df"), max(least, 1), _MOST_KNOTS, "bs(x, knots=[...]), or bs(x, df=...) with a df")
        inner = np.linspace(low, high, size - least + 2)[1:-1].tolist()
    rising = all(left < right for left, right in pairwise([low, *inner, high]))
    if not rising or len(inner) > _MOST_KNOTS:
        raise FormulaError(f"formula must have bs() with rising knots within the public bounds [{low:g}, {high:g}]")
    knots = np.array([low] * (degree + 1) + inner + [high] * (degree + 1))
    size = len(knots) - degree - 1
    if size <= first:
        raise FormulaError("formula must have bs() with a degree of at least 1, or a knot")
    return tuple(
        Part(f"{expression}[{index + 1 - first}]", _spline(column.name, knots, degree, index), (0.0, 1.0))
        for index in range(first, size)
    )


def _spline_options(call: ast.Call) -> dict[str, Any]:
    """Return the options of bs(), or those of s() as such: `k` counts the constant among the functions."""
    if _function_name(call) == "bs":
        return _options(call, ("df", "knots", "degree", "include_intercept"), "bs")
    options = _options(call, ("k", "knots"), "s")
    if options.get("knots") is not None:
        return {"knots": options["knots"]}
    return {"df": _whole(options.get("k", _CURVE), _LEAST_CURVE, _MOST_KNOTS, "s(x, k=), a number of functions") - 1}


_BASES = {"poly": _polynomials, "bs": _splines, "s": _splines}


def _spline(name: str, knots: FloatArray, degree: int, index: int) -> Callable[[Values], FloatArray]:
    """Return one B-spline by the recursion of de Boor (1978), ch. IX; the last is closed on the right."""

    def basis(at: FloatArray, order: int, first: int) -> FloatArray:
        left, right = knots[first], knots[first + order + 1]
        if order == 0:
            inside = (at >= left) & ((at < right) | ((at == right) & (right == knots[-1]) & (left < right)))
            return np.asarray(inside, dtype=np.float64)
        value = np.zeros_like(at)
        if knots[first + order] > left:
            value = value + (at - left) / (knots[first + order] - left) * basis(at, order - 1, first)
        if right > knots[first + 1]:
            value = value + (right - at) / (right - knots[first + 1]) * basis(at, order - 1, first + 1)
        return value

    return lambda values: basis(values[name], degree, index)


def _compile(node: ast.expr, columns: Mapping[str, Column], whole: str) -> _Number:
    """Return a compiled expression of numbers; refuse operations that are not on the list."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        value = float(node.value)
        return _Number(lambda values: value, intervals.checked((value, value)), value)
    if isinstance(node, ast.Name):
        return _variable(node.id, columns, whole)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _compile(node.operand, columns, whole)
        if isinstance(node.op, ast.UAdd):
            return inner
        constant = None if inner.constant is None else -inner.constant
        return _Number(lambda values: -inner.evaluate(values), intervals.negate(inner.bounds), constant)
    try:
        if isinstance(node, ast.BinOp):
            return _operation(node, columns, whole)
        if isinstance(node, ast.Call):
            return _call(node, columns, whole)
    except FormulaError:
        raise
    except ValueError as error:
        raise FormulaError(f"formula must be defined within the public bounds: {whole!r} {error}") from error
    if isinstance(node, (ast.Compare, ast.BoolOp)):
        raise FormulaError(
            f"formula must not have comparisons, got {whole!r}: compute a column of two categories in the table "
            "before the fit, record by record, and declare it as kind = 'binary'"
        )
    raise FormulaError(f"formula must have factors of columns, numbers, + - * / ** and functions, got {whole!r}")


def _variable(name: str, columns: Mapping[str, Column], whole: str) -> _Number:
    column = columns.get(name)
    if column is None:
        listed = ", ".join(columns)
        raise FormulaError(f"formula must use columns of the schema ({listed}), got {name!r}")
    if not isinstance(column, ContinuousColumn):
        raise FormulaError(f"formula must compute with continuous columns only, and {name!r} in {whole!r} is not one")
    plain_name = column.name
    return _Number(lambda values: values[plain_name], column.bounds)


def _operation(node: ast.BinOp, columns: Mapping[str, Column], whole: str) -> _Number:
    left, right = _compile(node.left, columns, whole), _compile(node.right, columns, whole)
    if isinstance(node.op, ast.Add):
        return _Number(lambda v: left.evaluate(v) + right.evaluate(v), intervals.add(left.bounds, right.bounds))
    if isinstance(node.op, ast.Sub):
        difference = intervals.add(left.bounds, intervals.negate(right.bounds))
        return _Number(lambda v: left.evaluate(v) - right.evaluate(v), difference)
    if isinstance(node.op, ast.Mult):
        return _Number(lambda v: left.evaluate(v) * right.evaluate(v), intervals.multiply(left.bounds, right.bounds))
    if isinstance(node.op, ast.Div):
        return _Number(lambda v: left.evaluate(v) / right.evaluate(v), intervals.divide(left.bounds, right.bounds))
    if isinstance(node.op, ast.Pow) and right.constant is not None:
        exponent = right.constant
        return _Number(lambda v: left.evaluate(v) ** exponent, intervals.power(left.bounds, exponent))
    raise FormulaError(f"formula must have + - * / and powers with a number as exponent only, got {whole!r}")


def _call(node: ast.Call, columns: Mapping[str, Column], whole: str) -> _Number:
    name = _function_name(node)
    if name in _REFUSED:
        raise FormulaError(f"formula must do without {name}(): {_REFUSED[name]}")
    if name in ("center", "scale", "standardize"):
        column = _continuous(node, columns, name)
        if len(node.args) + len(node.keywords) != 1:
            raise FormulaError(f"formula must have {name}() of one column, got {whole!r}")
        mean, sd = column.public_location
        divisor = 1.0 if name == "center" else sd
        low, high = ((bound - mean) / divisor for bound in column.bounds)
        return _Number(lambda v: (v[column.name] - mean) / divisor, intervals.checked((low, high)))
    if name not in ("I", *intervals.FUNCTIONS) or len(node.args) != 1 or node.keywords:
        names = ", ".join(("I", "C", "poly", "bs", "s", "center", "scale", *intervals.FUNCTIONS))
        raise FormulaError(
            f"formula must use functions that act on one record and need nothing from the others ({names}, each of "
            f"one argument but for C, poly, bs and s, which stand alone), got {whole!r}"
        )
    inner = _compile(node.args[0], columns, whole)
    if name == "I":
        return inner
    function: Any = getattr(np, name)
    return _Number(lambda v: function(inner.evaluate(v)), intervals.FUNCTIONS[name](inner.bounds))
