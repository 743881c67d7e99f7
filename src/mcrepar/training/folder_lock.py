"""A folder that one process has for itself."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from mcrepar.errors import ParameterError


class FolderTaken(ParameterError):
    """Another process has the folder at this moment."""


def take(folder: Path) -> IO[str] | None:
    """A lock on a folder, held until it is closed; BlockingIOError where another process has it.

    Args:
        folder: that exists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     lock = take(Path(name))
    ...     lock is None or lock.close()
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when a process is killed
    except BlockingIOError:
        lock.close()
        raise
    return lock
