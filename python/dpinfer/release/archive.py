"""Arrays and text in one zip that NumPy can read as ``.npz``, read without executing anything or trusting any size.

The reader accepts only the writer's format: stored members, and arrays of plain numbers. So nothing is
decompressed, no array is larger than the file, and NumPy's more general reader of headers is not needed.
"""

import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"\x93NUMPY\x01\x00"
# Each repetition must end in a comma: nothing here can be matched in two ways, so that a long header costs no time.
_HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf][1248])', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, )*(?:\d{1,18},?)?)\), \} *\n"
)
_PREFIX = len(_MAGIC) + 2  # NumPy's format: magic, then two bytes of length


def pack_archive(members: Mapping[str, str | npt.NDArray[Any]]) -> bytes:
    """Return a zip of the members, arrays as ``.npy``; equal members give equal bytes.

    **Privacy.** Callers pass releases and post-processing only.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, value in members.items():
            content: str | bytes
            if isinstance(value, str):
                content = value
            else:
                stream = io.BytesIO()
                np.save(stream, value, allow_pickle=False)
                content = stream.getvalue()
            # A fixed date, so that equal results give equal files.
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def unpack_archive(content: bytes) -> dict[str, bytes]:
    """Return the members of a zip, after checking every checksum.

    Raises ValueError if it is not a zip that :func:`pack_archive` could have made; never anything else.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            listed = archive.infolist()
            if len({item.filename for item in listed}) != len(listed):
                raise ValueError("two members have one name")
            for item in listed:
                # Members are stored uncompressed, so that together they are no larger than the file.
                if item.compress_type != zipfile.ZIP_STORED or item.file_size != item.compress_size:
                    raise ValueError("a member is compressed")
            if sum(item.file_size for item in listed) > len(content):
                raise ValueError("the members are larger than the file")
            return {item.filename: archive.read(item) for item in listed}
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        ArithmeticError,
        EOFError,
        LookupError,
        MemoryError,
        OSError,
        RuntimeError,
        TypeError,
    ) as error:
        raise ValueError(f"it is not a whole archive ({type(error).__name__})") from error


def unpack_array(content: bytes) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file of plain numbers.

    Raises ValueError if it is anything else, or its length contradicts its header.
    """
    if content[: len(_MAGIC)] != _MAGIC or len(content) < _PREFIX:
        raise ValueError("it is not an array")
    start = _PREFIX + int.from_bytes(content[len(_MAGIC) : _PREFIX], "little")
    header = _HEADER.fullmatch(content[_PREFIX:start])
    if header is None:
        raise ValueError("it is not an array of plain numbers")
    kind = np.dtype(header[1].decode())
    shape = tuple(int(size) for size in re.findall(rb"\d+", header[3]))
    if len(shape) > 8 or math.prod(shape) * kind.itemsize != len(content) - start:
        raise ValueError("an array is cut off or has more than its numbers")
    if kind.kind == "b" and set(content[start:]) - {0, 1}:
        raise ValueError("a truth value is none")
    flat = np.frombuffer(content, kind, offset=start)
    return flat.reshape(shape, order="F" if header[2] == b"True" else "C").copy()


def parse_json(content: bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds.

    Raises ValueError if it is not JSON, or holds something else; never anything else.
    """
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("it does not hold an object")
    return document
