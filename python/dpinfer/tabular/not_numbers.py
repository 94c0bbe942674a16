"""Kinds of texts in numeric columns that are not numbers.

**Privacy.** Looks at values of records, one by one; keeps nothing.
"""

import re
from enum import StrEnum


class NotANumber(StrEnum):
    """Why a text is no number, for the curator."""

    MISSING_WORD = "a text that looks like a missing value"
    DECIMAL_COMMA = "a decimal comma"
    THOUSANDS = "a thousands separator"
    COMMA = "a comma before three digits, decimal or thousands"
    UNIT = "a number with a unit or a sign"
    TEXT = "text"


_MISSING_WORD = re.compile(r"|\?|--?|\.|#?n/?a|-?nan|null|none|nil|missing|unknown|#value!", re.IGNORECASE)
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_DECIMAL_COMMA = re.compile(rf"[+-]?\d*,\d+{_EXPONENT}|[+-]?\d{{1,3}}(?:[. '’_]\d{{3}})+,\d+")
# A point groups thousands only twice or more: once it is a decimal point, and a number.
_THOUSANDS = re.compile(
    r"[+-]?\d{1,3}(?:(?:,\d{3})+\.\d*|(?:,\d{3}){2,}|(?:[ '’]\d{3})+(?:\.\d*)?|(?:\.\d{3}){2,})"
    r"|[+-]?\d+(?:_\d+)+(?:\.\d*)?"
)
_COMMA = re.compile(r"[+-]?\d{1,3},\d{3}")
_NUMBER = rf"[+-]?\d+(?:[.,]\d+)*{_EXPONENT}"
_SIGN = r"[$€£¥<>≤≥=~≈±%°‰]"
_UNIT = re.compile(rf"(?:{_SIGN}{{1,2}}\s*)?{_NUMBER}\s*(?:[^\W\d_]|{_SIGN}).{{0,15}}|{_SIGN}{{1,2}}\s*{_NUMBER}")


def kind_of(text: str) -> NotANumber:
    """Return the kind of a text that is not a number.

    Parameters
    ----------
    text : str
        A value that ``float`` does not read, or reads as NaN, or that holds an underscore.

    Examples
    --------
    >>> [kind_of(text).name for text in ("3,14", "1,234,567", "12 mg", "n/a", "heavy")]
    ['DECIMAL_COMMA', 'THOUSANDS', 'UNIT', 'MISSING_WORD', 'TEXT']
    """
    # Spaces that do not break group thousands.
    plain = text.strip().replace("\u00a0", " ").replace("\u202f", " ").replace("\u2212", "-")
    for kind, pattern in (
        (NotANumber.MISSING_WORD, _MISSING_WORD),
        (NotANumber.COMMA, _COMMA),
        (NotANumber.DECIMAL_COMMA, _DECIMAL_COMMA),
        (NotANumber.THOUSANDS, _THOUSANDS),
        (NotANumber.UNIT, _UNIT),
    ):
        if pattern.fullmatch(plain):
            return kind
    return NotANumber.TEXT
