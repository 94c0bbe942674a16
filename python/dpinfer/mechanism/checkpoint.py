"""The secret file from which an interrupted private run resumes: its key, and its releases so far."""

import contextlib
import errno
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_interval
from dpinfer.errors import CheckpointError
from dpinfer.mechanism._file_lock import exclusive
from dpinfer.release.files import write_atomically

_MAGIC = b"dpinfer checkpoint 1\nSECRET: whoever reads this file can take the noise out of the release.\n"
_SECRET_BYTES = 32  # 256 bits
_MAX_DIMENSIONS = 3  # of arrays in a run's state; a hostile file must not have more; format
_SHARE = 10.0  # saving takes at most about a tenth of the run: time


@dataclass(frozen=True)
class RunRecord:
    """The content of a checkpoint.

    **Privacy.** SECRET: `key` removes the noise from all releases of the run.
    """

    description: Mapping[str, Any]  # every public setting that the run's output depends on, as JSON values
    # the run's ChaCha20 key; empty until the run begins, so that no file holds a key that is not bound to records
    # Nor does a file hold the key of a run whose question could not be read whole.
    key: bytes = field(repr=False)
    tag_key: bytes = field(repr=False)  # key of the tag of the records; empty until the run begins
    token: bytes | None = field(repr=False)  # cancels the run's charge in the ledger; None once the run has begun
    run: str  # the run's identity in the ledger
    tag: bytes | None = field(default=None, repr=False)  # keyed hash of the records; None until the run begins
    step: int = 0  # how many steps have been made
    complete: bool = False  # whether these are all steps
    whole: bool = True  # whether the question was read whole: only then the run can go on with its key
    # the released trace up to `step`, and the current state
    arrays: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)


class RunCheckpoint:
    """A file for the state of a private run, which the caller removes when the release is saved.

    Give a path in its place, and the file is removed when the run returns.  Give this object, and the file stays until
    :meth:`discard`, so that a process that dies before it has saved the release gets the same release again.

    **Privacy.** The file is SECRET, as the records are: it holds the run's key, with which the noise can be computed
    and taken out of the release.  It is made with mode 0600, holds no record, and must not be copied or backed up.

    Parameters
    ----------
    path : path-like
        A new file, or the checkpoint of the run that is to go on.
    interval : float
        Seconds between saves, and longer where saving takes long; 0 saves after every step.

    Notes
    -----
    docs/derivations/checkpoint.md proves that an interrupted and resumed run has the release of one run.
    """

    def __init__(self, path: str | os.PathLike[str], *, interval: float = 30.0) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"checkpoint must be a path or a RunCheckpoint, got {type(path).__name__}")
        self.path = Path(path)
        # The file itself: one lock and one place to save, whichever symbolic link leads there.
        self._file = Path(os.path.realpath(path))
        self.interval = check_interval("interval", interval, 0.0, low_open=False)
        self._due = 0.0

    def exists(self) -> bool:
        """Return whether there is a run to go on with."""
        return self._file.exists()

    def discard(self) -> None:
        """Remove the file, and unfinished saves of a killed process.

        **Privacy.** Removing a file does not erase its content on the disk.

        Raises OSError if it cannot be removed.
        """
        self._file.unlink(missing_ok=True)
        for leftover in self._file.parent.glob(f".{self._file.name}.*.part"):
            with contextlib.suppress(OSError):
                leftover.unlink()

    def load(self) -> RunRecord:
        """Return the file's content.

        **Privacy.** SECRET.

        Raises CheckpointError if it is not a checkpoint, is damaged, or has a second name.
        """
        with self._file.open("rb") as stream:
            if os.fstat(stream.fileno()).st_nlink > 1:
                raise CheckpointError(
                    f"checkpoint must have one name, and {str(self.path)!r} has hard links, which would keep the run's "
                    "key when the run removes it: remove the others"
                )
            return _parse(stream.read())

    def save(self, record: RunRecord) -> None:
        """Replace the file: a process that dies leaves the old one or the new one.

        **Privacy.** Writes the run's key, for the owner's eyes only.
        """
        start = time.monotonic()
        write_atomically(self._file, _content(record), mode=0o600)
        now = time.monotonic()
        self._due = now + (max(self.interval, _SHARE * (now - start)) if self.interval > 0.0 else 0.0)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Prevent other processes from resuming from this file during the block.

        **Privacy.** Reads no records.  Two runs that save to one file would overwrite each other's state. Other means
        prevent the use of one key on two data sets (docs/derivations/checkpoint.md).

        Raises CheckpointError if another process, or another run in this one, holds it.
        """
        if not self._file.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "checkpoint must be in a folder that exists", str(self.path))
        with exclusive(self._file.with_name(f".{self._file.name}.lock")) as mine:
            if not mine:
                raise CheckpointError(f"checkpoint must not be in use by another run, and {str(self.path)!r} is")
            yield

    @property
    def due(self) -> bool:
        """Whether it is time to save again."""
        return time.monotonic() >= self._due

    def __repr__(self) -> str:
        return f"RunCheckpoint({str(self.path)!r})"


def tag_of_records(key: bytes, records: Iterable[npt.NDArray[Any]]) -> bytes:
    """Return a keyed hash of the records, as the kernels read them: types, shapes and bytes.

    **Privacy.** Reads the records.  Without `key` the tag is a random number; with `key` one can test guesses of the
    whole data set.
    """
    digest = hashlib.blake2b(key=key, digest_size=_SECRET_BYTES)
    for array in records:
        digest.update(f"{array.dtype.str}{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)  # of any size, also 0
    return digest.digest()


def _content(record: RunRecord) -> bytes:
    goes_on = record.tag is not None and record.whole
    header = {
        "description": record.description,
        "key": record.key.hex() if goes_on else None,
        "tag_key": None if record.tag is None else record.tag_key.hex(),
        "token": None if record.token is None else record.token.hex(),
        "run": record.run,
        "tag": None if record.tag is None else record.tag.hex(),
        "step": record.step,
        "complete": record.complete,
        "whole": record.whole,
        "arrays": {name: list(array.shape) for name, array in record.arrays.items()},
    }
    text = json.dumps(header, allow_nan=False).encode()
    parts = [len(text).to_bytes(8, "little"), text]
    parts += [np.ascontiguousarray(array, dtype="<f8").tobytes() for array in record.arrays.values()]
    body = b"".join(parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _parse(content: bytes) -> RunRecord:
    try:
        if not content.startswith(_MAGIC):
            raise CheckpointError("checkpoint must name a new file or one of a private run, got another file")
        start = len(_MAGIC) + hashlib.sha256().digest_size
        if hashlib.sha256(content[start:]).digest() != content[len(_MAGIC) : start]:
            raise ValueError("the checksum is wrong")
        length = int.from_bytes(content[start : start + 8], "little")
        position = start + 8 + length
        header = json.loads(content[start + 8 : position])
        if len(content) < position:
            raise ValueError("the header is cut off")
        arrays = {}
        for name, shape in header["arrays"].items():
            if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError("an array has no shape")
            size = 8 * math.prod(shape)
            values = np.frombuffer(content[position : position + size], dtype="<f8")
            arrays[name] = values.reshape(shape).astype(np.float64)
            position += size
        if position != len(content):
            raise ValueError("there is more than the arrays")
        bound, whole = header["tag"] is not None, bool(header.get("whole", True))
        record = RunRecord(
            description=dict(header["description"]),
            # A key that was saved without records may have been used from a copy of the file.
            key=_secret(header["key"]) if bound and whole else b"",
            tag_key=_secret(header["tag_key"]) if bound else b"",
            token=None if header["token"] is None else _secret(header["token"]),
            run=str(header["run"]),
            tag=None if header["tag"] is None else _secret(header["tag"]),
            step=int(header["step"]),
            complete=bool(header.get("complete", False)),
            whole=whole,
            arrays=arrays,
        )
        # Either nothing can have been drawn and the charge can be cancelled, or the records are known by their tag.
        if (record.token is None) != (record.tag is not None) or record.step < 0:
            raise ValueError("the state is none of a run")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the checkpoint is damaged ({type(error).__name__})") from error
    return record


def _secret(text: str) -> bytes:
    value = bytes.fromhex(text)
    if len(value) != _SECRET_BYTES:
        raise ValueError("a key is short")
    return value


def begun(record: RunRecord, key: bytes, records: Iterable[npt.NDArray[Any]]) -> RunRecord:
    """Return the record of a run before it draws, bound to its records: it can no longer be cancelled.

    **Privacy.** Reads the records.
    """
    tag_key = os.urandom(_SECRET_BYTES)
    return replace(record, key=key, tag_key=tag_key, tag=tag_of_records(tag_key, records), token=None)


def binding(record: RunRecord) -> str:
    """Return the ledger's entry of a bound run: a hash of a random number that only this file and its copies hold.

    **Privacy.** Not computed from records or from the key of the noise.
    """
    return hashlib.sha256(b"dpinfer binding" + record.tag_key).hexdigest()
