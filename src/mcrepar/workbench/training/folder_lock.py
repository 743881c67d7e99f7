"""A folder that one process has for itself."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from mcrepar.errors import ParameterError


class FolderTaken(ParameterError):
    """Another process has the folder at this moment."""


def take(folder: Path) -> IO[str] | None:
    """A lock on a folder, held until it is closed; BlockingIOError where another process has it.

    The lock is a file that is never emptied: where `.lock` is a link, or no plain file, it is an OSError.

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
    lock = _opened(folder / ".lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when a process is killed
    except BlockingIOError:
        lock.close()
        raise
    return lock


def _opened(path: Path) -> IO[str]:
    if path.is_symlink():
        raise OSError(errno.ELOOP, ".lock is a symbolic link, which is not followed", str(path))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, ".lock is not a plain file", str(path))
    return os.fdopen(handle, "r+")
