"""Fuzzing: inputs made by mutation, and targets that must return or raise an error they document.

Everything is a function of a seed.  `bench/privacy/fuzz.py` runs millions of inputs,
`tests/privacy/test_fuzz.py` some hundred.
"""

import copy
import json
import math
import random

NUMBERS = [
    0, 1, -1, 2, 3, 7, 64, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53,
    2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400,
    0.0, -0.0, 0.5, 1.0, 1e-5, 1e-308, 5e-324, 1e30, 1e154, 1e308, -1e308,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
VALUES = [
    None,
    True,
    False,
    "",
    "x",
    "pld",
    "add_remove",
    "../../etc/passwd",
    "\x00",
    "\ud800",
    "é" * 300,
    [],
    {},
    [[]],
    [0],
    {"type": "gaussian"},
]
TOKENS = [
    b"1e309", b"-1", b"NaN", b"nan", b"inf", b"-0", b"1e-400", b"null", b"true", b"[]", b"{}", b'""', b"'", b'"', b",",
    b"\n", b"\r", b"\x00", b"\xff", b"[" * 2000, b"{" * 2000, b'{"a":' * 2000, b"9" * 5000, b"'O'", b"'|O'", b"'descr'",
    b"\\u0000", b"PK\x01\x02", b"PK\x03\x04", b"..",
    b"\xe2\x80\xae", b"0x", b"1_0", b"a.b.c = 1\n", b"[columns.x]\n", b"=", b"True", b"__import__('os')",
]  # fmt: skip
WORDS = [0, 1, 2, 3, 4, 7, 8, 16, 100, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]


class UndocumentedError(Exception):
    """A target raised something that it does not document."""


def mutated_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return `data` after a few changes of the kinds that break parsers."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        kind = rng.randrange(10)
        at = rng.randrange(len(out) + 1)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[at % len(out)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            del out[at : at + rng.choice((1, 2, 4, 16, 100, 10_000))]
        elif kind == 3:
            start = rng.randrange(len(out) + 1)
            out[at:at] = out[start : start + rng.choice((1, 8, 64, 512))]
        elif kind == 4:
            out[at : at + rng.choice((0, 0, 1, 4))] = rng.choice(TOKENS)
        elif kind == 5:
            size = rng.choice((1, 2, 4, 8))
            word = rng.choice(WORDS) % (1 << (8 * size))
            out[at : at + size] = word.to_bytes(size, rng.choice(("little", "big")))
        elif kind == 6:
            del out[at:]
        elif kind == 7:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            out[at : at + rng.choice((0, 10, 1000))] = other[start : start + rng.choice((10, 100, 5000))]
        elif kind == 8:
            out[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        else:
            out[at : at + rng.choice((1, 8, 100))] = bytes(rng.choice((1, 8, 100)))
    return bytes(out)


def mutated_document(rng: random.Random, document):
    """Return a JSON-like document with some nodes exchanged, removed or added."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = []
        _collect(document, places)
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        parent, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[rng.choice(("type", "event", "x", "format", ""))] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 2 and isinstance(parent[key], (dict, list)):
            other, name = rng.choice(places)
            parent[key] = copy.deepcopy(other[name])
        elif kind == 3 and isinstance(parent[key], list):
            parent[key] = parent[key] * rng.choice((0, 2, 50))
        else:
            parent[key] = copy.deepcopy(rng.choice(NUMBERS if rng.random() < 0.6 else VALUES))
    return document


def _collect(node, places):
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        places.append((node, key))
        _collect(value, places)


def json_text(document) -> bytes:
    """Return the document as text, with what JSON does not know (NaN, lone surrogates) written all the same."""
    return json.dumps(document).encode()


class Target:
    """One thing to feed: :meth:`one` makes an input from the generator and gives it to the target."""

    documented: tuple[type[BaseException], ...] = ()

    def one(self, rng: random.Random) -> bool:
        """Return whether the input was accepted."""
        try:
            self.feed(rng)
        except self.documented:
            return False
        except Exception as error:
            raise UndocumentedError(f"{type(self).__name__}: {type(error).__name__}: {error}") from error
        return True

    def feed(self, rng: random.Random) -> None:
        """Make one input and give it to the target."""
        raise ValueError("a target must say how it is fed")
