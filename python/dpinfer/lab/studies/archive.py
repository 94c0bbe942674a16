"""Arrays and a JSON document in one zip that NumPy can read as ``.npz``, read without executing anything."""

import json
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from dpinfer.errors import StudyFormatError
from dpinfer.release.archive import pack_archive, parse_json, unpack_archive, unpack_array

__all__ = ["pack", "unpack"]

_DOCUMENT = "document.json"


def pack(document: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the content of an archive; equal content gives equal bytes.

    **Privacy.** Writes results of simulations.

    Parameters
    ----------
    document : mapping
        Plain values; numbers finite.
    arrays : mapping from name to array

    Returns
    -------
    bytes
    """
    text = json.dumps(document, allow_nan=False, sort_keys=True, indent=1)
    return pack_archive({_DOCUMENT: text, **{f"{name}.npy": array for name, array in arrays.items()}})


def unpack(content: bytes, kind: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the document and the arrays of an archive, after checking every checksum.

    **Privacy.** Results of simulations.

    Parameters
    ----------
    content : bytes
    kind : str
        Required ``format`` of the document.

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
        members = unpack_archive(content)
        document = parse_json(members.pop(_DOCUMENT))
        arrays = {
            name.removesuffix(".npy"): unpack_array(value) for name, value in members.items() if name.endswith(".npy")
        }
    except (KeyError, ValueError) as error:
        raise StudyFormatError(f"the file is damaged or of another kind ({type(error).__name__})") from error
    if document.get("format") != kind:
        raise StudyFormatError(f"the file must be of the format {kind}, got another kind of file")
    return document, arrays
