"""Columns that readers meet and nobody planned for: each a list of values, of the kinds of public reports.

A column has numbers between 0 and 10 and hostile values among them: once, in half of its places, in all but three, or
everywhere.  What a column means is said value by value by :func:`dpinfer._values.number_of`.
"""

import datetime as dt
from decimal import Decimal
from fractions import Fraction

import numpy as np

SIZE = 60
DAY = dt.date(2020, 1, 2)
VALUES = {
    "none": None,
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "minus zero": -0.0,
    "subnormal": 5e-324,
    "huge": 1e300,
    "integer": 7,
    "large integer": 2**53 + 1,
    "larger integer": 2**70,
    "largest integer": 10**400,
    "true": True,
    "false": False,
    "complex": 3 + 4j,
    "real complex": 3 + 0j,
    "text": "x",
    "empty text": "",
    "spaces": "   ",
    "question mark": "?",
    "number as text": "2.5",
    "padded": " 2.5 ",
    "exponent": "1e1",
    "thousands": "8,123.45",
    "decimal comma": "2,5",
    "underscores": "1_000",
    "unit": "3 kg",
    "word for missing": "NA",
    "nan as text": "nan",
    "infinity as text": "Infinity",
    "hexadecimal": "0x1F",
    "arabic digits": "\u0663",
    "minus of typographers": "\u22122",
    "space that does not break": "2\u00a0000",
    "date as text": "2020-01-02",
    "null character": "2\x00",
    "lone surrogate": "\ud800",
    "long text": "9" * 5000,
    "bytes": b"2.5",
    "broken bytes": b"\xff\xfe",
    "date": DAY,
    "moment": dt.datetime(2020, 1, 2, 3),
    "moment with zone": dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
    "time": dt.time(9, 30),
    "duration": dt.timedelta(1),
    "decimal": Decimal("2.50"),
    "decimal nan": Decimal("NaN"),
    "fraction": Fraction(1, 3),
    "list": [1.0],
    "tuple": (1.0, 2.0),
    "mapping": {"a": 1.0},
    "object": object(),
    "array": np.array([1.0, 2.0]),
    "single precision": np.float32(0.1),
    "small integer": np.int8(3),
    "unsigned": np.uint64(2**63),
    "NumPy's date": np.datetime64("2020-01-02"),
    "no time": np.datetime64("NaT"),
    "NumPy's duration": np.timedelta64(1, "D"),
    "masked": np.ma.masked,
}
SHARES = {"once": 1, "half": SIZE // 2, "all but three": SIZE - 3, "everywhere": SIZE}


def columns(count=200):
    """Return the first `count` columns by name, deterministic; the hostile value stands last and first in turn."""
    rng = np.random.default_rng(20261128)
    found = {}
    for share, places in SHARES.items():
        for name, value in VALUES.items():
            plain = [float(number) for number in np.round(rng.uniform(0.0, 10.0, SIZE - places), 3)]
            hostile = [value] * places
            found[f"{name}, {share}"] = plain + hostile if len(found) % 2 else hostile + plain
    names = list(found)
    # Of each share, and not the last ones: the list is longer than asked for.
    chosen = sorted(rng.permutation(len(names))[:count].tolist())
    return {names[place]: found[names[place]] for place in chosen}
