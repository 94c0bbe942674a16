"""Names of coefficients and terms as R has them, ``jobnurse`` for ``job[T.nurse]``."""

import ast
import re

from dpinfer.formulas.factors import category_labels, compile_factor

_QUOTED = re.compile("`([^`]+)`")
_SYNTACTIC = re.compile(r"(?:[A-Za-z]|\.(?![0-9]))[A-Za-z0-9._]*")
_RESERVED = {"if", "else", "repeat", "while", "function", "for", "next", "break", "TRUE", "FALSE", "NULL", "NA", "in"}
_TRUTHS = {"true": "TRUE", "false": "FALSE"}
# As deparse() writes them: operator, its rank, and the ranks that its sides need to stand without parentheses.
_OPERATORS = {
    ast.Add: (" + ", 1, 1, 2),
    ast.Sub: (" - ", 1, 1, 2),
    ast.Mult: (" * ", 2, 2, 3),
    ast.Div: ("/", 2, 2, 3),
    ast.Pow: ("^", 4, 5, 4),
}


def words_of(design, names):
    """Return the coefficients' names in R, by their names in Python, in R's order: the first factor varies fastest."""
    terms = list(dict.fromkeys(column.term for column in design.columns))
    found = {}
    for column in design.columns:
        parts = [(*_part(text, part, design), text) for text, part in zip(column.term, column.parts, strict=True)]
        parts.sort(key=lambda own: _place(own[2], design))
        place = (terms.index(column.term), *(number for _, number, _ in reversed(parts)))
        found[column.name] = place, ":".join(word for word, *_ in parts)
    block = {"intercept": "(Intercept)"} | {name: found[name][1] for name in sorted(found, key=found.__getitem__)}
    words = dict(block)
    for own in design.classes[1:]:
        words |= {f"{own}:{name}": f"{own}:{word}" for name, word in block.items()}
    return {name: word for name, word in words.items() if name in names} | {
        name: name for name in names if name not in words
    }


def term_in_r(term, design):
    """Return a term's label in R."""
    return ":".join(_factor(text, design) for text in sorted(term, key=lambda text: _place(text, design)))


def _place(text, design):
    """Return where a factor first stands in the formula: R orders the factors of an interaction by this."""
    right = design.formula.text.replace(" ", "").partition("~")[2]
    plain = text.replace(" ", "")
    found = re.search(rf"(?<![\w.(]){re.escape(plain)}(?![\w.(])", right) or re.search(re.escape(plain), right)
    names = [column.name for column in design.schema.columns]
    # A factor of "all other columns" has the place of its column.
    return (found.start(), 0) if found else (len(right), names.index(text) if text in names else len(names))


def in_words_of_r(text, words):
    """Return a text with the names of coefficients in R's words; the intercept is a word of its own."""
    differing = {name: word for name, word in words.items() if name != word and name != "intercept"}
    if not differing:
        return text
    listed = "|".join(map(re.escape, sorted(differing, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.])(?:{listed})(?![\w.])", lambda found: differing[found[0]], text)


def _part(text, part, design):
    """Return the name of one column of a factor, and its number there."""
    factor = compile_factor(text, design.schema)
    own = _factor(text, design)
    if factor.base is not None:
        (name,) = factor.columns
        labels = category_labels(next(each for each in design.schema.columns if each.name == name))
        for number, (label, whole) in enumerate(zip(labels, factor.parts, strict=True)):
            if part.label in (whole.label, whole.label.replace("[", "[T.", 1)):
                return own + _TRUTHS.get(label, label), number
    number = [each.label for each in factor.parts].index(part.label) + 1
    if len(factor.parts) > 1:
        return (f"{own}.{number}" if own.startswith("s(") else f"{own}{number}"), number
    return own, number


def _factor(text, design):
    if text in {column.name for column in design.schema.columns}:
        return _name(text)
    quoted = dict.fromkeys(_QUOTED.findall(text))
    aliases = {name: f"_quoted_{number}_" for number, name in enumerate(quoted)}
    tree = ast.parse(_QUOTED.sub(lambda found: aliases[found[1]], text), mode="eval").body
    return _expression(tree, {alias: name for name, alias in aliases.items()})[0]


def _name(name):
    return name if _SYNTACTIC.fullmatch(name) and name not in _RESERVED else f"`{name}`"


def _expression(node, names):
    """Return an expression in R's syntax, and its rank."""
    if isinstance(node, ast.Constant):
        return _constant(node.value), 9
    if isinstance(node, ast.Name):
        return _name(names.get(node.id, node.id)), 9
    if isinstance(node, ast.List):
        return f"c({', '.join(_expression(item, names)[0] for item in node.elts)})", 9
    if isinstance(node, ast.UnaryOp):
        sign = "-" if isinstance(node.op, ast.USub) else "+"
        return sign + _enclosed(node.operand, 3, names), 3
    if isinstance(node, ast.BinOp):
        operator, rank, left, right = _OPERATORS[type(node.op)]
        return _enclosed(node.left, left, names) + operator + _enclosed(node.right, right, names), rank
    return _call(node, names), 9


def _enclosed(node, rank, names):
    text, own = _expression(node, names)
    return text if own >= rank else f"({text})"


def _call(node, names):
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    given = [_expression(item, names)[0] for item in node.args]
    words = [(word.arg, _expression(word.value, names)[0]) for word in node.keywords]
    if name == "C":
        if words:
            return f"relevel({given[0]}, ref = {words[0][1]})"
        name = "factor" if len(given) == 1 else "C"
    return f"{name}({', '.join([*given, *(f'{word} = {value}' for word, value in words)])})"


def _constant(value):
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:.15g}" if isinstance(value, (int, float)) else "NULL"
