"""Arrays and a JSON document in one zip that NumPy can read as ``.npz`` and that never executes what it reads."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.errors import StudyFormatError

__all__ = ["pack", "unpack"]

_DOCUMENT = "document.json"


def pack(document: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the content of an archive; equal content gives equal bytes.

    **Privacy.** Writes what it is given: results of simulations.

    Parameters
    ----------
    document : mapping
        Plain values; numbers finite.
    arrays : mapping from name to array

    Returns
    -------
    bytes
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry(_DOCUMENT), json.dumps(document, allow_nan=False, sort_keys=True, indent=1))
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            archive.writestr(_entry(f"{name}.npy"), content.getvalue())
    return buffer.getvalue()


def unpack(content: bytes, kind: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the document and the arrays of an archive, after checking every checksum.

    **Privacy.** Results of simulations.

    Parameters
    ----------
    content : bytes
    kind : str
        What the document's ``format`` must be.

    Returns
    -------
    document : dict
    arrays : dict

    Raises
    ------
    StudyFormatError
        If it is damaged or of another kind.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            document = json.loads(archive.read(_DOCUMENT))
            arrays = {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        KeyError,
        MemoryError,
        NotImplementedError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise StudyFormatError(f"the file is damaged or of another kind ({type(error).__name__})") from error
    if not isinstance(document, dict) or document.get("format") != kind:
        raise StudyFormatError(f"the file must be of the format {kind}, got another kind of file")
    return document, arrays


def _entry(name: str) -> zipfile.ZipInfo:
    """Return a zip entry with a fixed date, so that equal results give equal files."""
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
