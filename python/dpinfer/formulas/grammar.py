"""Parsing of a formula into response and terms: only the grammar of formulaic is used.

**Privacy.** Reads no records.
"""

import re
from dataclasses import dataclass

from dpinfer.errors import BackendUnavailableError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m|[⧛⧚]")
_LONGEST = 10_000  # characters: no reasonable formula is longer, and the parser's time is bounded
_COMPARISON = re.compile(r"[<>]|[=!]=")
_EVERY = re.compile("`(.+)` ~ \\.")
_CURVE = re.compile(r"s\(")
_NO_INTERCEPT = re.compile(r"[~+]\s*0\b|-\s*1\b")
_QUOTED_TEXT = re.compile("`[^`]*`|'[^']*'|\"[^\"]*\"")
_OFFSET = re.compile(r"offset\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Formula:
    """A formula that has been read."""

    text: str
    response: str  # the expression on the left
    # the factors of each term on the right, in order; the intercept is not among them
    terms: tuple[tuple[str, ...], ...]
    intercept: bool
    offsets: tuple[str, ...] = ()  # expressions whose coefficient is known to be 1
    # terms whose coefficients have a prior with an unknown scale: ``(1 | site)``, ``s(age)``
    levels: tuple[str, ...] = ()
    person: "Group | None" = None  # term of effects of persons; its column names the person of each row


def parse(
    # as in R: ``y ~ age + C(job) + age:sex``; ``- 1`` leaves the intercept out, ``.`` means all other columns; ``(1 |
    # site)`` as in lme4, ``s(age)`` as in mgcv
    text: str,
    names: tuple[str, ...],  # the columns of ``.``, the response included
    person: str = "",  # the column that identifies the person of each row: its term has effects of persons
) -> Formula:
    """Read a formula.

    Raises TypeError or ValueError if it is not a formula with one response. Raises BackendUnavailableError if formulaic
    is not installed.
    """
    if not isinstance(text, str):
        raise TypeError(f"formula must be a string, got {type(text).__name__}")
    if len(text) > _LONGEST:
        raise ValueError(f"formula must have at most {_LONGEST} characters")
    every = _EVERY.fullmatch(text)
    if every is not None and every[1] in names:
        # All columns need no grammar, and so no package that reads it.
        return Formula(text, every[1], tuple((name,) for name in names if name != every[1]), True)
    try:
        import formulaic
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise BackendUnavailableError("a formula needs formulaic: pip install 'dpinfer[formula]'") from error
    plain, groups = split_groups(text)
    try:
        parsed = formulaic.Formula(plain, _context={"__formulaic_variables_available__": list(names)})
        left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
        sides = [None if side is None or isinstance(side, tuple) else list(side) for side in (left, right)]
    except (FormulaicError, SyntaxError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(_COLOURS.sub("", str(error)).split())
        if _COMPARISON.search(text):
            reason += ". Comparisons: make a column of two categories in the table before the fit, kind = 'binary'"
        raise ValueError(f"formula must be like 'y ~ age + C(job)', got {text!r}: {reason}") from error
    if sides[0] is None or sides[1] is None or len(sides[0]) != 1:
        raise ValueError(f"formula must have one response and one part, as in 'y ~ age + C(job)', got {text!r}")
    (response,) = sides[0]
    terms = [tuple(factor.expr for factor in term.factors) for term in sides[1]]
    remaining = tuple(term for term in terms if term != ("1",))
    if any("1" in term or "0" in term for term in remaining):
        raise ValueError(f"formula must have terms of columns, got {text!r}")
    matches = [_OFFSET.fullmatch(term[0]) if len(term) == 1 else None for term in remaining]
    offsets = tuple(match[1] for match in matches if match is not None)
    others = tuple(term for term, match in zip(remaining, matches, strict=True) if match is None)
    intercept = len(remaining) < len(terms)
    own, groups = _person_of(groups, person)
    others, levels = _with_levels(others, groups)
    if own is not None and (levels or not intercept or _NO_INTERCEPT.search(plain)):
        raise ValueError(
            f"formula must have an intercept and no other effects with {own.text}, got {text!r}: crossed and nested "
            "effects are not there; a column of few groups can be a term of its own"
        )
    if levels and (not intercept or (groups and _NO_INTERCEPT.search(plain))):
        raise ValueError(f"formula must have an intercept with {levels[0]}, got {text!r}")
    return Formula(text, str(response), others, intercept, offsets, levels, own)


Terms = tuple[tuple[str, ...], ...]


def _person_of(groups: tuple["Group", ...], person: str) -> tuple["Group | None", tuple["Group", ...]]:
    """Return the term of persons, and the others."""
    matching = [group for group in groups if person and group.name == person]
    if len(matching) > 1:
        raise ValueError(f"formula must have one term of {person!r}, got {matching[0].text} and {matching[1].text}")
    if matching and not (matching[0].intercept and matching[0].correlated):
        raise ValueError(f"formula must have (1 | {person}) or (1 + x | {person}), got {matching[0].text}")
    return (matching[0] if matching else None), tuple(group for group in groups if group not in matching)


def _with_levels(terms: Terms, groups: tuple["Group", ...]) -> tuple[Terms, tuple[str, ...]]:
    """Return the terms that a run measures, and the texts of those whose coefficients have an unknown scale."""
    curves = tuple(term[0] for term in terms if len(term) == 1 and _CURVE.match(term[0]))
    if any(_CURVE.match(factor) for term in terms if len(term) > 1 for factor in term):
        raise ValueError("formula must have s() as a term of its own: an interaction of curves is not there")
    for group in groups:
        if (group.name,) in terms or (f"C({group.name})",) in terms:
            raise ValueError(f"formula must have {group.name!r} either by itself or in {group.text}, not both")
        added = (*(((group.name,),) if group.intercept else ()), *(((group.slope, group.name),) if group.slope else ()))
        terms += tuple(term for term in added if term not in terms)
    return terms, (*(group.text for group in groups), *curves)


@dataclass(frozen=True)
class Group:
    """A term ``(1 + slope | name)``."""

    text: str
    name: str  # of the column of categories
    intercept: bool
    slope: str  # the expression with a varying coefficient; empty without one
    correlated: bool  # ``|`` and not ``||``


def split_groups(text: str) -> tuple[str, tuple[Group, ...]]:
    """Return a formula without its terms ``(... | site)``, and these terms.

    Raises ValueError if such a term is not one of a single column of groups.
    """
    found: list[Group] = []
    plain, at = "", 0
    for begin, end in _parentheses(text):
        inside = text[begin + 1 : end]
        before = text[:begin].rstrip()
        if "|" in _QUOTED_TEXT.sub("", inside) and (not before or before[-1] in "~+"):
            found.append(read_group(inside))
            plain, at = plain + text[at:begin] + "1", end + 1
    return plain + text[at:], tuple(found)


def _parentheses(text: str) -> list[tuple[int, int]]:
    """Return the places of the outermost parentheses."""
    depth, begin, found = 0, 0, []
    for place, letter in enumerate(_QUOTED_TEXT.sub(lambda quoted: " " * len(quoted[0]), text)):
        if letter == "(":
            begin, depth = (place if depth == 0 else begin), depth + 1
        elif letter == ")":
            depth -= 1
            if depth == 0:
                found.append((begin, place))
    return found


def read_group(inside: str) -> Group:
    """Parse the content of the parentheses of ``(1 + x | site)``.

    Raises ValueError if it is not an intercept, a slope or both that vary with one column.
    """
    left, bar, name = (part.strip() for part in inside.partition("|"))
    correlated = not name.startswith("|")
    name = name.removeprefix("|").strip()
    quoted = len(name) > 2 and name[0] == name[-1] == "`" and "`" not in name[1:-1]
    name = name.strip("`")
    special = any(letter in name for letter in "/:*|")
    text = f"({left} {bar if correlated else '||'} {f'`{name}`' if special and quoted else name})"
    if special and not quoted:
        raise ValueError(
            f"formula must have one column of groups in {text}: nested groups are not there; make one column of both "
            "in the table, whose categories the schema declares; a name with such a letter is written in backticks"
        )
    if not name or not left:
        raise ValueError(f"formula must have groups like (1 | site) or (1 + x | site), got {text}")
    parts = [part.strip() for part in left.split("+")]
    slopes = [part for part in parts if part not in ("0", "1")]
    if len(slopes) > 1 or any(letter in left for letter in ":*|"):
        raise ValueError(f"formula must have at most one slope for each group, (1 + x | site), got {text}")
    intercept = "0" not in parts
    if not intercept and not slopes:
        raise ValueError(f"formula must have something that varies in {text}")
    return Group(text, name, intercept, slopes[0] if slopes else "", correlated)
