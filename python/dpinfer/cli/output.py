"""The output folder: checked before privacy is spent, and written file by file, each whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from dpinfer._sinks import printable
from dpinfer.cli.arguments import CommandError, UsageError, reason
from dpinfer.mechanism._file_lock import exclusive
from dpinfer.release.files import write_atomically

_RESERVE_BYTES = 4 * 2**20  # room for tables and the report besides the release
_BLOCK = bytes(2**20)  # of the trial write
_LOCK_NAME = ".dpinfer.lock"


class OutputFolder:
    """A folder to write results into, for one command at a time.

    A context manager: on exit it unlocks the folder, and removes folders that it created and that stayed empty.

    **Privacy.** Callers pass releases and post-processing only.

    Raises UsageError if the folder cannot be made or written to, is in use by another command, or holds a release
    already.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],  # created, with its parents, if it does not exist
        *,
        need_bytes: int = 0,  # size of the results; the folder must have room for them now
        overwrite: bool = True,  # whether a file that holds a release may be replaced
        release_name: str = "fit.release",  # the release's file, which `overwrite` allows to replace
    ) -> None:
        self.path = Path(path)
        self.release_path = self.path / release_name
        self._made: list[Path] = []
        self._lock = contextlib.ExitStack()
        try:
            for folder in reversed((self.path, *self.path.parents)):
                if not folder.exists():
                    folder.mkdir()
                    self._made.append(folder)
            if not self.path.is_dir():
                raise NotADirectoryError(20, "it is not a folder", str(self.path))
            if not self._lock.enter_context(exclusive(self.path / _LOCK_NAME)):
                raise UsageError(
                    f"the output folder {str(self.path)!r} is in use by another dpinfer command: wait for it, or "
                    "choose another folder"
                )
            if not overwrite and self.release_path.exists():
                raise UsageError(
                    f"{str(self.release_path)!r} exists, and its privacy cost has been paid: choose another "
                    "folder, or replace it with --overwrite"
                )
            _try_to_write(self.path, need_bytes + _RESERVE_BYTES)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                text = f"cannot write to the output folder {str(self.path)!r}: {reason(error)}"
                raise UsageError(text) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, name: str, content: bytes | str, *, lasting: bool = True) -> Path:
        """Write one file, whole or not at all, and return its path; a `lasting` one would survive a power failure.

        Raises CommandError if the disk is full or the folder cannot be written to any more.
        """
        path = self.path / name
        try:
            data = content.encode("utf-8") if isinstance(content, str) else content
            write_atomically(path, data, lasting=lasting)
        except OSError as error:
            raise CommandError(f"cannot write {str(path)!r}: {reason(error)}") from error
        return path

    def close(self) -> None:
        """Unlock the folder, and remove empty folders that this object created."""
        self._lock.close()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()


def output_folder(
    path: Path | None, *, need_bytes: int
) -> contextlib.AbstractContextManager[OutputFolder] | contextlib.AbstractContextManager[None]:
    """Return the folder of ``--out`` as a context manager, or an empty one without ``--out``."""
    return contextlib.nullcontext() if path is None else OutputFolder(path, need_bytes=need_bytes)


def files_text(paths: Iterable[Path]) -> str:
    """Return lines that name the files, for the terminal; empty without files."""
    lines = [f"  {printable(path)}\n" for path in paths]
    return "\nfiles:\n" + "".join(lines) if lines else ""


def _try_to_write(folder: Path, size: int) -> None:
    """Write and remove `size` bytes, so that a full disk, a quota or a file-size limit fails now."""
    with tempfile.NamedTemporaryFile(prefix=".dpinfer-", suffix=".part", dir=folder) as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
            return
        for _ in range(-(-size // len(_BLOCK))):
            stream.write(_BLOCK)
        stream.flush()
