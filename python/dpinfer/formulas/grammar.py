"""From the text of a formula to its response and terms: formulaic reads the grammar, and nothing else of it is used.

**Privacy.** Reads no records.
"""

import re
from dataclasses import dataclass

from dpinfer.errors import BackendUnavailableError

__all__ = ["Formula", "parse"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m|[⧛⧚]")
_LONGEST = 10_000
_COMPARISON = re.compile(r"[<>]|[=!]=")
_EVERY = re.compile("`(.+)` ~ \\.")
_OFFSET = re.compile(r"offset\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Formula:
    """A formula that has been read.

    Parameters
    ----------
    text : str
    response : str
        The expression on the left.
    terms : tuple of tuples of str
        The factors of each term on the right, in order; the intercept is not among them.
    intercept : bool
    offsets : tuple of str
        Expressions whose coefficient is known to be 1.
    """

    text: str
    response: str
    terms: tuple[tuple[str, ...], ...]
    intercept: bool
    offsets: tuple[str, ...] = ()


def parse(text: str, names: tuple[str, ...]) -> Formula:
    """Read a formula.

    **Privacy.** Reads no records.

    Parameters
    ----------
    text : str
        As in R: ``y ~ age + C(job) + age:sex``; ``- 1`` leaves the intercept out, ``.`` stands for all other columns.
    names : tuple of str
        The columns that ``.`` stands for, the response included.

    Raises
    ------
    TypeError, ValueError
        If it is not a formula with one response.
    BackendUnavailableError
        If formulaic is not installed.
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
    try:
        parsed = formulaic.Formula(text, _context={"__formulaic_variables_available__": list(names)})
        left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
        sides = [None if side is None or isinstance(side, tuple) else list(side) for side in (left, right)]
    except (FormulaicError, SyntaxError, ValueError, TypeError, RecursionError) as error:
        told = " ".join(_COLOURS.sub("", str(error)).split())
        if _COMPARISON.search(text):
            told += ". Comparisons: make a column of two categories in the table before the fit, kind = 'binary'"
        raise ValueError(f"formula must be like 'y ~ age + C(job)', got {text!r}: {told}") from error
    if sides[0] is None or sides[1] is None or len(sides[0]) != 1:
        raise ValueError(f"formula must have one response and one part, as in 'y ~ age + C(job)', got {text!r}")
    (response,) = sides[0]
    terms = [tuple(factor.expr for factor in term.factors) for term in sides[1]]
    kept = tuple(term for term in terms if term != ("1",))
    if any("1" in term or "0" in term for term in kept):
        raise ValueError(f"formula must have terms of columns, got {text!r}")
    found = [_OFFSET.fullmatch(term[0]) if len(term) == 1 else None for term in kept]
    offsets = tuple(match[1] for match in found if match is not None)
    others = tuple(term for term, match in zip(kept, found, strict=True) if match is None)
    return Formula(text, str(response), others, len(kept) < len(terms), offsets)
