"""One process at a time: a lock that its holder's death releases."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Hold a lock on a file of its own while the block runs, and remove the file; yields False if another holds it.

    A forked process that leaves the block leaves the lock and the file to its parent.
    """
    holder = os.getpid()
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _locked(handle):
            os.close(handle)
            yield False
            return
        # The previous holder may have removed the file: then the lock is on a file without a name.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)
    try:
        yield True
    finally:
        if sys.platform == "win32":
            os.close(handle)
        if os.getpid() == holder:
            with contextlib.suppress(OSError):
                path.unlink()
        if sys.platform != "win32":
            os.close(handle)


def _locked(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
