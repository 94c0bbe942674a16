"""Messages between a coordinator and its sites: plain values and arrays as bytes, and back.

Messages carry no code and nothing is unpickled: they are decoded into numbers, strings, arrays, and the public
dataclasses of the passes of a private Newton run.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer.errors import SiloError
from dpinfer.models import Model

_MAGIC = b"dpinfer silos 1\n"
_TAG = "%"
_TYPES = {"<f8", "<f4", "<i8", "<u8", "|b1", "<i4"}
# The dataclasses of messages, by module of the library: queries of passes (questions.py), and a table that one holds.
QUERIES: Mapping[str, tuple[str, ...]] = {
    "mechanism.newton.contributions": (
        *("LogScaleCounts", "FeatureMeans", "SecondMoments", "RobustScores", "ClippedScores", "ClippedCurvatures"),
    ),
    "mechanism.newton.joint": (*("JointScores", "Curvatures", "ScoreProducts", "Sizes", "UnitSizes", "UnitProducts"),),
    "mechanism.newton.own_rows": ("CentredScores",),
    "mechanism.newton.own_clipped_model": ("ClippedScores",),
    "mechanism.newton.own_population": ("OwnScores", "OwnCurvatures"),
    "models.clipping": ("ClippedResidual",),
}


@dataclass(frozen=True)
class Message:
    """A decoded message."""

    kind: str
    fields: dict[str, Any]

    def take(self, name: str, kind: type[Any]) -> Any:
        """Return a field of this type.

        Raises SiloError if it is missing, or of another type.
        """
        value = self.fields.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise SiloError(f"a message {self.kind!r} must have the field {name!r}, of type {kind.__name__}")
        return value


def pack(kind: str, **content: Any) -> bytes:
    """Return a message as bytes.

    It may hold numbers, strings, bytes, None, lists, tuples, dicts with strings for keys, arrays, and queries.  A model
    within a query is left out: it is that of the session.

    Raises TypeError if a value is of another kind.
    """
    blobs: list[bytes] = []
    header = json.dumps({"kind": kind, "fields": _plain(content, blobs)}, separators=(",", ":")).encode()
    return b"".join((_MAGIC, len(header).to_bytes(8, "little"), header, *blobs))


def unpack(message: bytes, model: Model | None = None) -> Message:
    """Return the argument of :func:`pack`; queries refer to the model of the session.

    Raises SiloError if it is not a message.
    """
    try:
        header, end = _header(message)
        found = _value(header["fields"], memoryview(message)[end:], model)
        return Message(str(header["kind"]), dict(found))
    except SiloError:
        raise
    except Exception as error:
        raise SiloError(f"a message is damaged ({type(error).__name__})") from None


def asked_of_pass(index: int, alive: Sequence[int], query: bytes) -> bytes:
    """Return the hash of a site's question in a pass: the number of the pass, the present sites, and the query."""
    return hashlib.sha256(pack("asked", index=index, alive=sorted(alive), query=query)).digest()


def _blob(data: bytes, blobs: list[bytes]) -> list[int]:
    at = sum(map(len, blobs))
    blobs.append(data)
    return [at, at + len(data)]


def _plain(value: Any, blobs: list[bytes]) -> Any:
    """Return a value as JSON, with its bytes in `blobs`."""
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {_TAG: "bytes", "at": _blob(value, blobs)}
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        if array.dtype.str not in _TYPES:
            raise TypeError(f"an array of a message must be of {sorted(_TYPES)}, got {array.dtype.str!r}")
        return {_TAG: "array", "type": array.dtype.str, "shape": value.shape, "at": _blob(array.tobytes(), blobs)}
    if isinstance(value, Model):
        return {_TAG: "model"}
    if isinstance(value, list):
        return [_plain(item, blobs) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [_plain(item, blobs) for item in value]}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and key != _TAG for key in value):
            raise TypeError("a mapping of a message must have strings for keys")
        return {key: _plain(item, blobs) for key, item in value.items()}
    kind = type(value)
    if is_dataclass(value) and _may_travel(kind.__module__, kind.__qualname__):
        content = {item.name: _plain(getattr(value, item.name), blobs) for item in fields(value)}
        return {_TAG: "record", "module": kind.__module__, "name": kind.__qualname__, "fields": content}
    raise TypeError(f"a message must hold plain values and arrays, got {kind.__name__}")


def _may_travel(module: str, name: str) -> bool:
    """Return whether a message may hold this dataclass."""
    return name in QUERIES.get(module.removeprefix("dpinfer."), ()) and module in sys.modules


def _value(item: Any, blobs: memoryview, model: Model | None) -> Any:
    """Return the value of a piece of JSON."""
    if isinstance(item, list):
        return [_value(each, blobs, model) for each in item]
    if not isinstance(item, dict):
        return item
    tag = item.get(_TAG)
    if tag is None:
        return {key: _value(each, blobs, model) for key, each in item.items()}
    if tag == "tuple":
        return tuple(_value(each, blobs, model) for each in item["items"])
    if tag == "model" and model is not None:
        return model
    if tag == "record" and _may_travel(item["module"], item["name"]):
        kind = getattr(sys.modules[item["module"]], item["name"])
        return kind(**_value(item["fields"], blobs, model))
    if tag in ("bytes", "array"):
        first, last = item["at"]
        data = bytes(blobs[first:last])
        if len(data) != last - first or first < 0:
            raise SiloError("a message is cut short")
        if tag == "bytes":
            return data
        if item["type"] in _TYPES:
            # A copy: kernels read aligned numbers.
            return np.frombuffer(data, dtype=item["type"]).reshape(item["shape"]).copy()
    raise SiloError("a message holds fields unknown to this protocol")


class Transcript:
    """The messages seen by one end of a line: a chain of hashes, and a line of a file for each.

    Both ends have the same chain as long as they saw the same messages, and can compare chains afterwards.

    **Privacy.** The file has kinds, sizes and hashes of messages, and no message.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path  # of a file that lines of JSON are appended to
        self._chain = hashlib.sha256(_MAGIC).digest()
        self.n_bytes = {"coordinator": 0, "site": 0}

    def save(self) -> dict[str, Any]:
        """Return the chain as plain data for :meth:`load`."""
        return {"chain": self._chain, "n_bytes": self.n_bytes}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from where another transcript was saved."""
        self._chain, self.n_bytes = bytes(saved["chain"]), dict(saved["n_bytes"])

    @property
    def digest(self) -> str:
        """The chain's last link, in hexadecimal."""
        return self._chain.hex()

    def add(self, sender: str, message: bytes) -> None:
        """Note a message from "coordinator" or "site"."""
        own = hashlib.sha256(message).digest()
        self._chain = hashlib.sha256(self._chain + sender.encode() + own).digest()
        self.n_bytes[sender] += len(message)
        if self._path is not None:
            line = {"from": sender, "kind": kind_of(message), "bytes": len(message), "sha256": own.hex()}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line | {"chain": self.digest}) + "\n")


def kind_of(message: bytes) -> str:
    """Return the kind of a message, whatever the bytes are."""
    try:
        return str(_header(message)[0]["kind"])
    except Exception:
        # Whoever sends it: no text of JSON may end a site.
        return "not a message"


def _header(message: bytes) -> tuple[Any, int]:
    """Return the header of a message, and where its blobs begin."""
    start = len(_MAGIC) + 8
    if message[: len(_MAGIC)] != _MAGIC or len(message) < start:
        raise SiloError("the received bytes are not a message of this protocol")
    end = start + int.from_bytes(message[len(_MAGIC) : start], "little")
    return json.loads(message[start:end]), end
