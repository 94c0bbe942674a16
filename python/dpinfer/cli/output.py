"""The output folder: checked before privacy is spent, and written file by file, each whole or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path

from dpinfer.cli.errors import CommandError, UsageError
from dpinfer.release.files import write_atomically

__all__ = ["OutputFolder"]

_RESERVE_BYTES = 4 * 2**20
_BLOCK = bytes(2**20)


class OutputFolder:
    """A folder to write results into.

    **Privacy.** Writes what it is given; callers give it releases and post-processing only.

    Parameters
    ----------
    path : path-like
        Created, with its parents, if it does not exist.
    need_bytes : int
        How much is going to be written; the folder must take that much now.
    overwrite : bool
        Whether a file that holds a release may be replaced.
    release_name : str
        The file that `overwrite` is about.

    Raises
    ------
    UsageError
        If the folder cannot be made or written to, or holds a release already.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        need_bytes: int = 0,
        overwrite: bool = True,
        release_name: str = "fit.release",
    ) -> None:
        self.path = Path(path)
        self.release_path = self.path / release_name
        self._made: list[Path] = []
        try:
            for folder in reversed((self.path, *self.path.parents)):
                if not folder.exists():
                    folder.mkdir()
                    self._made.append(folder)
            if not self.path.is_dir():
                raise NotADirectoryError(20, "it is not a folder", str(self.path))
            _try_to_write(self.path, need_bytes + _RESERVE_BYTES)
        except BaseException as error:
            self.discard_if_empty()
            if isinstance(error, OSError):
                text = f"cannot write to the output folder {str(self.path)!r}: {reason(error)}"
                raise UsageError(text) from error
            raise
        if not overwrite and self.release_path.exists():
            raise UsageError(
                f"{str(self.release_path)!r} exists and its privacy cost has been paid; "
                "choose another folder, or say --overwrite to lose it"
            )

    def write(self, name: str, content: bytes | str) -> Path:
        """Write one file, whole or not at all, and return its path.

        Parameters
        ----------
        name : str
        content : bytes or str

        Raises
        ------
        CommandError
            If the disk is full or the folder cannot be written to any more.
        """
        path = self.path / name
        try:
            write_atomically(path, content.encode("utf-8") if isinstance(content, str) else content)
        except OSError as error:
            raise CommandError(f"cannot write {str(path)!r}: {reason(error)}") from error
        return path

    def discard_if_empty(self) -> None:
        """Remove the folders that this object made, as far as they are empty."""
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()


def reason(error: OSError) -> str:
    """Return why the operating system refused, without Python's decoration."""
    return error.strerror or type(error).__name__


def _try_to_write(folder: Path, size: int) -> None:
    """Take and give back `size` bytes, so that a full disk, a quota or a file-size limit shows up now."""
    with tempfile.NamedTemporaryFile(prefix=".dpinfer-", suffix=".part", dir=folder) as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
            return
        for _ in range(-(-size // len(_BLOCK))):
            stream.write(_BLOCK)
        stream.flush()
