"""A folder of finished chunks: each whole or absent, and of one study only."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer.errors import StudyFormatError
from dpinfer.lab.studies.archive import pack, unpack
from dpinfer.lab.studies.run_statistics import RunStatistics
from dpinfer.release.files import write_atomically

__all__ = ["Checkpoint", "plain_settings"]

_MANIFEST = "study.json"
_FORMAT = "dpinfer-study-runs"
_FORMAT_VERSION = 1  # of the files of a study
_NAME = re.compile(r"runs-(\d{9})-(\d{9})\.npz")


def plain_settings(name: str, value: Any) -> Any:
    """Return a setting as JSON can hold it; arrays become their type, shape and hash.

    **Privacy.** No data.

    Parameters
    ----------
    name : str
        Its name in errors.
    value
        None, bool, number, string, array, or sequences and mappings of them.

    Raises
    ------
    TypeError, ValueError
        If it is something else, or a number is not finite.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return plain_settings(name, value.item())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if not np.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "sha256": digest}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_settings(f"{name}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain_settings(f"{name}[{index}]", item) for index, item in enumerate(value)]
    raise TypeError(f"{name} must be plain values or arrays of numbers, got {type(value).__name__}")


class Checkpoint:
    """Finished runs of one study in a folder.

    **Privacy.** Results of simulations.

    Parameters
    ----------
    folder : path-like
        Made, with its parents, if it does not exist.
    description : mapping
        Everything that a result depends on, as plain values.

    Raises
    ------
    TypeError
        If `folder` is not a path.
    ValueError
        If the folder holds another study.
    OSError
        If the folder cannot be made or read.
    """

    def __init__(self, folder: str | os.PathLike[str], description: Mapping[str, Any]) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"checkpoint must be a path, got {type(folder).__name__}")
        self._folder = Path(folder)
        self._description = dict(description)
        text = json.dumps(self._description, allow_nan=False, sort_keys=True)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_manifest()

    def stored(self) -> list[tuple[int, int]]:
        """Return first and past-the-end run of every file, by first run, without their content."""
        matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in matches if match)

    def read(self, first: int, stop: int) -> RunStatistics | None:
        """Return the runs of a file, or None if the file is damaged.

        Raises
        ------
        ValueError
            If the file belongs to another study.
        """
        try:
            document, arrays = unpack(self._path(first, stop).read_bytes(), _FORMAT)
        except (OSError, StudyFormatError):
            return None
        if document.get("fingerprint") != self.fingerprint:
            raise ValueError(self._refusal("its runs were made with other settings or another version"))
        try:
            runs = RunStatistics(**arrays, n_draws=int(document["n_draws"]))
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        whole = (document.get("first"), document.get("stop")) == (first, stop) and runs.n_runs == stop - first
        return runs if whole else None

    def write(self, first: int, runs: RunStatistics) -> None:
        """Write runs that start at `first`, whole or not at all.

        Raises
        ------
        OSError
            If the folder cannot be written to, or the disk is full.
        """
        stop = first + runs.n_runs
        document = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "first": first,
            "stop": stop,
            "n_draws": runs.n_draws,
        }
        write_atomically(self._path(first, stop), pack(document, runs.arrays))

    def _path(self, first: int, stop: int) -> Path:
        return self._folder / f"runs-{first:09d}-{stop:09d}.npz"

    def _check_manifest(self) -> None:
        path = self._folder / _MANIFEST
        manifest: Any = None
        with contextlib.suppress(FileNotFoundError, RecursionError, ValueError):
            manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and isinstance(manifest.get("study"), dict):
            if manifest["study"] == self._description and manifest.get("version") == _FORMAT_VERSION:
                return
            there, here = manifest["study"], self._description
            differing = sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))
            raise ValueError(self._refusal(f"it differs in {', '.join(differing) or 'the version of its format'}"))
        # A missing or unreadable manifest has no effect; every file of runs has the fingerprint too.
        document = {"version": _FORMAT_VERSION, "study": self._description}
        write_atomically(path, json.dumps(document, allow_nan=False, sort_keys=True, indent=1).encode())

    def _refusal(self, why: str) -> str:
        return f"checkpoint must be a new folder or one of this study, got {str(self._folder)!r}: {why}"
